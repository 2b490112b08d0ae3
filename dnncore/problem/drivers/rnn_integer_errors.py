"""The noise of recurrent cells of integers.

Sums of integers are exact. A state is rounded to an integer at each step. If the noise of the
number is smaller than its distance from the middle of two integers, the integer is exact, else its
noise is the number of integers within reach. So the noise of later steps consists of whole steps of
integers, besides that of the functions of f32.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from ml_dtypes import iinfo

from dnncore.algorithms.propagation import Approximate, exact, joined
from dnncore.algorithms.rounding import ROUNDOFF, Array, Noise
from dnncore.attributes import Attributes
from dnncore.ops.rnn import RNN, RNNForward
from dnncore.problem.drivers.driver import Inputs
from dnncore.problem.drivers.rnn_errors import LOGISTIC, TANH
from dnncore.rnn_quantization import RNNQparams

__all__ = ["numbers"]

ROUNDINGS = 8
"""The roundings of each term of a gate: 1 of its conversion, 3 of sums, 2 of the factor, 1 of the
product with the factor, and 1 of the sum with the bias."""


class _Sums(NamedTuple):
    """Sums of products of integers: their values and noise, and the sums of the weights."""

    value: Array
    limit: Array
    weights: Array


def _sums(q: Approximate, weights: Array) -> _Sums:
    limit = np.tensordot(q.noise.limit, np.abs(weights), 1)
    return _Sums(np.tensordot(q.value, weights, 1), limit, weights.sum(0))


class _Cells:
    """Conversions between integers and numbers."""

    def __init__(self, op: RNNForward, attr: Attributes) -> None:
        self.op, self.given = op, RNNQparams.of(op, attr)
        self.own = op.src_layer.dtype

    def integers(self, x: Approximate) -> Approximate:
        """Return the integers to which numbers are rounded."""
        x = x * self.given.scale + self.given.shift
        limits = iinfo(self.own)  # type: ignore[no-untyped-call]  # ml_dtypes has no types for it

        def whole(values: Array) -> Array:
            nearest: Array = np.clip(np.rint(values), limits.min, limits.max)
            return np.nan_to_num(nearest, nan=0.0)

        right = whole(x.value)
        limit = np.where(np.isfinite(x.value) | np.isposinf(x.noise.limit), x.noise.limit, 0.0)
        ends = [whole(np.where(np.isnan(x.value), 0.0, x.value) + s * limit) for s in (-1, 1)]
        steps: Array = np.max([np.abs(end - right) for end in ends], axis=0)
        return Approximate(right, Noise.within(np.where(limit > 0, steps, 0.0)))

    def number(self, q: Approximate) -> Approximate:
        """Return the numbers that integers represent.

        The reciprocal of the scale may be rounded. Then all numbers have the same relative error.
        """
        x = (q - self.given.shift) * (1 / self.given.scale)
        return Approximate(x.value, x.noise + Noise.within(ROUNDOFF * np.abs(x.value)))

    def scaled(self, scales: Array, *sums: _Sums) -> Approximate:
        """Return the number that sums of integers represent, without the bias."""
        factor = 1 / (scales * self.given.scale)
        shifts = [self.given.shift * own.weights for own in sums]
        value = sum(own.value for own in sums) - sum(shifts)
        size = sum(np.abs(own.value) for own in sums) + sum(np.abs(shift) for shift in shifts)
        limit = sum(own.limit for own in sums)
        return Approximate(
            value * factor, Noise.within((limit + ROUNDINGS * ROUNDOFF * size) * factor)
        )

    def state(self, inputs: Inputs, place: Any) -> Approximate:
        """Return the first state of a layer and direction."""
        desc = self.op.src_iter
        if desc is None:
            return self.integers(exact(np.zeros(self.op.dims["src_iter"][2:])))
        values = exact(inputs["src_iter"][place].astype(np.float64))
        return values if desc.data_type != "f32" else self.integers(values)

    def stored(self, q: Approximate, name: str) -> Approximate:
        """Return an output before it is rounded to its type."""
        desc = getattr(self.op, name)
        return self.number(q) if desc is not None and desc.data_type == "f32" else q


def numbers(op: RNN, attr: Attributes, inputs: Inputs) -> dict[str, Approximate] | None:
    """Return the outputs before they are rounded to their types; None for other cells."""
    if not isinstance(op, RNNForward) or not op.is_integer:
        return None
    cells, sizes = _Cells(op, attr), op.sizes
    finals: dict[str, list[Approximate]] = {"dst_iter": [], "dst_iter_c": []}
    below = [exact(inputs["src_layer"].astype(np.float64))] * sizes.directions
    for layer in range(sizes.layers):
        above = []
        for side in range(sizes.directions):
            place = layer, side
            w = {
                name: inputs[name][place].astype(np.float64)
                for name in inputs
                if name.startswith(("weights", "bias"))
            }
            w.setdefault("bias", np.zeros(op.dims["bias"][2:]))
            q = cells.state(inputs, place)
            c = exact(
                inputs.get("src_iter_c", np.zeros(op.dims["src_iter_c"]))[place].astype(np.float64)
            )
            rows: dict[int, Approximate] = {}
            for time in range(sizes.steps)[:: -1 if op.is_reversed(side) else 1]:
                x = below[side][time]
                q, c = _lstm(cells, w, x, q, c) if op.is_lstm else (_gru(cells, w, x, q), c)
                rows[time] = q
            finals["dst_iter"].append(q)
            finals["dst_iter_c"].append(c)
            none = exact(np.zeros((0, sizes.batch, sizes.dic)))
            steps = [rows[time] for time in range(sizes.steps)]
            above.append(joined(steps, 0, np.stack) if steps else none)
        below = above if op.has_stacks else [joined(above, 2)] * 2
    results = {"dst_layer": _last(cells, above)}
    for name, parts in finals.items():
        if getattr(op, name) is not None:
            dims = op.dims[name]
            whole = joined(parts, 0, np.stack).changed(partial(np.reshape, shape=dims))
            results[name] = whole if name == "dst_iter_c" else cells.stored(whole, name)
    return results


def _last(cells: _Cells, above: list[Approximate]) -> Approximate:
    """Return dst_layer from the results of the last layer."""
    if cells.op.direction == "bidirectional_sum":
        total = cells.number(above[0]) + cells.number(above[1])
        is_wide = cells.op.dst_layer.data_type == "f32"
        return total if is_wide else total * cells.given.scale + cells.given.shift
    return cells.stored(joined(above, 2), "dst_layer")


def _lstm(
    cells: _Cells, w: dict[str, Array], x: Approximate, q: Approximate, c: Approximate
) -> tuple[Approximate, Approximate]:
    sums = _sums(x, w["weights_layer"]), _sums(q, w["weights_iter"])
    z = cells.scaled(cells.given.weights, *sums) + w["bias"]
    i, f, o = (z[:, gate].apply(LOGISTIC) for gate in (0, 1, 3))
    c = f * c + i * z[:, 2].apply(TANH)
    q = cells.integers(o * c.apply(TANH))
    if "weights_projection" in w:
        projected = _sums(q, w["weights_projection"])
        q = cells.integers(cells.scaled(cells.given.projection, projected))
    return q, c


def _gru(cells: _Cells, w: dict[str, Array], x: Approximate, q: Approximate) -> Approximate:
    wide, deep = w["weights_layer"], w["weights_iter"]
    first, last = slice(0, 2), slice(2, 3)

    def gates(own: slice, state: Approximate) -> Approximate:
        sums = _sums(x, wide[:, own]), _sums(state, deep[:, own])
        return cells.scaled(cells.given.weights[own], *sums) + w["bias"][own]

    z = gates(first, q).apply(LOGISTIC)
    u, r, h = z[:, 0], z[:, 1], cells.number(q)
    o = gates(last, cells.integers(r * h))[:, 0].apply(TANH)
    return cells.integers(u * h + (1 - u) * o)
