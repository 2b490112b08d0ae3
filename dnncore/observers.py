"""Observers: objects that are notified of selections, creations and errors, and may wrap launches.

An observer writes the verbose lines. Other observers may record or check a running program:

    observers.add(observer)        # it watches new and existing primitives from now on
    observers.remove(observer)

Every primitive, bound call and sequence has one slot for the function that its launches call. If an
observer is added or removed, all slots are filled again. So a launch does not check whether there
are observers, and no reference to a removed observer remains. Executables, which primitives share
through the primitive cache, do not refer to observers.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from dnncore.forking import INNERMOST, hold_at_fork
from dnncore.interrupts import after_work, holding

if TYPE_CHECKING:
    from dnncore.backend import Run
    from dnncore.engines.engine import Engine
    from dnncore.engines.memory import Memory
    from dnncore.execution.primitive import Primitive
    from dnncore.selection.primitive_desc import PrimitiveDesc
    from dnncore.selection.ranking import Request, Selection

__all__ = ["Observer", "Slot", "add", "fill", "remark", "remove", "watched"]


class Observer:
    """Base of observers; each method is called in the thread that causes the event."""

    def watch(self, primitive: Primitive, memories: Sequence[Memory], run: Run) -> Run:
        """Return the function that launches call instead of `run`, or `run` itself.

        memories: one per entry of the primitive descriptor's `arguments`.
        """
        return run

    def selected(self, request: Request, selection: Selection) -> None:
        """Implementations were selected for a problem. `selection` has candidates and refusals."""

    def created(self, pd: PrimitiveDesc, origin: str, seconds: float) -> None:
        """A primitive was created. origin: "cache_miss" if built, "cache_hit" or "from_disk"."""

    def raised(self, error: Exception) -> None:
        """An error or a warning of this library was created; its message is complete."""

    def remarked(self, engine: Engine, text: str) -> None:
        """A backend called `remark`."""


class Slot(Protocol):
    """An object with a run, which the present observers may wrap."""

    def refill(self) -> None:
        """Replace the run, or drop it until the next launch, because the observers changed."""


active: tuple[Observer, ...] = ()
"""All observers. The first one wraps the launch innermost. Changes replace the tuple."""

_lock = threading.RLock()
hold_at_fork(_lock, INNERMOST)
_slots: weakref.WeakSet[Slot] = weakref.WeakSet()


@holding(_lock)
def add(observer: Observer) -> None:
    """Notify `observer` of events until it is removed."""
    _replace((*active, observer))


@holding(_lock)
def remove(observer: Observer) -> None:
    """Stop notifying `observer`. It need not have been added."""
    _replace(tuple(other for other in active if other is not observer))


def remark(engine: Engine, text: str) -> None:
    """Report one line about the choices on `engine` to all observers. Backends call this."""
    for observer in active:
        after_work(observer.remarked, engine, text)


@holding(_lock)
def fill(slot: Slot) -> None:
    """Fill the slot of a new object now, and again at each change of the observers."""
    _slots.add(slot)
    slot.refill()


def watched(primitive: Primitive, memories: Sequence[Memory], run: Run) -> Run:
    """Return the run, wrapped by every observer."""
    for observer in active:
        run = observer.watch(primitive, memories, run)
    return run


def _replace(observers: tuple[Observer, ...]) -> None:
    global active  # noqa: PLW0603 - a module's attribute is the quickest to read
    active = observers
    for slot in tuple(_slots):
        slot.refill()
