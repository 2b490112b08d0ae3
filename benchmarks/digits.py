"""Compares an epoch of training on handwritten digits with torch's eager mode.

    python -m benchmarks.digits [--samples 9] [--threads 2] [--json figures.json]

Both sides train the network of examples/train_digits.py from the same weights on the same batches.
Their mean losses over each of the first epochs must agree. torch runs with the same number of
threads and with one thread, and the faster run counts. Epochs are sampled in turn. The ratio is
torch's time divided by dnncore's time.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.measuring.contest import CHOOSING, Outcome
from benchmarks.measuring.cores import thread_settings
from benchmarks.measuring.sampling import in_turn, one_by_one

GOAL = 1.5
RATE = 0.02  # learning rate, one of those in the example
# The mean losses of the first EPOCHS epochs must agree. Training amplifies rounding: the relative
# difference is 5e-7 after 10 epochs and 3e-3 after 23 (measured).
EPOCHS = 10
AGREEMENT = 1e-5  # largest relative difference of the mean losses
PROBLEM = "the digits' training, an epoch"


class Batches:
    """The training images in batches of one size, in a fixed random order."""

    def __init__(self, size: int) -> None:
        from examples.train_digits import Digits

        digits = Digits.load()
        order = np.random.default_rng(1).permutation(len(digits.train_images))
        count = len(order) // size
        self.places = order[: count * size].reshape(count, size)
        self.images, self.labels = digits.train_images, digits.train_labels

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return ((self.images[rows], self.labels[rows]) for rows in self.places)


class Torch:
    """The same network in torch, with the given parameters."""

    def __init__(self, parameters: list[np.ndarray], threads: int) -> None:
        import torch
        from torch import nn

        self.torch, self.threads = torch, threads
        self.losses: list[float] = []
        self.network = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(256, 10), nn.LogSoftmax(1),
        )  # fmt: skip
        for parameter, values in zip(self.network.parameters(), parameters, strict=True):
            parameter.data = torch.tensor(values).reshape(parameter.shape)
        self.loss = nn.NLLLoss()
        self.optimizer = torch.optim.SGD(self.network.parameters(), RATE, momentum=0.9)

    def epoch(self, batches: Batches) -> None:
        """Train on all batches. Appends the mean of their losses to `losses`."""
        self.torch.set_num_threads(self.threads)
        losses = []
        for images, labels in batches:
            self.optimizer.zero_grad()
            guesses = self.network(self.torch.from_numpy(images))
            loss = self.loss(guesses, self.torch.from_numpy(labels))
            loss.backward()
            self.optimizer.step()
            losses.append(loss.item())
        self.losses.append(float(np.mean(losses)))


class Ours:
    """The example's network on the CPU."""

    def __init__(self) -> None:
        import dnncore as dnn
        from examples.train_digits import Network

        self.network = Network(dnn.engine("cpu"))
        self.losses: list[float] = []

    @property
    def parameters(self) -> list[np.ndarray]:
        """Copies of all weights and biases."""
        return [np.array(parameter.value.numpy()) for parameter in self.network.parameters]

    def epoch(self, batches: Batches) -> None:
        """Train on all batches. Appends the mean of their losses to `losses`."""
        losses = [self.network.train(*batch, RATE) for batch in batches]
        self.losses.append(float(np.mean(losses)))


def measure(samples: int, threads: int) -> Outcome:
    """Measure one epoch. Returns its figures, or the reason if the mean losses disagree."""
    ours = Ours()
    batches = Batches(ours.network.batch)
    torches = [Torch(ours.parameters, count) for count in sorted({1, threads})]
    calls = [one_by_one(lambda side=side: side.epoch(batches)) for side in torches]
    seconds = in_turn(calls, CHOOSING)
    best = seconds.index(min(seconds))
    our_epoch = one_by_one(lambda: ours.epoch(batches))
    our_seconds, peer_seconds = in_turn([our_epoch, calls[best]], samples)
    largest = max(difference(ours.losses, side.losses) for side in torches)
    if not largest <= AGREEMENT:
        return {"problem": PROBLEM, "wrong": f"mean losses differ by {largest:.1e}"}
    return {
        "problem": PROBLEM,
        "impl": "dnncore, sequences of primitives",
        "peer": "torch",
        "peer_impl": f"eager, {torches[best].threads} threads",
        "ratio": peer_seconds / our_seconds,
        "ours_ms": our_seconds * 1e3,
        "peer_ms": peer_seconds * 1e3,
        "error": largest,
    }


def difference(ours: list[float], theirs: list[float]) -> float:
    """The largest relative difference of the two sides' mean losses over the first `EPOCHS` epochs.

    Infinite if two epochs of one side have equal losses, because that side did not train.
    """
    for losses in (ours, theirs):
        if len(set(losses)) < len(losses):
            return math.inf
    return max(abs(a / b - 1) for a, b in zip(theirs[:EPOCHS], ours, strict=False))


@click.command(help=__doc__)
@click.option("--samples", default=9, show_default=True, type=click.IntRange(1))
@click.option("--threads", default=2, show_default=True, type=click.IntRange(1))
@click.option("--json", "path", type=Path, help="Also write the figures to this file.")
def main(samples: int, threads: int, path: Path | None) -> None:
    """Measure and print."""
    os.environ |= thread_settings(threads)  # the libraries read this on first use
    outcome = measure(samples, threads)
    click.echo(json.dumps(outcome, indent=1))
    if path:
        path.write_text(json.dumps(outcome) + "\n")
    sys.exit(1 if "wrong" in outcome else 0)


if __name__ == "__main__":
    main()
