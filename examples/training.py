"""Training on several engines, with a table and curves of the results."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from tape import Tape
from train_digits import default_engines, opened

import dnncore as dnn

__all__ = ["Result", "curves", "summary", "train_on_each"]


@dataclass
class Result:
    """The results of training on one engine.

    losses: per epoch, of the training.
    scores: per epoch, on held-out data.
    seconds: per epoch.
    error: the largest norm-wise error of a primitive, compared with the reference.
    worst: the layer and the implementation with this error.
    """

    engine: dnn.Engine
    losses: list[float] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    error: float = 0.0
    worst: str = ""


def train_on_each(
    names: tuple[str, ...],
    epochs: Callable[[dnn.Engine], tuple[Tape, Iterator[tuple[float, float]]]],
    console: Console,
    score: str,
) -> list[Result]:
    """Train on each engine and compare each primitive with the reference at the end.

    names: of the engines; without names, the CPU and all OpenCL devices.
    epochs: returns, for an engine, the tape and an iterator that trains an epoch per step and
        yields the loss and the score.
    score: the format of a score, such as "accuracy {:.1%}".
    """
    results = []
    for engine in opened(names or default_engines()):
        console.rule(f"{engine.name}: {engine.device.name}")
        result, started = Result(engine), time.perf_counter()
        tape, steps = epochs(engine)
        for epoch, (loss, value) in enumerate(steps, 1):
            result.seconds.append(time.perf_counter() - started)
            started = time.perf_counter()
            result.losses.append(loss)
            result.scores.append(value)
            console.print(
                f"{engine.name} epoch {epoch:2}: loss {loss:.4f}, {score.format(value)},"
                f" {result.seconds[-1]:.2f} s"
            )
        for step, comparison in tape.errors():
            if not comparison.ok:
                console.print(f"WRONG: {step.name} by {step.pd.impl_name}")
            if comparison.error >= result.error:
                result.error, result.worst = comparison.error, f"{step.name}, {step.pd.impl_name}"
        results.append(result)
    return results


def summary(title: str, results: list[Result], score: str) -> Table:
    """A table with a row for each engine."""
    table = Table(title=title, title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0))
    name, _, number = score.rpartition(" ")
    for column in ("engine", "s / epoch", "first loss", "last loss", name):
        table.add_column(column, justify="left" if column == "engine" else "right")
    table.add_column("largest error of a primitive")
    for r in results:
        table.add_row(
            r.engine.name, f"{np.median(r.seconds):.2f}", f"{r.losses[0]:.4f}",
            f"{r.losses[-1]:.4f}", number.format(r.scores[-1]),
            f"{r.error:.1e} ({r.worst})",
        )  # fmt: skip
    return table


def curves(results: list[Result], path: Path, loss: str, score: str) -> None:
    """Draw loss and score of all engines over the epochs; `loss` and `score` label the axes."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for i, r in enumerate(results):
        epochs = range(1, len(r.losses) + 1)
        width = 2.5 - 0.5 * (i % 4)  # different widths keep equal curves visible
        line = {"label": r.engine.name, "linestyle": ("-", "--", ":", "-.")[i % 4]}
        left.semilogy(epochs, r.losses, linewidth=width, **line)
        right.plot(epochs, r.scores, linewidth=width, **line)
    left.set(title="training", xlabel="epoch", ylabel=loss)
    right.set(title="held-out data", xlabel="epoch", ylabel=score)
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend()
    figure.savefig(path, dpi=120)
