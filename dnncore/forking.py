"""Locks that a fork waits for, so that no child gets one held by a thread that it lacks.

Data behind such a lock is consistent in the child, since no other thread changes it at the fork.
"""

from __future__ import annotations

import os
from typing import Protocol

__all__ = ["COMPILER", "INNERMOST", "OUTPUT", "PLUGINS", "hold_at_fork"]

# The order in which locks are taken: a thread that holds one takes only those of higher levels.
PLUGINS, COMPILER, OUTPUT, INNERMOST = range(4)


class Lock(Protocol):
    """An object that can be held."""

    def acquire(self) -> object:
        """Wait for the lock and take it."""

    def release(self) -> None:
        """Release the lock."""


_locks: list[tuple[int, Lock]] = []


def hold_at_fork(lock: Lock, level: int = COMPILER) -> None:
    """Let every fork of this process wait for `lock` and hold it; a backend's guards its compiler.

    level: one of this module's. A thread that holds a lock of the last level takes no other lock.
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
