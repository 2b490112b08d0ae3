"""Turns of persistent kernels, whose work-groups wait for each other.

If two such kernels ran at once, each could occupy a part of the device, and wait for ever for the
rest. So in each context they run one after the other, on whichever streams they are.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from dnncore.backend import locked
from dnncore_opencl.devices.handles import handles, locks

_of_contexts: weakref.WeakValueDictionary[int, Turns] = weakref.WeakValueDictionary()
_lock = threading.RLock()  # one for all contexts: launches of persistent kernels are rare
locks.append(_lock)


@handles("_event")
class Turns:
    """The turns of one context. Its engines share them."""

    def __init__(self) -> None:
        self._event: Any = None

    def launch(self, queue: Any, enqueue: Callable[[Sequence[Any]], Any]) -> Any:
        """Return the pyopencl event of a launch: `enqueue(events)`, which waits for these."""
        return locked(_lock, self._launch, queue, enqueue)

    def _launch(self, queue: Any, enqueue: Callable[[Sequence[Any]], Any]) -> Any:
        is_over = self._event is None or self._event.command_execution_status <= 0
        self._event = enqueue(() if is_over else (self._event,))
        queue.flush()  # the next one may be on another queue
        return self._event


def turns_of(context: Any) -> Turns:
    """Return the turns of a pyopencl context."""
    return locked(_lock, _turns_of, context.int_ptr)


def _turns_of(key: int) -> Turns:
    found = _of_contexts.get(key)
    if found is None:
        found = _of_contexts[key] = Turns()
    return found
