"""Recurrent cells: `RNNForward`.

`help(dnncore.ops.rnn)` has all formulas, and their sources.
"""

from __future__ import annotations

from dnncore.algorithms.rules import check_word
from dnncore.errors import DescriptorError
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
    """h[t] = activation(W src_layer[t] + U h[t - 1] + bias), a cell with one gate.

    T is the number of steps, N the batch, I the size of inputs, H the size of results, and D the
    number of directions: 2 for the bidirectional ones, else 1.

    src_layer: (T, N, I), the sequence, also for right2left, which begins at its last step.
    weights_layer: W, (layers, D, I, 1, H). Several layers need I == H, or I == 2 H for
        bidirectional_concat. Otherwise call the function once for each layer.
    weights_iter: U, (layers, D, H, 1, H).
    bias: (layers, D, 1, H), or None, which is zero.
    src_iter: (layers, D, N, H), the state h before the first step. None is zero.
    activation: "tanh", "logistic" or "relu", which multiplies negative numbers by alpha.
    direction: "left2right", "right2left", "bidirectional_concat" or "bidirectional_sum". The last
        two compute both directions, which are D = 0 and D = 1 of the weights.
    states: whether to return a tuple: dst_layer, and h after the last step, of src_iter's shape.

    Returns dst_layer, h of the last layer at each step: (T, N, H), or (T, N, 2 H) for
    bidirectional_concat.

    A weight w of a layer of torch is (G H, I) with G gates; for `rnn`, G is 1. Convert it with

        w.reshape(G, H, -1).permute(2, 0, 1)[None, None]       (1, 1, I, G, H)

    The order of gates is the same for `lstm`, and another for `gru`. The bias is the sum of torch's
    two biases; the docstring of `gru` shows its exception. Several layers or directions of torch
    are concatenated along dim 0 or dim 1.

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
    T is the number of steps, N the batch, I the size of inputs, H the size of c, and D the number
    of directions: 2 for the bidirectional ones, else 1. P is the size of h: H without projection.

    src_layer: (T, N, I), the sequence, also for right2left, which begins at its last step.
    weights_layer: W, (layers, D, I, 4, H). Several layers need I == P, or I == 2 P for
        bidirectional_concat. Otherwise call the function once for each layer.
    weights_iter: U, (layers, D, P, 4, H).
    bias: (layers, D, 4, H), or None, which is zero.
    src_iter: (layers, D, N, P), the state h before the first step. None is zero.
    src_iter_c: (layers, D, N, H), the state c before the first step, given together with src_iter.
    weights_peephole: (layers, D, 3, H), of c in i and f, and of c' in o.
    weights_projection: (layers, D, H, P). It multiplies h', whose size is then P, not H.
    direction: "left2right", "right2left", "bidirectional_concat" or "bidirectional_sum". The last
        two compute both directions, which are D = 0 and D = 1 of the weights.
    states: whether to return a tuple: dst_layer, and h and c after the last step, of the shapes of
        src_iter and src_iter_c.

    Returns dst_layer, h of the last layer at each step: (T, N, P), or (T, N, 2 P) for
    bidirectional_concat.

    torch has the same gates in the same order. A weight w of a layer of torch, weight_ih_l0 of
    (4 H, I) or weight_hh_l0 of (4 H, P), becomes (1, 1, I, 4, H) or (1, 1, P, 4, H) with

        w.reshape(4, H, -1).permute(2, 0, 1)[None, None]

    The bias is (bias_ih_l0 + bias_hh_l0).reshape(1, 1, 4, H), and weights_projection is
    weight_hr_l0.T[None, None]. Detach parameters first.

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
    tanh(W src_layer[t] + U (r h) + bias). T is the number of steps, N the batch, I the size of
    inputs, H the size of results, and D the number of directions: 2 for the bidirectional ones,
    else 1.

    src_layer: (T, N, I), the sequence, also for right2left, which begins at its last step.
    weights_layer: W, (layers, D, I, 3, H). Several layers need I == H, or I == 2 H for
        bidirectional_concat. Otherwise call the function once for each layer.
    weights_iter: U, (layers, D, H, 3, H).
    bias: (layers, D, 3, H), or (layers, D, 4, H) with linear_before_reset. None is zero.
    src_iter: (layers, D, N, H), the state h before the first step. None is zero.
    attention: (T, N, 1), of AUGRU: (1 - attention) u takes the place of u in h'.
    linear_before_reset: o is tanh(W src_layer[t] + bias + r (U h + bias of q)); the bias then has
        four rows u, r, o, q. torch and cuDNN have this cell.
    direction: "left2right", "right2left", "bidirectional_concat" or "bidirectional_sum". The last
        two compute both directions, which are D = 0 and D = 1 of the weights.
    states: whether to return a tuple: dst_layer, and h after the last step, of src_iter's shape.

    Returns dst_layer, h of the last layer at each step: (T, N, H), or (T, N, 2 H) for
    bidirectional_concat.

    torch's gates are r, z, n; they are r, u, o here. So a weight w of a layer of torch, (3 H, I) or
    (3 H, H), becomes (1, 1, I, 3, H) or (1, 1, H, 3, H) with

        w.reshape(3, H, -1)[[1, 0, 2]].permute(2, 0, 1)[None, None]

    With x = bias_ih_l0.reshape(3, H) and y = bias_hh_l0.reshape(3, H), the rows u, r, o, q of the
    bias are x[1] + y[1], x[0] + y[0], x[2], y[2]. Pass linear_before_reset=True. Detach parameters
    first.

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
    for name, weights, shape in (
        ("weights_layer", wide, "(layers, D, I, G, H)"),
        ("weights_iter", deep, "(layers, D, H, G, H)"),
    ):
        if weights.ndim == 2:  # torch's
            raise DescriptorError(
                f"{function}: {name} must be {shape}; got {weights.shape};"
                f" help(dnncore.functional.{function}) states how to convert torch's weights"
            )
        check_rank(function, name, weights, shape, 5)
    bias = operands.get("bias")
    if algorithm in ("vanilla_gru", "vanilla_augru") and bias and bias.shape[2:3] == (4,):
        raise DescriptorError(
            f"{function}: bias must have 3 rows u, r, o; got 4 rows; pass linear_before_reset=True"
            " for a cell with the rows u, r, o, q"
        )
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
