"""How many threads the CPU's implementations use: one number for the whole process.

What a primitive descriptor is made for it keeps: while implementations are asked and built for it,
`get_num_threads` answers with the number that held when it was made, whatever other threads of the
program set meanwhile.
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
MOST = 1024  # each has a stack; no more processors than these share a memory that is fast for all


class _State:
    """The number for the process, and for a Python thread that works for a descriptor."""

    def __init__(self) -> None:
        self.count = 0  # not yet known
        self.of_thread = threading.local()


_state = _State()


def get_num_threads() -> int:
    """The number of threads that the CPU's implementations use; see `set_num_threads`.

    Raises `DescriptorError` when `DNNCORE_NUM_THREADS` is no number of threads.
    """
    pinned: int = getattr(_state.of_thread, "count", 0)
    if pinned:
        return pinned
    if not _state.count:
        _state.count = _initial()
    return _state.count


def set_num_threads(count: int) -> None:
    """Let primitives that are made from now on use up to `count` threads of the CPU, 1 to 1024.

    At first it is `DNNCORE_NUM_THREADS`, else the processors that this process may use. Primitive
    descriptors, primitives and bound calls that exist keep the number that they were made with. It
    holds for all Python threads. More than there are processors is allowed, and slower.

    Raises `DescriptorError` for anything else.
    """
    _state.count = _checked("the number of threads", count)


@contextmanager
def num_threads_of(count: int) -> Iterator[None]:
    """Let this Python thread see another number, inside a `with` block."""
    before = getattr(_state.of_thread, "count", 0)
    _state.of_thread.count = count
    try:
        yield
    finally:
        _state.of_thread.count = before


def available() -> int:
    """The processors that this process may use."""
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
