"""Checks all implementations of products on an engine, with the kit's smoke problems.

    python -m benchmarks.gpu_smoke [--engine opencl:0] [--impl 'opencl:tiled*'] [--json found.json]

Each problem is checked with one set of random values. The conformance kit checks far more.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click

from benchmarks.contestants.contestant import is_arithmetic
from benchmarks.measuring.checkout import engine as open_engine
from dnncore.selection.plugins import describe
from dnncore.testing.checks.case import Case, Trial
from dnncore.testing.problems.cases import cases

Found = dict[str, dict[str, list[str]]]  # implementation -> "right" or "wrong" -> problems


def findings(trial: Trial) -> Iterator[str]:
    """Descriptions of an implementation's errors."""
    try:
        outputs = trial.outputs("random")
    except Exception as error:
        yield describe(error)
        return
    yield trial.wrong(trial.case.round("random"), outputs)
    yield from map(str, trial.findings)


def smoke(name: str, impl: str) -> Found:
    """Check all implementations that accept, on all smoke problems that are products."""
    opened, found = open_engine(name), defaultdict(lambda: {"right": [], "wrong": []})
    for problem in filter(is_arithmetic, cases("smoke", more=False)):
        for trial in Case(replace(problem, impl=impl), opened).trials:
            reasons = "; ".join(filter(None, findings(trial)))
            entry = f"{problem}: {reasons}" if reasons else str(problem)
            found[trial.pd.impl_name]["wrong" if reasons else "right"].append(entry)
    return dict(found)


@click.command(help=__doc__)
@click.option("--engine", default="opencl:0", show_default=True)
@click.option("--impl", default="", help="Patterns of implementations.")
@click.option("--json", "path", type=Path, help="Also write the results to this file.")
def main(engine: str, impl: str, path: Path | None) -> None:
    """Check and print."""
    found = smoke(engine, impl)
    for name, problems in sorted(found.items()):
        counts = ", ".join(f"{len(texts)} {verdict}" for verdict, texts in problems.items())
        click.echo(f"{name}: {counts}")
        for text in problems["wrong"]:
            click.echo(f"  WRONG  {text}")
    if path:
        path.write_text(json.dumps(found) + "\n")
    sys.exit(1 if any(problems["wrong"] for problems in found.values()) else 0)


if __name__ == "__main__":
    main()
