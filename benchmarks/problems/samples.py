"""Random samples as lines of a page: seeds, goals, and repeated measurements of low rows."""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.corpus.sample import Sample
from benchmarks.documents import report
from benchmarks.problems.lines import Line, sample_of
from dnncore.errors import DescriptorError
from dnncore.problem import Problem, read

__all__ = ["AGAIN", "Record", "command", "drawn", "fresh", "is_least_held", "least_text",
           "measured_again", "recorded", "skipped_text", "summary", "with_samples"]  # fmt: skip

COUNT = 3  # samples of a page
SEEDS = 1_000_000  # seeds are below this number
AGAIN = 3  # processes in which low rows are measured again

Outcome = dict[str, Any]
Record = dict[str, Any]
"""A seed and the fields of a `Sample`."""


def fresh(line: Line, *, full: bool) -> list[Record]:
    """New samples for a page, as records."""
    seeds = [secrets.randbelow(SEEDS) for _ in range(COUNT)]
    samples = [sample_of(replace(line, seed=seed), full=full) for seed in seeds]
    return [{"seed": s, **sample.record()} for s, sample in zip(seeds, samples, strict=True)]


def recorded(line: Line, records: Iterable[Record]) -> tuple[Line, ...]:
    """One line for each record of a sample."""
    return tuple(
        replace(line, title=f"{line.title}, seed {record['seed']}", seed=record["seed"],
                sample=Sample.of(record)) for record in records
    )  # fmt: skip


def with_samples(lines: Iterable[Line], records: Sequence[Record]) -> tuple[Line, ...]:
    """The lines. One line for each record replaces the line of samples.

    Without records, the line of samples has no problems.
    """
    found: list[Line] = []
    for line in lines:
        unknown = replace(line, sample=Sample(networks=0))
        found += (recorded(line, records) or [unknown]) if line.draw else [line]
    return tuple(found)


def drawn(line: Line, count: int, seed: int | None, options: Mapping[str, str], match: str) -> Line:
    """The line of a sample with another size, seed and other values to draw from.

    seed: by default a new one.
    options: dir, mb and dt: values separated by commas; alg: the algorithm of convolutions.

    Raises `DescriptorError` for other options.
    """
    known = ("dir", "mb", "dt", "alg")
    if options.keys() - set(known):
        names = ", ".join(f"--{name}" for name in known)
        raise DescriptorError(
            f"--draw: expected only {names} with it; got --{min(options.keys() - set(known))}"
        )
    for text in options.get("mb", "1").split(","):
        if not (text.isdecimal() and int(text)):
            raise DescriptorError(
                f"--mb: expected whole numbers above 0, with commas; got {text!r}"
            )
    seed = secrets.randbelow(SEEDS) if seed is None else seed
    lists = {"dir": ",".join(line.directions), "mb": ",".join(line.quick), **options}
    return replace(
        line,
        title=f"Sample of {count} layers, seed {seed}",
        draw=count,
        seed=seed,
        spared=line.spared * count // line.draw,
        directions=lists["dir"].split(","),
        quick=lists["mb"].split(","),
        options={**line.options, **{n: t for n, t in options.items() if n in ("dt", "alg")}},
        match=match,
    )


def command(line: Line, engine: str, peers: Sequence[str], *, full: bool) -> str:
    """The command that measures the same sample again."""
    words = {"draw": str(line.draw), "seed": str(line.seed), "engine": engine,
             "peer": ",".join(peers), "dir": ",".join(line.directions),
             "mb": ",".join(line.batches if full else line.quick), **line.options,
             "match": line.match}  # fmt: skip
    given = [f"--{name}={shlex.quote(text)}" for name, text in words.items() if text]
    return " ".join(["python -m benchmarks.compare", *given])


def measured_again(
    line: Line, outcomes: Sequence[Outcome], measure: Callable[[list[Problem]], list[Outcome]]
) -> list[Outcome]:
    """Measure rows of a sample below the least ratio again. Returns all outcomes.

    measure: measures problems, each in `AGAIN` new processes.
    """
    low = [outcome["problem"] for outcome in _low(line, outcomes) if not _is_median(outcome)]
    if not line.draw or not low:
        return list(outcomes)
    found = {outcome["problem"]: outcome for outcome in measure([read(text)[0] for text in low])}
    return [found.get(outcome["problem"], outcome) for outcome in outcomes]


def least_text(line: Line) -> str:
    """The goal for single ratios, as text."""
    return f"{f'all but {line.spared}' if line.spared else 'each'} >= {line.least:g}"


def is_least_held(line: Line, outcomes: Sequence[Outcome]) -> bool:
    """Whether at most `spared` rows have ratios below `least`.

    Rows of a sample count as low only after `AGAIN` processes; before that, the goal does not hold.
    """
    low = _low(line, outcomes)
    if line.draw and not all(map(_is_median, low)):
        return False
    return any("ratio" in outcome for outcome in outcomes) and len(low) <= line.spared


def _low(line: Line, outcomes: Sequence[Outcome]) -> list[Outcome]:
    least = line.least or 0.0
    return [outcome for outcome in outcomes if "ratio" in outcome and outcome["ratio"] < least]


def _is_median(outcome: Outcome) -> bool:
    return len(outcome.get("ratios", ())) >= AGAIN


def summary(line: Line, outcomes: list[Outcome], skipped: Mapping[str, int]) -> str:
    """The figures and the goals of a sample, as text.

    skipped: the number of drawn layers of each missing operation.
    """
    found = report.figures(outcomes)
    rows, low = found["rows"], len(_low(line, outcomes))
    mean = f"geometric mean {found['geomean']:.2f}, least {found['min']:.2f}" if rows else "no rows"
    parts = [
        f"{mean} of {len(rows)}",
        f"{low} below {line.least:g} (the goal permits {line.spared})" if line.least else "",
        f"{len(found['wrong'])} wrong",
        f"{len(found['left_out'])} left out",
        f"mean errors of dnncore and of the peer: {report.errors(rows)}" if rows else "",
    ]
    return (
        f"{line.title}: {'; '.join(filter(None, parts))}.\n"
        f"Skipped layers of missing operations: {skipped_text(skipped)}."
    )


def skipped_text(skipped: Mapping[str, int]) -> str:
    """Text: each missing operation with the number of its drawn layers."""
    return ", ".join(f"{name} {count}" for name, count in sorted(skipped.items())) or "none"
