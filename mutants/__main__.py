"""`python -m mutants`: draws mutants, tests them and reports the survivors."""

from __future__ import annotations

import functools
import hashlib
import itertools
import signal
import sys
import threading
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click

from mutants import copy
from mutants.examine import examine
from mutants.ledger import Ledger, Result
from mutants.reach import Reach
from mutants.scope import STRATA, Stratum, sites
from mutants.sites import Site

ROOT = Path(__file__).parents[1]
EQUIVALENT = Path(__file__).with_name("equivalent.toml")
MOST_SURVIVORS = 0.02  # share of the mutants that change behaviour; one survivor is always allowed
MOST_EQUIVALENT = 0.05  # share of all mutants
NAMES = tuple(stratum.name for stratum in STRATA)


def draw(count: int, seed: int, only: str, match: str = "") -> list[tuple[Stratum, Site]]:
    """Draw an equal number of different sites from each stratum, in turn.

    Sites are ordered by a hash of the seed and of the text of their line. So a change of the source
    does not change the order of sites in other lines.

    only: names of strata, separated by commas; "" means all.
    match: the path, line and change of a site must contain this text.

    Raises `click.UsageError` for an unknown stratum, and if no site contains the text.
    """
    names = only.split(",") if only else NAMES
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise click.UsageError(f"--only: expected some of {', '.join(NAMES)}; got {unknown[0]!r}")
    orders = []
    for stratum in (stratum for stratum in STRATA if stratum.name in names):
        found = [site for site in sites(ROOT, stratum) if match in str(site)]
        found.sort(key=lambda site: hashlib.sha256(f"{seed} {place_of(site)}".encode()).digest())
        orders.append([(stratum, site) for site in found])
    longest = max(map(len, orders))
    if not longest:
        raise click.UsageError(
            f"--match: expected a part of a mutant's path or change; none contains {match!r}"
        )
    drawn = [order[i] for i in range(longest) for order in orders if i < len(order)]
    return drawn[:count]


def proofs() -> dict[tuple[str, str, str, int], str]:
    """(path, line, change, column) -> the proof that this change has no effect."""
    entries = tomllib.loads(EQUIVALENT.read_text())["equivalent"]
    return {(e["path"], e["line"], e["change"], e["column"]): e["proof"] for e in entries}


def place_of(site: Site) -> tuple[str, str, str, int]:
    """The key of a mutant's proof: the stripped line, the change, and its column in that line."""
    text = _text(site.path)
    begin = text.rfind("\n", 0, site.start) + 1
    line = text[begin:].partition("\n")[0]
    column = site.start - begin - (len(line) - len(line.lstrip()))
    return site.path, line.strip(), f"{site.old} -> {site.new}", column


@functools.cache
def _text(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def _hash(*patterns: str) -> str:
    digest = hashlib.sha256()
    for path in sorted(path for pattern in patterns for path in ROOT.glob(pattern)):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


class Run:
    """One run. Mutants of strata with equal backends are tested one by one in the same copy."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self.folder = folder / _hash("dnncore/**/*.*", "backends/**/*.*")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.seconds = seconds
        self.tests = _hash("tests/**/*.*")
        self.ledger = Ledger(self.folder / "results.jsonl")

    def results(self, drawn: list[tuple[Stratum, Site]], jobs: int) -> list[Result]:
        """Test mutants. jobs: the number of groups of strata that are tested at the same time."""
        ordered = sorted(drawn, key=lambda pair: pair[0].backends)
        groups = [list(g) for _, g in itertools.groupby(ordered, lambda pair: pair[0].backends)]
        alarm = threading.Timer(self.seconds, copy.stop)
        if self.seconds:
            alarm.start()
        with ThreadPoolExecutor(jobs) as pool:
            try:
                return [result for found in pool.map(self._group, groups) for result in found]
            except BaseException:
                copy.stop()
                raise
            finally:
                alarm.cancel()

    def _group(self, drawn: list[tuple[Stratum, Site]]) -> list[Result]:
        reach = None
        results = []
        for stratum, site in drawn:
            result = self.ledger.get(site, self.tests)
            if result is None:
                if reach is None:
                    place = self.folder / stratum.backends.replace(",", "-")
                    reach = Reach(copy.Copy(ROOT, place), self.folder / "maps")
                try:
                    result = examine(site, stratum, reach)
                except copy.Stopped:
                    break
                self.ledger.put(result, self.tests)
            results.append(result)
            print(f"{result.status:9} {site}   {result.by}"[:220], flush=True)
        return results


@click.command()
@click.option(
    "--count", default=200, show_default=True, type=click.IntRange(1), help="The number of mutants."
)
@click.option(
    "--seed",
    default=0,
    show_default=True,
    help="The seed of the draw.",
)
@click.option(
    "--seconds", default=0.0, type=click.FloatRange(0),
    help="Stop after this many seconds. Unfinished mutants do not count. 0 is no limit.",
)  # fmt: skip
@click.option(
    "--jobs", default=3, show_default=True, type=click.IntRange(1),
    help="The number of mutants at a time.",
)  # fmt: skip
@click.option("--only", default="", help=f"Some of {', '.join(NAMES)}, separated by commas.")
@click.option("--match", default="", help="Draw from mutants whose path or change contains this.")
@click.option(
    "--folder",
    default=".mutants",
    show_default=True,
    help="The folder for the maps of lines to tests, and for the results.",
)
def main(
    count: int, seed: int, seconds: float, jobs: int, only: str, match: str, folder: str
) -> None:
    """Test the tests with mutants.

    A mutant is a copy of the source with one changed operator, constant or condition. The tests
    that reach the changed line run until one fails. The mutants that no test kills are listed; too
    many of them are a failure. The same command continues a stopped run. CONTRIBUTING.md has more.
    The first run of a state of the source also maps which tests reach which lines: with 20 mutants
    it takes 8 minutes on two cores. Then each mutant takes 5 to 60 seconds.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that its processes end, too
    drawn = draw(count, seed, only, match)
    sys.exit(report(Run(ROOT / folder, seconds).results(drawn, jobs)))


def report(results: list[Result]) -> int:
    """Print the counts and the survivors. Returns 1 if too many survive or if none was tested."""
    if not results:
        print("no mutant was tested; give more --seconds")
        return 1
    proved = proofs()
    killed = [result for result in results if result.status == "killed"]
    equal = [r for r in results if r.status != "killed" and place_of(r.site) in proved]
    left = [r for r in results if r.status != "killed" and place_of(r.site) not in proved]
    for result in left:
        print(f"{result.status}: {result.site} at column {place_of(result.site)[3]}")
    changing = len(killed) + len(left)
    score = len(killed) / changing if changing else 1.0
    print(
        f"{len(results)} mutants: {len(killed)} killed, {len(equal)} proved equivalent,"
        f" {len(left)} survived; {score:.1%} of those that change behaviour were killed"
    )
    is_good = len(left) <= max(1, MOST_SURVIVORS * changing)
    return 0 if is_good and len(equal) <= max(1, MOST_EQUIVALENT * len(results)) else 1


if __name__ == "__main__":
    main()
