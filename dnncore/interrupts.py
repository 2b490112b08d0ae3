"""Work that no signal interrupts, such as imports of plugins and compilations.

Python runs signal handlers in the main thread, between any two of its instructions. A handler may
raise `KeyboardInterrupt`, or it may call dnncore. An import or a compilation would then stay
incomplete, or the handler would wait for a lock that its own thread holds. So the main thread lets
a worker thread do such work, and waits. If the wait is interrupted, the worker still finishes its
work, and the next caller finds the result.
"""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import functools
import gc
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar, cast

__all__ = [
    "after_work",
    "holding",
    "in_main_thread",
    "locked",
    "pass_on",
    "rest",
    "resting",
    "uninterrupted",
]

T = TypeVar("T")
C = TypeVar("C", bound=Callable[..., Any])
PATIENCE = 0.1  # seconds between the checks of a waiting caller whether the worker still exists


class _Work:
    """A call that the worker makes for the main thread.

    is_lost: whether the worker will never make the call.
    afterwards: calls that the main thread makes after the work.
    """

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self.call = function, arguments
        self.value: Any = None
        self.error: BaseException | None = None
        self.is_lost = False
        self.afterwards: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self.ended = threading.Lock()
        self.ended.acquire()
        self._context = contextvars.copy_context()  # includes numpy's errstate

    def make(self) -> None:
        """Make the call in the worker.

        No garbage is collected during the call, because finalizers of the user may acquire locks
        that the waiting thread holds.
        """
        function, arguments = self.call
        _of_worker.work = self
        is_enabled = gc.isenabled()
        gc.disable()
        try:
            self.value = self._context.run(function, *arguments)
        except BaseException as error:
            self.error = error
        del _of_worker.work
        if is_enabled:
            gc.enable()

    def result(self) -> Any:
        """Return the value of the call, or raise its error."""
        for function, arguments in self.afterwards:
            function(*arguments)
        if self.error is not None:
            raise self.error
        return self.value


class _Worker:
    """The thread that works for the main thread. It starts with the first work."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._waiting: set[_Work] = set()
        self._queue: queue.SimpleQueue[_Work] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def has_done(self, work: _Work) -> bool:
        """Let the worker do the work, and wait. Return False if the worker cannot do it."""
        self._waiting.add(work)
        try:
            work.is_lost = not self._is_there()
            if not work.is_lost:
                self._queue.put(work)
            while not work.is_lost and not work.ended.acquire(timeout=PATIENCE):
                work.is_lost = self._thread is None or not self._thread.is_alive()
        finally:
            self._waiting.discard(work)
        return not work.is_lost

    def finish(self) -> None:
        """Wait for work whose caller was interrupted. No compiler may run when the process ends."""
        if self._thread is not None:
            self.has_done(_Work(int, ()))  # queued after all other work

    def start_afresh(self) -> None:
        """Reset the worker in a forked child, where its thread does not exist.

        The main thread then does the work for which it waits.
        """
        lost = tuple(self._waiting)
        self._begin()
        for work in lost:
            work.is_lost = True
            work.ended.release()

    def _is_there(self) -> bool:
        if self._thread is None or not self._thread.is_alive():
            thread = threading.Thread(target=self._run, name="dnncore-worker", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no thread can be started
                return False
            self._thread = thread
        return True

    def _run(self) -> None:
        while True:
            work = self._queue.get()
            work.make()
            work.ended.release()
            del work


_of_worker = threading.local()
_worker = _Worker()
atexit.register(_worker.finish)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_worker.start_afresh)


def uninterrupted(function: Callable[..., T], *arguments: Any) -> T:
    """Return `function(*arguments)`. No signal handler runs in the call.

    The main thread lets the worker make the call, and must hold no lock that the call acquires. It
    makes the call itself while it imports a module or handles a log record, because the worker
    might import the same module or write a record. It also makes the call itself if no thread can
    be started, for example at the end of the process. Raises the errors of the function.
    """
    if threading.current_thread() is threading.main_thread() and not _may_hold_locks():
        work = _Work(function, arguments)
        if _worker.has_done(work):
            try:
                value: T = work.result()
                return value
            finally:
                del work  # the error of `work` refers to this frame
    return function(*arguments)


def pass_on(error: BaseException) -> None:
    """Raise an error again if a signal handler raised it. The interrupted code did not cause the
    error.
    """
    handlers = filter(callable, map(signal.getsignal, signal.valid_signals()))
    codes = set(map(_code, handlers))
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            raise error
        trace = trace.tb_next


def _code(function: Any) -> Any:
    """Return the code of a function, a method, a partial call or a callable object."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__code__", getattr(type(function).__call__, "__code__", None))


def locked(
    lock: contextlib.AbstractContextManager[Any], function: Callable[..., T], *arguments: Any
) -> T:
    """Return `function(*arguments)`, called while holding a lock.

    The lock is released even if the call is interrupted at any place. A trace function may raise an
    error before each line, so the `with` block is on one line with the call.
    """
    with lock: return function(*arguments)  # fmt: skip  # noqa: E701


def holding(lock: contextlib.AbstractContextManager[Any]) -> Callable[[C], C]:
    """Decorate a function to call it with a lock, as `locked` does."""

    def decorate(function: C) -> C:
        @functools.wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            with lock: return function(*arguments, **options)  # fmt: skip  # noqa: E701

        return cast(C, call)

    return decorate


def in_main_thread() -> bool:
    """Whether this is the main thread or the worker."""
    is_main = threading.current_thread() is threading.main_thread()
    return is_main or hasattr(_of_worker, "work")


def rest() -> None:
    """Let a daemon thread wait for the end of the process. No thread waits for its builds."""
    resting.add(threading.get_ident())
    while True:
        threading.Event().wait()


resting: set[int] = set()
"""The threads that wait for the end of the process."""


def after_work(function: Callable[..., object], *arguments: Any) -> None:
    """Call a function of the user: now, or later in the thread that waits for the worker.

    The function may acquire locks that the waiting thread holds.
    """
    work = getattr(_of_worker, "work", None)
    if work is None:
        function(*arguments)
    else:
        work.afterwards.append((function, arguments))


def _may_hold_locks() -> bool:
    """Whether the caller is importing a module or handling a log record, under Python's locks."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if (frame.f_globals.get("__name__"), frame.f_code.co_name) in _WITH_LOCKS:
            return True
        frame = frame.f_back
    return False


_WITH_LOCKS = {("importlib._bootstrap", "_find_and_load"), ("logging", "handle")}
