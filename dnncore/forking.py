"""Locks that a fork acquires first. The child could never acquire a lock held by another thread.

Data that such a lock protects is consistent in the child, because no thread changes it at the fork.
A fork also waits for imports of this library's modules by other threads, because a module whose
import is incomplete at the fork stays incomplete in the child.

Hooks that were registered last run first before a fork. `logging` has a hook that acquires its own
lock. Compilers and imports log. So `logging` is imported here first, and a fork acquires the locks
of this module before that of `logging`, in the same order as other threads. Compilers also import
`concurrent.futures.thread`. This module has such a hook, too. It cannot be imported while the
process ends.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401 - see above
import importlib
import logging  # noqa: F401 - its hook must be registered first
import os
import sys
import threading
import time
from types import ModuleType
from typing import Protocol

__all__ = ["COMPILER", "INNERMOST", "OUTPUT", "PLUGINS", "hold_at_fork", "import_held"]

# The order of acquisition: a thread that holds a lock acquires only locks of higher levels.
PLUGINS, IMPORTS, COMPILER, OUTPUT, INNERMOST = range(5)


class Lock(Protocol):
    """A lock that a thread may acquire again, such as `threading.RLock`."""

    def acquire(self) -> object:
        """Wait for the lock and acquire it."""

    def release(self) -> None:
        """Release the lock."""


_locks: list[tuple[int, Lock]] = []
_held: list[Lock] = []  # by the fork in progress
_interval: float | None = None  # the switch interval before this fork
LONG = 0.05  # seconds: longer than a check and a fork, and the longest wait for a busy thread


def hold_at_fork(lock: Lock, level: int = COMPILER) -> None:
    """Let every fork of this process acquire `lock` first.

    lock: a reentrant lock, because a thread that holds it may fork, for example in a signal
        handler.
    level: one of this module's levels. Locks of backends protect their compilers. A thread that
        holds a lock of the last level acquires no other lock.
    """
    _locks.append((level, lock))
    _locks.sort(key=lambda row: row[0])


def import_held(name: str) -> ModuleType:
    """Import a module of this library while no other thread forks."""
    with _importing:
        return importlib.import_module(name)


_importing = threading.RLock()
hold_at_fork(_importing, IMPORTS)


def _acquire() -> None:
    """Acquire all locks while no other thread imports a module of this library.

    A long switch interval prevents an import by another thread between the last check and the fork.
    """
    global _interval  # noqa: PLW0603 - one fork is made at a time
    waited: set[str] = set()  # if still being imported, then by this thread
    interval = sys.getswitchinterval()
    while True:
        locks = tuple(_locks)
        for _, lock in locks:
            lock.acquire()
            _held.append(lock)
        if _interval is None:
            _interval = interval
        sys.setswitchinterval(LONG)
        time.sleep(0)  # otherwise a waiting thread could still run soon
        names = set(_modules_being_imported()) - waited
        if not names and len(locks) == len(_locks):
            return
        _release()  # the import may need a lock, or have created one
        for name in names:
            importlib.import_module(name)  # waits for the thread that imports it
        waited |= names


def _release() -> None:
    global _interval  # noqa: PLW0603 - as above
    if _interval is not None:
        sys.setswitchinterval(_interval)
        _interval = None
    while _held:
        _held.pop().release()


def _modules_being_imported() -> list[str]:
    return [
        name
        for name, module in sys.modules.copy().items()
        if name.startswith("dnncore")
        and getattr(getattr(module, "__spec__", None), "_initializing", False)
    ]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_acquire, after_in_parent=_release, after_in_child=_release)
