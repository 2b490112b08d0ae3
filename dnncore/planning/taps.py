"""Resampling along one dim as sums: element o of the result is the sum over k < counts[o] of
weights[k] * input[firsts[o] + k]. The gradient is the transposed table, so nothing is scattered.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Taps", "taps_of"]


@dataclass(frozen=True)
class Taps:
    """firsts: the first input of each result. weights: of this input and those that follow."""

    firsts: tuple[int, ...]
    weights: tuple[tuple[float, ...], ...]

    def transposed(self, inputs: int) -> Taps:
        """Return the table of the gradient, whose results are the `inputs` of this table."""
        found: dict[int, dict[int, float]] = defaultdict(dict)
        for o, (first, weights) in enumerate(zip(self.firsts, self.weights, strict=True)):
            for i, weight in enumerate(weights, first):
                found[i][o] = weight
        firsts, last = [], 0
        for i in range(inputs):
            last = min(found[i], default=last)
            firsts.append(last)
        return Taps(tuple(firsts), tuple(tuple(found[i].values()) for i in range(inputs)))


def taps_of(algorithm: str, inputs: int, outputs: int) -> Taps:
    """Return the table of `dnncore.ops.resampling` from `inputs` elements to `outputs`."""
    linear = algorithm == "linear"
    rows = [(_linear if linear else _nearest)(o, inputs, outputs) for o in range(outputs)]
    return Taps(tuple(first for first, _ in rows), tuple(tuple(weights) for _, weights in rows))


def _nearest(o: int, inputs: int, outputs: int) -> tuple[int, Sequence[float]]:
    return min((2 * o + 1) * inputs // (2 * outputs), inputs - 1), (1.0,)


def _linear(o: int, inputs: int, outputs: int) -> tuple[int, Sequence[float]]:
    low, rest = divmod((2 * o + 1) * inputs - outputs, 2 * outputs)
    if low < 0 or low >= inputs - 1:
        return min(max(low, 0), inputs - 1), (1.0,)
    upper = rest / (2 * outputs)
    return low, (1.0 - upper, upper) if rest else (1.0,)
