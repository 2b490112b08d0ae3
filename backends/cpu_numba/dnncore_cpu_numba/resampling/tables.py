"""The taps of a dim, or of several dims together, as arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dnncore.planning.taps import Taps
from dnncore_cpu_numba.codegen.call_schema import Table


@dataclass(frozen=True, eq=False)
class Padded:
    """Equally many taps of each result. places, weights: one row per tap."""

    places: Any
    weights: Any

    @property
    def outputs(self) -> int:
        """The number of results."""
        return int(self.places.shape[1])

    @staticmethod
    def same(count: int) -> Padded:
        """Return the taps of results that are equal to their inputs."""
        return Padded(np.arange(count)[None], np.ones((1, count), np.float32))

    def joined(self, other: Padded, inputs: int) -> Padded:
        """Return the taps of two dims. other: of the inner one, which has `inputs` inputs."""
        places = self.places[:, None, :, None] * inputs + other.places[None, :, None, :]
        weights = self.weights[:, None, :, None] * other.weights[None, :, None, :]
        taps = len(self.places) * len(other.places)
        return Padded(places.reshape(taps, -1), weights.reshape(taps, -1))

    def first(self, count: int) -> Padded:
        """Return the taps of the first results."""
        return Padded(self.places[:, :count], self.weights[:, :count])

    def step(self, count: int) -> int:
        """Return the distance of the inputs of each `count` results, if all repeat; else 0."""
        if count >= self.outputs:
            return 0
        moves = self.places[:, count:] - self.places[:, :-count]
        repeats = (self.weights[:, count:] == self.weights[:, :-count]).all()
        return int(moves[0, 0]) if repeats and (moves == moves[0, 0]).all() else 0


class Tables:
    """The taps of a dim."""

    def __init__(self, taps: Taps) -> None:
        self.firsts = np.array(taps.firsts, np.int64)
        self.counts = np.array([len(row) for row in taps.weights], np.int64)
        self.starts = np.concatenate(([0], np.cumsum(self.counts)))
        self.weights = np.array([w for row in taps.weights for w in row], np.float32)
        self.is_copy = bool((self.counts == 1).all() and (self.weights == 1).all())
        self.outputs = len(self.firsts)
        self.inputs = int((self.firsts + self.counts).max())

    def record(self) -> dict[str, Table]:
        """Return the values of `TAPS`."""
        return {name: Table(getattr(self, name)) for name in ("firsts", "starts", "weights")}

    @property
    def taps(self) -> int:
        """The most taps of a result."""
        return max(1, int(self.counts.max()))

    @property
    def is_even(self) -> bool:
        """Whether most results have equally many taps, or all at most two."""
        return self.taps <= 2 or self.taps * self.outputs < 1.2 * len(self.weights)

    def padded(self) -> Padded:
        """Return equally many taps of each result.

        Missing ones repeat the last tap, which then has a half, a quarter, ... of its weight. They
        do not have the weight 0, because inputs may be infinite. Results without taps have it.
        """
        numbers, last = np.arange(self.taps)[:, None], np.maximum(self.counts, 1) - 1
        taken = np.minimum(numbers, last)
        halved = np.minimum(numbers - last + (numbers < self.taps - 1), self.taps - 1 - last)
        weights = np.append(self.weights, np.float32(0))[self.starts[:-1] + taken]
        weights = np.where(self.counts > 0, weights * 0.5 ** np.maximum(halved, 0), 0)
        return Padded(self.firsts + taken, weights.astype(np.float32))
