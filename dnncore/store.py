"""Compiled code and measurements on disk, with a limit for the bytes of all stores together."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dnncore.environment import flag, whole_number
from dnncore.errors import CacheWarning, DescriptorError
from dnncore.private_folder import ENTRY, Entry, Folder, Unsafe, opened

__all__ = ["DIGEST_BYTES", "DiskStore", "Usage", "cache_root", "clear", "max_bytes", "usage"]

DIGEST_BYTES = hashlib.sha256().digest_size
MAX_BYTES = 1 << 27  # about 25,000 entries; checking them takes 0.1 s in each process
KEPT = 3 / 4  # share of the limit that remains after an eviction, so that evictions are rare
UNSEEN = 1 / 8  # share of the limit that a process writes before it measures the stores again
AGE_STEP = 3600.0  # seconds between two writes of the time of the last use
ABANDONED = 3600.0  # seconds after which an incomplete file belongs to a dead process


class DiskStore:
    """Bytes on disk by key, such as compiled code.

    The stored code is executed later, so nothing is read from a folder that another user could have
    changed. The folder is in the user's cache folder, or in `DNNCORE_CACHE_DIR`. It must belong to
    the user. No other user may be able to exchange it, and no part of its path may be another
    user's symbolic link. Otherwise the store is not used, with a `CacheWarning`. Entries that
    another user could have written are removed before anything is read. New folders have the mode
    0700, files 0600.

    Each file begins with the sha256 of its key and content, which `get` verifies. Files are written
    by atomic renames. A failure to read is a miss. A failure to write is a `CacheWarning`. When all
    stores together exceed `DNNCORE_CACHE_MAX_BYTES`, the entries with the oldest last use are
    removed. `DNNCORE_DISK_CACHE=0` disables all stores.
    """

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self._checked: tuple[int, int] | None = None
        self._warned = False
        self._usable: bool | None = None
        self._path: Path | None = None

    @property
    def folder(self) -> Path | None:
        """The folder of the files; None if the store is switched off or its folder is unsafe."""
        with self._opened():
            pass
        return self._path if self._usable else None

    def get(self, key: str) -> bytes | None:
        """Return the bytes stored for `key`, or None."""
        name = _name(key)
        with self._opened() as folder:
            if folder is None:
                return None
            try:
                data, status = folder.read(name)
            except Unsafe as error:
                self._empty(folder, error)
                return None
            except OSError:
                return None
            digest, content = data[:DIGEST_BYTES], data[DIGEST_BYTES:]
            if digest != _digest(key, content):
                return None
            if time.time() - status.st_mtime > AGE_STEP:
                folder.touch(name)
            return content

    def put(self, key: str, data: bytes) -> None:
        """Store `data` for `key`, unless it alone exceeds the limit. Remove old entries if
        necessary.
        """
        name, content = _name(key), _digest(key, data) + data
        with self._opened() as folder:
            if folder is None:
                return
            if len(content) > max_bytes():
                _shrink(folder.path.parent, max_bytes())
                return
            new = f"{name}.{os.urandom(8).hex()}"
            try:
                folder.create(new, content)
                folder.rename(new, name)
            except OSError as error:
                with contextlib.suppress(OSError):
                    folder.remove(new)
                self._warn(f"cannot write to {folder.path}: {error}")
                return
        _budget(folder.path.parent).spend(len(content))

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Folder | None]:
        """Open the folder and check it; None if the store cannot be used."""
        with contextlib.ExitStack() as stack:
            folder = None
            if self._usable is not False:
                try:
                    folder = self._enter(stack)
                except DescriptorError as error:
                    self._refuse(str(error))
                except OSError as error:
                    self._refuse(
                        f"{self._path} is not used: {error}; set DNNCORE_CACHE_DIR"
                        " to a folder that only you can write to"
                    )
            yield folder

    def _enter(self, stack: contextlib.ExitStack) -> Folder | None:
        if self._path is None:
            self._usable = flag("DNNCORE_DISK_CACHE", True)
            if not self._usable:
                return None
            max_bytes()  # an invalid limit disables the store
            self._path = cache_root() / self.namespace
        folder = stack.enter_context(opened(self._path))
        folder.restrict()
        status = folder.status()
        if self._checked != (status.st_dev, status.st_ino):
            self._check_entries(folder)
            self._checked = status.st_dev, status.st_ino
        return folder

    def _check_entries(self, folder: Folder) -> None:
        try:
            for _ in folder.entries():
                pass
        except Unsafe as error:
            folder.empty(str(error))

    def _empty(self, folder: Folder, error: Unsafe) -> None:
        try:
            folder.empty(str(error))
        except OSError as again:
            self._refuse(f"{folder.path} is not used: {again}")

    def _refuse(self, reason: str) -> None:
        self._usable = False
        self._warn(f"{reason}; nothing is stored")

    def _warn(self, text: str) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(f"cache: {text}", CacheWarning, stacklevel=2)


def cache_root() -> Path:
    """Return the folder of all stores: `DNNCORE_CACHE_DIR`, else the user's cache folder.

    A relative path is relative to the working directory at its first use in the process. Raises
    `DescriptorError` if the user has no home folder.
    """
    override = os.environ.get("DNNCORE_CACHE_DIR", "").strip()
    try:
        return _absolute(override or _users_folder())
    except (OSError, RuntimeError) as error:  # no home folder, or no working directory
        raise DescriptorError(
            f"the folder for compiled code is unknown: {error}; set DNNCORE_CACHE_DIR to a folder"
            " that only you can write to"
        ) from error


def _users_folder() -> str:
    import platformdirs

    return platformdirs.user_cache_dir("dnncore")


@functools.cache
def _absolute(text: str) -> Path:
    return Path(os.path.normpath(Path(text).expanduser().absolute()))


def max_bytes() -> int:
    """Return the limit for the bytes of all stores. Raises `DescriptorError` if it is invalid."""
    return whole_number("DNNCORE_CACHE_MAX_BYTES", MAX_BYTES, "of bytes")


# -- all stores of a folder ------------------------------------------------------------------------


@dataclass(frozen=True)
class Usage:
    """One store of the folder.

    oldest, newest: times of the last use in seconds since 1970; 0 if there is no entry.
    reason: why the store is not used; "" if it is.
    """

    name: str
    entries: int = 0
    nbytes: int = 0
    oldest: float = 0.0
    newest: float = 0.0
    reason: str = ""


def usage(root: Path) -> list[Usage]:
    """Return the stores in a folder, by name."""
    return [_usage(path) for path in _stores(root)]


def _usage(path: Path) -> Usage:
    try:
        with opened(path, make=False) as folder:
            entries = list(folder.entries())
    except OSError as error:
        return Usage(path.name, reason=str(error))
    used = [entry.used for entry in entries] or [0.0]
    nbytes = sum(entry.nbytes for entry in entries)
    return Usage(path.name, len(entries), nbytes, min(used), max(used))


def clear(root: Path, name: str = "") -> list[Usage]:
    """Remove the entries of all stores in a folder, or of the store of this name.

    Returns the removed entries, and failures.
    """
    return [_cleared(path) for path in _stores(root) if name in ("", path.name)]


def _cleared(path: Path) -> Usage:
    count = 0
    before = _usage(path)
    try:
        with opened(path, make=False) as folder:
            for name in filter(ENTRY.fullmatch, folder.names()):
                folder.remove(name)
                count += 1
    except OSError as error:
        return Usage(path.name, count, reason=str(error))
    return Usage(path.name, count, before.nbytes)


def _stores(root: Path) -> list[Path]:
    """Return the folders in `root` that contain an entry of a store."""
    found = []
    with contextlib.suppress(OSError):
        found = sorted(path for path in root.iterdir() if not path.is_symlink())
    return [path for path in found if _has_entry(path)]


def _has_entry(path: Path) -> bool:
    try:
        with os.scandir(path) as items:
            return any(ENTRY.fullmatch(item.name) for item in items)
    except OSError:
        return False


class _Budget:
    """The bytes that this process may still write before it measures all stores of a folder."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._left = 0

    def spend(self, nbytes: int) -> None:
        """Count written bytes. If there are too many, remove the least recently used entries."""
        self._left -= nbytes
        if self._left < 0:
            limit = max_bytes()
            rest = _shrink(self._root, limit)
            self._left = min(limit - rest, int(limit * UNSEEN))


_budget = functools.cache(_Budget)


def _shrink(root: Path, limit: int) -> int:
    """Remove old entries if the stores exceed the limit. Return the bytes that remain."""
    found = [(entry, path) for path in _stores(root) for entry in _entries(path)]
    total = sum(entry.nbytes for entry, _ in found)
    target = int(limit * KEPT) if total > limit else total
    now = time.time()
    gone: dict[Path, list[str]] = {}
    for entry, path in sorted(found, key=lambda row: row[0].used):
        abandoned = "." in entry.name and now - entry.used > ABANDONED
        if total > target or abandoned:
            total -= entry.nbytes
            gone.setdefault(path, []).append(entry.name)
    for path, names in gone.items():
        with contextlib.suppress(OSError), opened(path, make=False) as folder:
            for name in names:
                folder.remove(name)
    return total


def _entries(path: Path) -> list[Entry]:
    try:
        with opened(path, make=False) as folder:
            return list(folder.entries())
    except OSError:
        return []


def _name(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def _digest(key: str, content: bytes) -> bytes:
    return hashlib.sha256(key.encode() + b"\0" + content).digest()
