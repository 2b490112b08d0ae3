"""Observers: who is told of choices, creations and errors, and may stand around every launch.

Verbose lines are one; whatever else records or checks a running program is another:

    observers.add(observer)        # from here on it watches, also what lives already
    observers.remove(observer)

Every primitive, bound call and sequence has one slot that holds what its launches call. Adding or
removing an observer has all that live fill their slots anew, so that a launch asks nobody whether
it is watched, and nothing of an observer stays behind. Executables, which the primitive cache
shares, know nothing of this.
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
    """Base of observers; each method is called in the thread where the thing happens."""

    def watch(self, primitive: Primitive, memories: Sequence[Memory], run: Run) -> Run:
        """Give what is to be called in the place of `run`: `run` itself where that is all.

        memories: one for each of the primitive descriptor's `arguments`.
        """
        return run

    def selected(self, request: Request, selection: Selection) -> None:
        """Implementations were asked for a problem; `selection` has their answers."""

    def created(self, pd: PrimitiveDesc, origin: str, seconds: float) -> None:
        """A primitive was made. origin: "cache_miss" when built, "cache_hit", or "from_disk"."""

    def raised(self, error: Exception) -> None:
        """An error or a warning of this library was made; its message is complete."""

    def remarked(self, engine: Engine, text: str) -> None:
        """A backend told what its choices on `engine` rest on."""


class Slot(Protocol):
    """What holds a run and can take up the present observers."""

    def refill(self) -> None:
        """Forget the run that was watched by those before."""


active: tuple[Observer, ...] = ()
"""All observers, the first added closest to the launch; replaced as a whole, never changed."""

_lock = threading.RLock()
hold_at_fork(_lock, INNERMOST)
_slots: weakref.WeakSet[Slot] = weakref.WeakSet()


def add(observer: Observer) -> None:
    """Have `observer` watch everything, until it is removed."""
    with _lock:
        _replace((*active, observer))


def remove(observer: Observer) -> None:
    """Have `observer` watch nothing any more; one that does not watch is no error."""
    with _lock:
        _replace(tuple(other for other in active if other is not observer))


def remark(engine: Engine, text: str) -> None:
    """Tell all observers, in one line, what choices on `engine` rest on; backends call it."""
    for observer in active:
        observer.remarked(engine, text)


def fill(slot: Slot) -> None:
    """Fill the slot of something new, now and whenever the observers change while it lives."""
    with _lock:
        _slots.add(slot)
        slot.refill()


def watched(primitive: Primitive, memories: Sequence[Memory], run: Run) -> Run:
    """The run with every observer around it."""
    for observer in active:
        run = observer.watch(primitive, memories, run)
    return run


def _replace(observers: tuple[Observer, ...]) -> None:
    global active  # noqa: PLW0603 - a module's attribute is the quickest to ask
    active = observers
    for slot in tuple(_slots):
        slot.refill()
