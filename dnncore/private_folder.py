"""Folders that no other user can change. Files are opened only after all checks of the path.

An open folder is a file descriptor, and names are looked up in it. So nobody can replace a folder
between its check and its use. The path is opened from the root, one folder at a time. A parent that
another user owns or can write to would let that user replace the folder. Windows has neither
numeric owners nor look-ups in an open folder. There, names are paths, and the access rights of the
user's cache folder protect them.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import stat
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dnncore.errors import CacheWarning

__all__ = ["Entry", "Folder", "Unsafe", "opened", "refusal"]

POSIX = hasattr(os, "geteuid") and os.open in os.supports_dir_fd
"""Whether the system supports owners, modes and look-ups in an open folder."""

ENTRY = re.compile(r"[0-9a-f]{64}(\..+)?")
"""Names of entries, and of files that are being written."""

MOST_LINKS = 40  # Linux's limit for one path
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_SEARCH = _NO_LINK | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_PATH", os.O_RDONLY)
_LIST = _NO_LINK | getattr(os, "O_DIRECTORY", 0) | os.O_RDONLY


class Unsafe(OSError):
    """A path that another user can change, or that is no folder; the text is the reason."""


@dataclass(frozen=True)
class Entry:
    """A file of a folder: its name, bytes, and time of the last use in seconds since 1970."""

    name: str
    nbytes: int
    used: float


class Folder:
    """An open folder; `fd` is None on Windows."""

    def __init__(self, path: Path, fd: int | None) -> None:
        self.path = path
        self.fd = fd

    def status(self) -> os.stat_result:
        """The status of the folder itself."""
        return self.path.lstat() if self.fd is None else os.fstat(self.fd)

    def entries(self) -> Iterator[Entry]:
        """Yield the entries. Raises `Unsafe` for any file of another user."""
        for name in self.names():
            with contextlib.suppress(FileNotFoundError):  # another process removed it
                status = os.lstat(self._at(name), dir_fd=self.fd)
                if ENTRY.fullmatch(name):
                    _check_file(status)
                    yield Entry(name, status.st_size, status.st_mtime)
                elif POSIX and status.st_uid != os.geteuid():
                    raise Unsafe(f"it contains a file of user {status.st_uid}")

    def names(self) -> list[str]:
        """Return the names of everything in the folder."""
        return sorted(os.listdir(self.path if self.fd is None else self.fd))  # noqa: PTH208 - of a descriptor

    def read(self, name: str) -> tuple[bytes, os.stat_result]:
        """Return a file's bytes and status. Raises `OSError`, and `Unsafe` for another user's."""
        fd = self._open(name, os.O_RDONLY)
        try:
            status = os.fstat(fd)
            _check_file(status)
            with open(fd, "rb", closefd=False) as file:
                return file.read(), status
        finally:
            os.close(fd)

    def create(self, name: str, data: bytes) -> None:
        """Write a new file with mode 0600, independent of the umask. Raises `OSError`."""
        fd = self._open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        with os.fdopen(fd, "wb") as file:
            if POSIX:
                os.fchmod(fd, 0o600)
            file.write(data)

    def rename(self, name: str, new: str) -> None:
        """Rename a file; a file of the new name is replaced atomically."""
        os.replace(self._at(name), self._at(new), src_dir_fd=self.fd, dst_dir_fd=self.fd)

    def remove(self, name: str) -> None:
        """Remove a file. It is no error if it does not exist."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._at(name), dir_fd=self.fd)

    def touch(self, name: str) -> None:
        """Set the time of the last use to now, if the file system permits it."""
        with contextlib.suppress(OSError):
            if POSIX:
                os.utime(name, dir_fd=self.fd, follow_symlinks=False)
            else:
                os.utime(self._at(name))

    def restrict(self) -> None:
        """Set the mode to 0700. If other users could write before, empty the folder and warn.

        Raises `Unsafe` if the folder contains anything except entries of a store.
        """
        mode = self.status().st_mode
        if self.fd is None or not mode & 0o077:
            return
        self._check_names()
        os.fchmod(self.fd, 0o700)
        if mode & OTHERS_WRITE:
            self.empty(f"other users could write to it (mode {stat.S_IMODE(mode):o})")

    def empty(self, reason: str) -> None:
        """Remove all entries, and warn. Raises `Unsafe` if anything else remains."""
        self._check_names()
        names = self.names()
        for name in names:
            self.remove(name)
        if names:
            text = f"cache: {self.path} was emptied: {reason}; its code is compiled again"
            warnings.warn(text, CacheWarning, stacklevel=2)

    def _check_names(self) -> None:
        """Raise `Unsafe` for a name that no store writes: the folder has another purpose."""
        strange = next((name for name in self.names() if not ENTRY.fullmatch(name)), None)
        if strange is not None:
            raise Unsafe(f"it contains {strange!r}, which is no entry of a store")

    def _open(self, name: str, flags: int) -> int:
        return os.open(self._at(name), flags | _NO_LINK, 0o600, dir_fd=self.fd)

    def _at(self, name: str) -> str:
        return name if self.fd is not None else str(self.path / name)


