"""One training step of AlexNet's first layers beside oneDNN, primitive by primitive.

    python benchmarks/alexnet.py [--engine cpu --engine opencl:0] [--batch 8] [--json figures.json]

Every side runs examples/cnn_training_f32.py's net on the same data, in one process and on as many
threads; each chooses its own formats. The sides are sampled in turn, a pause apart, since OpenMP's
threads spin for a while after their work; times are medians, or with --least the shortest, which
tell more on a machine that others use.

The results are not compared here, as the example does that: on its data oneDNN 3.2's blocked LRN
gives 0 where its base, which it cubes, is above 7e12, the cube root of the largest f32.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import click
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

import dnncore as dnn

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from cnn_training_f32 import BATCH, Net, Step
from onednn import Peer, PeerPrimitive

THREADS = 2
PAUSE = 0.005  # seconds
GOALS = {"cpu": 2.0, "opencl": 4.0}  # times the side to the left, which is oneDNN for cpu
STEP = "the whole step"


class PeerNet(Net):
    """The same net through oneDNN."""

    def __init__(self, batch: int) -> None:
        self.peer = Peer()
        super().__init__(dnn.engine("cpu"), batch)

    def _choose(self, op: dnn.Operation, hint: PeerPrimitive | None = None) -> PeerPrimitive:
        return self.peer.primitive(op, hint)

    def _sequence(self, steps: list[Step]) -> Callable[[dnn.Stream], None]:
        def run(stream: dnn.Stream) -> None:
            for step in steps:
                step.call(stream)

        return run


@dataclass
class Side:
    """One contestant: its net, and the seconds sampled for each primitive and the whole step."""

    name: str
    net: Net
    statistic: Callable[[list[float]], float] = statistics.median
    samples: dict[str, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.stream = self.net.engine.stream()
        self.calls = {STEP: self.net.step} | {step.name: step.call for step in self.net.steps}
        self.samples = {name: [] for name in self.calls}
        self.implementations = {step.name: step.pd.impl_name for step in self.net.steps}

    def sample(self) -> None:
        """Time the step, then its primitives in their order."""
        for name, call in self.calls.items():
            start = time.perf_counter()
            call(self.stream)
            self.stream.wait()
            self.samples[name].append(time.perf_counter() - start)

    @property
    def seconds(self) -> dict[str, float]:
        """What the samples come to."""
        return {name: self.statistic(taken) for name, taken in self.samples.items()}


def measured(sides: list[Side], samples: int) -> None:
    """Sample all sides in turn; the first round only warms them up."""
    for count in range(samples + 1):
        for side in sides:
            time.sleep(PAUSE)
            side.sample()
        if count == 0:
            for side in sides:
                side.samples = {name: [] for name in side.calls}


def in_order(sides: list[Side]) -> list[str]:
    """The names of all sides' primitives in the order of execution; reorders differ."""
    names: list[str] = []
    for side in sides:
        place = 0
        for step in side.net.steps:
            if step.name not in names:
                names.insert(place, step.name)
            place = names.index(step.name) + 1
    return [*names, STEP]


def report(sides: list[Side], batch: int) -> Table:
    """Milliseconds, and how many times those of the side to the left."""
    table = Table(
        title=f"AlexNet's first layers, batch {batch}, {THREADS} threads: ms a primitive",
        title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0),
    )  # fmt: skip
    table.add_column("primitive")
    for i, side in enumerate(sides):
        table.add_column(side.name, justify="right")
        if i:
            table.add_column(f"/ {sides[i - 1].name}", justify="right")
        table.add_column("by")
    for name in in_order(sides):
        if name == STEP:
            table.add_section()
        table.add_row(name, *_cells(sides, name))
    return table


def _cells(sides: list[Side], name: str) -> list[str]:
    cells = []
    for i, side in enumerate(sides):
        seconds = side.seconds.get(name)
        cells.append("" if seconds is None else f"{seconds * 1e3:.3f}")
        if i:
            ratio = ratio_to(sides[i - 1], side, name)
            mark = " over" if ratio and ratio > _goal(side) else ""
            cells.append(f"{ratio:.2f}{mark}" if ratio else "")
        cells.append(side.implementations.get(name, ""))
    return cells


def ratio_to(left: Side, side: Side, name: str) -> float | None:
    """How many times `left`'s seconds; None where one of the two lacks the primitive."""
    ours, theirs = side.seconds.get(name), left.seconds.get(name)
    return ours / theirs if ours and theirs else None


def _goal(side: Side) -> float:
    return GOALS.get(side.net.engine.kind, 1.0)


def figures(sides: list[Side]) -> dict[str, object]:
    """All that was measured, for machines."""
    return {
        side.name: {
            name: {"seconds": seconds, "implementation": side.implementations.get(name)}
            for name, seconds in side.seconds.items()
        }
        for side in sides
    }


@click.command()
@click.option("--engine", "engines", multiple=True, default=("cpu", "opencl:0"), show_default=True)
@click.option("--batch", default=BATCH, show_default=True)
@click.option("--samples", default=21, show_default=True, type=click.IntRange(9))
@click.option("--host-fallback", is_flag=True, help="Let the CPU serve what an engine lacks.")
@click.option("--least", is_flag=True, help="The shortest times instead of the medians.")
@click.option("--json", "path", type=Path, help="Write the figures to this file, too.")
def main(
    engines: tuple[str, ...],
    batch: int,
    samples: int,
    host_fallback: bool,
    least: bool,
    path: Path | None,
) -> None:
    """Time each primitive and the whole step on oneDNN and on the engines."""
    for name in ("OMP_NUM_THREADS", "DNNCORE_NUM_THREADS", "POCL_MAX_PTHREAD_COUNT"):
        os.environ.setdefault(name, str(THREADS))  # read when each of them is first used
    nets = {name: Net(dnn.engine(name), batch, host_fallback=host_fallback) for name in engines}
    statistic = min if least else statistics.median
    sides = [Side(name, net, statistic) for name, net in {"oneDNN": PeerNet(batch), **nets}.items()]
    measured(sides, samples)
    Console(width=160).print(report(sides, batch))
    if path:
        path.write_text(json.dumps(figures(sides), indent=1) + "\n")


if __name__ == "__main__":
    main()
