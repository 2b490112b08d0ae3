"""Runs the tests that reach a mutant, until one fails."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path

from mutants.ledger import Result
from mutants.reach import Reach, Test
from mutants.scope import ELSEWHERE, RELATED, Stratum, files_for
from mutants.sites import Site

__all__ = ["examine"]

GENERIC = {"dnncore", "cpu", "numba", "opencl"}  # words in the paths of many files
EVERYWHERE = {"types"}  # words in the names of test files that cover all operations
PER_FILE = 60.0  # seconds of tests that run per file of tests; the quickest of each kind run first


def examine(site: Site, stratum: Stratum, reach: Reach) -> Result:
    """Run the tests that reach the site, file by file, until one fails."""
    copy, is_reached = reach.copy, False
    for file in _by_relevance(site, files_for(copy.root, stratum)):
        tests = _within(reach.tests(site, file, stratum))
        if not tests:
            continue
        is_reached = True
        with copy.mutated(site):
            seconds = sum(test.seconds for test in tests)
            reason = copy.fails([test.name for test in tests], seconds, stratum)
        if reason:
            return Result(site, "killed", reason)
    return Result(site, "survived" if is_reached else "unreached", "")


def _by_relevance(site: Site, files: list[str]) -> list[str]:
    """Order files of tests: the first file, then files by the words shared with the site's path.

    Files whose tests execute the site in another process are last.
    """
    first, *others = files
    own = {word for part in Path(site.path).parts[1:] for word in Path(part).stem.split("_")}
    own -= GENERIC
    words = own | EVERYWHERE | {word for name in own for word in RELATED.get(name, ())}
    near = [file for file in others if words & _words(file)]
    last = [file for file, sources in ELSEWHERE.items() if fnmatch(site.path, sources)]
    ordered = [first, *sorted(near, key=lambda file: -len(own & _words(file))), *last]
    return list(dict.fromkeys(ordered))


def _words(file: str) -> set[str]:
    return set(Path(file).stem.split("_")[1:])


def _within(tests: list[Test]) -> list[Test]:
    total, kept = 0.0, []
    for test in tests:
        total += test.seconds
        if kept and total > PER_FILE:
            break
        kept.append(test)
    return kept
