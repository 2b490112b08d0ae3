"""Checks that all engines compute the same bits of random problems with integers.

    python -m dnncore.testing.equal_bits --engines=cpu,pocl --count=500 --seed=0

Products of u8 and s8, and other operations on integers, with scales, zero points and post-ops.
Every implementation of each engine is compared with the reference, for three kinds of values.
Results must be equal if docs/types.md defines each step. After other steps, such as exp, the
reference states the allowed difference in units of the result's type. The README names the
environment variable that selects another instruction set.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random

import click
import numpy as np

from dnncore.comparison.compare import Expected
from dnncore.comparison.fills import FillName
from dnncore.engines.engine import Engine
from dnncore.errors import DnnError, describe
from dnncore.problem import Problem
from dnncore.selection.plugins import engine as open_engine
from dnncore.testing.checks.case import Array, Case, Trial
from dnncore.testing.problems.random_problems import draw

__all__ = ["Findings", "examined", "main", "problems"]

SHARES = {
    "conv": 8, "matmul": 8, "ip": 5, "reorder": 3, "binary": 2, "pool": 2, "eltwise": 1, "sum": 1,
}  # fmt: skip
"""The relative number of problems of each driver."""

TYPES = ("s8", "u8", "s32", "f32", "s4", "u4")
BYTES = 30_000  # limit for the tensors of a problem in f32
SURPLUS = 10  # problems that are drawn for each one that has integers

VALUES: tuple[FillName, ...] = ("random", "ties", "wide")
"""Kinds of values: all integers, results halfway between two integers, sums that wrap around."""


def problems(count: int, seed: int) -> list[Problem]:
    """Return random problems that read integers of up to 8 bits, in an order of the seed."""
    found: list[Problem] = []
    total = sum(SHARES.values())
    for driver, share in SHARES.items():
        wanted = -(-count * share // total)
        drawn = draw(wanted * SURPLUS, driver, seed=seed, types=TYPES, most_bytes=BYTES)
        found += [problem for problem in drawn if _has_integers(problem)][:wanted]
    Random(seed).shuffle(found)  # noqa: S311 - reproducible
    return found[:count]


def _has_integers(problem: Problem) -> bool:
    inputs = [d for a, d in problem.op.tensors() if a.direction == "in" and a.name != "src2"]
    is_product = any(a.name == "weights" for a, _ in problem.op.tensors())
    small = [desc.data_type[0] in "su" and desc.data_type != "s32" for desc in inputs]
    factors = small[: 2 if is_product else len(small)]
    return all(factors) and problem.op.result.nelems > 0


# -- comparison ------------------------------------------------------------------------------------


@dataclass
class Findings:
    """The results of a run.

    executed: executions by engine and implementation.
    refused: problems that an engine refuses.
    equal: executions whose results have the same bits as the reference.
    near: executions whose results differ where a difference is allowed.
    wrong: a line for each other execution.
    """

    executed: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    equal: int = 0
    near: int = 0
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{count:6} executions by {name}" for name, count in sorted(self.executed.items())]
        lines += [f"{count:6} problems refused on {name}" for name, count in self.refused.items()]
        total = sum(self.executed.values())
        lines.append(
            f"{total} executions: {self.equal} with the bits of the reference, {self.near} with"
            f" allowed differences behind inexact steps, {len(self.wrong)} wrong"
        )
        return "\n".join(lines)


def examined(problem: Problem, engines: Sequence[Engine], findings: Findings) -> None:
    """Execute all implementations on a problem, and add the results to the findings."""
    for engine in engines:
        trials = [t for t in Case(problem, engine).trials if not t.pd.is_reference]
        findings.refused[engine.name] += not trials
        for trial in trials:
            findings.executed[f"{trial.pd.impl_name} on {engine.name}"] += 1
            line = _wrong(trial, findings)
            if line:
                named = replace(problem, impl=trial.pd.impl_name)
                findings.wrong.append(f"dnncore check --engines={engine.name} {named}\n  {line}")


def _wrong(trial: Trial, findings: Findings) -> str:
    """Describe the faults; "" if there is none."""
    wrong: dict[str, str] = {}
    for fill in VALUES:
        given = trial.case.round(fill)
        try:
            outputs = trial.execute(given.inputs)
        except Exception as error:  # of a backend
            return f"raised {describe(error)}, {fill}"
        for name, text in _differences(trial.expected(given) or {}, outputs):
            wrong[f"{fill} {name}"] = text and f"{text}, {fill}"
    findings.equal += not wrong
    findings.near += bool(wrong) and not any(wrong.values())
    return "; ".join(filter(None, wrong.values()))


def _differences(
    expected: Mapping[str, Expected], outputs: Mapping[str, Array]
) -> Iterator[tuple[str, str]]:
    """Yield the outputs with other bits, and a description, or "" if the difference is allowed."""
    for name, right in expected.items():
        values, got = right.values, outputs[name]
        is_nan = np.isnan(values.astype(np.float64)) & np.isnan(got.astype(np.float64))
        differs = (values != got) & ~is_nan
        if not differs.any():
            continue
        limit = 0.0 if right.noise is None else right.noise.limit
        fixed = differs & np.broadcast_to(np.asarray(limit) == 0, values.shape)
        if fixed.any():
            place = tuple(np.argwhere(fixed)[0])
            yield (
                name,
                (
                    f"{name}: {fixed.sum()} of {fixed.size} differ, at {[*map(int, place)]}:"
                    f" got {got[place]}, expected {values[place]}"
                ),
            )
        else:
            check = right.check(got)
            yield name, "" if check.ok else f"{name}: {check}"


@click.command()
@click.option("--engines", default="cpu,opencl", show_default=True, help="Names of engines.")
@click.option("--count", default=500, show_default=True, help="The number of problems.")
@click.option("--seed", default=0, show_default=True, help="The seed of the problems.")
@click.option("--seconds", type=float, help="Begin no further problem after this time.")
def main(engines: str, count: int, seed: int, seconds: float | None) -> None:
    """Compare the results of random problems with integers on several engines, bit by bit."""
    try:
        opened = [open_engine(name) for name in engines.split(",")]
    except DnnError as error:
        raise click.ClickException(str(error)) from None
    findings, drawn, done = Findings(), problems(count, seed), 0
    end = float("inf") if seconds is None else time.monotonic() + seconds
    for problem in drawn:
        if done and time.monotonic() > end:
            break
        done += 1
        before = len(findings.wrong)
        examined(problem, opened, findings)
        for line in findings.wrong[before:]:
            click.echo(line)
    click.echo(f"{done} of {len(drawn)} problems of seed {seed}")
    click.echo(str(findings))
    sys.exit(bool(findings.wrong))


if __name__ == "__main__":
    main()
