"""Locks that a fork acquires first. The child could never acquire a lock held by another thread.

Data that such a lock protects is consistent in the child, because no thread changes it at the fork.
"""

from __future__ import annotations

import os
from typing import Protocol

__all__ = ["COMPILER", "INNERMOST", "OUTPUT", "PLUGINS", "hold_at_fork"]

# The order of acquisition: a thread that holds a lock acquires only locks of higher levels.
PLUGINS, COMPILER, OUTPUT, INNERMOST = range(4)


class Lock(Protocol):
    """A lock, such as `threading.Lock`."""

    def acquire(self) -> object:
        """Wait for the lock and acquire it."""

    def release(self) -> None:
        """Release the lock."""


_locks: list[tuple[int, Lock]] = []


def hold_at_fork(lock: Lock, level: int = COMPILER) -> None:
    """Let every fork of this process acquire `lock` first.

    level: one of this module's levels. Locks of backends protect their compilers. A thread that
        holds a lock of the last level acquires no other lock.
    """
    _locks.append((level, lock))
    _locks.sort(key=lambda row: row[0])


def _acquire() -> None:
    for _, lock in _locks:
        lock.acquire()


def _release() -> None:
    for _, lock in reversed(_locks):
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_acquire, after_in_parent=_release, after_in_child=_release)