@contextlib.contextmanager
def opened(path: Path, make: bool = True) -> Iterator[Folder]:
    """Open an absolute path as a folder of this user that no other user can write to.

    make: create missing folders with mode 0700. A symbolic link in the path is followed only if it
        belongs to this user or to root and is not one of the last two names.

    The caller must check the mode of the folder itself, with `restrict`. Raises `OSError`, and
    `Unsafe` with the reason if another user could change the path.
    """
    if not POSIX:
        yield _opened_by_path(path, make)
        return
    with contextlib.ExitStack() as stack:
        fd = _walk(stack, path, make)
        status = os.fstat(fd)
        if status.st_uid != os.geteuid():
            raise Unsafe(f"it belongs to user {status.st_uid}")
        yield Folder(path, fd)


def refusal(root: Path) -> str:
    """Return why `opened` refuses folders in this folder; "" if it does not."""
    try:
        with opened(root / "probe", make=False):
            return ""
    except FileNotFoundError:
        place = next(place for place in (root, *root.parents) if place.exists())
        can_be_made = place == root or os.access(place, os.W_OK | os.X_OK)
        return "" if can_be_made else f"it does not exist, and you cannot write to {place}"
    except OSError as error:
        return str(error)


def _opened_by_path(path: Path, make: bool) -> Folder:
    if make:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    for place in (path, path.parent):
        if place.is_symlink() or getattr(place, "is_junction", bool)():
            raise Unsafe(f"{place} is a symbolic link to {place.readlink()}")
    if not stat.S_ISDIR(path.lstat().st_mode):
        raise Unsafe("it is not a folder")
    return Folder(path, None)


def _walk(stack: contextlib.ExitStack, path: Path, make: bool) -> int:
    """Open the folders from the root to `path`. Return the last one's descriptor."""
    names = list(path.parts[1:])
    links = 0
    here = Path(path.anchor)
    fd = _closed_by(stack, os.open(here, _SEARCH))
    while names:
        _check_parent(os.fstat(fd), here)
        name = names.pop(0)
        with _named(here / name):
            status = _looked_up(name, fd, make and name != "..")
        if stat.S_ISLNK(status.st_mode):
            links += 1
            target = Path(os.readlink(name, dir_fd=fd))
            if len(names) < 2 or links > MOST_LINKS:
                raise Unsafe(f"{here / name} is a symbolic link to {target}")
            _check_owner(status, here / name)
            names[:0] = target.parts[1:] if target.is_absolute() else target.parts
            if target.is_absolute():
                here = Path(target.anchor)
                fd = _closed_by(stack, os.open(here, _SEARCH))
            continue
        if not stat.S_ISDIR(status.st_mode):
            raise Unsafe(f"{here / name} is not a folder")
        with _named(here / name):
            fd = _closed_by(stack, os.open(name, _SEARCH if names else _LIST, dir_fd=fd))
        here = here / name
    return fd


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """Add the whole path to errors of the system."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise


def _closed_by(stack: contextlib.ExitStack, fd: int) -> int:
    stack.callback(os.close, fd)
    return fd


def _looked_up(name: str, fd: int, make: bool) -> os.stat_result:
    """Return the status of a name in an open folder, after its creation if it does not exist."""
    try:
        return os.lstat(name, dir_fd=fd)
    except FileNotFoundError:
        if not make:
            raise
    with contextlib.suppress(FileExistsError):  # another process makes it at the same time
        os.mkdir(name, 0o700, dir_fd=fd)
        os.chmod(name, 0o700, dir_fd=fd)  # the umask may have removed rights of the owner
    return os.lstat(name, dir_fd=fd)


def _check_parent(status: os.stat_result, path: Path) -> None:
    """Raise `Unsafe` if another user could replace the contents of the folder.

    In a sticky folder, such as /tmp, users can replace only their own files.
    """
    _check_owner(status, path)
    mode = status.st_mode
    by_group = mode & stat.S_IWGRP and not _is_private(status.st_gid, os.geteuid())
    if (by_group or mode & stat.S_IWOTH) and not mode & stat.S_ISVTX:
        raise Unsafe(f"other users can write to {path} (mode {stat.S_IMODE(mode):o})")


def _check_owner(status: os.stat_result, path: Path) -> None:
    """Raise `Unsafe` unless the owner is this user, root, or the owner of the root folder.

    In containers that do not map root, the root folder's owner has another number than root.
    """
    if status.st_uid not in (os.geteuid(), 0, _owner_of_root()):
        raise Unsafe(f"{path} belongs to user {status.st_uid}")


def _check_file(status: os.stat_result) -> None:
    """Raise `Unsafe` unless this is a regular file of this user that no other user can write to."""
    if not stat.S_ISREG(status.st_mode):
        raise Unsafe("it contains something that is not a file")
    if POSIX and status.st_uid != os.geteuid():
        raise Unsafe(f"it contains a file of user {status.st_uid}")
    if POSIX and status.st_mode & OTHERS_WRITE:
        raise Unsafe("it contains a file that other users can write to")


@functools.cache
def _owner_of_root() -> int:
    return Path("/").stat().st_uid


@functools.cache
def _is_private(group: int, user_id: int) -> bool:
    """Whether a group has the user's name and no other member. Many systems create such groups."""
    try:
        import grp
        import pwd

        user = pwd.getpwuid(user_id).pw_name
        found = grp.getgrgid(group)
    except (ImportError, KeyError):
        return False
    return found.gr_name == user and set(found.gr_mem) <= {user}
