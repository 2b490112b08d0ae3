"""The number of threads of the CPU's implementations: one number for the whole process.

A primitive descriptor keeps the thread count set at its creation. While implementations are asked
and built for it, `get_num_threads` returns that number, even if another thread of the program sets
a new one.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from dnncore.errors import DescriptorError

__all__ = ["available", "get_num_threads", "num_threads_of", "set_num_threads"]

VARIABLE = "DNNCORE_NUM_THREADS"
MOST = 1024  # each thread has a stack; no larger group of processors shares fast memory


class _State:
    """The count of the process, and that of a Python thread that works for a descriptor."""

    def __init__(self) -> None:
        self.count = 0  # not yet known
        self.of_thread = threading.local()


_state = _State()


def get_num_threads() -> int:
    """Return the number of threads of the CPU's implementations; see `set_num_threads`.

    Raises `DescriptorError` if `DNNCORE_NUM_THREADS` is not a valid number of threads.
    """
    pinned: int = getattr(_state.of_thread, "count", 0)
    if pinned:
        return pinned
    if not _state.count:
        _state.count = _initial()
    return _state.count


def set_num_threads(count: int) -> None:
    """Let primitives that are made from now on use up to `count` threads of the CPU, 1 to 1024.

    The default is `DNNCORE_NUM_THREADS`, else the number of processors that this process may use.
    Existing primitive descriptors, primitives and bound calls keep their number. The number holds
    for all Python threads. A number above that of the processors is allowed, and slower.

    Raises `DescriptorError` for other values.
    """
    _state.count = _checked("the number of threads", count)


@contextmanager
def num_threads_of(count: int) -> Iterator[None]:
    """Set another number for this Python thread, inside a `with` block."""
    before = getattr(_state.of_thread, "count", 0)
    _state.of_thread.count = count
    try:
        yield
    finally:
        _state.of_thread.count = before


def available() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _initial() -> int:
    text = os.environ.get(VARIABLE, "")
    if not text:
        return min(available(), MOST)
    return _checked(VARIABLE, int(text) if text.isascii() and text.isdecimal() else text)


def _checked(what: str, count: object) -> int:
    if not isinstance(count, int | np.integer) or count is True or not 1 <= count <= MOST:
        raise DescriptorError(
            f"{what} must be a whole number from 1 to {MOST}; got {count!r}; leave it unset for one"
            " per processor"
        )
    return int(count)
