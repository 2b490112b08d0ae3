"""The noise of recurrent cells: their formulas, evaluated with numbers that carry their noise.

The formulas are those of `dnncore.ops.rnn`. The gradient reads the gates from the workspace. A
workspace in f32 is rounded, so that each of its numbers has the error of one rounding, or the error
that its forward implementation claims.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dnncore.algorithms.propagation import Approximate, Scalar, exact, joined
from dnncore.algorithms.rounding import LEAST_NORMAL, ROUNDOFF, Array, Noise
from dnncore.ops.rnn import RNN, RNNBackward, RNNForward
from dnncore.problem.drivers.driver import Evaluate, Inputs

__all__ = ["errors", "gradient_errors"]


def _sigmoid(z: Array) -> Array:
    return 1 / (1 + np.exp(-z))


def _slope(z: Array) -> Array:
    """The derivative of logistic, without cancellation."""
    return _sigmoid(z) * _sigmoid(-z)


LOGISTIC = Scalar(_sigmoid, _slope, 1.0)
TANH = Scalar(np.tanh, lambda z: 4 * _slope(2 * z), 2.0)


def _activation(op: RNN) -> Scalar:
    if op.activation == "relu":
        most = max(1.0, op.alpha)
        value = lambda z: np.where(z > 0, z, op.alpha * z)  # noqa: E731
        return Scalar(value, lambda z: np.full(z.shape, most))
    return TANH if op.activation == "tanh" else LOGISTIC


class _Layer:
    """The inputs of one layer and direction. Absent tensors are zeros."""

    def __init__(self, op: RNN, inputs: Mapping[str, Array], layer: int, side: int) -> None:
        self.op = op
        dims, gates = op.dims, op.sizes.gates

        def of(name: str) -> Array:
            values = inputs.get(name)
            return np.zeros(dims[name][2:]) if values is None else values[layer, side]

        self.wide, self.deep = of("weights_layer"), of("weights_iter")
        self.bias, self.q_bias = of("bias")[:gates], of("bias")[gates:]
        self.peephole = of("weights_peephole")
        given = "weights_projection" in inputs
        self.projection = of("weights_projection") if given else None
        self.h, self.c = of("src_iter"), of("src_iter_c")

    def times(self) -> range:
        """The steps in the order of the direction."""
        return range(self.op.sizes.steps)[:: -1 if self.op.is_reversed(self.side) else 1]

    side = 0


# -- forward --------------------------------------------------------------------------------------


def _step(w: _Layer, z: Approximate, h: Approximate, c: Approximate, a: Any) -> list[Approximate]:
    """Return the row of the workspace: gates, then c' or q, then h'.

    z: the product of the layer's input, with the bias.
    """
    op = w.op
    if op.algorithm == "vanilla_rnn":
        return [(z + h.product(w.deep))[:, 0].apply(_activation(op))]
    if op.is_lstm:
        z = z + h.product(w.deep)
        i = (z[:, 0] + c * w.peephole[0]).apply(LOGISTIC)
        f = (z[:, 1] + c * w.peephole[1]).apply(LOGISTIC)
        g = z[:, 2].apply(TANH)
        c = f * c + i * g
        o = (z[:, 3] + c * w.peephole[2]).apply(LOGISTIC)
        h = o * c.apply(TANH)
        return [i, f, g, o, c, h if w.projection is None else h.product(w.projection)]
    u, r = ((z[:, n] + h.product(w.deep[:, n])).apply(LOGISTIC) for n in (0, 1))
    q = []
    if op.is_lbr:
        q = [h.product(w.deep[:, 2]) + w.q_bias[0]]
        o = (z[:, 2] + r * q[0]).apply(TANH)
    else:
        o = (z[:, 2] + (r * h).product(w.deep[:, 2])).apply(TANH)
    v = u * (1 - a)
    return [u, r, o, *q, v * h + (1 - v) * o]


def errors(op: RNNForward, inputs: Inputs, evaluate: Evaluate) -> dict[str, Noise]:
    """Return the noise of all outputs.

    A gate that is close to the least normal number may become 0 before it is multiplied.
    """
    numbers = {name: array.astype(np.float64) for name, array in inputs.items()}
    layers, directions, steps, batch, *_ = op.sizes
    noise = {n: _none(op.dims[n]) for n in ("dst_iter", "dst_iter_c")}
    workspace = _none((layers, directions, steps, batch, op.parts["h"].stop))
    below = [exact(numbers["src_layer"], random=evaluate.random_order)] * directions
    for layer in range(layers):
        above = []
        for side in range(directions):
            w = _Layer(op, numbers, layer, side)
            w.side = side
            h, c = (exact(x, random=evaluate.random_order) for x in (w.h, w.c))
            results: dict[int, Approximate] = {}
            z = below[side].product(w.wide) + w.bias
            for time in w.times():
                a = numbers["attention"][time] if op.has_attention else 0.0
                row = _step(w, z[time], h, c, a)
                h, c = row[-1], row[-2] if op.is_lstm else c
                results[time] = h
                for columns, number in zip(op.parts.values(), row, strict=True):
                    _put(workspace, (layer, side, time, slice(None), columns), number.noise)
            _put(noise["dst_iter"], (layer, side), h.noise)
            _put(noise["dst_iter_c"], (layer, side), c.noise)
            above.append(_sequence(op, results))
        below = above if op.has_stacks else [joined(above, 2)] * 2
    last = joined(above, 2) if op.direction == "bidirectional_concat" else above[0]
    if op.direction == "bidirectional_sum":
        last = above[0] + above[1]
    all_ = {"dst_layer": last.noise, **noise, "workspace": workspace}
    present = {a.name for a, _ in op.tensors(op.workspace_desc())}
    return {
        name: own + Noise.within(np.full(own.limit.shape, LEAST_NORMAL))
        for name, own in all_.items()
        if name in present
    }


def _none(dims: tuple[int, ...]) -> Noise:
    return Noise(np.zeros(dims), np.zeros(dims))


def _put(noise: Noise, place: Any, own: Noise) -> None:
    noise.limit[place], noise.rms[place] = own.limit, own.rms


def _sequence(op: RNN, results: Mapping[int, Approximate]) -> Approximate:
    if not results:
        return exact(np.zeros((0, op.sizes.batch, op.sizes.dic)))
    return joined([results[time] for time in range(op.sizes.steps)], 0, np.stack)


# -- gradient -------------------------------------------------------------------------------------


class _Gradient:
    """The gradient of one layer and direction. rows: the terms of the slopes of the weights."""

    def __init__(self, w: _Layer, saved: Approximate) -> None:
        self.w, self.op = w, w.op
        self.saved = {name: saved[..., columns] for name, columns in w.op.parts.items()}
        self.rows: dict[str, list[tuple[Any, Approximate]]] = {}

    def step(self, time: int, x: Any, h: Any, c: Any, a: Any, dh: Any, dc: Any) -> list[Any]:
        """Return the slopes of x, h, c and attention."""
        s = {name: values[time] for name, values in self.saved.items()}
        own_h = da = None
        if self.op.is_gru:
            dz, dzq, own_h, da = self._gru(s, h, a, dh)
        else:
            dz, dc = self._lstm(s, h, c, dh, dc) if self.op.is_lstm else (self._rnn(s, dh), dc)
            dzq = dz
        self._keep("weights_layer", x, dz)
        self._keep("weights_iter", h, dzq)
        self._keep("bias", None, joined([dz, dzq[:, 2:]], 1) if self.op.is_lbr else dz)
        by_h = _back(dzq, self.w.deep)
        return [_back(dz, self.w.wide), by_h if own_h is None else own_h + by_h, dc, da]

    def _keep(self, name: str, x: Any, slopes: Approximate) -> None:
        self.rows.setdefault(name, []).append((x, slopes))

    def _rnn(self, s: Any, dh: Any) -> Approximate:
        y = s["h"]
        slopes = {"tanh": 1 - y * y, "logistic": y * (1 - y)}
        slope = slopes.get(self.op.activation, exact(np.where(y.value > 0, 1.0, self.op.alpha)))
        return joined([dh * slope], 1, np.stack)

    def _lstm(self, s: Any, h: Any, c: Any, dh: Any, dc: Any) -> Any:
        i, f, g, o, p = s["i"], s["f"], s["g"], s["o"], self.w.peephole
        t = s["c"].apply(TANH)
        dm = dh
        if self.w.projection is not None:
            self._keep("weights_projection", o * t, dh)
            dm = dh.product(self.w.projection.T)
        dzo = dm * t * o * (1 - o)
        dc = dc + dm * o * (1 - t * t) + dzo * p[2]
        dzi, dzf, dzg = dc * g * i * (1 - i), dc * c * f * (1 - f), dc * i * (1 - g * g)
        self._keep("weights_peephole", None,
                   joined([dzi * c, dzf * c, dzo * s["c"]], 1, np.stack))  # fmt: skip
        return joined([dzi, dzf, dzg, dzo], 1, np.stack), dc * f + dzi * p[0] + dzf * p[1]

    def _gru(self, s: Any, h: Any, a: Any, dh: Any) -> Any:
        u, r, o = s["u"], s["r"], s["o"]
        v = u * (1 - a)
        dv = dh * (h - o)
        dzu, dzo = dv * (1 - a) * u * (1 - u), dh * (1 - v) * (1 - o * o)
        da = (dv * u).changed(lambda x: x.swapaxes(0, 1)).total()
        own_h = dh * v
        if self.op.is_lbr:
            dr, dq = dzo * s["q"], dzo * r
        else:
            by_rh = dzo.product(self.w.deep[:, 2].T)
            dr, dq = by_rh * h, dzo * 0.0
            own_h = own_h + by_rh * r
            self._keep("o", r * h, dzo)
        dzr = dr * r * (1 - r)
        dz, dzq = (joined([dzu, dzr, last], 1, np.stack) for last in (dzo, dq))
        return dz, dzq, own_h, da

    def of_weights(self) -> dict[str, Noise]:
        """Return the noise of the slopes of all weights: sums over all steps and the batch."""
        found = {}
        for name, rows in self.rows.items():
            slopes = joined([dz for _, dz in rows], 0)
            if rows[0][0] is None:
                found[name] = slopes.total().noise
            else:
                x = joined([exact(x) for x, _ in rows], 0).changed(np.transpose)
                found[name] = x.product(slopes).noise
        if "o" in found:
            _put(found["weights_iter"], (slice(None), 2), found.pop("o"))
        return found


def _back(slopes: Approximate, weights: Array) -> Approximate:
    """Return the slopes of what weights (rows, G, DHC) have multiplied."""
    width = weights.shape[1] * weights.shape[2]
    flat = slopes.changed(lambda x: x.reshape(len(x), width))
    return flat.product(weights.reshape(len(weights), width).T)


def gradient_errors(
    op: RNNBackward, inputs: Inputs, _evaluate: Evaluate, error: Array | None = None
) -> dict[str, Noise]:
    """Return the noise of all outputs. error: of the workspace; else that of rounding to f32."""
    t = {name: array.astype(np.float64) for name, array in inputs.items()}
    layers, directions, *_ = op.sizes
    limit = np.abs(t["workspace"]) * ROUNDOFF if error is None else np.asarray(error)
    overflown = np.isinf(t["workspace"])
    limit = np.broadcast_to(limit, overflown.shape)
    workspace = Approximate(t["workspace"], Noise.within(limit).unknown_where(overflown))
    out = {f"diff_{name}": _none(dims) for name, dims in op.dims.items()}
    above = _sides(op, exact(t["diff_dst_layer"]))
    for layer in reversed(range(layers)):
        h_of = [workspace[layer - 1, side][..., op.parts["h"]] for side in range(directions)]
        below = h_of if op.has_stacks else [joined(h_of, 2)] * 2
        inputs_of = below if layer else [exact(t["src_layer"])] * directions
        dx = []
        for side in range(directions):
            w = _Layer(op, t, layer, side)
            w.side = side
            cell = _Gradient(w, workspace[layer, side])
            dh, dc = (
                exact(t[name][layer, side] if name in t else np.zeros(op.dims["dst_" + own][2:]))
                for own in ("iter", "iter_c")
                for name in (f"diff_dst_{own}",)
            )
            order, results = list(w.times()), {}
            for place in reversed(range(len(order))):
                time = order[place]
                h, c = exact(w.h), exact(w.c)
                if place:
                    h = cell.saved["h"][order[place - 1]]
                    c = cell.saved["c"][order[place - 1]] if op.is_lstm else c
                a = t["attention"][time] if op.has_attention else 0.0
                x = inputs_of[side][time]
                results[time], dh, dc, da = cell.step(time, x, h, c, a, dh + above[side][time], dc)
                if da is not None:
                    _put(out["diff_attention"], (time, slice(None), 0), da.noise)
            _put(out["diff_src_iter"], (layer, side), dh.noise)
            _put(out["diff_src_iter_c"], (layer, side), dc.noise)
            for name, noise in cell.of_weights().items():
                _put(out[f"diff_{name}"], (layer, side), noise)
            none = exact(np.zeros(inputs_of[side].value.shape))
            steps = [results[time] for time in range(op.sizes.steps)]
            dx.append(joined(steps, 0, np.stack) if steps else none)
        joint = not op.has_stacks and layer > 0
        above = _sides(op, dx[0] + dx[1]) if joint else dx
    below_all = above[0] + above[1] if directions == 2 else above[0]
    out["diff_src_layer"] = below_all.noise
    present = {a.name for a, _ in op.tensors()}
    return {name: noise for name, noise in out.items() if name in present}


def _sides(op: RNN, slopes: Approximate) -> list[Approximate]:
    if op.direction == "bidirectional_concat":
        dic = op.sizes.dic
        return [slopes[..., :dic], slopes[..., dic:]]
    return [slopes] * op.sizes.directions
