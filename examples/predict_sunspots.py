"""Train an LSTM to predict next year's sunspots.

The data are the yearly means from 1700 to 2008 (examples/data/sunspots.csv). The network reads the
years one after the other through a layer of LSTM cells; an inner product predicts the next year at
each step. It is trained on windows of the years before 1930 and tested on the years since then.
The mean error is in sunspots; the program also prints that of a forecast that next year is like
this one.

    python examples/predict_sunspots.py                     # the CPU and every OpenCL device
    python examples/predict_sunspots.py --engine opencl:0
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
from layers import linear, lstm
from rich.console import Console
from tape import Tape, Tensor
from training import curves, summary, train_on_each

import dnncore as dnn

DATA = Path(__file__).parent / "data" / "sunspots.csv"
UNIT = 100.0  # sunspots per unit of the network
FIRST_TEST_YEAR = 1930
STEPS = 40  # years of a window
HIDDEN = 32
RATE = 0.005
UPDATES = 10  # per epoch; each reads all windows
SCORE = "mean error {:.1f}"


def network(tape: Tape, steps: int, batch: int) -> tuple[Tensor, Tensor]:
    """Add the layers; return the years (steps, batch, 1) and the predictions (steps * batch, 1)."""
    years = tape.source((steps, batch, 1))
    states = lstm(tape, years, HIDDEN)
    return years, linear(tape, tape.reshaped(states, (steps * batch, HIDDEN)), 1)


def windows(values: np.ndarray) -> np.ndarray:
    """Every window of STEPS + 1 years, as (STEPS + 1, windows)."""
    return np.lib.stride_tricks.sliding_window_view(values, STEPS + 1).T


def epochs(engine: dnn.Engine, count: int) -> tuple[Tape, Iterator]:
    """Return the tape and an iterator that trains an epoch per step."""
    years, sunspots = np.loadtxt(DATA, delimiter=",", skiprows=2, unpack=True)
    first = int(np.searchsorted(years, FIRST_TEST_YEAR))
    known = windows(sunspots[:first] / UNIT)
    held_out = sunspots[first - STEPS :] / UNIT

    tape = Tape(engine)
    batch = known.shape[1]
    source, result = network(tape, STEPS, batch)
    tape.finish(result, RATE)
    tape.write(source.value, known[:-1, :, None])
    wanted = known[1:].reshape(-1, 1)

    forecast = Tape(engine, trained=tape)
    test_source, test_result = network(forecast, len(held_out) - 1, 1)
    forecast.finish(test_result)
    forecast.write(test_source.value, held_out[:-1, None, None])

    def error() -> float:
        forecast.forward(forecast.stream)
        predicted = forecast.read(test_result.value)[:, 0]
        return UNIT * float(np.abs(predicted - held_out[1:])[STEPS - 1 :].mean())

    def update() -> float:
        tape.forward(tape.stream)
        difference = tape.read(result.value) - wanted
        tape.write(result.gradient, 2 / difference.size * difference)
        tape.backward(tape.stream)
        tape.update(tape.stream)
        return float((difference**2).mean())

    def steps() -> Iterator[tuple[float, float]]:
        for _ in range(count):
            losses = [update() for _ in range(UPDATES)]
            yield float(np.mean(losses)), error()

    return tape, steps()


def unchanged_error() -> float:
    """The mean error of the forecast that next year is like this one."""
    years, sunspots = np.loadtxt(DATA, delimiter=",", skiprows=2, unpack=True)
    first = int(np.searchsorted(years, FIRST_TEST_YEAR))
    return float(np.abs(np.diff(sunspots[first - 1 :])).mean())


@click.command()
@click.option("--engine", "engines", multiple=True,
              help="Engine to train on; may be repeated. Default: the CPU and all OpenCL devices."
              )  # fmt: skip
@click.option("--epochs", "count", default=20, show_default=True, type=click.IntRange(1),
              help="The number of epochs of ten updates.")  # fmt: skip
@click.option("--plot", "picture", type=Path, default="sunspots.png", show_default=True,
              help="The file for the curves of loss and error.")  # fmt: skip
def main(engines: tuple[str, ...], count: int, picture: Path) -> None:
    """Train the LSTM on each engine and compare."""
    console = Console()
    results = train_on_each(engines, lambda engine: epochs(engine, count), console, SCORE)
    console.print(summary("Predicting next year's sunspots", results, SCORE))
    console.print(f"mean error if next year is like this one: {unchanged_error():.1f}")
    curves(results, picture, loss="squared error", score="mean error, sunspots")
    console.print(f"curves: {picture}")


if __name__ == "__main__":
    main()
