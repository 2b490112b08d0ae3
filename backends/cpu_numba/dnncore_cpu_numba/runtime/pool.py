"""The pool: the threads that help a caller with the parallel steps of its programs.

They are Python threads that run native code without the interpreter's lock. A helper looks for work
until there has been none for a while. Then it waits on its own lock. A launch costs 0.1 us where
numba's OpenMP and TBB layers cost 0.7 and 1.0 (50 steps in one program, 2 cores); nothing has to be
installed, several callers may launch at once, and a forked child starts helpers of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
import threading
import warnings
from array import array
from collections.abc import Callable

from numba.core.compiler_lock import global_compiler_lock

from dnncore_cpu_numba.runtime.driver import STATE, run_program, wait_for_work

_CACHE_LINE = 64  # bytes
_PATIENCE = 20_000  # looks before a helper goes to sleep: a quarter of a millisecond or more


class Pool:
    """Helpers for all programs of the process; started when they are first needed.

    run: the native function that runs the program at an address.
    asleep: functions that wake the helpers that sleep, or start them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._helpers = 0
        self._memory = array("q", bytes(STATE.nbytes + _CACHE_LINE))
        start = self._memory.buffer_info()[0]
        self.state = start + -start % _CACHE_LINE
        # ctypes passes an int as void * a third faster than as int64
        self.run = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(run_program.address)
        self._wait_for_work = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(
            wait_for_work.address
        )
        self.asleep: list[Callable[[], object]] = []
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._start_afresh)

    def need(self, helpers: int) -> None:
        """Provide at least this number of helpers."""
        with self._lock:
            while self._helpers < helpers:
                self._helpers += 1
                self.asleep.append(self._new_helper())

    def wake(self, helpers: int) -> None:
        """Wake at most this number of helpers, and do not wait until they look for work."""
        for _ in range(helpers):
            try:
                wake = self.asleep.pop()
            except IndexError:  # all are awake
                return
            wake()

    def _new_helper(self) -> Callable[[], None]:
        thread = threading.Thread(target=self._help, name="dnncore", daemon=True)

        def start() -> None:
            try:
                thread.start()
            except RuntimeError as error:  # the others, and the caller, do its part
                warnings.warn(f"cpu_numba: a thread less: {error}", RuntimeWarning, stacklevel=4)

        return start

    def _help(self) -> None:
        alarm = threading.Lock()
        alarm.acquire()
        wake = functools.partial(_wake, threading.get_native_id(), alarm)
        while True:
            self._wait_for_work(self.state, _PATIENCE)
            self.asleep.append(wake)
            alarm.acquire()

    def _start_afresh(self) -> None:
        """Reset a forked child: it has no helper threads, and a launch may be incomplete."""
        self._lock = threading.Lock()
        self._memory[:] = array("q", bytes(8 * len(self._memory)))
        self.asleep[:] = [self._new_helper() for _ in range(self._helpers)]


def _wake(thread: int, alarm: threading.Lock) -> None:
    """Wake a helper on another processor than the caller's.

    Linux wakes a thread on the processor of its waker, and may keep both there for milliseconds.
    """
    if _current_cpu is not None:
        others = os.sched_getaffinity(0) - {_current_cpu()}
        with contextlib.suppress(OSError):  # it may run where it is, too
            if others:
                os.sched_setaffinity(thread, others)
    alarm.release()


_current_cpu = getattr(ctypes.CDLL(None), "sched_getcpu", None) if sys.platform == "linux" else None


_made: list[Pool] = []


def pool() -> Pool:
    """The pool of the process."""
    if not _made:
        with global_compiler_lock:  # held by forks, too
            if not _made:
                _made.append(Pool())
    return _made[0]
