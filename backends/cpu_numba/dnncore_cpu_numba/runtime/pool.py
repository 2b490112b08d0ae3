"""The pool: threads, called helpers, that compute parts of the parallel steps of programs.

Helpers are Python threads that run native code without the interpreter's lock. A helper polls for
work until there has been none for a while. Then it waits on its lock. A launch costs 0.1 us; with
numba's OpenMP and TBB layers it costs 0.7 and 1.0 us (50 steps in one program, 2 cores). No
installation is needed, several callers may launch at once, and a forked child starts new helpers.

A helper adds itself to the list of sleeping helpers, and removes itself when it wakes up. A caller
only reads the list. No helper is lost if the caller is interrupted at any point.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
import warnings
from array import array

from numba.core.compiler_lock import global_compiler_lock

from dnncore.backend import available_processors, locked, uninterrupted
from dnncore_cpu_numba.codegen import native
from dnncore_cpu_numba.runtime.driver import (
    STATE,
    continue_program,
    run_program,
    wait_for_work,
)

_CACHE_LINE = 64  # bytes
_PATIENCE = 20_000  # polls before a helper sleeps: at least a quarter of a millisecond


class Pool:
    """Helpers for all programs of the process; started when they are first needed.

    run: the native function that runs the program at an address. It returns 0, or after a while the
        row to go on with. go_on: continues a program at a row.
    asleep: the helpers that sleep or have not started.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._helpers = 0
        self._memory = array("q", bytes(STATE.nbytes + _CACHE_LINE))
        start = self._memory.buffer_info()[0]
        self.state = start + -start % _CACHE_LINE
        with native.keeping() as self._code:  # otherwise the first program would own this code
            # ctypes passes an int as a void pointer a third faster than as int64
            self.run = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_void_p)(run_program.address)
            self.go_on = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_void_p, ctypes.c_int64)(
                continue_program.address
            )
            self._wait_for_work = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(
                wait_for_work.address
            )
        self.asleep: list[_Helper] = []
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._start_afresh)

    def need(self, helpers: int) -> None:
        """Provide this number of helpers, at most one for each processor but the caller's.

        More helpers would wait for each other, and callers would wait for them.
        """
        locked(self._lock, self._need, min(helpers, available_processors() - 1))

    def _need(self, helpers: int) -> None:
        while self._helpers < helpers:
            self.asleep.append(_Helper(self))
            self._helpers += 1

    def wake(self, helpers: int) -> None:
        """Wake at most this number of helpers. Does not wait until they poll for work."""
        for helper in self.asleep[-helpers:] if helpers else ():
            helper.wake()

    def wait_for_work(self) -> None:
        """Compute parts of programs until there has been no work for a while."""
        self._wait_for_work(self.state, _PATIENCE)

    def _start_afresh(self) -> None:
        """Reset a forked child: it has no helper threads, and a launch may be incomplete."""
        self._lock = threading.RLock()
        self._memory[:] = array("q", bytes(8 * len(self._memory)))
        self.asleep[:] = [_Helper(self) for _ in range(self._helpers)]


class _Helper:
    """A thread that computes parts of programs when it is woken, and sleeps otherwise."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._thread: int | None = None  # native id of the thread, None before it runs
        self._claim = threading.Lock()  # held by the thread of this helper
        self._alarm = threading.Lock()  # released to wake the helper, acquired to sleep
        self._alarm.acquire()

    def wake(self) -> None:
        """Wake or start the helper, unless another caller has just done so."""
        if self._thread is None:
            self._start()
        elif self._alarm.locked():
            _move_away(self._thread)
            with contextlib.suppress(RuntimeError):  # another caller was faster
                self._alarm.release()

    def _start(self) -> None:
        try:
            threading.Thread(target=self._help, name="dnncore", daemon=True).start()
        except RuntimeError as error:  # the caller and the other helpers do the work
            with contextlib.suppress(ValueError):
                self._pool.asleep.remove(self)
            if threading.main_thread().is_alive():  # no thread can start while the process ends
                warnings.warn(f"cpu_numba: a thread less: {error}", RuntimeWarning, stacklevel=5)

    def _help(self) -> None:
        if not self._claim.acquire(blocking=False):  # started twice
            return
        self._thread = threading.get_native_id()
        asleep = self._pool.asleep
        while True:
            asleep.remove(self)
            self._pool.wait_for_work()
            asleep.append(self)
            self._alarm.acquire()


def _move_away(thread: int) -> None:
    """Restrict a thread to processors other than the caller's.

    Linux wakes a thread on the processor of the thread that wakes it, and may keep both there for
    milliseconds.
    """
    if _current_cpu is not None:
        others = os.sched_getaffinity(0) - {_current_cpu()}
        with contextlib.suppress(OSError):  # this is only an optimisation
            if others:
                os.sched_setaffinity(thread, others)


_current_cpu = getattr(ctypes.CDLL(None), "sched_getcpu", None) if sys.platform == "linux" else None


_made: list[Pool] = []


def pool() -> Pool:
    """Return the pool of the process."""
    if not _made:
        uninterrupted(_make)
    return _made[0]


def _make() -> None:
    with global_compiler_lock:  # a fork also acquires this lock
        if not _made:
            _made.append(Pool())
