"""Which tests reach a line: a map for each file of tests, made on first use and stored."""

from __future__ import annotations

import functools
import hashlib
import json
import statistics
from collections import defaultdict
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from mutants.copy import Copy
from mutants.scope import ELSEWHERE, Stratum, files_for
from mutants.sites import Site

__all__ = ["Reach", "Test"]

SAMPLE = 30.0  # CPU seconds for mapping the tests of one file; further tests are not mapped
FIRST_SAMPLE = 900.0  # the same for the first file of a stratum, which all of its mutants use
FEW = 5  # tests
LIMIT = 3600.0  # time limit in seconds of a process that makes a map


@dataclass(frozen=True)
class Test:
    """A test and the CPU seconds that it takes without a mutant."""

    name: str
    seconds: float

    @property
    def function(self) -> str:
        """The test's name without parameters."""
        return self.name.partition("[")[0]


class Reach:
    """The maps of test files of a copy."""

    def __init__(self, copy: Copy, folder: Path) -> None:
        self.copy = copy
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._map = functools.cache(self._made)

    def tests(self, site: Site, file: str, stratum: Stratum) -> list[Test]:
        """The tests of a file that reach a site, ordered so that different functions come early.

        If the result of a line is cached, as in a table or a cached property, only one test
        executes the line. So if few tests execute a line, the tests that execute other lines of its
        file follow, or all tests for a file in `ELSEWHERE`. Unmapped tests are last. They count if
        the same function reaches the site with other parameters.
        """
        found = self._map(file, stratum)
        lines = {int(line): tests for line, tests in found["lines"].get(site.path, {}).items()}
        numbers = set(lines.get(site.line, ()))
        others = set().union(*lines.values()) if len(numbers) < FEW else set()
        if fnmatch(site.path, ELSEWHERE.get(file, "")):
            others = set(range(len(found["tests"])))
        parts = [
            [Test(*found["tests"][number]) for number in part]
            for part in (numbers, others - numbers)
        ]
        parts.append(_unmapped(parts[0], found["rest"]))
        return [test for part in parts for test in _diverse(part)]

    def _made(self, file: str, stratum: Stratum) -> dict[str, Any]:
        path = self.folder / f"{self._key(file, stratum)}.json"
        if not path.exists():
            print(f"mapping {file} for {stratum.name}", flush=True)
            is_first = file == files_for(self.copy.root, stratum)[0]
            options = (
                f"--mutants-target={stratum.target}",
                f"--mutants-map={path}",
                f"--mutants-seconds={FIRST_SAMPLE if is_first else SAMPLE}",
                file,
            )
            store = self.copy.folder / "cache"
            store.mkdir(exist_ok=True)
            status, output = self.copy.pytest(options, str(store), LIMIT, stratum)
            if not path.exists():
                raise RuntimeError(f"{file} has no map; status {status}:\n{output}")
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    def _key(self, file: str, stratum: Stratum) -> str:
        """The key of a map. Strata whose tests run in equal processes share it."""
        root = self.copy.root
        digest = hashlib.sha256(stratum.backends.encode())
        for path in [*sorted((root / "tests/support").glob("*.py")), root / file]:
            digest.update(path.read_bytes())
        return f"{Path(file).stem}-{stratum.target}-{digest.hexdigest()[:12]}"


def _unmapped(mapped: list[Test], names: list[str]) -> list[Test]:
    """Unmapped tests of mapped functions. Their estimated time is that of the mapped tests."""
    seconds: dict[str, list[float]] = defaultdict(list)
    for test in mapped:
        seconds[test.function].append(test.seconds)
    usual = {function: statistics.fmean(each) for function, each in seconds.items()}
    tests = [Test(name, usual.get(name.partition("[")[0], 0.0)) for name in names]
    return [test for test in tests if test.function in usual]


def _diverse(tests: list[Test]) -> list[Test]:
    """The quickest test of each function first, then the second of each, and so on."""
    ranks: dict[str, int] = {}
    order = []
    for test in sorted(tests, key=lambda test: test.seconds):
        rank = ranks[test.function] = ranks.get(test.function, -1) + 1
        order.append((rank, test.seconds, test))
    return [test for *_, test in sorted(order, key=lambda entry: entry[:2])]
