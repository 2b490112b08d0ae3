"""Compares a ledger with its committed states, and its rows with the commits of their sources.

Without git, outside of a clone, and without the clone's history, the functions find nothing.
"""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.measuring import source_tree

__all__ = ["of_other_sources", "rewritten"]

WITHOUT_SOURCES = {
    "cpu.jsonl": 736,
    "gpu.jsonl": 1074,
}  # lines that were measured before rows had them


def rewritten(ledger: Path) -> Iterator[str]:
    """Committed states that are not the beginning of the next state or of the current file."""
    states = [(f"commit {commit[:10]}", content) for commit, content in _committed(ledger)]
    states.append(("the present file", ledger.read_bytes()))
    grown = itertools.dropwhile(lambda state: not _has_digests(state[1]), states)
    for (before, old), (after, new) in itertools.pairwise(grown):
        if old and new and not new.startswith(old):
            yield (
                f"{ledger}: a ledger only grows, but lines of {before} are missing or changed in"
                f" {after}; restore them"
            )


def _has_digests(ledger: bytes) -> bool:
    """Whether the first line has a digest. The oldest ledgers lack digests and were rewritten."""
    first = ledger.splitlines()[:1]
    return bool(first) and len(json.loads(first[0])) == 3


def of_other_sources(ledger: Path, rows: list[Any]) -> Iterator[str]:
    """Rows without a digest of sources, and rows whose sources did not exist when they were added.

    The permitted sources of a row are those of the commits from the last earlier change of the
    ledger to the commit that adds the row. If the row is not committed yet, the sources of the
    checkout are also permitted. So a row that claims progress needs a commit that changes the
    sources.

    rows: the rows of all lines.
    """
    for row in filter(_is_measured, rows[WITHOUT_SOURCES.get(ledger.name, 0) :]):
        if "sources" not in row:
            yield f"{ledger}: {row['problem']} must have the digest of its sources; measure again"
    root = _git(ledger.parent, "rev-parse", "--show-toplevel").decode().strip()
    if not root or _git(ledger.parent, "rev-parse", "--is-shallow-repository") == b"true\n":
        return
    states = [(commit, content.count(b"\n")) for commit, content in _committed(ledger)]
    former, start = "", 0
    for commit, end in [*states, ("HEAD", len(rows))]:
        added = [row for row in rows[start:end] if _is_measured(row) and "sources" in row]
        known = _sources_between(Path(root), former, commit) if added else set()
        if commit == "HEAD" and added:
            known.add(source_tree.of_files(Path(root)))
        for row in added:
            if row["sources"] not in known:
                since = f"commit {former[:10]}" if former else "the first commit"
                yield (
                    f"{ledger}: {row['problem']} must have been measured with sources that were"
                    f" committed since {since}; got the digest {row['sources'][:10]}. Commit the"
                    " sources, and measure again"
                )
        former, start = commit, max(start, end)


def _is_measured(row: Any) -> bool:
    """Whether a row contains figures of a problem or of a program."""
    return isinstance(row, dict) and not {"ours_ms", "figures"}.isdisjoint(row)


def _sources_between(root: Path, first: str, last: str) -> set[str]:
    """The digests of the sources of two commits and of those between them."""
    commits = _git(root, "rev-list", f"{first}..{last}" if first else last).decode().split()
    return {
        source_tree.of_listing(
            _git(root, "ls-tree", "-r", commit, "--", *source_tree.FOLDERS).decode()
        )
        for commit in [*commits, *filter(None, [first])]
    }


def _committed(ledger: Path) -> list[tuple[str, bytes]]:
    """The commits that changed a ledger, oldest first, and the ledger's content in each."""
    folder, name = ledger.parent, ledger.name
    commits = _git(folder, "log", "--format=%H", "--reverse", "--", name).decode().split()
    return [(commit, _git(folder, "show", f"{commit}:./{name}")) for commit in commits]


def _git(folder: Path, *arguments: str) -> bytes:
    """Return a git command's output in a folder, "" without git and outside of a clone."""
    git = shutil.which("git")
    if git is None:
        return b""
    done = subprocess.run([git, *arguments], cwd=folder, capture_output=True, check=False)
    return done.stdout if done.returncode == 0 else b""
