"""Results of mutants in a file, so that a long run can be stopped and continued."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from pathlib import Path

from mutants.sites import Site

__all__ = ["Ledger", "Result"]


@dataclass(frozen=True)
class Result:
    """status: killed, survived, or unreached. by: the test that failed, or another reason."""

    site: Site
    status: str
    by: str


class Ledger:
    """A file of JSON lines with the results for one state of the source."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self.known: dict[str, dict[str, str]] = {}
        if path.exists():
            for line in path.read_text().splitlines():
                entry = json.loads(line)
                self.known[entry["site"]] = entry

    def get(self, site: Site, tests: str) -> Result | None:
        """The recorded result, or None. A survivor counts only if the tests have not changed."""
        entry = self.known.get(_key(site))
        if entry is None or (entry["status"] != "killed" and entry["tests"] != tests):
            return None
        return Result(site, entry["status"], entry["by"])

    def put(self, result: Result, tests: str) -> None:
        """Record a result and the state of the tests."""
        site = _key(result.site)
        entry = {"site": site, "status": result.status, "by": result.by, "tests": tests}
        with self._lock, self.path.open("a") as file:
            self.known[site] = entry
            file.write(json.dumps(entry) + "\n")


def _key(site: Site) -> str:
    return f"{site.path}:{site.start}:{site.old} -> {site.new}"
