"""Train a small transformer on the characters of a text, on one engine after the other.

The text is ARCHITECTURE.md of this repository. The network has an embedding of characters and
places, two blocks of causal attention with four heads and a perceptron, layer normalizations, and
an inner product. It predicts the next character at each place. After the training, each engine
continues the same beginning.

    python examples/write_text.py                         # the CPU and every OpenCL device
    python examples/write_text.py --engine opencl:0 --epochs 20
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
from layers import add, causal_attention, eltwise, layer_norm, linear, log_softmax
from rich.console import Console
from rich.markup import escape
from tape import Tape, Tensor
from training import curves, summary, train_on_each

import dnncore as dnn

TEXT = Path(__file__).parents[1] / "ARCHITECTURE.md"
BATCH, STEPS = 16, 64
CHANNELS, HEADS, BLOCKS = 64, 4, 2
RATE = 0.002
UPDATES = 25  # per epoch
SCORE = "bits per character {:.2f}"
BEGINNING = "The core "


def network(tape: Tape, batch: int, symbols: int) -> tuple[Tensor, Tensor]:
    """Add the layers; return the source and the log-probabilities of the next characters.

    The source (batch * STEPS, symbols + STEPS) has two ones per row: the character and its place.
    """
    source = tape.source((batch * STEPS, symbols + STEPS))
    found = linear(tape, source, CHANNELS)
    for _ in range(BLOCKS):
        heads = linear(tape, layer_norm(tape, found), 3 * CHANNELS)
        mixed = causal_attention(tape, heads, batch, HEADS)
        found = add(tape, found, linear(tape, mixed, CHANNELS))
        inner = eltwise(tape, linear(tape, layer_norm(tape, found), 4 * CHANNELS), "gelu_tanh")
        found = add(tape, found, linear(tape, inner, CHANNELS))
    return source, log_softmax(tape, linear(tape, layer_norm(tape, found), symbols))


class Text:
    """The characters of the text as numbers. The last tenth is held out."""

    def __init__(self) -> None:
        text = TEXT.read_text(encoding="utf-8")
        self.symbols = "".join(sorted(set(text)))
        numbers = {symbol: i for i, symbol in enumerate(self.symbols)}
        values = np.array([numbers[symbol] for symbol in text])
        self.known, self.held_out = np.split(values, [len(values) * 9 // 10])

    def windows(self, values: np.ndarray, starts: np.ndarray) -> np.ndarray:
        """Windows of STEPS + 1 characters that begin at these places."""
        return values[starts[:, None] + np.arange(STEPS + 1)]

    def source(self, characters: np.ndarray) -> np.ndarray:
        """The source of the network for (batch, STEPS) characters."""
        rows = characters.size
        found = np.zeros((rows, len(self.symbols) + STEPS), np.float32)
        found[np.arange(rows), characters.reshape(-1)] = 1
        found[np.arange(rows), len(self.symbols) + np.arange(rows) % STEPS] = 1
        return found


class Model:
    """The network for training and the same network for one window, on one engine."""

    def __init__(self, engine: dnn.Engine, text: Text) -> None:
        self.text = text
        self.tape, self.writer = Tape(engine), None
        self.source, self.result = network(self.tape, BATCH, len(text.symbols))
        self.tape.finish(self.result, RATE)
        self.writer = Tape(engine, trained=self.tape)
        self.own_source, self.own_result = network(self.writer, 1, len(text.symbols))
        self.writer.finish(self.own_result)
        self.order = np.random.default_rng(1)

    def loss(self, windows: np.ndarray) -> tuple[float, np.ndarray]:
        """The mean cross-entropy of a batch, and its gradient."""
        tape = self.tape
        tape.write(self.source.value, self.text.source(windows[:, :-1]))
        tape.forward(tape.stream)
        found = tape.read(self.result.value)
        chosen = np.arange(len(found)), windows[:, 1:].reshape(-1)
        gradient = np.zeros_like(found)
        gradient[chosen] = -1 / len(found)
        return -float(found[chosen].mean(dtype=np.float64)), gradient

    def update(self) -> float:
        """Train on a batch of random windows. Return the loss before the update."""
        starts = self.order.integers(0, len(self.text.known) - STEPS, BATCH)
        loss, gradient = self.loss(self.text.windows(self.text.known, starts))
        self.tape.write(self.result.gradient, gradient)
        self.tape.backward(self.tape.stream)
        self.tape.update(self.tape.stream)
        return loss

    def bits(self) -> float:
        """Bits per character of held-out text."""
        starts = np.linspace(0, len(self.text.held_out) - STEPS - 1, 4 * BATCH).astype(int)
        windows = self.text.windows(self.text.held_out, starts)
        return float(np.mean([self.loss(part)[0] for part in np.split(windows, 4)]) / np.log(2))

    def epochs(self, count: int) -> Iterator[tuple[float, float]]:
        """Train; yield the loss and the held-out bits per character of each epoch."""
        for _ in range(count):
            yield float(np.mean([self.update() for _ in range(UPDATES)])), self.bits()

    def continued(self, count: int) -> str:
        """The beginning and the most probable characters after it."""
        numbers = [self.text.symbols.index(symbol) for symbol in BEGINNING]
        for _ in range(count):
            last = numbers[-STEPS:]
            characters = np.array(last + [0] * (STEPS - len(last)))
            self.writer.write(self.own_source.value, self.text.source(characters))
            self.writer.forward(self.writer.stream)
            numbers.append(int(self.writer.read(self.own_result.value)[len(last) - 1].argmax()))
        return "".join(self.text.symbols[i] for i in numbers)


@click.command()
@click.option("--engine", "engines", multiple=True,
              help="Engine to train on; may be repeated. Default: the CPU and all OpenCL devices."
              )  # fmt: skip
@click.option("--epochs", "count", default=12, show_default=True, type=click.IntRange(1),
              help="The number of epochs of 25 updates.")  # fmt: skip
@click.option("--plot", "picture", type=Path, default="text.png", show_default=True,
              help="The file for the curves.")  # fmt: skip
def main(engines: tuple[str, ...], count: int, picture: Path) -> None:
    """Train the transformer on each engine and compare."""
    console = Console()
    text, models = Text(), []

    def epochs(engine: dnn.Engine) -> tuple[Tape, Iterator]:
        models.append(Model(engine, text))
        return models[-1].tape, models[-1].epochs(count)

    results = train_on_each(engines, epochs, console, SCORE)
    for model in models:
        console.print(f"{model.tape.engine.name}: {escape(model.continued(100))!r}")
    console.print(summary("Training the transformer", results, SCORE))
    curves(results, picture, loss="cross-entropy per character", score="bits per character")
    console.print(f"curves: {picture}")


if __name__ == "__main__":
    main()
