"""Compares AlexNet's training step on a GPU with torch.

    python -m benchmarks.gpu_step [--engine opencl:0] [--batch 256] [--json figures.json]

dnncore replays the primitives of the net in examples/cnn_training_f32.py as sequences. torch's step
is captured in a CUDA graph, with its autograd and with cuDNN's float32 convolutions. The faster one
of torch's two orders of images counts. Both results are compared with float64. Without CUDA, torch
runs on the CPU, without a graph.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click
import torch

from benchmarks.contestants.by_torch_cuda import graph_of, without_tf32
from benchmarks.measuring.checkout import engine as open_engine
from benchmarks.measuring.checkout import runs_on_cores
from benchmarks.measuring.contest import QUEUED, Outcome
from benchmarks.measuring.sampling import SAMPLES, Repeat, in_turn, one_by_one, sampled, timed
from benchmarks.training_step import DrawnNet, TorchNet, errors, wrong

GOAL, BATCH = 1.3, 256
GPU = "cuda" if torch.cuda.is_available() else "cpu"


class OurNet:
    """The net on an engine."""

    def __init__(self, name: str, batch: int) -> None:
        self.net = DrawnNet(open_engine(name), batch)
        self.stream = self.net.engine.stream()
        self.refill, self.outputs = self.net.refill, self.net.outputs
        self.repeat = timed(self._repeat)

    def _repeat(self, count: int) -> int:
        for _ in range(count):
            self.net.step(self.stream)
        self.stream.wait()
        return count


class TheirNet:
    """torch's net with one order of images. Steps are in a graph, except on the CPU."""

    def __init__(self, batch: int, layout: str) -> None:
        self.batch, self.layout, self.name = batch, layout, f"torch {layout}"
        self.refill(0)

    def refill(self, draw: int) -> None:
        """Replace the net by a new one with the values of a draw."""
        self.net = net = TorchNet(self.batch, "float32", self.layout, GPU, draw)
        self.run = graph_of(net.run) if GPU == "cuda" else one_by_one(net.run)

    def repeat(self, count: int) -> float:
        """Run steps."""
        return self.run(count)

    def outputs(self) -> dict[str, Any]:
        """The results of the last step."""
        return self.net.outputs()


def exact(batch: int, draw: int) -> dict[str, Any]:
    """All results in float64."""
    return TorchNet(batch, "float64", "plain", GPU, draw).everything()


def measure(name: str, batch: int, samples: int) -> Outcome:
    """Measure one step. Returns its figures, or the reason if a result is wrong.

    Every result is compared with float64 before the measurement and, for other inputs, after it.
    """
    without_tf32()
    ours = OurNet(name, batch)
    theirs = [TheirNet(batch, layout) for layout in TorchNet.LAYOUTS]
    outcome: Outcome = {
        "problem": f"AlexNet's training step, batch {batch}",
        "impls": {step.name: step.pd.impl_name for step in ours.net.steps},
        "goal": GOAL,
    }
    for net in (ours, *theirs):
        net.repeat(1)
    outcome |= _errors(ours, theirs, exact(batch, 0))
    if wrong(outcome["ours_errors"]):
        return outcome | {"wrong": wrong(outcome["ours_errors"])}
    theirs = [net for net in theirs if not wrong(outcome["peer_errors"][net.name])]
    if not theirs:
        return outcome | {"wrong": f"torch differs from float64 by {outcome['peer_errors']}"}
    how = {} if runs_on_cores(name) else {"pause": 0.0, "least": QUEUED}
    refills = [lambda net=net: net.refill(1) for net in (ours, *theirs)]
    race = sampled([ours.repeat, *(net.repeat for net in theirs)], samples, refills=refills, **how)
    our_seconds, *peer_seconds = [times.median for times in race]
    best = min(range(len(theirs)), key=peer_seconds.__getitem__)
    again = _errors(ours, [theirs[best]], exact(batch, 1))
    for found in (again["ours_errors"], *again["peer_errors"].values()):
        if wrong(found):
            return outcome | {"wrong": f"for other inputs, {wrong(found)}"}
    return outcome | {
        "peer": theirs[best].name,
        "ratio": peer_seconds[best] / our_seconds,
        "ours_ms": our_seconds * 1e3,
        "peer_ms": peer_seconds[best] * 1e3,
        "parts_ms": parts(ours, **how),
        "verified": 2,
    }


def _errors(ours: OurNet, theirs: list[TheirNet], expected: dict[str, Any]) -> Outcome:
    return {
        "ours_errors": errors(ours.outputs(), expected),
        "peer_errors": {net.name: errors(net.outputs(), expected) for net in theirs},
    }


def parts(ours: OurNet, **how: Any) -> dict[str, float]:
    """The milliseconds of each primitive alone."""

    def repeat_of(call: Any) -> Repeat:
        @timed
        def repeat(count: int) -> int:
            for _ in range(count):
                call(ours.stream)
            ours.stream.wait()
            return count

        return repeat

    steps = ours.net.steps
    seconds = in_turn([repeat_of(step.call) for step in steps], 3, **how)
    return {step.name: time * 1e3 for step, time in zip(steps, seconds, strict=True)}


@click.command(help=__doc__)
@click.option("--engine", default="opencl:0", show_default=True)
@click.option("--batch", default=BATCH, show_default=True, type=click.IntRange(1))
@click.option("--samples", default=SAMPLES, show_default=True, type=click.IntRange(1))
@click.option("--json", "path", type=Path, help="Also write the figures to this file.")
def main(engine: str, batch: int, samples: int, path: Path | None) -> None:
    """Measure and print."""
    outcome = measure(engine, batch, samples)
    if path:
        path.write_text(json.dumps(outcome) + "\n")
    if "ratio" in outcome:
        times = f"{outcome['ours_ms']:.3f} ms, {outcome['peer']} {outcome['peer_ms']:.3f}"
        click.echo(f"{outcome['ratio']:.2f}  {times}  {outcome['problem']}")
        for name, time in outcome["parts_ms"].items():
            click.echo(f"  {time:8.3f} ms  {name}: {outcome['impls'][name]}")
    click.echo(f"errors: ours {outcome['ours_errors']}, torch {outcome['peer_errors']}")
    sys.exit(1 if "wrong" in outcome else 0)


if __name__ == "__main__":
    main()
