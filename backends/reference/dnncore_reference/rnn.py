"""Recurrent cells and their gradient, one step after the other. Formulas: `dnncore.ops.rnn`.

Arrays of one layer and direction have the letters of the formulas: W (SLC, G, DHC),
U (DIC, G, DHC), b (G or 4, DHC), x (N, SLC), h (N, DIC), c (N, DHC), z (N, G, DHC).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dnncore.backend import RNN, Attributes, RNNQparams
from dnncore_reference.definition import Definition, rounded

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]
Kept = Callable[[Array], Array]
Slopes = tuple[Any, ...]
WEIGHTS = {"W": "weights_layer", "U": "weights_iter", "b": "bias", "p": "weights_peephole",
           "R": "weights_projection"}  # fmt: skip


def logistic(z: Array) -> Array:
    """1 / (1 + exp(-z))."""
    return 1 / (1 + np.exp(-z))


def activation(op: RNN, z: Array) -> Array:
    """Return the function of a vanilla RNN."""
    if op.activation == "relu":
        return np.where(z > 0, z, op.alpha * z)
    return np.tanh(z) if op.activation == "tanh" else logistic(z)


def product(x: Array, weights: Array) -> Array:
    """Multiply rows by weights (rows, G, DHC)."""
    result: Array = np.tensordot(x, weights, 1)
    return result


def back(slopes: Array, weights: Array) -> Array:
    """Multiply slopes (N, G, DHC) by transposed weights."""
    result: Array = np.einsum("ngd,igd->ni", slopes, weights)
    return result


def outer(x: Array, slopes: Array) -> Array:
    """Return the gradient of weights: sums over the batch."""
    result: Array = np.einsum("ni,ngd->igd", x, slopes)
    return result


def cell_weights(op: RNN, t: Arrays, layer: int, side: int) -> dict[str, Array]:
    """Return the weights of one layer and direction; zeros for absent tensors."""
    dims = op.dims
    return {
        letter: t[name][layer, side] if name in t else np.zeros(dims[name][2:])
        for letter, name in WEIGHTS.items()
    }


def states(op: RNN, t: Arrays, layer: int, side: int, prefix: str) -> tuple[Array, Array]:
    """Return both states of a layer and direction; zeros where they are absent."""
    dims = op.dims
    h, c = (
        t[prefix + name][layer, side] if prefix + name in t else np.zeros(dims[f"src_{name}"][2:])
        for name in ("iter", "iter_c")
    )
    return h, c


# -- forward --------------------------------------------------------------------------------------


def as_it_is(h: Array) -> Array:
    """Return states that are not quantized."""
    return h


def step(
    op: RNN, w: Arrays, x: Array, h: Array, c: Array, a: Array, kept: Kept
) -> tuple[Array, Array, Array]:
    """Return h', c' and the row of the workspace. a: attention of this step, (N, 1)."""
    z = product(x, w["W"]) + w["b"][: op.sizes.gates]
    if op.algorithm == "vanilla_rnn":
        z = (z + product(h, w["U"]))[:, 0]
        h = kept(activation(op, z))
        return h, c, h
    if op.is_lstm:
        z += product(h, w["U"])
        i, f = logistic(z[:, 0] + w["p"][0] * c), logistic(z[:, 1] + w["p"][1] * c)
        g = np.tanh(z[:, 2])
        c = f * c + i * g
        o = logistic(z[:, 3] + w["p"][2] * c)
        h = kept(o * np.tanh(c))
        h = kept(h @ w["R"]) if op.weights_projection else h
        return h, c, np.concatenate([i, f, g, o, c, h], 1)
    u, r = np.moveaxis(logistic(z[:, :2] + product(h, w["U"][:, :2])), 1, 0)
    q = []
    if op.is_lbr:
        q = [h @ w["U"][:, 2] + w["b"][3]]
        o = np.tanh(z[:, 2] + r * q[0])
    else:
        o = np.tanh(z[:, 2] + kept(r * h) @ w["U"][:, 2])
    v = (1 - a) * u
    h = kept(v * h + (1 - v) * o)
    return h, c, np.concatenate([u, r, o, *q, h], 1)


def times(op: RNN, side: int) -> range:
    """Return the steps in the order of a direction."""
    steps = range(op.sizes.steps)
    return steps[::-1] if op.is_reversed(side) else steps


def joined(op: RNN, sides: list[Array]) -> Array:
    """Return the result of the last layer."""
    if op.direction == "bidirectional_concat":
        return np.concatenate(sides, 2)
    return sum(sides[1:], sides[0])


def forward(op: RNN, kept: Kept = as_it_is, **t: Array) -> dict[str, Array]:
    """Compute the states and the workspace of all layers and directions.

    kept: returns the numbers that stored states h represent.
    """
    layers, directions, steps, batch, *_ = op.sizes
    out = {
        "dst_iter": np.zeros(op.dims["dst_iter"]),
        "dst_iter_c": np.zeros(op.dims["dst_iter_c"]),
        "workspace": np.zeros((layers, directions, steps, batch, op.parts["h"].stop)),
    }
    below = [t["src_layer"]] * directions
    for layer in range(layers):
        for side in range(directions):
            w = cell_weights(op, t, layer, side)
            h, c = states(op, t, layer, side, "src_")
            h = kept(h)
            for time in times(op, side):
                a = t["attention"][time] if op.has_attention else np.zeros((batch, 1))
                h, c, row = step(op, w, below[side][time], h, c, a, kept)
                out["workspace"][layer, side, time] = row
            out["dst_iter"][layer, side], out["dst_iter_c"][layer, side] = h, c
        above = list(out["workspace"][layer][..., op.parts["h"]])
        below = above if op.has_stacks else [np.concatenate(above, 2)] * 2
    return {**out, "dst_layer": joined(op, above)}


class Cells(Definition):
    """The forward operation. Cells of integers compute with the numbers that integers represent."""

    def _computed(
        self, op: Any, attr: Attributes, inputs: Arrays, read: Arrays
    ) -> dict[str, Array]:
        if not op.is_integer:
            return super()._computed(op, attr, inputs, read)
        numbers, own = RNNQparams.of(op, attr), op.src_layer.data_type
        values = dict(inputs)

        def kept(h: Array) -> Array:
            whole = rounded(h * numbers.scale + numbers.shift, own).astype(np.float64)
            return (whole - numbers.shift) / numbers.scale

        for name in ("weights_layer", "weights_iter"):
            values[name] = values[name] / numbers.weights
        if "weights_projection" in values:
            values["weights_projection"] = values["weights_projection"] / numbers.projection
        for name, x in inputs.items():
            if getattr(op, name).data_type == own and name in ("src_layer", "src_iter"):
                values[name] = (x - numbers.shift) / numbers.scale
        results = forward(op, kept, **values)
        for name in ("dst_layer", "dst_iter"):
            desc = getattr(op, name)
            if desc is not None and desc.data_type == own:
                results[name] = results[name] * numbers.scale + numbers.shift
        return results


# -- gradient -------------------------------------------------------------------------------------


class Gradient:
    """The gradient of one layer and direction.

    w: its weights. saved: its rows of the workspace, by name. d: the gradients of its weights.
    """

    def __init__(self, op: RNN, w: Arrays, rows: Array) -> None:
        self.op, self.w = op, w
        self.saved = {name: rows[..., columns] for name, columns in op.parts.items()}
        self.d = {name: np.zeros(values.shape) for name, values in w.items()}

    def step(
        self, time: int, x: Array, h: Array, c: Array, a: Array, dh: Array, dc: Array
    ) -> Slopes:
        """Return the slopes of x, h, c and attention.

        h, c, a: the states before the step, and its attention. dh, dc: slopes of the states after.
        """
        s = {name: values[time] for name, values in self.saved.items()}
        cells: dict[bool, Any] = {self.op.is_lstm: self._lstm, self.op.is_gru: self._gru}
        cell = cells.get(True, self._rnn)
        dz, dzq, own_h, dc, da = cell(s, h, c, a, dh, dc)
        gates = self.op.sizes.gates
        self.d["W"] += outer(x, dz)
        self.d["b"][:gates] += dz.sum(0)
        if self.op.is_lbr:
            self.d["b"][3] += dzq[:, 2].sum(0)
        by_h = back(dzq, self.w["U"])
        self.d["U"] += outer(h, dzq)
        return back(dz, self.w["W"]), own_h + by_h, dc, da

    def _rnn(self, s: Arrays, h: Array, c: Array, _a: Array, dh: Array, dc: Array) -> Slopes:
        y = s["h"]
        slope = {"tanh": 1 - y * y, "logistic": y * (1 - y)}.get(
            self.op.activation, np.where(y > 0, 1.0, self.op.alpha)
        )
        dz = (dh * slope)[:, None]
        return dz, dz, 0.0, dc, None

    def _lstm(self, s: Arrays, _h: Array, c: Array, _a: Array, dh: Array, dc: Array) -> Slopes:
        i, f, g, o, p = s["i"], s["f"], s["g"], s["o"], self.w["p"]
        t = np.tanh(s["c"])
        dm = dh
        if self.op.weights_projection:
            self.d["R"] += (o * t).T @ dh
            dm = dh @ self.w["R"].T
        dzo = dm * t * o * (1 - o)
        dc = dc + dm * o * (1 - t * t) + dzo * p[2]
        dzi, dzf, dzg = dc * g * i * (1 - i), dc * c * f * (1 - f), dc * i * (1 - g * g)
        self.d["p"] += [(dzi * c).sum(0), (dzf * c).sum(0), (dzo * s["c"]).sum(0)]
        dz = np.stack([dzi, dzf, dzg, dzo], 1)
        return dz, dz, 0.0, dc * f + dzi * p[0] + dzf * p[1], None

    def _gru(self, s: Arrays, h: Array, c: Array, a: Array, dh: Array, dc: Array) -> Slopes:
        """Return also the slopes of the products with U, which differ from those of z."""
        u, r, o = s["u"], s["r"], s["o"]
        v = (1 - a) * u
        dv = dh * (h - o)
        dzu, dzo = dv * (1 - a) * u * (1 - u), dh * (1 - v) * (1 - o * o)
        da = -(dv * u).sum(1, keepdims=True)
        own_h = dh * v
        if self.op.is_lbr:
            dr, dq = dzo * s["q"], dzo * r
        else:
            by_rh = dzo @ self.w["U"][:, 2].T
            dr, dq = by_rh * h, np.zeros_like(dzo)
            own_h = own_h + by_rh * r
            self.d["U"][:, 2] += (r * h).T @ dzo
        dzr = dr * r * (1 - r)
        return np.stack([dzu, dzr, dzo], 1), np.stack([dzu, dzr, dq], 1), own_h, dc, da


def backward(op: RNN, **t: Array) -> dict[str, Array]:
    """Compute the gradients of all inputs, from the last layer to the first."""
    layers, directions, _, batch, *_ = op.sizes
    out = {f"diff_{name}": np.zeros(dims) for name, dims in op.dims.items()}
    above = slopes_of_sides(op, t["diff_dst_layer"])
    for layer in reversed(range(layers)):
        h_of = list(t["workspace"][layer - 1][..., op.parts["h"]])
        below = h_of if op.has_stacks else [np.concatenate(h_of, 2)] * 2
        inputs = below if layer else [t["src_layer"]] * directions
        dx = [np.zeros(x.shape) for x in inputs]
        for side in range(directions):
            w = cell_weights(op, t, layer, side)
            cell = Gradient(op, w, t["workspace"][layer, side])
            first = states(op, t, layer, side, "src_")
            dh, dc = states(op, t, layer, side, "diff_dst_")
            order = list(times(op, side))
            for place, time in reversed(list(enumerate(order))):
                h, c = first
                if place:
                    h = cell.saved["h"][order[place - 1]]
                    c = cell.saved["c"][order[place - 1]] if op.is_lstm else c
                a = t["attention"][time] if op.has_attention else np.zeros((batch, 1))
                dh = dh + above[side][time]
                dx[side][time], dh, dc, da = cell.step(time, inputs[side][time], h, c, a, dh, dc)
                if op.has_attention:
                    out["diff_attention"][time] = da
            out["diff_src_iter"][layer, side], out["diff_src_iter_c"][layer, side] = dh, dc
            for letter, name in WEIGHTS.items():
                if name in t or name == "bias":
                    out[f"diff_{name}"][layer, side] = cell.d[letter]
        joint = not op.has_stacks and layer > 0
        above = slopes_of_sides(op, sum(dx[1:], dx[0])) if joint else dx
    return {**out, "diff_src_layer": sum(above[1:], above[0])}


def slopes_of_sides(op: RNN, slopes: Array) -> list[Array]:
    """Return the slopes of each direction of a layer, whose results were joined."""
    if op.direction == "bidirectional_concat":
        return np.split(slopes, 2, 2)
    return [slopes] * op.sizes.directions


FORWARD = (Cells("rnn", forward),)
BACKWARD = (Definition("rnn", backward),)
