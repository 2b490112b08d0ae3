"""Recurrent cells by torch in float64, and their gradients by torch's differentiation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dnncore.attributes import Attributes
from dnncore.ops.rnn import RNN, RNNBackward, RNNForward
from dnncore.rnn_quantization import RNNDataQparams

__all__ = ["forward", "gradient", "integers"]

Kept = Callable[[Any], Any]

STATES = ("dst_layer", "dst_iter", "dst_iter_c")


def _weights(torch: Any, op: RNN, t: Mapping[str, Any], name: str, place: Any) -> Any:
    if name in t:
        return t[name][place]
    return torch.zeros(op.dims[name][2:], dtype=torch.float64)


def _cell(
    torch: Any, op: RNN, w: Mapping[str, Any], x: Any, h: Any, c: Any, a: Any, kept: Kept
) -> list[Any]:
    """Return the row of the workspace, whose last parts are c' or q, and h'."""
    z = [x @ w["weights_layer"][:, gate] + w["bias"][gate] for gate in range(op.sizes.gates)]
    deep = w["weights_iter"].unbind(1)
    sigmoid, tanh = torch.sigmoid, torch.tanh
    if op.algorithm == "vanilla_rnn":
        z = z[0] + h @ deep[0]
        leaky = torch.where(z > 0, z, op.alpha * z)
        return [{"tanh": tanh, "logistic": sigmoid}.get(op.activation, lambda _: leaky)(z)]
    if op.algorithm == "vanilla_lstm":
        p = w["weights_peephole"]
        i, f = (sigmoid(z[k] + h @ deep[k] + p[k] * c) for k in (0, 1))
        g = tanh(z[2] + h @ deep[2])
        c = f * c + i * g
        o = sigmoid(z[3] + h @ deep[3] + p[2] * c)
        h = kept(o * tanh(c))
        h = kept(h @ w["weights_projection"]) if op.weights_projection is not None else h
        return [i, f, g, o, c, h]
    u, r = (sigmoid(z[k] + h @ deep[k]) for k in (0, 1))
    q = h @ deep[2] + w["bias"][3] if op.is_lbr else None
    o = tanh(z[2] + (r * q if q is not None else kept(r * h) @ deep[2]))
    v = (1 - a) * u
    return [u, r, o, *([] if q is None else [q]), kept(v * h + (1 - v) * o)]


def _all(torch: Any, op: RNN, t: Mapping[str, Any], kept: Kept = lambda h: h) -> dict[str, Any]:
    """Return all outputs. kept: returns the numbers that stored states represent."""
    sizes = op.sizes
    names = ("weights_layer", "weights_iter", "bias", "weights_peephole", "weights_projection")
    below, finals, finals_c, saved = [t["src_layer"]] * sizes.directions, [], [], []
    for layer in range(sizes.layers):
        above = []
        for side in range(sizes.directions):
            w = {name: _weights(torch, op, t, name, (layer, side)) for name in names}
            h, c = (_weights(torch, op, t, n, (layer, side)) for n in ("src_iter", "src_iter_c"))
            h, steps = kept(h), list(range(sizes.steps))
            rows: dict[int, Any] = {}
            hs: dict[int, Any] = {}
            for time in steps[::-1] if op.is_reversed(side) else steps:
                a = t["attention"][time] if "attention" in t else 0.0
                row = _cell(torch, op, w, below[side][time], h, c, a, kept)
                h, c = row[-1], row[-2] if op.is_lstm else c
                rows[time], hs[time] = torch.cat(row, 1), h
            finals.append(h)
            finals_c.append(c)
            none = torch.zeros(0, sizes.batch, sizes.dic, dtype=torch.float64)
            above.append(torch.stack([hs[k] for k in steps]) if steps else none)
            width = op.parts["h"].stop
            none = torch.zeros(0, sizes.batch, width, dtype=torch.float64)
            saved.append(torch.stack([rows[k] for k in steps]) if steps else none)
        below = above if op.has_stacks else [torch.cat(above, 2)] * 2
    concat = op.direction == "bidirectional_concat"
    dims = op.dims
    return {
        "dst_layer": torch.cat(above, 2) if concat else sum(above[1:], above[0]),
        "dst_iter": torch.stack(finals).reshape(dims["dst_iter"]),
        "dst_iter_c": torch.stack(finals_c).reshape(dims["dst_iter_c"]),
        "workspace": torch.stack(saved).reshape(*dims["dst_iter"][:2], *saved[0].shape),
    }


def forward(torch: Any, op: RNNForward, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The oracle of `RNNForward`."""
    return _all(torch, op, tensors)


def integers(
    torch: Any, op: RNN, attr: Attributes, tensors: Mapping[str, Any]
) -> dict[str, Any] | None:
    """The outputs of cells of integers, as they are stored before rounding; None for others."""
    if not op.is_integer:
        return None
    data = attr.rnn_data_qparams or RNNDataQparams()
    limits = torch.iinfo(torch.uint8 if op.src_layer.data_type == "u8" else torch.int8)
    own, t = op.src_layer.data_type, dict(tensors)

    def kept(h: Any) -> Any:
        whole = torch.round(h * data.scale + data.shift).clamp(limits.min, limits.max)
        return (torch.nan_to_num(whole, 0.0) - data.shift) / data.scale

    for name in ("src_layer", "src_iter"):
        if name in t and getattr(op, name).data_type == own:
            t[name] = (t[name] - data.shift) / data.scale
    for name in ("weights_layer", "weights_iter", "weights_projection"):
        projects = name == "weights_projection"
        given = attr.rnn_weights_projection_qparams if projects else attr.rnn_weights_qparams
        if name in t and given is not None:
            dims = t[name].shape[3:]
            scales = torch.tensor(given.scales, dtype=torch.float64)
            t[name] = t[name] / (scales.reshape(dims) if given.mask else scales)
    results = _all(torch, op, t, kept)
    for name in ("dst_layer", "dst_iter"):
        if getattr(op, name) is not None and getattr(op, name).data_type == own:
            results[name] = results[name] * data.scale + data.shift
    return results


def gradient(torch: Any, op: RNNBackward, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The oracle of `RNNBackward`. The gradient does not depend on biases except by the workspace,
    so that the inputs include the bias which the forward operation read.
    """
    dims = op.dims
    wanted = [a.name.removeprefix("diff_") for a, _ in op.tensors() if a.direction == "out"]
    inputs = {name: tensors[name] for name in dims if name in tensors and name not in STATES}
    for name in wanted:
        zeros = torch.zeros(dims[name], dtype=torch.float64)
        inputs[name] = inputs.get(name, zeros).clone().requires_grad_()
    results = _all(torch, op, inputs)
    leaves = [inputs[name] for name in wanted]
    total = sum(0.0 * leaf.sum() for leaf in leaves)  # without steps, results depend on no leaf
    for name in STATES:
        if f"diff_{name}" in tensors:
            total = total + (results[name] * tensors[f"diff_{name}"]).sum()
    slopes = torch.autograd.grad(total, leaves, allow_unused=True)
    return {
        f"diff_{name}": torch.zeros(dims[name], dtype=torch.float64) if slope is None else slope
        for name, slope in zip(wanted, slopes, strict=True)
    }
