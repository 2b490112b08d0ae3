"""Searches parameters for a family of kernels on a device and writes the tuning table.

    python -m benchmarks.tune_opencl --family=mma --set=resnet_50 --dir=FWD_I --mb=64 --match=conv
    python -m benchmarks.tune_opencl --family=tiled --matmul 4096x4096:4096x4096

Each product is computed with every tile of the family and the tile's variations. The fastest tiles
are then tried with several numbers of parts of K (split K). A candidate is valid if its result
agrees with float64. The fastest valid candidate replaces the family's own choice if the own choice
takes over 2 % longer. Products that are already in the table are skipped unless --again is given.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from dnncore_opencl.gemm.tuned import parameters
from dnncore_opencl.runtime import tuning

import dnncore as dnn
from benchmarks.compare import OPTIONS, chosen_problems
from benchmarks.contestants.by_dnncore import Dnncore
from benchmarks.contestants.contestant import Contestant
from benchmarks.contestants.libraries import contestant
from benchmarks.measuring.checkout import engine as open_engine
from benchmarks.measuring.sampling import SAMPLES, in_turn
from benchmarks.measuring.trials import OneChoice, Parameters, Trial, trial_of
from benchmarks.measuring.verification import allowed_error
from dnncore.problem import Problem
from dnncore.selection.plugins import registry

if TYPE_CHECKING:
    from benchmarks.measuring.accuracy import Exact

PARTS = (
    1,
    2,
    3,
    4,
    6,
    8,
    12,
    16,
    24,
    32,
    48,
    64,
    96,
    128,
)  # numbers of parts of k to try, besides the family's rule
VARIATIONS: dict[str, dict[str, tuple[int, ...]]] = {
    "mma": {"stages": (2, 3, 4), "chunks": (4, 8)},
}  # family -> parameter -> values to try
# Numbers of the fastest candidates that are tried with split K, and that are timed again.
CUT, KEPT = 3, 4
NEAR = 1.02  # the family's own choice stays if its time is at most this multiple of the best time
FOLDER = Path(tuning.__file__).parents[1] / "tuning"


class Search:
    """The candidates of one family for one problem."""

    def __init__(self, problem: Problem, name: str, family: str, *, varied: bool) -> None:
        self.problem, self.library = problem, Dnncore(open_engine(name))
        found = registry.implementations(self.library.engine.kind, type(problem.op))
        families = {i.name.removeprefix("opencl:"): i for _, i in found if hasattr(i, "family")}
        if family not in families:
            raise click.BadParameter(
                f"family: expected one of {', '.join(families)}; got {family!r}"
            )
        self.implementation: Any = families[family]
        self.family: Any = self.implementation.family.of(self.library.engine)
        table = OneChoice()
        self.trial(table)
        self.keys = sorted(table.asked)  # keys of the products in the problem
        self._varied = VARIATIONS.get(family, {}) if varied else {}
        self._seen: set[str] = set()

    def trial(self, table: OneChoice) -> Trial | None:
        """The problem with the parameters of a table. None if the implementation refuses it."""
        return trial_of(self.problem, self.implementation, self.library.engine, table)

    def contestant(self, found: Parameters | None) -> Contestant | None:
        """The contestant for parameters (None: the family's choice). None if the build fails."""
        trial = self.trial(OneChoice(found))
        try:
            return contestant(self.library, trial) if trial else None
        except dnn.DnnError as error:
            click.echo(f"  {found}: {str(error).splitlines()[0]}")
            return None

    def best(self) -> tuple[float, Parameters | None]:
        """The time of the family's own choice divided by the best time, and the best candidate."""
        tiles = self.timed(self.tiles())
        ranked = self.timed(cut for _, found in tiles[:CUT] for cut in self.parts(found))
        from benchmarks.measuring.accuracy import Exact  # imports torch

        exact = Exact(self.problem)
        ranked = sorted([*tiles, *ranked], key=lambda pair: pair[0])
        right = [found for _, found in ranked[:KEPT] if self.is_right(found, exact)]
        finalists = [self.contestant(found) for found in (None, *right)]
        own, *seconds = in_turn([made.repeat for made in finalists], SAMPLES, pause=0.0)
        least = min(seconds, default=own)
        if own <= NEAR * least:
            return own / least, None
        return own / least, right[seconds.index(least)]

    def tiles(self) -> Iterator[Parameters]:
        """Every tile and its variations. The family's rule selects the number of parts of K."""
        for tile in self.family.tiles:
            for values in itertools.product(*self._varied.values()):
                try:
                    one = replace(tile, **dict(zip(self._varied, values, strict=True)))
                except dnn.DescriptorError:
                    continue  # not every tile has every variation
                yield parameters(replace(self.family, tiles=(one,)))

    def parts(self, found: Parameters) -> Iterator[Parameters]:
        """A tile with each number of parts of K."""
        return ({**found, "parts": count} for count in PARTS)

    def timed(self, candidates: Iterable[Parameters]) -> list[tuple[float, Parameters]]:
        """Seconds and parameters, fastest first. Candidates with equal launches are timed once."""
        times = []
        for found in candidates:
            trial = self.trial(OneChoice(found))
            launches = repr(trial and trial.executable.launches)
            if launches in self._seen:
                continue
            self._seen.add(launches)
            made = self.contestant(found)
            if made:
                times.append((in_turn([made.repeat], 1, pause=0.0)[0], found))
        return sorted(times, key=lambda pair: pair[0])

    def is_right(self, found: Parameters, exact: Exact) -> bool:
        """Whether a candidate's result agrees with float64."""
        made = self.contestant(found)
        assert made is not None
        made.repeat(1)
        error = exact.errors(made.outputs()).largest
        right = error <= made.error_factor * allowed_error(self.problem.op)
        if not right:
            click.echo(f"  WRONG by {error:.1e}: {found}")
        return right


@click.command(context_settings={"ignore_unknown_options": True}, help=__doc__)
@click.option("--engine", default="opencl:0", show_default=True)
@click.option("--family", required=True, help="The name in opencl:<family>.")
@click.option("--set", "sets", multiple=True, help="Name of a set; may be repeated.")
@click.option("--match", default="", help="Only problems whose text matches this expression.")
@click.option("--quick", is_flag=True, help="Tiles without variations.")
@click.option("--again", is_flag=True, help="Also search products that the table has.")
@click.option("--seconds", default=float("inf"), help="Stop after this time.")
@click.option("--folder", default=FOLDER, type=Path, help="The folder of the tables.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def main(
    engine: str, family: str, sets: tuple[str, ...], match: str, quick: bool, again: bool,
    seconds: float, folder: Path, words: tuple[str, ...], **options: str | None,
) -> None:  # fmt: skip
    """Search, print, and write after each product."""
    end = time.monotonic() + seconds
    device = open_engine(engine)
    path = folder / f"{tuning.slug(device.device.name)}.json"
    table = tuning.read(path).get(family, {})
    given = {name: text for name, text in options.items() if text is not None}
    for problem in chosen_problems(sets, words, given, match):
        search = Search(problem, engine, family, varied=not quick)
        if len(search.keys) != 1 or (search.keys[0] in table and not again):
            continue
        (key,) = search.keys
        gain, found = search.best()
        click.echo(f"{gain:.2f}  {key}: {'its own choice' if found is None else found}")
        table = {other: entry for other, entry in table.items() if other != key}
        if found is not None:
            table[key] = found
        tuning.write(path, family, table)
        if time.monotonic() > end:
            click.echo("out of time")
            break


for name in OPTIONS:
    main.params.append(click.Option([f"--{name}"], help=f"Another {name} for all problems."))

if __name__ == "__main__":
    main()
