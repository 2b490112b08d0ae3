"""Compares LeNet-5, as eleven calls of one-line functions, with torch's eager mode.

    python -m benchmarks.lenet [--batch 64] [--samples 21] [--threads 2] [--arrays torch]

Both sides compute scores from the same images and weights. The scores must agree. torch runs with
the same number of threads and with one thread, and the faster run counts. The samples are taken in
turn. The ratio is torch's time divided by dnncore's time.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.measuring.contest import CHOOSING, Outcome
from benchmarks.measuring.cores import thread_settings
from benchmarks.measuring.sampling import in_turn, one_by_one

GOAL = 1.0
AGREEMENT = 1e-4  # largest difference of the scores, relative to the largest score
LAYERS = {  # name: dims of the weights
    "conv1": (6, 1, 5, 5),
    "conv2": (16, 6, 5, 5),
    "linear1": (120, 400),
    "linear2": (84, 120),
    "linear3": (10, 84),
}
Parameters = dict[str, Any]


def values(batch: int) -> tuple[np.ndarray, Parameters]:
    """Random images and parameters."""
    rng = np.random.default_rng(0)
    parameters: Parameters = {}
    for name, dims in LAYERS.items():
        scale = np.float32(np.prod(dims[1:]) ** -0.5)
        parameters[name] = rng.standard_normal(dims, np.float32) * scale
        parameters[name + "_bias"] = rng.standard_normal(dims[0], np.float32)
    return rng.standard_normal((batch, 1, 32, 32), np.float32), parameters


def scores(functions: Any, images: Any, p: Parameters) -> Any:
    """Compute the scores with eleven functions. dnncore's and torch's have the same names."""
    f = functions
    x = f.max_pool2d(f.relu(f.conv2d(images, p["conv1"], p["conv1_bias"])), 2)
    x = f.max_pool2d(f.relu(f.conv2d(x, p["conv2"], p["conv2_bias"])), 2)
    x = f.relu(f.linear(x.reshape(len(x), -1), p["linear1"], p["linear1_bias"]))
    x = f.relu(f.linear(x, p["linear2"], p["linear2_bias"]))
    return f.linear(x, p["linear3"], p["linear3_bias"])


def measure(batch: int, samples: int, threads: int, arrays: str) -> Outcome:
    """Measure one pass. Returns its figures, or the reason if the scores disagree."""
    import torch

    from dnncore import functional

    problem = f"LeNet-5 in one-line functions, batch {batch}, {threads} threads"
    images, parameters = values(batch)
    tensors = torch.from_numpy(images), {k: torch.from_numpy(v) for k, v in parameters.items()}
    given = tensors if arrays == "torch" else (images, parameters)

    def with_threads(count: int) -> Callable[[], Any]:
        def call() -> Any:
            torch.set_num_threads(count)
            with torch.inference_mode():
                return scores(torch.nn.functional, *tensors)

        return call

    counts = sorted({1, threads})
    torches = [one_by_one(with_threads(count)) for count in counts]
    seconds = in_turn(torches, CHOOSING)
    best = seconds.index(min(seconds))
    our_call = one_by_one(lambda: scores(functional, *given))
    our_seconds, peer_seconds = in_turn([our_call, torches[best]], samples)
    right = with_threads(1)().numpy()
    error = float(
        np.abs(np.asarray(scores(functional, *given)) - right).max() / np.abs(right).max()
    )
    if not error <= AGREEMENT:
        return {"problem": problem, "wrong": f"the scores differ by {error:.1e}"}
    return {
        "problem": problem,
        "impl": f"dnncore.functional on arrays of {arrays}",
        "peer": "torch",
        "peer_impl": f"eager, {counts[best]} threads",
        "ratio": peer_seconds / our_seconds,
        "ours_ms": our_seconds * 1e3,
        "peer_ms": peer_seconds * 1e3,
        "error": error,
    }


@click.command(help=__doc__)
@click.option("--batch", default=64, show_default=True, type=click.IntRange(1))
@click.option("--samples", default=21, show_default=True, type=click.IntRange(1))
@click.option("--threads", default=2, show_default=True, type=click.IntRange(1))
@click.option("--arrays", default="numpy", show_default=True, type=click.Choice(("numpy", "torch")))
@click.option("--json", "path", type=Path, help="Also write the figures to this file.")
def main(batch: int, samples: int, threads: int, arrays: str, path: Path | None) -> None:
    """Measure and print."""
    os.environ |= thread_settings(threads)  # the libraries read this on first use
    outcome = measure(batch, samples, threads, arrays)
    click.echo(json.dumps(outcome, indent=1))
    if path:
        path.write_text(json.dumps(outcome) + "\n")
    sys.exit(1 if "wrong" in outcome else 0)


if __name__ == "__main__":
    main()
