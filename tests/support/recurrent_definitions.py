"""Recurrent cells and their gradients as plain loops over layers, directions, steps and the batch.

The gradient follows each product and each function back, for one sequence of the batch at a time.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
BIDIRECTIONAL = ("bidirectional_concat", "bidirectional_sum")


def _s(z: Any) -> Any:
    return 1 / (1 + np.exp(-z))


class _Cell:
    """One layer and direction for one sequence, with weights of zeros where they are absent."""

    def __init__(self, op: Any, t: dict[str, Array], layer: int, side: int) -> None:
        def of(name: str, dims: tuple[int, ...]) -> Array:
            return t[name][layer, side] if name in t else np.zeros(dims, np.longdouble)

        self.op, self.name = op, op.algorithm.removeprefix("vanilla_")
        self.wx, self.wh = t["weights_layer"][layer, side], t["weights_iter"][layer, side]
        gates, width = self.wx.shape[1:]
        self.b = of("bias", (4 if "lbr" in self.name else gates, width))
        self.p = of("weights_peephole", (3, width))
        self.r = t["weights_projection"][layer, side] if "weights_projection" in t else None

    def forward(self, x: Array, h: Array, c: Array, a: Any) -> tuple[list[Array], Array, Array]:
        """The parts of the workspace's row, h' and c'."""
        n = range(self.wx.shape[1])
        z = [x @ self.wx[:, g] + self.b[g] for g in n]
        y = [h @ self.wh[:, g] for g in n]
        if self.name == "rnn":
            z = z[0] + y[0]
            h = {"tanh": np.tanh(z), "logistic": _s(z)}.get(
                self.op.activation, np.where(z > 0, z, self.op.alpha * z)
            )
            return [h], h, c
        if self.name == "lstm":
            i, f = _s(z[0] + y[0] + self.p[0] * c), _s(z[1] + y[1] + self.p[1] * c)
            g = np.tanh(z[2] + y[2])
            c = f * c + i * g
            o = _s(z[3] + y[3] + self.p[2] * c)
            h = o * np.tanh(c)
            h = h if self.r is None else h @ self.r
            return [i, f, g, o, c, h], h, c
        u, r = _s(z[0] + y[0]), _s(z[1] + y[1])
        if "lbr" in self.name:
            q = y[2] + self.b[3]
            o, more = np.tanh(z[2] + r * q), [q]
        else:
            o, more = np.tanh(z[2] + (r * h) @ self.wh[:, 2]), []
        v = (1 - a) * u if "augru" in self.name else u
        h = v * h + (1 - v) * o
        return [u, r, o, *more, h], h, c

    def backward(self, s: list[Array], x: Array, h: Array, c: Array, a: Any, dh: Array, dc: Array,
                 d: dict[str, Array]) -> tuple[Array, Array, Array, Any]:  # fmt: skip
        """The slopes of x, h, c and a; those of the weights are added to d. s: the parts."""
        back_h, da = np.zeros_like(h), 0
        factor = h  # what the weights of the last gate multiply
        if self.name == "rnn":
            y = s[0]
            slope = {"tanh": 1 - y**2, "logistic": y - y**2}.get(
                self.op.activation, np.where(y > 0, 1, self.op.alpha)
            )
            dz = [dh * slope]
        elif self.name == "lstm":
            i, f, g, o, new, _ = s
            k = np.tanh(new)
            if self.r is not None:
                d["weights_projection"] += np.multiply.outer(o * k, dh)
                dh = self.r @ dh
            do = dh * k * (o - o**2)
            dc = dc + dh * o * (1 - k**2) + do * self.p[2]
            di, df, dg = dc * g * (i - i**2), dc * c * (f - f**2), dc * i * (1 - g**2)
            d["weights_peephole"] += np.array([di * c, df * c, do * new])
            dc = dc * f + di * self.p[0] + df * self.p[1]
            dz = [di, df, dg, do]
        else:
            u, r, o = s[:3]
            rest = 1 - a if "augru" in self.name else 1
            dv = dh * h - dh * o
            da = -(dv * u).sum()
            du, do = dv * rest * (u - u**2), dh * (1 - rest * u) * (1 - o**2)
            back_h = dh * rest * u
            if "lbr" in self.name:
                dr = do * s[3] * (r - r**2)
                d["bias"][3] += do * r
                d["weights_iter"][:, 2] += np.multiply.outer(h, do * r)
                back_h += self.wh[:, 2] @ (do * r)
            else:
                by_product = self.wh[:, 2] @ do
                dr = by_product * h * (r - r**2)
                back_h += by_product * r
                factor = r * h
                d["weights_iter"][:, 2] += np.multiply.outer(factor, do)
            dz = [du, dr, do]
        back_x = np.zeros_like(x)
        for gate, slopes in enumerate(dz):
            d["weights_layer"][:, gate] += np.multiply.outer(x, slopes)
            d["bias"][gate] += slopes
            back_x += self.wx[:, gate] @ slopes
            if len(dz) != 3 or gate < 2:  # the last gate of GRU cells is above
                d["weights_iter"][:, gate] += np.multiply.outer(h, slopes)
                back_h += self.wh[:, gate] @ slopes
        return back_x, back_h, dc, da


def _order(op: Any, side: int) -> list[int]:
    steps = list(range(op.src_layer.dims[0]))
    return steps[::-1] if side or op.direction == "right2left" else steps


