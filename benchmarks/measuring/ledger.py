"""What has been measured already, in a file, so that a long run can be stopped and continued."""

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
    """Beside dnncore's caches."""
    return cache_root() / "benchmarks.jsonl"


@functools.cache
def source_hash() -> str:
    """Of the processor and all sources that a figure may depend on: what is measured, and how."""
    digest = hashlib.sha256(dnn.engine("cpu").device.name.encode())
    for path in sorted(path for pattern in SOURCES for path in ROOT.glob(pattern)):
        digest.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


class Ledger:
    """A file of lines of JSON, each a key and what was measured; without a path, only in memory.

    A line that was cut off, as when the machine stopped, is as if it had not been measured. known:
    whether what the file holds counts; a line of a key that it has replaces the older one.
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
                self._found.pop(key, None)  # the newest comes last
                self._found[key] = value

    @staticmethod
    def key(what: str, how: Mapping[str, Any], sources: str | None = None) -> str:
        """Of something measured in some way, by these sources: a hash, by default `source_hash`."""
        text = json.dumps([what, how, sources or source_hash()], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def keys(self) -> list[str]:
        """Of all that was measured and is not wrong, which may be so by chance."""
        return [key for key, value in self._found.items() if "wrong" not in value]

    def values(self) -> list[Any]:
        """All that was measured, in the order of the file."""
        return list(self._found.values())

    def get(self, key: str) -> Any:
        """What was measured; None where nothing was."""
        return self._found.get(key)

    def put(self, key: str, value: Any) -> None:
        """Add a line, on a line of its own even where the last one was cut off."""
        self._found[key] = value
        if self.path:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(f"\n{json.dumps([key, value])}\n")

    def keep_newest(self, *fields: str) -> None:
        """Forget, in the file, too, what was measured before another with the same fields."""
        newest = {tuple(value[name] for name in fields): key for key, value in self._found.items()}
        kept = set(newest.values())
        self._found = {key: value for key, value in self._found.items() if key in kept}
        if self.path:
            lines = (f"{json.dumps(pair)}\n" for pair in self._found.items())
            new = self.path.with_suffix(".new")
            new.write_text("".join(lines), encoding="utf-8")
            new.replace(self.path)

    def finish(self) -> None:
        """Forget everything: the next run starts anew."""
        self._found.clear()
        if self.path:
            self.path.unlink(missing_ok=True)
