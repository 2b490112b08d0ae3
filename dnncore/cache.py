"""The cache of executables in memory, and the counters of all caches.

`store.py` implements the disk cache.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Hashable
from types import FrameType
from typing import Any, Generic, TypeVar

from dnncore.environment import whole_number
from dnncore.errors import CacheWarning, DescriptorError
from dnncore.forking import INNERMOST, hold_at_fork
from dnncore.interrupts import holding, resting

__all__ = ["MemoryCache", "count", "primitives", "stats"]

T = TypeVar("T")
CAPACITY = 1024  # primitives
PATIENCE = 0.05  # seconds between the checks of a waiting thread whether the builder still builds
UNBUILT: Any = object()

_counts: Counter[str] = Counter()
_counts_lock = threading.RLock()
hold_at_fork(_counts_lock, INNERMOST)


@holding(_counts_lock)
def count(event: str, n: int = 1) -> None:
    """Count an event; backends count kernels as "compiled" or "from_disk"."""
    _counts[event] += n


def stats() -> dict[str, int]:
    """Return the counters of this process.

    built, from_memory: the number of primitives that were built, and of those that the primitive
        cache returned.
    compiled, from_disk: the number of kernels that were compiled, and of those that were loaded
        from the disk.
    """
    names = ("built", "from_memory", "compiled", "from_disk")
    return {name: _counts[name] for name in names}


class _Call:
    """An object that lives exactly as long as the call that builds a value.

    It is also freed if the call is interrupted, at any place.
    """

    __slots__ = ("__weakref__",)


class _Entry(Generic[T]):
    """A value that one thread builds while other threads wait for it.

    used: a number that grows with each use.
    call: the call of the thread that builds the value.
    """

    def __init__(self, call: _Call, used: int) -> None:
        self.used = used
        self.call = weakref.ref(call)
        self.thread = threading.get_ident()
        self.ended = threading.Event()
        self.value: T = UNBUILT
        self.error: Exception | None = None

    def is_being_built(self) -> bool:
        """Whether a thread is still in the call that builds the value."""
        return self.call() is not None and self.thread not in resting

    def wait(self) -> None:
        """Wait until the build has succeeded, failed, or been interrupted."""
        while self.is_being_built() and not self.ended.wait(PATIENCE):
            pass


class MemoryCache(Generic[T]):
    """A least-recently-used cache. If several threads request one key, one of them builds.

    It has no lock, because a thread could hold it while it is interrupted or while another thread
    forks. Each change is a single operation of a dict.
    """

    def __init__(self, capacity: int, events: tuple[str, str] | None = None) -> None:
        self._capacity = capacity
        self._events = events
        self._entries: dict[Hashable, _Entry[T]] = {}
        self._uses = itertools.count(1)
        _caches.add(self)

    @property
    def capacity(self) -> int:
        """The largest number of values; 0 disables the cache. Assign to change it."""
        return self._capacity

    @capacity.setter
    def capacity(self, value: int) -> None:
        if value < 0:
            raise DescriptorError(f"cache: capacity must be at least 0; got {value}")
        self._capacity = value
        self._evict()

    def __len__(self) -> int:
        return len(self._entries)

    def clear(self) -> None:
        """Drop all values. Values in use stay valid."""
        self._entries.clear()

    def forget(self, unwanted: Callable[[Any], bool]) -> None:
        """Drop the values whose keys are unwanted."""
        for key in filter(unwanted, self._entries.copy()):
            self._entries.pop(key, None)

    def find(self, key: Hashable) -> T | None:
        """Return the value of `key`, or None if there is none yet."""
        entry = self._entries.get(key)
        if entry is None or entry.value is UNBUILT:
            return None
        entry.used = next(self._uses)
        self._count(1)
        return entry.value

    def get(self, key: Hashable, build: Callable[[], T]) -> T:
        """Return the value of `key`. The first thread that requests it builds it.

        An error of `build` is raised in all threads that wait, and is not cached. If the builder is
        interrupted, for example by Ctrl-C, one of the waiting threads builds. A thread that is
        already building, such as a thread in a signal handler, does not wait: it builds the value
        itself. The first value is kept.
        """
        while True:
            entry = self._entries.get(key)
            if entry is None:
                call = _Call()
                entry = _Entry(call, next(self._uses))
                try:
                    if self._entries.setdefault(key, entry) is entry:
                        return self._built(entry, build)
                    continue
                finally:
                    self._end(key, entry)
                    entry.ended.set()
                    del call
            if entry.value is UNBUILT:
                if _is_building(sys._getframe(1)):
                    return self._built(entry, build)
                entry.wait()
                self._end(key, entry)
            if entry.value is not UNBUILT:
                entry.used = next(self._uses)
                self._count(1)
                return entry.value
            if entry.error is not None:
                raise entry.error

    def _built(self, entry: _Entry[T], build: Callable[[], T]) -> T:
        self._count(0)
        self._evict()
        try:
            value = build()
        except Exception as error:
            entry.error = error
            raise
        if entry.value is UNBUILT:
            entry.value = value
        return entry.value

    def _end(self, key: Hashable, entry: _Entry[T]) -> None:
        """Mark the build as ended, and remove an entry that has no value."""
        if entry.value is UNBUILT and self._entries.get(key) is entry:
            self._entries.pop(key, None)

    def forget_unfinished(self) -> None:
        """Remove the entries that other threads were building. A forked child does not have these
        threads.
        """
        me = threading.get_ident()
        for key, entry in self._entries.copy().items():
            if entry.value is UNBUILT and entry.thread != me:
                self._end(key, entry)

    def _count(self, which: int) -> None:
        if self._events:
            count(self._events[which])

    def _evict(self) -> None:
        while len(self._entries) > self._capacity:
            entries = tuple(self._entries.copy().items())
            oldest, _ = min(entries, key=lambda row: row[1].used)
            self._entries.pop(oldest, None)


_caches: weakref.WeakSet[MemoryCache[Any]] = weakref.WeakSet()


def _forget_unfinished() -> None:
    for cache in tuple(_caches):
        cache.forget_unfinished()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_unfinished)


def _is_building(top: FrameType | None) -> bool:
    """Whether this thread is inside a call of `MemoryCache.get`, at any depth."""
    while top is not None and top.f_code is not MemoryCache.get.__code__:
        top = top.f_back
    return top is not None


def _capacity() -> int:
    """Return the capacity in the environment. An invalid value must not prevent the import."""
    try:
        return whole_number("DNNCORE_PRIMITIVE_CACHE_CAPACITY", CAPACITY, "of primitives")
    except DescriptorError as error:
        warnings.warn(f"cache: {error}; it is {CAPACITY}", CacheWarning, stacklevel=2)
        return CAPACITY


primitives: MemoryCache[Any] = MemoryCache(_capacity(), events=("built", "from_memory"))
"""The primitive cache: executables by operation, attributes, engine and implementation."""
