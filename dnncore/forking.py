"""Fork: locks that it waits for, so that no child finds one held by a thread that it lacks.

What such a lock guards is whole in the child, since no other thread is at work on it.
"""

from __future__ import annotations

import os
from typing import Protocol

__all__ = ["COMPILER", "INNERMOST", "OUTPUT", "PLUGINS", "hold_at_fork"]

# The order in which locks are asked for: whoever holds one asks only for those of higher levels.
PLUGINS, COMPILER, OUTPUT, INNERMOST = range(4)


class Lock(Protocol):
    """What can be held."""

    def acquire(self) -> object:
        """Wait for it."""

    def release(self) -> None:
        """Give it back."""


_locks: list[tuple[int, Lock]] = []


def hold_at_fork(lock: Lock, level: int = COMPILER) -> None:
    """Let every fork of this process wait for `lock` and hold it; a backend's is of its compiler.

    level: one of this module's; inside of those of the last nothing else is asked for.
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
