"""Compares a training step of AlexNet's first layers with oneDNN and torch.

    python -m benchmarks.alexnet [--engine cpu --engine opencl:0] [--batch 8] [--json figures.json]

Each side runs the net of examples/cnn_training_f32.py with the random values of
`benchmarks/training_step.py`, on the same cores and with the same number of threads. Each side
selects its own formats. oneDNN 3.2, the newest oneDNN and torch have a process each. The sides are
sampled in turn, with a pause between samples, because OpenMP's threads stay active for a while
after their work. Times are medians, or with --least the shortest, which is better on a machine with
other work. A ratio is the shortest time of a peer divided by the time of an engine.

Every result of every layer is compared with torch's float64, before the measurement and, for other
inputs, after its last sample. The times of a side with a wrong result are discarded.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

import dnncore as dnn
from benchmarks.contestants.contestant import SIDES, Contestant, LeftOut, imported
from benchmarks.contestants.onednn import Peer, PeerPrimitive
from benchmarks.contestants.onednn_packages import NEWEST, OPENMP, Package
from benchmarks.contestants.remote import Process
from benchmarks.measuring.cores import keep_to, thread_count, thread_settings
from benchmarks.measuring.sampling import PAUSE, one_by_one
from benchmarks.training_step import DrawnNet, TorchNet, errors, wrong
from examples.cnn_training_f32 import BATCH, Step

GOALS = {"cpu": 1.1, "opencl": 0.25}  # engine kind -> least ratio
STEP, SUM = "the whole step", "its primitives, summed"
PEERS = {
    "onednn-3.2": "benchmarks.alexnet:by_openmp",
    "onednn-3.13": "benchmarks.alexnet:by_newest",
    "torch": "benchmarks.alexnet:by_torch",
}


# -- contestants: the whole step, and each primitive -----------------------------------------------


class PeerNet(DrawnNet):
    """The same net through oneDNN."""

    def __init__(self, batch: int, package: Package) -> None:
        self.peer = Peer(package)
        super().__init__(dnn.engine("cpu"), batch)

    def values(self, memory: dnn.Memory) -> Any:
        """The values of a tensor. oneDNN's reorder is used for an opaque format."""
        return self.peer.values(memory)

    def _choose(self, op: dnn.Operation, hint: PeerPrimitive | None = None) -> PeerPrimitive:
        return self.peer.primitive(op, hint)

    def _sequence(self, steps: list[Step]) -> Callable[[dnn.Stream], None]:
        def run(stream: dnn.Stream) -> None:
            for step in steps:
                step.call(stream)

        return run


def parts_of(net: DrawnNet) -> Iterator[Contestant]:
    """The whole step, then its primitives in order. The names contain the implementations."""
    stream = net.engine.stream()

    def waiting(call: Callable[[dnn.Stream], object]) -> Any:
        def run() -> None:
            call(stream)
            stream.wait()

        return one_by_one(run)

    yield Contestant(STEP, waiting(net.step), net.outputs, net.refill)
    for step in net.steps:
        name = f"{step.name}: {step.pd.impl_name}"
        yield Contestant(name, waiting(step.call), dict, lambda _draw: None)


def by_openmp(batch: int) -> Iterator[Contestant]:
    """The parts of oneDNN 3.2's step."""
    return parts_of(_installed(OPENMP, batch))


def by_newest(batch: int) -> Iterator[Contestant]:
    """The parts of the newest oneDNN's step."""
    return parts_of(_installed(NEWEST, batch))


def _installed(package: Package, batch: int) -> PeerNet:
    try:
        return PeerNet(batch, package)
    except ModuleNotFoundError as error:
        raise LeftOut(str(error)) from None


def by_torch(batch: int) -> Iterator[Contestant]:
    """torch's step with each order of images. It has no times of primitives."""
    import torch

    torch.set_num_threads(thread_count())
    for layout in TorchNet.LAYOUTS:
        step = _TorchStep(batch, layout)
        yield Contestant(f"{STEP}: {layout}", one_by_one(step.run), step.outputs, step.refill)