def _width(op: Any) -> tuple[int, int, int, int]:
    layers, sides, _, _, dhc = op.weights_layer.dims
    return layers, sides, dhc, op.weights_iter.dims[2]


def _below(op: Any, hidden: Array, layer: int, side: int, t: dict[str, Array]) -> Array:
    """The input of a layer and direction; hidden: h' of all layers and directions."""
    if layer == 0:
        return t["src_layer"]
    if op.weights_layer.dims[2] == op.weights_iter.dims[2]:
        return hidden[layer - 1, side]
    return np.concatenate(list(hidden[layer - 1]), 2)


def forward(op: Any, **t: Array) -> dict[str, Array]:
    """The formulas of oneDNN's developer guide."""
    layers, sides, dhc, dic = _width(op)
    steps, batch, _ = op.src_layer.dims
    hidden = np.zeros((layers, sides, steps, batch, dic), np.longdouble)
    last_h, last_c = (np.zeros((layers, sides, batch, n), np.longdouble) for n in (dic, dhc))
    rows: Any = None
    for layer, side, n in np.ndindex(layers, sides, batch):
        cell = _Cell(op, t, layer, side)
        h = t["src_iter"][layer, side, n] if "src_iter" in t else last_h[layer, side, n]
        c = t["src_iter_c"][layer, side, n] if "src_iter_c" in t else last_c[layer, side, n]
        for k in _order(op, side):
            a = t["attention"][k, n, 0] if "attention" in t else 0
            x = _below(op, hidden, layer, side, t)[k, n]
            parts, h, c = cell.forward(x, h, c, a)
            hidden[layer, side, k, n] = h
            row = np.concatenate(parts)
            rows = np.zeros((*hidden.shape[:4], len(row)), np.longdouble) if rows is None else rows
            rows[layer, side, k, n] = row
        last_h[layer, side, n], last_c[layer, side, n] = h, c
    top = hidden[-1]
    dst = np.concatenate(list(top), 2) if op.direction == "bidirectional_concat" else top.sum(0)
    if rows is None:
        rows = np.zeros(op.workspace_desc().dims) if op.workspace_desc() else None
    return {"dst_layer": dst, "dst_iter": last_h, "dst_iter_c": last_c, "workspace": rows}


def backward(op: Any, workspace: Array, **t: Array) -> dict[str, Array]:
    """The slopes of the sum of all results times their diff_dst."""
    layers, sides, dhc, dic = _width(op)
    steps, batch, slc = op.src_layer.dims
    is_lstm, is_lbr = "lstm" in op.algorithm, "lbr" in op.algorithm
    gates = 0 if op.algorithm == "vanilla_rnn" else op.weights_layer.dims[3]
    ends = [dhc * (k + 1) for k in range(gates + is_lstm + is_lbr)]
    hidden = workspace[..., -dic:] if dic else workspace[..., :0]
    new: Any = lambda *dims: np.zeros(dims, np.longdouble)  # noqa: E731
    d = {n: new(*t[n].shape) for n in t if n.startswith("weights")}
    d["bias"] = new(layers, sides, 4 if is_lbr else op.weights_layer.dims[3], dhc)
    for name in ("weights_peephole", "weights_projection"):
        d.setdefault(name, new(layers, sides, 3 if "peep" in name else dhc, dhc))
    d |= {"src_iter": new(layers, sides, batch, dic), "src_iter_c": new(layers, sides, batch, dhc)}
    d["attention"] = new(steps, batch, 1)
    top = t["diff_dst_layer"]
    concat = op.direction == "bidirectional_concat"
    above = [top[..., side * dic : (side + 1) * dic] if concat else top for side in range(sides)]
    for layer in reversed(range(layers)):
        dx = [new(steps, batch, slc) for _ in range(sides)]
        for side, n in np.ndindex(sides, batch):
            cell = _Cell(op, t, layer, side)
            own = {name: d[name][layer, side] for name in d if name.startswith(("weights", "bias"))}
            dh, dc = (
                t[name][layer, side, n] if name in t else new(size)
                for name, size in (("diff_dst_iter", dic), ("diff_dst_iter_c", dhc))
            )
            order = _order(op, side)
            for place in reversed(range(len(order))):
                k = order[place]
                parts = np.split(workspace[layer, side, k, n], ends)
                h, c = (
                    t[name][layer, side, n] if name in t else new(size)
                    for name, size in (("src_iter", dic), ("src_iter_c", dhc))
                )
                if place:
                    before = np.split(workspace[layer, side, order[place - 1], n], ends)
                    h, c = before[-1], before[-2] if is_lstm else c
                a = t["attention"][k, n, 0] if "attention" in t else 0
                x = _below(op, hidden, layer, side, t)[k, n]
                dx[side][k, n], dh, dc, da = cell.backward(
                    parts, x, h, c, a, dh + above[side][k, n], dc, own
                )
                d["attention"][k, n, 0] = da
            d["src_iter"][layer, side, n], d["src_iter_c"][layer, side, n] = dh, dc
        above = dx
        if slc != dic and layer:
            both = dx[0] + dx[1]
            above = [both[..., :dic], both[..., dic:]]
    d["src_layer"] = sum(above[1:], above[0])
    return {f"diff_{name}": values for name, values in d.items()}
