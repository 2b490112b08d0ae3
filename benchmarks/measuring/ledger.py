"""Stores measured figures in a file, so that a long run can be stopped and continued.

Each line contains a digest of its content and of the previous line's digest. So a check finds a
line that was changed, added, moved or removed between other lines. The page that is made from the
file states the number of lines and the last digest. So a check also finds removed last lines.

The digests are not signatures. A person who changes figures on purpose can compute all digests
again with this module and write the page again. Only a new measurement, or a comparison with a
former state of the file, reveals this.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dnncore as dnn
from dnncore.store import cache_root

__all__ = ["ChangedRow", "Ledger", "default_path", "digest", "source_hash"]

ROOT = Path(__file__).parents[2]
SOURCES = (
    "dnncore/*.py", "dnncore/[!t]*/**/*.py", "dnncore/tensors/*.py", "dnncore/testing/null.py",
    "backends/cpu_numba/**/*.py", "benchmarks/contestants/*.py",
    *(f"benchmarks/measuring/{name}.py" for name in
      ("accuracy", "contest", "cores", "sampling", "verification")),
)  # fmt: skip  # without the kit, which measures nothing


def default_path() -> Path:
    """The default file, in the folder of dnncore's caches."""
    return cache_root() / "benchmarks.jsonl"


@functools.cache
def source_hash() -> str:
    """A hash of the processor's name and of all sources that affect figures."""
    digest = hashlib.sha256(dnn.engine("cpu").device.name.encode())
    for path in sorted(path for pattern in SOURCES for path in ROOT.glob(pattern)):
        digest.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


class ChangedRow(ValueError):
    """A line of a ledger differs from the line that was written."""


def digest(previous: str, key: str, value: Any) -> str:
    """A hash of the previous line's digest, a key and its value."""
    return hashlib.sha256(json.dumps([previous, key, value]).encode()).hexdigest()


class Ledger:
    """A file of JSON lines that only grows. Without a path, the ledger is only in memory.

    If several lines have the same key, the last one counts. Raises `ChangedRow` for a line that is
    not JSON or has a wrong digest. If the last line has no line break, its writing was interrupted.
    Such a line does not count, and the next line replaces it.

    count: the number of lines.
    last: the digest of the last line; "" before the first one.
    cut: the text of an interrupted last line.
    known: whether values of the existing lines count.
    """

    def __init__(self, path: Path | None = None, *, known: bool = True) -> None:
        self.path = path
        self.count, self.last, self.cut = 0, "", ""
        self._size = 0  # bytes of the file
        self._found: dict[str, Any] = {}
        if path and path.exists():
            data = path.read_bytes()
            self._size = len(data)
            text = data.decode("ascii", "surrogateescape").replace("\r\n", "\n")
            *lines, self.cut = text.split("\n")
            for line in lines:
                self._add(*self._read(line))
        if not known:
            self._found.clear()

    def _read(self, line: str) -> tuple[str, Any]:
        """Read the next line. Returns its key and its value."""
        where = f"{self.path}:{self.count + 1}"
        try:
            key, value, _ = json.loads(line)
        except (ValueError, TypeError):
            raise ChangedRow(
                f"{where}: expected a key, a value and a digest as JSON; got {line[:60]!r}. Restore"
                " the line, or remove the file and measure again"
            ) from None
        if line != self._line(key, value):
            what = value.get("problem", key) if isinstance(value, dict) else key
            raise ChangedRow(
                f"{where}: {what} must be as it was measured, but its digest differs, or the line"
                " before it is another one. Restore the lines, or remove the file and measure again"
            )
        return key, value

    def _line(self, key: str, value: Any) -> str:
        return json.dumps([key, value, digest(self.last, key, value)])

    def _add(self, key: str, value: Any) -> None:
        self.count, self.last = self.count + 1, digest(self.last, key, value)
        self._found.pop(key, None)  # so that the newest is last
        self._found[key] = value

    @staticmethod
    def key(what: str, how: Mapping[str, Any], sources: str | None = None) -> str:
        """The key of a problem, settings and a hash of sources, by default `source_hash`."""
        hashed = source_hash() if sources is None else sources
        text = json.dumps([what, how, hashed], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def keys(self) -> list[str]:
        """The keys of measured values, without problems that were wrong or left out.

        Those are measured again, because a peer may have been corrected since.
        """
        unmeasured = {"wrong", "left_out"}
        return [key for key, value in self._found.items() if unmeasured.isdisjoint(value)]

    def values(self) -> list[Any]:
        """All values in the order of the file."""
        return list(self._found.values())

    def get(self, key: str) -> Any:
        """The value of a key, or None."""
        return self._found.get(key)

    def put(self, key: str, value: Any) -> None:
        """Add a line. Raises `ChangedRow` if another process has changed the file."""
        if self.path:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="ascii") as file:
                if file.tell() != self._size:
                    raise ChangedRow(
                        f"{self.path}: expected {self._size} bytes; got {file.tell()}. Another"
                        " process has changed the file; let one process at a time write to it"
                    )
                file.truncate(self._size - len(self.cut))
                file.write(f"{self._line(key, value)}\n")
                self._size = file.tell()
        self.cut = ""
        self._add(key, value)

    def replace(self, old: Any, new: Any) -> None:
        """Store `new` under the key of `old`."""
        self.put(next(key for key, value in self._found.items() if value == old), new)

    def keep_newest(self, *fields: str) -> None:
        """Forget each value if a newer value has equal `fields`. The file keeps the lines."""
        newest = {tuple(value[name] for name in fields): key for key, value in self._found.items()}
        kept = set(newest.values())
        self._found = {key: value for key, value in self._found.items() if key in kept}

    def finish(self) -> None:
        """Remove all values and the file. The next run measures everything."""
        self._found.clear()
        self.count, self.last, self.cut, self._size = 0, "", "", 0
        if self.path:
            self.path.unlink(missing_ok=True)