class _TorchStep:
    """torch's net with the values of the current draw."""

    def __init__(self, batch: int, layout: str) -> None:
        self.batch, self.layout = batch, layout
        self.refill(0)

    def refill(self, draw: int) -> None:
        self.net = TorchNet(self.batch, "float32", self.layout, "cpu", draw)

    def run(self) -> None:
        self.net.run()

    def outputs(self) -> dict[str, Any]:
        return self.net.outputs()


# -- sides -----------------------------------------------------------------------------------------


@dataclass
class Side:
    """One side of the comparison.

    contestants: the whole step, then the primitives if the side can time them.
    samples: the sampled seconds of each part.
    kind: the engine kind; "" for peers.
    """

    name: str
    contestants: list[Contestant]
    kind: str = ""
    statistic: Callable[[list[float]], float] = statistics.median
    samples: dict[str, list[float]] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    wrong: str = ""

    @property
    def step(self) -> Contestant:
        """The whole step."""
        return self.contestants[0]

    @property
    def implementations(self) -> dict[str, str]:
        """The implementation of each part."""
        pairs = (contestant.name.partition(": ")[::2] for contestant in self.contestants)
        return dict(pairs)

    @property
    def goal(self) -> float | None:
        """The goal: the least ratio. None for peers."""
        return GOALS.get(self.kind, 1.0) if self.kind else None

    def sample(self, draw: int = 0) -> None:
        """Time the step, then its primitives in order. draw: if not 0, selects new inputs first."""
        for contestant in self.contestants:
            if draw and contestant is self.step:
                contestant.refill(draw)
            seconds = contestant.repeat(1)
            self.samples.setdefault(contestant.name.partition(": ")[0], []).append(seconds)

    def verify(self, expected: dict[str, Any]) -> None:
        """Compare the results of the last step. A wrong result discards the times of the side."""
        found = errors(self.step.outputs(), expected)
        self.errors = {n: float(np.fmax(e, self.errors.get(n, 0))) for n, e in found.items()}
        self.wrong = self.wrong or wrong(found)

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of each part, and the sum over the primitives. Empty if the side is wrong."""
        if self.wrong:
            return {}
        seconds = {name: self.statistic(taken) for name, taken in self.samples.items()}
        rest = sum(seconds.values()) - seconds[STEP]
        return seconds | ({SUM: rest} if len(self.contestants) > 1 else {})


def peers(batch: int) -> tuple[list[Side], dict[str, str]]:
    """The sides of the peers, and why peers are absent. torch has a side per order of images."""
    found, absent = [], {}
    for name, path in PEERS.items():
        environment = SIDES[name].environment
        process = Process(path, imported(environment)() if environment else {})
        try:
            made = process.make(batch)
        except LeftOut as reason:
            absent[name] = str(reason)
            continue
        if name == "torch":
            found += [Side(f"torch{c.name.removeprefix(STEP)}", [c]) for c in made]
        else:
            found.append(Side(name, made))
    return found, absent


def measure(sides: list[Side], batch: int, samples: int) -> None:
    """Sample all sides in turn. Verify them before and after the last sample."""
    draws = [0] * samples + [1]
    for number, draw in enumerate(draws):
        for side in sides:
            time.sleep(PAUSE)
            side.sample(draw)
        if number in (0, samples):
            expected = TorchNet(batch, "float64", "plain", "cpu", draw).everything()
            for side in sides:
                side.verify(expected)
        if number == 0:
            for side in sides:
                side.samples.clear()  # the first run fills caches


# -- reports ---------------------------------------------------------------------------------------


def in_order(sides: list[Side]) -> list[str]:
    """The names of all primitives in the order of execution. Reorders differ between sides."""
    names: list[str] = []
    for side in sides:
        place = 0
        for name in side.implementations:
            if name == STEP:
                continue
            if name not in names:
                names.insert(place, name)
            place = names.index(name) + 1
    return [*names, STEP, SUM]


def ratio(sides: list[Side], side: Side, name: str) -> float | None:
    """The fastest peer's time of a part divided by this engine's time.

    None for peers, and if no peer with correct results times the part.
    """
    ours = side.seconds.get(name)
    theirs = [peer.seconds[name] for peer in sides if not peer.kind and name in peer.seconds]
    return min(theirs) / ours if side.kind and ours and theirs else None


def table(sides: list[Side], batch: int, threads: int) -> Table:
    """A table of milliseconds and ratios."""
    grid = Table(
        title=f"AlexNet's first layers, batch {batch}, {threads} threads: ms a primitive",
        title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0),
    )  # fmt: skip
    grid.add_column("primitive")
    for side in sides:
        grid.add_column(side.name, justify="right")
        grid.add_column("by")
        if side.kind:
            grid.add_column(f"ratio (at least {side.goal:g})", justify="right")
    for name in in_order(sides):
        if name == STEP:
            grid.add_section()
        grid.add_row(name, *(cell for side in sides for cell in cells(sides, side, name)))
    return grid


def cells(sides: list[Side], side: Side, name: str) -> list[str]:
    """The cells of one side in a row: time, implementation and, for engines, the ratio."""
    seconds, times = side.seconds.get(name), ratio(sides, side, name)
    texts = [f"{seconds * 1e3:.3f}" if seconds else "", side.implementations.get(name, "")]
    if side.kind:
        mark = "under " if times and side.goal and times < side.goal else ""
        texts.append(f"{mark}{times:.2f}" if times else "")
    return texts


def figures(sides: list[Side], absent: dict[str, str]) -> dict[str, Any]:
    """All figures for JSON, by side and primitive, in seconds."""
    found: dict[str, Any] = {}
    for side in sides:
        found[side.name] = {
            name: {
                "implementation": side.implementations.get(name),
                "seconds": seconds,
                "ratio": ratio(sides, side, name),
                "goal": side.goal,
            }
            for name, seconds in side.seconds.items()
        } | {"errors": side.errors, "wrong": side.wrong}
    return found | {"absent": absent}


@click.command(help=__doc__)
@click.option("--engine", "engines", multiple=True, default=("cpu", "opencl:0"), show_default=True)
@click.option("--batch", default=BATCH, show_default=True)
@click.option("--threads", default=2, show_default=True, help="Threads of each side.")
@click.option("--samples", default=21, show_default=True, type=click.IntRange(9))
@click.option("--least", is_flag=True, help="Report the shortest times, not medians.")
@click.option("--json", "path", type=Path, help="Also write the figures to this file.")
def main(
    engines: tuple[str, ...], batch: int, threads: int, samples: int, least: bool, path: Path | None
) -> None:
    """Time each primitive and the whole step on oneDNN, on torch and on the engines."""
    os.environ |= thread_settings(threads)  # the libraries read these on first use
    os.environ["POCL_MAX_PTHREAD_COUNT"] = str(threads)
    keep_to(threads)
    statistic = min if least else statistics.median
    sides, absent = peers(batch)
    for name in engines:
        net = DrawnNet(dnn.engine(name), batch)
        sides.append(Side(name, list(parts_of(net)), net.engine.kind))
    for side in sides:
        side.statistic = statistic
    measure(sides, batch, samples)
    Console(width=220).print(table(sides, batch, threads))
    for side in sides:
        click.echo(f"{side.name}: {side.wrong or 'right'}; largest error {_largest(side.errors)}")
    for name, reason in absent.items():
        click.echo(f"{name}: left out: {reason}")
    if path:
        path.write_text(json.dumps(figures(sides, absent), indent=1) + "\n")
    sys.exit(1 if any(side.wrong for side in sides if side.kind) else 0)


def _largest(found: dict[str, float]) -> str:
    name = max(found, key=functools.partial(dict.get, found))
    return f"{found[name]:.1e} ({name})"


if __name__ == "__main__":
    main()
