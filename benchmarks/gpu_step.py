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
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import torch
from torch.nn import functional

from benchmarks.contestants.by_torch_cuda import graph_of, without_tf32
from benchmarks.measuring.checkout import engine as open_engine
from benchmarks.measuring.checkout import runs_on_cores
from benchmarks.measuring.contest import QUEUED, Outcome
from benchmarks.measuring.sampling import SAMPLES, Repeat, in_turn, one_by_one
from examples.cnn_training_f32 import LRN, PERIOD, POOLED, SRC, STRIDES, WEIGHTS, WINDOW, Net

GOAL, BATCH = 1.3, 256
OUTPUTS = ("dst", "diff_weights", "diff_bias")
ALLOWED = 1e-4  # relative norm of errors; LRN squares the results of convolutions of large values
LAYOUTS = {"plain": torch.contiguous_format, "channels_last": torch.channels_last}
GPU = "cuda" if torch.cuda.is_available() else "cpu"


class TorchNet:
    """The net in torch, with one data type and one order of images."""

    def __init__(self, batch: int, data_type: Any, layout: str) -> None:
        def counting(*dims: int) -> Any:
            values = torch.arange(torch.Size(dims).numel(), device=GPU) % PERIOD
            values = values.reshape(dims).to(data_type)
            return values.contiguous(memory_format=LAYOUTS[layout]) if len(dims) == 4 else values

        self.name = f"torch {layout}"
        self.src, self.diff_dst = counting(batch, *SRC), counting(batch, *POOLED)
        self.weights = counting(*WEIGHTS).requires_grad_()
        self.bias = counting(WEIGHTS[0]).requires_grad_()

    def run(self) -> list[Any]:
        """Run forward and backward. Returns dst and the gradients of weights and bias."""
        convolved = functional.conv2d(self.src, self.weights, self.bias, STRIDES["strides"])
        normalised = functional.local_response_norm(functional.relu(convolved), *LRN.values())
        dst = functional.max_pool2d(normalised, WINDOW["kernel"], WINDOW["strides"])
        return [dst, *torch.autograd.grad(dst, (self.weights, self.bias), self.diff_dst)]

    def outputs(self) -> dict[str, Any]:
        """The results of one step, in float64."""
        values = [tensor.detach().double() for tensor in self.run()]
        return dict(zip(OUTPUTS, values, strict=True))

    def repeat(self) -> Repeat:
        """Run steps in a graph, or one by one on the CPU."""
        return graph_of(self.run) if GPU == "cuda" else one_by_one(self.run)


class OurNet:
    """The example's net on an engine."""

    def __init__(self, name: str, batch: int) -> None:
        self.net = Net(open_engine(name), batch)
        self.stream = self.net.engine.stream()

    def repeat(self, count: int) -> int:
        """Run steps in a queue."""
        for _ in range(count):
            self.net.step(self.stream)
        self.stream.wait()
        return count

    def outputs(self) -> dict[str, Any]:
        """The results of the last step."""
        memories = {name: getattr(self.net, name) for name in OUTPUTS}
        return {n: torch.from_numpy(m.numpy()).to(GPU).double() for n, m in memories.items()}


def errors(found: Mapping[str, Any], expected: Mapping[str, Any]) -> dict[str, float]:
    """For each output, the norm of the difference divided by the norm of the output."""
    return {n: ((found[n] - e).norm() / e.norm()).item() for n, e in expected.items()}


def measure(name: str, batch: int, samples: int) -> Outcome:
    """The figures of a step, or the reason why it is wrong."""
    without_tf32()
    ours = OurNet(name, batch)
    ours.repeat(1)
    theirs = [TorchNet(batch, torch.float32, layout) for layout in LAYOUTS]
    expected = TorchNet(batch, torch.float64, "plain").outputs()
    our_errors = errors(ours.outputs(), expected)
    peer_errors = {net.name: errors(net.outputs(), expected) for net in theirs}
    outcome = {
        "problem": f"AlexNet's training step, batch {batch}",
        "impls": {step.name: step.pd.impl_name for step in ours.net.steps},
        "ours_errors": our_errors,
        "peer_errors": peer_errors,
        "goal": GOAL,
    }
    if not is_right(our_errors):
        return outcome | {"wrong": f"differs from float64 by {our_errors}"}
    theirs = [net for net in theirs if is_right(peer_errors[net.name])]
    if not theirs:
        return outcome | {"wrong": f"torch differs from float64 by {peer_errors}"}
    how = {} if runs_on_cores(name) else {"pause": 0.0, "least": QUEUED}
    repeats = [ours.repeat, *(net.repeat() for net in theirs)]
    our_seconds, *peer_seconds = in_turn(repeats, samples, **how)
    best = min(range(len(theirs)), key=peer_seconds.__getitem__)
    return outcome | {
        "peer": theirs[best].name,
        "ratio": peer_seconds[best] / our_seconds,
        "ours_ms": our_seconds * 1e3,
        "peer_ms": peer_seconds[best] * 1e3,
        "parts_ms": parts(ours, **how),
    }


def is_right(found: Mapping[str, float]) -> bool:
    """Whether each error is permitted. An error that is not a number is not."""
    return all(error <= ALLOWED for error in found.values())


def parts(ours: OurNet, **how: Any) -> dict[str, float]:
    """The milliseconds of each primitive alone."""

    def repeat_of(call: Any) -> Repeat:
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
