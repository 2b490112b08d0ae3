"""What has been measured already, in a file, so that a long run can be stopped and continued."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import platformdirs

import dnncore as dnn

__all__ = ["Ledger", "default_path", "source_hash"]

ROOT = Path(__file__).parents[1]
SOURCES = ("dnncore", "backends/cpu_numba", "backends/reference", "benchmarks")


def default_path() -> Path:
    """Beside dnncore's caches."""
    return platformdirs.user_cache_path("dnncore") / "benchmarks.jsonl"


@functools.cache
def source_hash() -> str:
    """Of all sources that a figure may depend on: what is measured, and how."""
    digest = hashlib.sha256(dnn.engine("cpu").device.name.encode())
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


class Ledger:
    """A file of lines of JSON, each a key and what was measured; without a path, only in memory.

    A line that was cut off, as when the machine stopped, is as if it had not been measured.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._found: dict[str, Any] = {}
        if path and path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    key, value = json.loads(line)
                except ValueError:
                    continue
                self._found[key] = value

    @staticmethod
    def key(what: str, how: Mapping[str, Any]) -> str:
        """Of something measured in some way, by these sources."""
        text = json.dumps([what, how, source_hash()], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def get(self, key: str) -> Any:
        """What was measured; None where nothing was."""
        return self._found.get(key)

    def put(self, key: str, value: Any) -> None:
        """Add a line."""
        self._found[key] = value
        if self.path:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps([key, value]) + "\n")
