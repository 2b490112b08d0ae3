"""Buffers with an owner. Each buffer is passed to its engine's `free` exactly once.

Python may collect garbage at any place of a program, even while a thread runs the engine's code and
holds its locks. So if a garbage collection finds a buffer's owner, the buffer is freed when the
program next allocates or maps a memory. If the last reference to the owner is dropped, the buffer
is freed at once.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import warnings
import weakref
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any

from dnncore.errors import ExecutionError, PluginWarning, describe

if TYPE_CHECKING:
    from dnncore.engines.engine import Engine

__all__ = ["Allocation", "free_collected"]

_collected: deque[tuple[Engine, Any]] = deque()

# The last key is the current phase of the collector. A method in C moves it, because signal
# handlers would run in a Python function, and the collector would suppress their errors.
_phases = OrderedDict.fromkeys(("start", "stop"))
gc.callbacks.append(_phases.move_to_end)  # type: ignore[arg-type]  # called with (phase, details)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=functools.partial(_phases.move_to_end, "stop"))


class Allocation:
    """A new buffer of at least `nbytes` bytes, which is freed with this object.

    A user of `buffer` must keep this object. If the engine is out of memory, garbage is collected
    first, because reference cycles may hold memories. Raises `ExecutionError` if there is still not
    enough memory.
    """

    __slots__ = ("__weakref__", "buffer")

    def __init__(self, engine: Engine, nbytes: int) -> None:
        free_collected()
        self.buffer: Any = _allocated(engine, nbytes)
        weakref.finalize(self, _release, engine, self.buffer).atexit = False


def free_collected() -> None:
    """Free the buffers whose owners were found by garbage collections."""
    while _collected and not _is_collecting():
        with contextlib.suppress(IndexError):  # another thread also frees
            _free(*_collected.popleft())


def _allocated(engine: Engine, nbytes: int) -> Any:
    with contextlib.suppress(ExecutionError):
        return engine.allocate(nbytes)
    gc.collect()
    free_collected()
    return engine.allocate(nbytes)


def _release(engine: Engine, buffer: Any) -> None:
    if _is_collecting():
        _collected.append((engine, buffer))
    else:
        _free(engine, buffer)


def _free(engine: Engine, buffer: Any) -> None:
    try:
        engine.free(buffer)
    except Exception as error:
        text = f"{engine.name}: free must not raise; it raised {describe(error)}"
        warnings.warn(text, PluginWarning, stacklevel=2)


def _is_collecting() -> bool:
    """Whether this thread, or meanwhile another thread, is collecting garbage."""
    # The list is made by one call in C. Between two calls, another thread could move a key.
    return list(_phases)[-1] == "start"
