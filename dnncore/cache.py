"""Caches: executables in memory, compiled code on disk, and the counters of both."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import warnings
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, Generic, TypeVar

from dnncore.errors import CacheWarning, DescriptorError
from dnncore.forking import INNERMOST, hold_at_fork

__all__ = ["DiskStore", "MemoryCache", "count", "primitives", "stats"]

T = TypeVar("T")
DIGEST_BYTES = hashlib.sha256().digest_size

_counts: Counter[str] = Counter()
_counts_lock = threading.Lock()
hold_at_fork(_counts_lock, INNERMOST)


def count(event: str, n: int = 1) -> None:
    """Count an event; backends count kernels as "compiled" or "from_disk"."""
    with _counts_lock:
        _counts[event] += n


def stats() -> dict[str, int]:
    """The counters of this process.

    built, from_memory: primitives that were built, and that the primitive cache returned.
    compiled, from_disk: kernels that were compiled, and that were loaded from the disk store.
    """
    names = ("built", "from_memory", "compiled", "from_disk")
    return {name: _counts[name] for name in names}


class _Entry(Generic[T]):
    """A value that one thread builds while others wait for it."""

    def __init__(self) -> None:
        self.ready = threading.Event()
        self.value: T | None = None
        self.error: BaseException | None = None

    def result(self) -> T:
        self.ready.wait()
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]


class MemoryCache(Generic[T]):
    """A least-recently-used cache. If several threads request one key, one of them builds."""

    def __init__(self, capacity: int, events: tuple[str, str] | None = None) -> None:
        self._capacity = capacity
        self._events = events
        self._entries: OrderedDict[Hashable, _Entry[T]] = OrderedDict()
        self._lock = threading.Lock()
        _caches.add(self)

    @property
    def capacity(self) -> int:
        """The largest number of values; 0 disables the cache. Assign to change it."""
        return self._capacity

    @capacity.setter
    def capacity(self, value: int) -> None:
        if value < 0:
            raise DescriptorError(f"cache: capacity must be at least 0; got {value}")
        with self._lock:
            self._capacity = value
            self._evict()

    def __len__(self) -> int:
        return len(self._entries)

    def clear(self) -> None:
        """Drop all values. Values in use stay valid."""
        with self._lock:
            self._entries.clear()

    def get(self, key: Hashable, build: Callable[[], T]) -> T:
        """Return the value of `key`. The first thread that requests it builds it.

        An error of `build` is raised in all threads that wait, and is not cached.
        """
        with self._lock:
            entry = self._entries.get(key)
            mine = entry is None
            if entry is None:
                entry = self._entries[key] = _Entry()
                self._evict()
            else:
                self._entries.move_to_end(key)
        self._count(0 if mine else 1)
        if mine:
            self._build(key, entry, build)
        return entry.result()

    def forget_unfinished(self) -> None:
        """Drop unfinished entries. A forked child lacks the threads that were building them."""
        self._lock = threading.Lock()
        ready = ((key, entry) for key, entry in self._entries.items() if entry.ready.is_set())
        self._entries = OrderedDict(ready)

    def _build(self, key: Hashable, entry: _Entry[T], build: Callable[[], T]) -> None:
        try:
            entry.value = build()
        except BaseException as error:
            entry.error = error
            with self._lock:
                if self._entries.get(key) is entry:
                    del self._entries[key]
        finally:
            entry.ready.set()

    def _count(self, which: int) -> None:
        if self._events:
            count(self._events[which])

    def _evict(self) -> None:
        while len(self._entries) > self._capacity:
            self._entries.popitem(last=False)


_caches: weakref.WeakSet[MemoryCache[Any]] = weakref.WeakSet()


def _forget_unfinished() -> None:
    for cache in tuple(_caches):
        cache.forget_unfinished()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_unfinished)


def _capacity() -> int:
    text = os.environ.get("DNNCORE_PRIMITIVE_CACHE_CAPACITY", "1024")
    if not text.isdecimal():
        raise DescriptorError(
            f"DNNCORE_PRIMITIVE_CACHE_CAPACITY must be a whole number of primitives; got {text!r}"
        )
    return int(text)


primitives: MemoryCache[Any] = MemoryCache(_capacity(), events=("built", "from_memory"))
"""The primitive cache: executables by operation, attributes, engine and implementation."""


class DiskStore:
    """Bytes on disk by key, such as compiled code.

    The folder is in the user's cache folder, or in `DNNCORE_CACHE_DIR`. It has the mode 0700 and
    must belong to the user, because the stored code is executed later. Each file begins with the
    sha256 of its key and content, which `get` verifies. Files are written by atomic renames. A
    failure to read is a miss. A failure to write is a `CacheWarning`. `DNNCORE_DISK_CACHE=0`
    disables all stores.
    """

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self._folder: Path | None = None
        self._tried = False

    @property
    def folder(self) -> Path | None:
        """The folder of the files; None if the store is switched off or its folder is unsafe."""
        if not self._tried:
            self._tried = True
            if os.environ.get("DNNCORE_DISK_CACHE", "1") != "0":
                self._folder = _private_folder(cache_root() / self.namespace)
        return self._folder

    def get(self, key: str) -> bytes | None:
        """Return the bytes stored for `key`, or None."""
        path = self._path(key)
        if path is None:
            return None
        try:
            data = path.read_bytes()
        except OSError:
            return None
        digest, content = data[:DIGEST_BYTES], data[DIGEST_BYTES:]
        return content if digest == _digest(key, content) else None

    def put(self, key: str, data: bytes) -> None:
        """Store `data` for `key`."""
        path = self._path(key)
        if path is None:
            return
        new = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
        try:
            new.write_bytes(_digest(key, data) + data)
            new.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                new.unlink()
            warnings.warn(f"cache: cannot write {path}: {error}", CacheWarning, stacklevel=2)

    def _path(self, key: str) -> Path | None:
        folder = self.folder
        return folder / hashlib.sha256(key.encode()).hexdigest() if folder else None


def cache_root() -> Path:
    """The folder of all stores: `DNNCORE_CACHE_DIR`, else the user's cache folder."""
    override = os.environ.get("DNNCORE_CACHE_DIR")
    if override:
        return Path(override)
    import platformdirs

    return platformdirs.user_cache_path("dnncore")


def _digest(key: str, content: bytes) -> bytes:
    return hashlib.sha256(key.encode() + b"\0" + content).digest()


def _private_folder(folder: Path) -> Path | None:
    """Make the folder and return it; warn and return None if it cannot be trusted."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
        if hasattr(os, "getuid"):
            if status.st_uid != os.getuid():
                raise PermissionError(f"it belongs to user {status.st_uid}")
            if status.st_mode & 0o077:
                folder.chmod(0o700)
    except OSError as error:
        text = f"cache: {folder} is not used: {error}; set DNNCORE_CACHE_DIR to your own folder"
        warnings.warn(text, CacheWarning, stacklevel=3)
        return None
    return folder
