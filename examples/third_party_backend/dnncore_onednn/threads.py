"""The number of threads with which oneDNN computes a call, and forked processes.

OpenMP stores the number of threads per calling thread. oneDNN reads the number when it makes a
primitive descriptor and when it executes. In other runtimes, the number is fixed.

A forked process lacks the threads of a runtime, but the runtime would wait for them. So in a forked
process, OpenMP uses one thread, and the other runtimes are refused.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any, TypeVar

from dnncore.backend import available_processors
from dnncore_onednn.library import Library

__all__ = ["Threads"]

T = TypeVar("T")

OPENMP, SEQUENTIAL = "OpenMP", "sequential"


class Threads:
    """The threads of a library. `present()` is the number for the calling thread.

    is_forked: whether this process was forked after the library was loaded.
    """

    def __init__(self, library: Library) -> None:
        self.library = library
        self.is_forked = False
        self._most = available_processors()
        if library.runtime == OPENMP:
            # PyDLL keeps the GIL, which is faster for calls of some nanoseconds.
            functions = ctypes.PyDLL(None, handle=library.functions._handle)
            self.present: Callable[[], int] = functions.omp_get_max_threads
            self._set: Callable[[int], object] = functions.omp_set_num_threads
        else:
            fixed = 1 if library.runtime == SEQUENTIAL else self._most
            self.present = lambda: fixed
        os.register_at_fork(after_in_child=self._note_fork)

    def _note_fork(self) -> None:
        self.is_forked = True

    def count(self, wanted: int) -> int:
        """The number of threads of a primitive that may use up to `wanted`."""
        if self.library.runtime != OPENMP:
            return self.present()
        return 1 if self.is_forked else min(wanted, self._most)

    def refusal(self, wanted: int) -> str | None:
        """Why the library cannot compute with up to `wanted` threads in this process, or None."""
        runtime = self.library.runtime
        if runtime in (OPENMP, SEQUENTIAL):
            return None
        if self.is_forked:
            return f"the threads of its runtime, {runtime}, do not exist in a forked process"
        if wanted < self._most:
            return f"its runtime, {runtime}, uses {self._most} threads; got num_threads {wanted}"
        return None

    def call_with(self, count: int, function: Callable[..., T], *arguments: Any) -> T:
        """Return `function(*arguments)`. During the call, OpenMP uses this number of threads."""
        before = self.present()
        if before == count:
            return function(*arguments)
        self._set(count)
        try:
            return function(*arguments)
        finally:
            self._set(before)
