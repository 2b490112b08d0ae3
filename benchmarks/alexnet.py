"""Compares a training step of AlexNet's first layers with oneDNN, primitive by primitive.

    python -m benchmarks.alexnet [--engine cpu --engine opencl:0] [--batch 8] [--json figures.json]

Each side runs the net of examples/cnn_training_f32.py on the same data, in one process and with the
same number of threads. Each side selects its own formats. The sides are sampled in turn, with a
pause between samples, because OpenMP's threads stay active for a while after their work. Times are
medians, or with --least the shortest, which is better on a machine with other work. A ratio is the
time of the side to the left divided by the time of this side.

The results are not compared here; the example does that. On its data, oneDNN 3.2's blocked LRN
gives 0 if its base is above 7e12, the cube root of the largest f32, because it cubes the base.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import click
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

import dnncore as dnn
from benchmarks.contestants.onednn import Peer, PeerPrimitive
from benchmarks.measuring.sampling import PAUSE
from examples.cnn_training_f32 import BATCH, Net, Step

GOALS = {"cpu": 1.1, "opencl": 0.25}  # engine kind -> least ratio
STEP, SUM = "the whole step", "its primitives, summed"


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
    """A side: its net, and the sampled seconds of each primitive and of the whole step."""

    name: str
    net: Net
    statistic: Callable[[list[float]], float] = statistics.median
    samples: dict[str, list[float]] = field(init=False)

    def __post_init__(self) -> None:
        self.stream = self.net.engine.stream()
        self.calls = {STEP: self.net.step} | {step.name: step.call for step in self.net.steps}
        self.implementations = {step.name: step.pd.impl_name for step in self.net.steps}
        self.warm_up()

    def warm_up(self) -> None:
        """Sample once and drop the times."""
        self.samples = {name: [] for name in self.calls}
        self.sample()
        self.samples = {name: [] for name in self.calls}

    @property
    def goal(self) -> float:
        """The goal: the least ratio."""
        return GOALS.get(self.net.engine.kind, 1.0)

    def sample(self) -> None:
        """Time the step, then its primitives in their order."""
        for name, call in self.calls.items():
            start = time.perf_counter()
            call(self.stream)
            self.stream.wait()
            self.samples[name].append(time.perf_counter() - start)

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of each call, and the sum over the primitives."""
        seconds = {name: self.statistic(taken) for name, taken in self.samples.items()}
        return seconds | {SUM: sum(seconds.values()) - seconds[STEP]}


def measure(sides: list[Side], samples: int) -> None:
    """Sample all sides in turn."""
    for _ in range(samples):
        for side in sides:
            time.sleep(PAUSE)
            side.sample()


def in_order(sides: list[Side]) -> list[str]:
    """The names of all primitives in the order of execution. The sides have other reorders."""
    names: list[str] = []
    for side in sides:
        place = 0
        for step in side.net.steps:
            if step.name not in names:
                names.insert(place, step.name)
            place = names.index(step.name) + 1
    return [*names, STEP, SUM]


def ratio(sides: list[Side], side: Side, name: str) -> float | None:
    """The ratio for a primitive. None for the first side, or if a side lacks the primitive."""
    place = sides.index(side)
    ours, theirs = (s.seconds.get(name) for s in (side, sides[place - 1]))
    return theirs / ours if place and ours and theirs else None


def report(sides: list[Side], batch: int, threads: int) -> Table:
    """A table of milliseconds and ratios."""
    table = Table(
        title=f"AlexNet's first layers, batch {batch}, {threads} threads: ms a primitive",
        title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0),
    )  # fmt: skip
    table.add_column("primitive")
    for left, side in zip([None, *sides], sides, strict=False):
        table.add_column(side.name, justify="right")
        table.add_column("by")
        if left:
            table.add_column(f"ratio (at least {side.goal:g})", justify="right")
    for name in in_order(sides):
        if name == STEP:
            table.add_section()
        table.add_row(name, *(cell for side in sides for cell in cells(sides, side, name)))
    return table


def cells(sides: list[Side], side: Side, name: str) -> list[str]:
    """The cells of a side in a row: time, implementation and, except for the first side, ratio."""
    seconds, times = side.seconds.get(name), ratio(sides, side, name)
    texts = [f"{seconds * 1e3:.3f}" if seconds else "", side.implementations.get(name, "")]
    if side is not sides[0]:
        mark = "under " if times and times < side.goal else ""
        texts.append(f"{mark}{times:.2f}" if times else "")
    return texts


def figures(sides: list[Side]) -> dict[str, object]:
    """All figures for JSON, by side and primitive, in seconds."""
    return {
        side.name: {
            name: {
                "implementation": side.implementations.get(name),
                "seconds": seconds,
                "ratio": ratio(sides, side, name),
                "goal": side.goal if side is not sides[0] else None,
            }
            for name, seconds in side.seconds.items()
        }
        for side in sides
    }


@click.command()
@click.option("--engine", "engines", multiple=True, default=("cpu", "opencl:0"), show_default=True)
@click.option("--batch", default=BATCH, show_default=True)
@click.option("--threads", default=2, show_default=True, help="Threads of each side.")
@click.option("--samples", default=21, show_default=True, type=click.IntRange(9))
@click.option("--least", is_flag=True, help="Report the shortest times, not medians.")
@click.option("--json", "path", type=Path, help="Also write the figures to this file.")
def main(
    engines: tuple[str, ...], batch: int, threads: int, samples: int, least: bool, path: Path | None
) -> None:
    """Time each primitive and the whole step on oneDNN and on the engines."""
    for name in ("OMP_NUM_THREADS", "DNNCORE_NUM_THREADS", "POCL_MAX_PTHREAD_COUNT"):
        os.environ[name] = str(threads)  # the libraries read these on first use
    nets = {"oneDNN": PeerNet(batch)} | {name: Net(dnn.engine(name), batch) for name in engines}
    statistic = min if least else statistics.median
    sides = [Side(name, net, statistic) for name, net in nets.items()]
    measure(sides, samples)
    Console(width=180).print(report(sides, batch, threads))
    if path:
        path.write_text(json.dumps(figures(sides), indent=1) + "\n")


if __name__ == "__main__":
    main()
