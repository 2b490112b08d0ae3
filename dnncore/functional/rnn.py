"""Recurrent cells: `RNNForward`."""

from __future__ import annotations

from dnncore.functional.call import EngineLike, Plan, call
from dnncore.functional.operands import Operand, Result, Values, check_rank, descs, result_desc
from dnncore.ops import RNNForward

__all__ = ["gru", "lstm", "rnn"]


def rnn(
    src_layer: Values,
    weights_layer: Values,
    weights_iter: Values,
    bias: Values = None,
    *,
    activation: str = "tanh",
    alpha: float = 0.0,
    direction: str = "left2right",
    engine: EngineLike = None,
) -> Result:
    """h[t] = activation(W src_layer[t] + U h[t - 1] + bias); returns h of the last layer.

    src_layer (T, N, I), weights_layer W (layers, D, I, 1, H), weights_iter U (layers, D, H, 1, H),
    bias (layers, D, 1, H), result (T, N, H), or (T, N, 2 H) for bidirectional_concat. D is the
    number of directions. The state before the first step is zero.
    activation: "tanh", "logistic" or "relu", which multiplies negative numbers by alpha.
    direction: "left2right", "right2left", "bidirectional_concat" or "bidirectional_sum".

    >>> rnn([[[1]], [[0]]], [[[[[2]]]]], [[[[[0.5]]]]], activation="relu").tolist()
    [[[2.0]], [[1.0]]]
    """
    values = _values(src_layer, weights_layer, weights_iter, bias)
    return call(_rnn, "rnn", values, engine, "vanilla_rnn", direction, activation, alpha)


def lstm(
    src_layer: Values,
    weights_layer: Values,
    weights_iter: Values,
    bias: Values = None,
    *,
    direction: str = "left2right",
    engine: EngineLike = None,
) -> Result:
    """c' = f c + i g and h' = o tanh(c'); returns h of the last layer.

    The gates i, f, o are logistic functions, and g is tanh, of W src_layer[t] + U h + bias. Shapes
    as in `rnn`, with four gates in the order i, f, g, o in place of 1: weights_layer (layers, D, I,
    4, H), weights_iter (layers, D, H, 4, H), bias (layers, D, 4, H). The first states are zero.

    >>> weights = [[[[[0], [0], [1], [0]]]]]
    >>> y = lstm([[[0.6931472]], [[0]]], weights, [[[[[0], [0], [0], [0]]]]])
    >>> y.astype(float).round(4).tolist()  # c = 0.3, then 0.15; h = tanh(c) / 2
    [[[0.1457]], [[0.0744]]]
    """
    values = _values(src_layer, weights_layer, weights_iter, bias)
    return call(_rnn, "lstm", values, engine, "vanilla_lstm", direction, "tanh", 0.0)


def gru(
    src_layer: Values,
    weights_layer: Values,
    weights_iter: Values,
    bias: Values = None,
    *,
    linear_before_reset: bool = False,
    direction: str = "left2right",
    engine: EngineLike = None,
) -> Result:
    """h' = u h + (1 - u) o; returns h of the last layer.

    u and r are logistic functions of W src_layer[t] + U h + bias, and o is
    tanh(W src_layer[t] + U (r h) + bias). Shapes as in `rnn`, with three gates in the order u, r, o
    in place of 1. The first state is zero.
    linear_before_reset: o is tanh(W src_layer[t] + bias + r (U h + bias of q)); the bias then has
        four rows u, r, o, q. torch and cuDNN have this cell.

    >>> zeros = [[[[[0], [0], [0]]]]]
    >>> gru([[[0.6931472]], [[0]]], [[[[[0], [0], [1]]]]], zeros).astype(float).round(4).tolist()
    [[[0.3]], [[0.15]]]
    """
    values = _values(src_layer, weights_layer, weights_iter, bias)
    name = "lbr_gru" if linear_before_reset else "vanilla_gru"
    return call(_rnn, "gru", values, engine, name, direction, "tanh", 0.0)


def _values(src: Values, wide: Values, deep: Values, bias: Values) -> dict[str, Values]:
    return {"src_layer": src, "weights_layer": wide, "weights_iter": deep, "bias": bias}


def _rnn(
    function: str,
    operands: dict[str, Operand],
    algorithm: str,
    direction: str,
    activation: str,
    alpha: float,
) -> Plan:
    x, deep = operands["src_layer"], operands["weights_iter"]
    check_rank(function, "src_layer", x, "(T, N, I)", 3)
    check_rank(function, "weights_iter", deep, "(layers, D, H, G, H)", 5)
    width = deep.shape[2] * (2 if direction == "bidirectional_concat" else 1)
    op = RNNForward(
        "forward_inference",
        algorithm,
        direction,
        dst_layer=result_desc((*x.shape[:2], width), x),
        activation=activation,
        alpha=alpha,
        **descs(operands),
    )
    return Plan(op)
