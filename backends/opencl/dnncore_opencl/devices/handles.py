"""Access to driver objects after a fork and at the end of the process.

- A driver's threads do not survive a fork. A child that used the parent's objects, or listed the
  devices again, would wait for these threads for ever. So it gets an error.
- If the interpreter ends while a daemon thread is inside a pyopencl function, Python ends the
  thread within C++ code, and the process aborts. So at exit such threads stop before their next
  driver call, and the exit waits for threads that are inside a call.

Neither costs time before: attributes that hold handles become descriptors only at the fork or exit.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from dnncore.backend import EngineUnavailable, in_main_thread, rest

C = TypeVar("C", bound=type)
LOOKS = 30  # consecutive checks, 1 ms apart, without a call: a thread may be about to begin one
PACKAGES = {"dnncore_opencl", "pyopencl", "pytools"}
LONGEST_CALL = 30.0  # seconds; the longest wait at exit for another thread's call
FORKED = (
    "opencl: cannot be used in this process, which was forked after its parent listed or opened"
    " OpenCL devices; the threads of a driver do not survive a fork; start the process by the"
    " method 'spawn' or 'forkserver' of multiprocessing, or use OpenCL first after the fork"
)

locks: list[Any] = []  # `threading.RLock`s; a thread that holds one is not stopped

_handles: list[tuple[type, str, bool]] = []
_is_used = False
_is_forked = False


def handles(*names: str, of_calls: bool = False) -> Callable[[C], C]:
    """Decorate a class: its attributes of these names hold driver objects.

    of_calls: whether launches, copies and waits use them, at times when a thread holds no lock.
    """

    def decorate(owner: C) -> C:
        _handles.extend((owner, name, of_calls) for name in names)
        return owner

    return decorate


def begin_use() -> None:
    """Record that the driver is used. Raise `EngineUnavailable` in a forked child."""
    global _is_used  # noqa: PLW0603 - a state of the process
    check_not_forked()
    if not _is_used:
        _is_used = True
        atexit.register(_rest_at_exit)


def check_not_forked() -> None:
    """Raise `EngineUnavailable` if this process was forked after its parent used the driver."""
    if _is_forked:
        _refuse()


def is_forked() -> bool:
    """Whether the parent of this process used the driver before the fork."""
    return _is_forked


def _refuse() -> NoReturn:
    raise EngineUnavailable(FORKED)


class _Guarded:
    """A descriptor that calls `check` before each access to an attribute."""

    def __init__(self, owner: type, name: str, check: Callable[[], None]) -> None:
        self._own: Any = getattr(owner, name, None)
        self._name = name
        self._check = check

    def __get__(self, instance: Any, owner: type) -> Any:
        self._check()
        if instance is None or not hasattr(self._own, "__get__"):
            return self._own if instance is None else instance.__dict__.get(self._name, self._own)
        return self._own.__get__(instance, owner)

    def __set__(self, instance: Any, value: Any) -> None:
        self._check()
        if hasattr(self._own, "__set__"):
            self._own.__set__(instance, value)
        else:
            instance.__dict__[self._name] = value


def _guard(check: Callable[[], None], *, only_calls: bool) -> None:
    for owner, name, of_calls in _handles:
        if of_calls or not only_calls:
            setattr(owner, name, _Guarded(owner, name, check))


def _after_fork() -> None:
    global _is_forked  # noqa: PLW0603 - as above
    if _is_used and not _is_forked:
        _is_forked = True
        _guard(_refuse, only_calls=False)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


# -- the end of the process ------------------------------------------------------------------------


def _rest_at_exit() -> None:
    if not _is_forked:
        _guard(_stop, only_calls=True)
        end, quiet = time.monotonic() + LONGEST_CALL, 0
        while quiet < LOOKS and time.monotonic() < end:
            quiet = 0 if _is_called() else quiet + 1
            time.sleep(0.001)


def _stop() -> None:
    """Block a thread that must not call the driver any more, until the process ends."""
    if not in_main_thread() and not any(lock._is_owned() for lock in locks):
        rest()


def _is_called() -> bool:
    """Whether another thread is in a function of this package, of pyopencl or of code it generated.

    Checks only the innermost frames, because the stacks of running threads change meanwhile.
    """
    me = threading.get_ident()
    tops = [frame for thread, frame in sys._current_frames().items() if thread != me]
    names = [frame.f_globals.get("__name__", "").partition(".")[0] for frame in tops]
    made = any(frame.f_code.co_filename.startswith("<generated") for frame in tops)
    return made or not PACKAGES.isdisjoint(names)
