"""Measures the cost of a launch on a device, and the time to a second process's first result.

    python -m benchmarks.gpu_costs [--engine opencl:0] [--json figures.json]

The time of a small kernel is the time of many queued calls divided by their number. The host's work
determines it. The time to the first result is from the start of Python to the end of AlexNet's
training step.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np

import dnncore as dnn
from benchmarks.measuring.checkout import engine as open_engine
from benchmarks.measuring.checkout import runs_on_cores
from benchmarks.measuring.sampling import in_turn, timed

ROOT = Path(__file__).parents[1]
CALLS = 1000  # least number of calls per sample
KERNELS = 10  # number of kernels in a sequence
STARTS = 3  # measured processes
Row = tuple[str, float, float | None, str]  # name, value, limit, unit

FIRST_RESULT = """
from benchmarks.measuring.checkout import engine
from examples.cnn_training_f32 import Net
net = Net(engine({engine!r}), {batch})
stream = net.engine.stream()
net.step(stream)
stream.wait()
assert net.diff_weights.numpy().any()
"""


class Small:
    """A kernel with almost no work, which can be called in three ways."""

    def __init__(self, name: str) -> None:
        self.engine = open_engine(name)
        self.stream = self.engine.stream()
        desc = dnn.MemoryDesc((16,))
        op = dnn.EltwiseForward("forward_inference", "relu", src=desc, dst=desc)
        self.primitive = dnn.PrimitiveDesc(op, self.engine).primitive()
        self.memories = {name: dnn.Memory(desc, self.engine) for name in ("src", "dst")}
        for memory in self.memories.values():
            memory.fill(1)
        self.bound = self.primitive.bind(**self.memories)
        self.sequence = dnn.Sequence([self.bound] * KERNELS)

    def verify(self, run: Callable[[int], int]) -> None:
        """Raise `ValueError` if one of the ways to call the kernel gives a wrong result."""
        for value in (-2.0, 3.0):
            self.memories["src"].fill(value)
            self.memories["dst"].fill(np.nan)
            run(KERNELS)
            found = self.memories["dst"].numpy()
            if not np.array_equal(found, np.full(16, max(value, 0.0), np.float32)):
                raise ValueError(f"relu of {value} must be {max(value, 0.0)}; got {found}")

    def execute(self, count: int) -> int:
        """Execute by argument names, with all checks."""
        for _ in range(count):
            self.primitive.execute(self.stream, **self.memories)
        self.stream.wait()
        return count

    def call(self, count: int) -> int:
        """Call the bound primitive."""
        for _ in range(count):
            self.bound(self.stream)
        self.stream.wait()
        return count

    def replay(self, count: int) -> int:
        """Call a sequence."""
        replays = -(-count // KERNELS)
        for _ in range(replays):
            self.sequence(self.stream)
        self.stream.wait()
        return replays * KERNELS


def launch_rows(name: str) -> list[Row]:
    """The microseconds of a call of a small kernel, for each way to call it."""
    small = Small(name)
    ways: list[tuple[str, Callable[[int], int], float | None]] = [
        ("a small kernel by execute", small.execute, 8.0),
        ("a small kernel, bound", small.call, None),
        (f"a small kernel in a sequence of {KERNELS}", small.replay, 6.0),
    ]
    for _, way, _ in ways:
        small.verify(way)
    seconds = in_turn([timed(way) for _, way, _ in ways], pause=0.0, least=CALLS)
    times = zip(ways, seconds, strict=True)
    return [(what, time * 1e6, limit, "us") for (what, _, limit), time in times]


def start_rows(name: str) -> list[Row]:
    """The seconds to the first result in processes that find filled caches."""
    rows: list[Row] = []
    batches = [(8, 2.0)] if runs_on_cores(name) else [(8, 2.0), (256, None)]
    for batch, limit in batches:
        code = FIRST_RESULT.format(engine=name, batch=batch)
        _, *warm = (_seconds(code) for _ in range(1 + STARTS))
        what = f"AlexNet's step, batch {batch}: first result of a second process"
        rows.append((what, statistics.median(warm), limit, "s"))
    return rows


def _seconds(code: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


@click.command(help=__doc__)
@click.option("--engine", default="opencl:0", show_default=True)
@click.option("--json", "path", type=Path, help="Also write the figures to this file.")
def main(engine: str, path: Path | None) -> None:
    """Measure and print."""
    rows = launch_rows(engine) + start_rows(engine)
    if path:
        path.write_text(json.dumps(rows) + "\n")
    for what, value, limit, unit in rows:
        most = "" if limit is None else f", at most {limit:g}: {'ok' if value <= limit else 'over'}"
        click.echo(f"{value:.3g} {unit}{most}  {what}")


if __name__ == "__main__":
    main()
