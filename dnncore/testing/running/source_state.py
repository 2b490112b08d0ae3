"""The name of the tested source: its commit, and a hash of uncommitted changes if any."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

from dnncore.errors import DescriptorError

__all__ = ["source_state"]

DIGITS = 12  # hexadecimal, of the hash of changes


def source_state(folder: str | Path = ".") -> str:
    """Return the commit checked out in `folder` or above it, or COMMIT-dirty-HASH with changes.

    The hash covers all changes and all files that git neither tracks nor ignores. Raises
    `DescriptorError` if there is no git or no commit.
    """
    commit = _git(folder, "rev-parse", "HEAD").decode().strip()
    root = Path(_git(folder, "rev-parse", "--show-toplevel").decode().rstrip("\n"))
    changes = hashlib.sha256(_git(root, "diff", "--binary", "HEAD"))
    changed = changes.digest() != hashlib.sha256().digest()
    for name in _git(root, "ls-files", "--others", "--exclude-standard", "-z").split(b"\0")[:-1]:
        changes.update(name + b"\0" + _content(root / name.decode(errors="surrogateescape")))
        changed = True
    return f"{commit}-dirty-{changes.hexdigest()[:DIGITS]}" if changed else commit


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def _git(folder: str | Path, *arguments: str) -> bytes:
    git = shutil.which("git")
    command = [git or "git", "-C", str(folder), *arguments]
    error = "there is no git"
    if git:
        done = subprocess.run(command, capture_output=True, check=False)  # noqa: S603 - git itself
        if done.returncode == 0:
            return done.stdout
        error = done.stderr.decode(errors="replace").strip()
    raise DescriptorError(
        f"commit: expected a checkout of git in {str(folder)!r}; got: {error}; name the commit,"
        " with pytest's option --dnncore-commit=ID, or COMMIT=ID of make"
    )
