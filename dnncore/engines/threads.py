"""The number of threads of the CPU's implementations: one number for the whole process.

A primitive descriptor keeps the thread count set at its creation. While its implementations are
selected and built, `get_num_threads` returns that count, even if another thread of the program sets
a new one.
"""

from __future__ import annotations

import contextvars
import os
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from dnncore.engines.processors import available_processors
from dnncore.errors import DescriptorError

__all__ = ["get_num_threads", "set_num_threads", "with_num_threads"]

T = TypeVar("T")

VARIABLE = "DNNCORE_NUM_THREADS"
MOST = 1024  # each thread has a stack, and no larger group of processors shares fast memory


class _State:
    """The count of the process."""

    def __init__(self) -> None:
        self.count = 0  # not yet known


_state = _State()
_of_descriptor: contextvars.ContextVar[int] = contextvars.ContextVar("num_threads", default=0)


def get_num_threads() -> int:
    """Return the number of threads of the CPU's implementations; see `set_num_threads`.

    Raises `DescriptorError` if `DNNCORE_NUM_THREADS` is not a valid number of threads.
    """
    pinned = _of_descriptor.get()
    if pinned:
        return pinned
    if not _state.count:
        _state.count = _initial()
    return _state.count


def set_num_threads(count: int) -> None:
    """Set the number of CPU threads for primitives that are created from now on, 1 to 1024.

    The default is `DNNCORE_NUM_THREADS`, else the number of processors that this process may use by
    its affinity and its control groups, but not more than `OMP_NUM_THREADS`. Existing primitive
    descriptors, primitives and bound calls keep their number. The number applies to all Python
    threads. If it exceeds the number of processors, work is divided into more parts, but cpu_numba
    runs one thread per processor.

    Raises `DescriptorError` for other values.
    """
    _state.count = _checked("the number of threads", count)


def with_num_threads(count: int, function: Callable[..., T], *arguments: Any) -> T:
    """Return `function(*arguments)`. During the call, this Python thread uses `count` threads.

    The count is set in a copy of the context. So it ends with the call, even if the call is
    interrupted.
    """
    return contextvars.copy_context().run(_call_with, count, function, arguments)


def _call_with(count: int, function: Callable[..., T], arguments: tuple[Any, ...]) -> T:
    _of_descriptor.set(count)
    return function(*arguments)


def _initial() -> int:
    text = os.environ.get(VARIABLE, "")
    if not text:
        return min(available_processors(), _wish_for_all(), MOST)
    return _checked(VARIABLE, int(text) if text.isascii() and text.isdecimal() else text)


def _wish_for_all() -> int:
    """Return `OMP_NUM_THREADS`, which limits the threads of many libraries, if positive."""
    text = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(text) if text.isascii() and text.isdecimal() and int(text) else MOST


def _checked(what: str, count: object) -> int:
    if not isinstance(count, int | np.integer) or count is True or not 1 <= count <= MOST:
        raise DescriptorError(
            f"{what} must be a whole number from 1 to {MOST}; got {count!r}; leave it unset for one"
            " per processor"
        )
    return int(count)
