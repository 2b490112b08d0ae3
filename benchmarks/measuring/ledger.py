"""Stores measured figures in a file, so that a long run can be stopped and continued."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dnncore as dnn
from dnncore.cache import cache_root

__all__ = ["Ledger", "default_path", "source_hash"]

ROOT = Path(__file__).parents[2]
SOURCES = (
    "dnncore/**/*.py", "backends/cpu_numba/**/*.py", "benchmarks/contestants/*.py",
    "benchmarks/measuring/accuracy.py", "benchmarks/measuring/contest.py",
    "benchmarks/measuring/sampling.py",
)  # fmt: skip


def default_path() -> Path:
    """The default file, in the folder of dnncore's caches."""
    return cache_root() / "benchmarks.jsonl"


@functools.cache
def source_hash() -> str:
    """A hash of the processor and of all sources that figures depend on."""
    digest = hashlib.sha256(dnn.engine("cpu").device.name.encode())
    for path in sorted(path for pattern in SOURCES for path in ROOT.glob(pattern)):
        digest.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


class Ledger:
    """A file of JSON lines, each with a key and a value. Without a path, only in memory.

    Incomplete lines are ignored. If a key has several lines, the last one counts.

    known: whether to read the existing lines of the file.
    """

    def __init__(self, path: Path | None = None, *, known: bool = True) -> None:
        self.path = path
        self._found: dict[str, Any] = {}
        if known and path and path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    key, value = json.loads(line)
                except ValueError:
                    continue
                self._found.pop(key, None)  # the newest is last
                self._found[key] = value

    @staticmethod
    def key(what: str, how: Mapping[str, Any], sources: str | None = None) -> str:
        """The key for a problem, settings and a hash of sources, by default `source_hash`."""
        text = json.dumps([what, how, sources or source_hash()], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def keys(self) -> list[str]:
        """The keys of values that are not wrong. Wrong ones are measured again."""
        return [key for key, value in self._found.items() if "wrong" not in value]

    def values(self) -> list[Any]:
        """All values in the order of the file."""
        return list(self._found.values())

    def get(self, key: str) -> Any:
        """The value of a key, or None."""
        return self._found.get(key)

    def put(self, key: str, value: Any) -> None:
        """Add a line. It begins with a line break in case the last line is incomplete."""
        self._found[key] = value
        if self.path:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(f"\n{json.dumps([key, value])}\n")

    def keep_newest(self, *fields: str) -> None:
        """Keep only the newest of the values with equal fields, also in the file."""
        newest = {tuple(value[name] for name in fields): key for key, value in self._found.items()}
        kept = set(newest.values())
        self._found = {key: value for key, value in self._found.items() if key in kept}
        if self.path:
            lines = (f"{json.dumps(pair)}\n" for pair in self._found.items())
            new = self.path.with_suffix(".new")
            new.write_text("".join(lines), encoding="utf-8")
            new.replace(self.path)

    def finish(self) -> None:
        """Remove all values and the file. The next run measures everything."""
        self._found.clear()
        if self.path:
            self.path.unlink(missing_ok=True)
