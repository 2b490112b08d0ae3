"""Train a residual network with batch normalization on handwritten digits, on one engine after
the other.

The data are the 1,797 digits of scikit-learn (8x8 pixels). The network has a convolution, three
residual blocks of two convolutions with 16, 32 and 64 channels, a global average and an inner
product. Each convolution is followed by batch normalization; the second one of a block adds the
block's source and applies the relu in the same primitive. Training follows the statistics of the
batches by running averages, and the held-out digits are recognised with these.

    python examples/train_residual.py                     # the CPU and every OpenCL device
    python examples/train_residual.py --engine opencl:0
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
from layers import batch_norm, convolution, global_average, linear, log_softmax
from rich.console import Console
from tape import Tape, Tensor
from train_digits import Digits
from training import curves, summary, train_on_each

import dnncore as dnn

BATCH = 64
CHANNELS = (16, 32, 64)
RATE = 0.003
SCORE = "accuracy {:.1%}"


def network(tape: Tape, batch: int) -> tuple[Tensor, Tensor]:
    """Add the layers; return the images and their log-probabilities."""
    images = tape.source((batch, 1, 8, 8))
    found = batch_norm(tape, convolution(tape, images, CHANNELS[0], 3))
    for channels in CHANNELS:
        found = block(tape, found, channels)
    return images, log_softmax(tape, linear(tape, global_average(tape, found), 10))


def block(tape: Tape, src: Tensor, channels: int) -> Tensor:
    """relu(src + two convolutions). A change of the channels halves height and width."""
    stride = 1 if channels == src.dims[1] else 2
    inner = batch_norm(tape, convolution(tape, src, channels, 3, stride))
    inner = convolution(tape, inner, channels, 3)
    straight = src if stride == 1 else convolution(tape, src, channels, 1, stride)
    return batch_norm(tape, inner, added=straight)


def epochs(engine: dnn.Engine, digits: Digits, count: int) -> tuple[Tape, Iterator]:
    """Return the tape and an iterator that trains an epoch per step."""
    tape = Tape(engine)
    images, result = network(tape, BATCH)
    tape.finish(result, RATE)
    held_out = Tape(engine, trained=tape)
    test_images, test_result = network(held_out, len(digits.test_images))
    held_out.finish(test_result)
    order = np.random.default_rng(1)

    def accuracy() -> float:
        held_out.write(test_images.value, digits.test_images)
        held_out.forward(held_out.stream)
        guesses = held_out.read(test_result.value).argmax(axis=1)
        return float((guesses == digits.test_labels).mean())

    def step(rows: np.ndarray) -> float:
        tape.write(images.value, digits.train_images[rows])
        tape.forward(tape.stream)
        chosen = np.arange(BATCH), digits.train_labels[rows]
        diff = np.zeros((BATCH, 10), np.float32)
        diff[chosen] = -1 / BATCH
        tape.write(result.gradient, diff)
        tape.backward(tape.stream)
        tape.update(tape.stream)
        return -float(tape.read(result.value)[chosen].mean(dtype=np.float64))

    def steps() -> Iterator[tuple[float, float]]:
        for _ in range(count):
            samples = order.permutation(len(digits.train_images))
            batches = [samples[i : i + BATCH] for i in range(0, len(samples) - BATCH + 1, BATCH)]
            yield float(np.mean([step(rows) for rows in batches])), accuracy()

    return tape, steps()


@click.command()
@click.option("--engine", "engines", multiple=True,
              help="Engine to train on; may be repeated. Default: the CPU and all OpenCL devices."
              )  # fmt: skip
@click.option("--epochs", "count", default=6, show_default=True, type=click.IntRange(1),
              help="The number of passes over the training images.")  # fmt: skip
@click.option("--plot", "picture", type=Path, default="residual.png", show_default=True,
              help="The file for the curves of loss and accuracy.")  # fmt: skip
def main(engines: tuple[str, ...], count: int, picture: Path) -> None:
    """Train the residual network on each engine and compare."""
    console = Console()
    digits = Digits.load()
    results = train_on_each(engines, lambda engine: epochs(engine, digits, count), console, SCORE)
    console.print(summary("Training the residual network", results, SCORE))
    curves(results, picture, loss="cross-entropy per image", score="images recognised")
    console.print(f"curves: {picture}")


if __name__ == "__main__":
    main()
