"""Observers: objects that are notified of selections, creations and errors, and may wrap launches.

Verbose lines are written by an observer. Other observers may record or check a running program:

    observers.add(observer)        # it watches new and existing primitives from here on
    observers.remove(observer)

Every primitive, bound call and sequence has one slot that holds the function its launches call.
When an observer is added or removed, all these objects fill their slots again. A launch therefore
does not check whether it is watched, and nothing of a removed observer remains. Executables, which
primitives share through the primitive cache, do not refer to observers.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from dnncore.forking import INNERMOST, hold_at_fork

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
        """Return the function to call in place of `run`; `run` itself if nothing is to be added.

        memories: one per entry of the primitive descriptor's `arguments`.
        """
        return run

    def selected(self, request: Request, selection: Selection) -> None:
        """Implementations were asked for a problem; `selection` holds their answers."""

    def created(self, pd: PrimitiveDesc, origin: str, seconds: float) -> None:
        """A primitive was created. origin: "cache_miss" if built, "cache_hit", or "from_disk"."""

    def raised(self, error: Exception) -> None:
        """An error or a warning of this library was created; its message is complete."""

    def remarked(self, engine: Engine, text: str) -> None:
        """A backend reported the basis of its choices on `engine`."""


class Slot(Protocol):
    """An object that holds a run and can add the present observers to it."""

    def refill(self) -> None:
        """Drop the run that holds the former observers."""


active: tuple[Observer, ...] = ()
"""All observers, the first added closest to the launch; the tuple is replaced, never changed."""

_lock = threading.RLock()
hold_at_fork(_lock, INNERMOST)
_slots: weakref.WeakSet[Slot] = weakref.WeakSet()


def add(observer: Observer) -> None:
    """Let `observer` watch everything until it is removed."""
    with _lock:
        _replace((*active, observer))


def remove(observer: Observer) -> None:
    """Stop `observer` from watching; it is no error if it does not watch."""
    with _lock:
        _replace(tuple(other for other in active if other is not observer))


def remark(engine: Engine, text: str) -> None:
    """Report to all observers, in one line, the basis of choices on `engine`; backends call it."""
    for observer in active:
        observer.remarked(engine, text)


def fill(slot: Slot) -> None:
    """Fill the slot of a new object, now and at each change of the observers while it lives."""
    with _lock:
        _slots.add(slot)
        slot.refill()


def watched(primitive: Primitive, memories: Sequence[Memory], run: Run) -> Run:
    """The run, wrapped by every observer."""
    for observer in active:
        run = observer.watch(primitive, memories, run)
    return run


def _replace(observers: tuple[Observer, ...]) -> None:
    global active  # noqa: PLW0603 - a module's attribute is the quickest to read
    active = observers
    for slot in tuple(_slots):
        slot.refill()
