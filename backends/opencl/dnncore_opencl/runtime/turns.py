"""Turns of persistent kernels, whose work-groups wait for each other.

If two such kernels ran at once, each could occupy a part of the device, and wait for ever for the
rest. So in each context they run in the order of their launches, on whichever streams they are.
Drivers run kernels of different contexts one after the other.

A launch that waits for an event holds up all later launches of persistent kernels. A program that
cannot accept this chooses the knob `persistent:no`.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from dnncore.backend import locked
from dnncore_opencl.devices.discovery import pyopencl
from dnncore_opencl.devices.handles import handles, locks

Enqueue = Callable[[Sequence[Any]], Any]
"""Queues a launch behind pyopencl events, and returns its pyopencl event."""

_of_contexts: weakref.WeakValueDictionary[int, Turns] = weakref.WeakValueDictionary()
_busy: set[Turns] = set()  # these outlive their engines, because their launches do
_lock = threading.RLock()
locks.append(_lock)
if hasattr(os, "register_at_fork"):  # another thread of the parent may hold the lock
    os.register_at_fork(after_in_child=_lock._at_fork_reinit)  # type: ignore[attr-defined]


@handles("event")
class _Turn:
    """A launch on a queue. event: None until the launch is queued."""

    def __init__(self, queue: Any) -> None:
        self.queue = queue
        self.event: Any = None

    @property
    def is_over(self) -> bool:
        """Whether the launch has ended or failed, or its device is lost."""
        if self.event is None:
            return False
        try:
            return bool(self.event.command_execution_status <= 0)
        except pyopencl().Error:
            return True

    def end(self) -> Any:
        """Return an event for other queues.

        An interrupted launch may be queued without its event. Then the event is a marker after all
        commands of the queue.
        """
        if self.event is None:
            self.event = pyopencl().enqueue_marker(self.queue)
        self.queue.flush()
        return self.event


class Turns:
    """The turns of one context. Its engines share them."""

    def __init__(self) -> None:
        self._turns: list[_Turn] = []
        self._entered: _Turn | None = None

    def launch(self, queue: Any, enqueue: Enqueue, *, is_in_order: bool) -> Any:
        """Launch a persistent kernel after all others. Return its pyopencl event."""
        return locked(_lock, self._launch, queue, enqueue, is_in_order)

    def _launch(self, queue: Any, enqueue: Enqueue, is_in_order: bool) -> Any:
        outer = self._entered  # the launch that a signal handler has interrupted
        self.tidy()
        own = next((turn for turn in self._turns if is_in_order and turn.queue == queue), None)
        before = [turn.end() for turn in self._turns if turn is not own]
        if own is None:
            own = _Turn(queue)
            self._turns.append(own)
        _busy.add(self)
        self._entered, own.event = own, None
        try:
            event = own.event = enqueue(before)
        finally:
            self._entered = outer
        if outer is not None and outer is not own:
            event.wait()  # the other launch may not be queued yet
        return event

    def tidy(self) -> None:
        """Forget the launches that have ended."""
        self._turns = [turn for turn in self._turns if not turn.is_over]
        if not self._turns:
            _busy.discard(self)


def turns_of(context: Any) -> Turns:
    """Return the turns of a pyopencl context."""
    return locked(_lock, _turns_of, context.int_ptr)


def _turns_of(key: int) -> Turns:
    for turns in _busy.copy():
        turns.tidy()
    found = _of_contexts.get(key)
    if found is None:
        found = _of_contexts[key] = Turns()
    return found
