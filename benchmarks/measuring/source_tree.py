"""A digest of the sources that computed a figure: dnncore and its backends, without the kit.

The digest is computed from git's hashes of the files' contents, so that commits have digests, too.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

__all__ = ["FOLDERS", "of_files", "of_listing", "present"]

ROOT = Path(__file__).parents[2]
FOLDERS = ("dnncore", "backends")
KIT = PurePosixPath("dnncore/testing")
SUFFIXES = (".py", ".cl")


@functools.cache
def present() -> str:
    """The digest of the files of this checkout."""
    return of_files(ROOT)


def of_files(root: Path) -> str:
    """The digest of the files below a folder."""
    paths = [path for folder in FOLDERS for path in (root / folder).rglob("*")]
    return _digest(
        (path.relative_to(root).as_posix(), _name(path.read_bytes()))
        for path in paths
        if path.suffix in SUFFIXES
    )


def of_listing(text: str) -> str:
    """The digest of a commit's files, from the output of `git ls-tree -r COMMIT -- FOLDERS`."""
    rows = [line.split("\t", 1) for line in text.splitlines()]
    return _digest((path, about.split()[2]) for about, path in rows if path.endswith(SUFFIXES))


def _name(content: bytes) -> str:
    """git's hash of a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _digest(files: Iterable[tuple[str, str]]) -> str:
    counted = [pair for pair in files if KIT not in PurePosixPath(pair[0]).parents]
    return hashlib.sha256("\n".join(map(" ".join, sorted(counted))).encode()).hexdigest()
