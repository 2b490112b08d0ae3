"""Recurrent cells: `RNNForward`.

All functions have these tensors and options. T is the number of steps, N the batch, I and H are the
sizes of inputs and results, D is the number of directions, and G the number of gates of a cell.

src_layer: (T, N, I), the sequence.
weights_layer, weights_iter: W (layers, D, I, G, H) and U (layers, D, H, G, H).
bias: (layers, D, G, H), or None.
src_iter: (layers, D, N, H), the state h before the first step; by default zero.
direction: "left2right", "right2left", "bidirectional_concat" or "bidirectional_sum".
states: whether to return a tuple: the result and the states after the last step, each with the
    shape of its initial state.

The result is h of the last layer: (T, N, H), or (T, N, 2 H) for bidirectional_concat.
`help(dnncore.ops.rnn)` has all formulas, and their sources.
"""

from __future__ import annotations

from dnncore.algorithms.rules import check_word
from dnncore.functional.call import EngineLike, Plan, call
from dnncore.functional.operands import (
    Operand,
    Result,
    Values,
    check_rank,
    descs,
    given,
    is_true,
    result_desc,
)
from dnncore.ops import RNNForward
from dnncore.ops.rnn import DIRECTIONS

__all__ = ["gru", "lstm", "rnn"]


def rnn(
    src_layer: Values,
    weights_layer: Values,
    weights_iter: Values,
    bias: Values = None,
    src_iter: Values = None,
    *,
    activation: str = "tanh",
    alpha: float = 0.0,
    direction: str = "left2right",
    states: bool = False,
    engine: EngineLike = None,
) -> Result:
    """h[t] = activation(W src_layer[t] + U h[t - 1] + bias), a cell with G = 1.

    activation: "tanh", "logistic" or "relu", which multiplies negative numbers by alpha.

    >>> rnn([[[1]], [[0]]], [[[[[2]]]]], [[[[[0.5]]]]], activation="relu").tolist()
    [[[2.0]], [[1.0]]]
    """
    values = _values(src_layer, weights_layer, weights_iter, bias, src_iter=src_iter)
    return call(_rnn, "rnn", values, engine, "vanilla_rnn", direction, states, activation, alpha)


def lstm(
    src_layer: Values,
    weights_layer: Values,
    weights_iter: Values,
    bias: Values = None,
    src_iter: Values = None,
    src_iter_c: Values = None,
    *,
    weights_peephole: Values = None,
    weights_projection: Values = None,
    direction: str = "left2right",
    states: bool = False,
    engine: EngineLike = None,
) -> Result:
    """c' = f c + i g and h' = o tanh(c'), a cell with the gates i, f, g, o.

    The gates i, f, o are logistic functions, and g is tanh, of W src_layer[t] + U h + bias.
    src_iter_c: (layers, D, N, H), the state c before the first step, given together with src_iter.
    weights_peephole: (layers, D, 3, H), of c in i and f, and of c' in o.
    weights_projection: (layers, D, H, P). It multiplies h', whose size is then P, not H.

    >>> weights = [[[[[0], [0], [1], [0]]]]]
    >>> y = lstm([[[0.6931472]], [[0]]], weights, [[[[[0], [0], [0], [0]]]]])
    >>> y.astype(float).round(4).tolist()  # c = 0.3, then 0.15; h = tanh(c) / 2
    [[[0.1457]], [[0.0744]]]
    """
    values = _values(
        src_layer, weights_layer, weights_iter, bias, src_iter=src_iter, src_iter_c=src_iter_c,
        weights_peephole=weights_peephole, weights_projection=weights_projection,
    )  # fmt: skip
    return call(_rnn, "lstm", values, engine, "vanilla_lstm", direction, states, "tanh", 0.0)


def gru(
    src_layer: Values,
    weights_layer: Values,
    weights_iter: Values,
    bias: Values = None,
    src_iter: Values = None,
    *,
    attention: Values = None,
    linear_before_reset: bool = False,
    direction: str = "left2right",
    states: bool = False,
    engine: EngineLike = None,
) -> Result:
    """h' = u h + (1 - u) o, a cell with the gates u, r, o.

    u and r are logistic functions of W src_layer[t] + U h + bias, and o is
    tanh(W src_layer[t] + U (r h) + bias).
    attention: (T, N, 1), of AUGRU: (1 - attention) u takes the place of u in h'.
    linear_before_reset: o is tanh(W src_layer[t] + bias + r (U h + bias of q)); the bias then has
        four rows u, r, o, q. torch and cuDNN have this cell, with the order r, u, o of gates.

    >>> zeros = [[[[[0], [0], [0]]]]]
    >>> gru([[[0.6931472]], [[0]]], [[[[[0], [0], [1]]]]], zeros).astype(float).round(4).tolist()
    [[[0.3]], [[0.15]]]
    """
    values = _values(
        src_layer, weights_layer, weights_iter, bias, src_iter=src_iter, attention=attention
    )
    name = "gru" if attention is None else "augru"
    name = (
        f"lbr_{name}"
        if is_true("gru", "linear_before_reset", linear_before_reset)
        else f"vanilla_{name}"
    )
    return call(_rnn, "gru", values, engine, name, direction, states, "tanh", 0.0)


def _values(
    src: Values, wide: Values, deep: Values, bias: Values, **optional: Values
) -> dict[str, Values]:
    required = {"src_layer": src, "weights_layer": wide, "weights_iter": deep, "bias": bias}
    return required | given(**optional)


def _rnn(
    function: str,
    operands: dict[str, Operand],
    algorithm: str,
    direction: str,
    states: bool,
    activation: str,
    alpha: float,
) -> Plan:
    x, wide, deep = (operands[name] for name in ("src_layer", "weights_layer", "weights_iter"))
    check_rank(function, "src_layer", x, "(T, N, I)", 3)
    check_rank(function, "weights_layer", wide, "(layers, D, I, G, H)", 5)
    check_rank(function, "weights_iter", deep, "(layers, D, H, G, H)", 5)
    check_word(function, DIRECTIONS, direction=direction)
    width = deep.shape[2] * (2 if direction == "bidirectional_concat" else 1)
    after = {}
    if is_true(function, "states", states):
        sizes = (*wide.shape[:2], x.shape[1])
        after["dst_iter"] = (*sizes, deep.shape[2])
        if function == "lstm":
            after["dst_iter_c"] = (*sizes, wide.shape[4])
    op = RNNForward(
        "forward_inference",
        algorithm,
        direction,
        dst_layer=result_desc((*x.shape[:2], width), x),
        activation=activation,
        alpha=alpha,
        **descs(operands),
        **{name: result_desc(dims, x) for name, dims in after.items()},
    )
    return Plan(op, more=after)
