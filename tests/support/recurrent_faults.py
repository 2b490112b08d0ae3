"""Faults of recurrent cells and their gradient."""

from __future__ import annotations

import numpy as np
from dnncore_reference import rnn
from wrong_formulas import added, exchanged, of_inputs, of_output, patched, rolled, unwritten, zeros

from dnncore import backend

FORWARD, BACKWARD = (backend.RNNForward,), (backend.RNNBackward,)
BOTH = FORWARD + BACKWARD
LSTM, GRU, LBR = "alg=VANILLA_LSTM", "alg=(VANILLA|LBR)_(AU)?GRU", "alg=LBR"
SIDES = "direction=(right|bidir)"


def forwards(_right, op, _side):
    """Every direction begins with the first step."""
    return range(op.sizes.steps)


def one_direction(_right, op, _side):
    """Every direction is that of the first one."""
    steps = range(op.sizes.steps)
    return steps[::-1] if op.is_reversed(0) else steps


def not_last_step(right, op, side):
    return right(op, side)[:-1]


def first_layer(right, op, t, layer, side):
    """Each layer has the weights of the first one, if they have the same dims."""
    return right(op, t, 0, side)


def first_side(right, op, t, layer, side):
    return right(op, t, layer, 0)


def of_old_cell(_right, op, w, x, h, c, a, kept):
    """The output gate of LSTM sees the state before the step."""
    if not op.is_lstm:
        return _right(op, w, x, h, c, a, kept)
    z = rnn.product(x, w["W"]) + w["b"] + rnn.product(h, w["U"])
    i, f, o = (rnn.logistic(z[:, k] + w["p"][p] * c) for k, p in ((0, 0), (1, 1), (3, 2)))
    g = np.tanh(z[:, 2])
    c = f * c + i * g
    h = o * np.tanh(c)
    h = h @ w["R"] if op.weights_projection else h
    return h, c, np.concatenate([i, f, g, o, c, h], 1)


def changed_gru(change):
    """A step of GRU with changed values: change(op, u, r, o, z, h, w, v) returns h'."""

    def wrong(right, op, w, x, h, c, a, kept):
        new, c, row = right(op, w, x, h, c, a, kept)
        if not op.is_gru:
            return new, c, row
        part = {name: row[:, columns] for name, columns in op.parts.items()}
        new = change(op, part, h, w, x, a)
        row = row.copy()
        row[:, op.parts["h"]] = new
        return new, c, row

    return patched(rnn, "step", wrong)


def other_share(op, part, h, w, x, a):
    """h' = (1 - v) h + v o."""
    v = (1 - a) * part["u"]
    return (1 - v) * h + v * part["o"]


def without_attention(op, part, h, w, x, a):
    return part["u"] * h + (1 - part["u"]) * part["o"]


def other_reset(right, op, w, x, h, c, a, kept):
    """The reset gate of GRU multiplies the product with U instead of h."""
    new, c, row = right(op, w, x, h, c, a, kept)
    if not op.is_gru or op.is_lbr:
        return new, c, row
    z = rnn.product(x, w["W"]) + w["b"][:3]
    u, r = row[:, op.parts["u"]], row[:, op.parts["r"]]
    o = np.tanh(z[:, 2] + r * (h @ w["U"][:, 2]))
    v = (1 - a) * u
    new = v * h + (1 - v) * o
    return new, c, np.concatenate([u, r, o, new], 1)


def without_q_bias(values):
    """The fourth bias of linear-before-reset cells is 0."""
    return np.concatenate([values[:, :, :3], 0 * values[:, :, 3:]], 2)


def other_activation(right, op, z):
    return np.tanh(z) if op.activation != "tanh" else np.maximum(z, 0)


def plain_relu(right, op, z):
    return np.maximum(z, 0) if op.activation == "relu" else right(op, z)


def average(right, op, sides):
    joined = right(op, sides)
    return joined / 2 if op.direction == "bidirectional_sum" else joined


def exchanged_sides(right, op, sides):
    return right(op, sides[::-1])


def last_of_batch(right, x, slopes):
    """The batch's last row is not added."""
    return right(x[:-1], slopes[:-1])


def unshifted_tanh(right, cell, s, h, c, a, dh, dc):
    """The slope of tanh of the LSTM's state is 1."""
    dz, dzq, own_h, slope, da = right(cell, s, h, c, a, dh, dc)
    t = np.tanh(s["c"])
    return dz, dzq, own_h, slope + dh * s["o"] * t * t * s["f"], da


FAULTS = {
    "rnn_exchanged_gates": (
        BOTH, LSTM, of_inputs("weights_layer weights_iter bias", exchanged(-2, 1, 0)),
    ),
    "rnn_exchanged_gates_of_gru": (
        BOTH, GRU, of_inputs("weights_layer weights_iter bias", exchanged(-2, 1, 0)),
    ),
    "rnn_exchanged_gates_of_iter": (
        BOTH, LSTM, of_inputs("weights_iter", exchanged(-2, 0, 1, 3, 2)),
    ),
    "rnn_forwards": (BOTH, SIDES, patched(rnn, "times", forwards)),
    "rnn_one_direction": (BOTH, "direction=bidir", patched(rnn, "times", one_direction)),
    "rnn_not_last_step": (BOTH, "", patched(rnn, "times", not_last_step)),
    "rnn_weights_of_first_layer": (
        BOTH, "direction=right.*l2t", patched(rnn, "cell_weights", first_layer),
    ),
    "rnn_weights_of_first_side": (
        BOTH, "direction=bidir", patched(rnn, "cell_weights", first_side),
    ),
    "rnn_without_state": (BOTH, "", of_inputs("src_iter", zeros)),
    "rnn_without_cell": (BOTH, LSTM, of_inputs("src_iter_c", zeros)),
    "rnn_without_bias": (FORWARD, "", of_inputs("bias", zeros)),
    "rnn_without_q_bias": (FORWARD, LBR, of_inputs("bias", without_q_bias)),
    "rnn_state_of_neighbour": (FORWARD, "", of_inputs("src_iter", rolled(-2))),
    "rnn_transposed_weights": (
        FORWARD, "", of_inputs("weights_iter", lambda u: np.flip(u, 2)),
    ),
    "rnn_peephole_of_old_cell": (FORWARD, "peephole", patched(rnn, "step", of_old_cell)),
    "rnn_without_peephole": (BOTH, "peephole", of_inputs("weights_peephole", zeros)),
    "rnn_exchanged_peepholes": (
        BOTH, "peephole", of_inputs("weights_peephole", exchanged(-2, 1, 0)),
    ),
    "rnn_projection_of_neighbour": (
        BOTH, "projection", of_inputs("weights_projection", rolled(-1)),
    ),
    "rnn_other_share": (FORWARD, GRU, changed_gru(other_share)),
    "rnn_without_attention": (FORWARD, "AUGRU", changed_gru(without_attention)),
    "rnn_attention_of_neighbour": (BOTH, "AUGRU", of_inputs("attention", rolled(0))),
    "rnn_other_reset": (FORWARD, "VANILLA_(AU)?GRU", patched(rnn, "step", other_reset)),
    "rnn_other_activation": (FORWARD, "", patched(rnn, "activation", other_activation)),
    "rnn_plain_relu": (FORWARD, "relu", patched(rnn, "activation", plain_relu)),
    "rnn_average_of_sides": (FORWARD, "bidirectional_sum", patched(rnn, "joined", average)),
    "rnn_exchanged_sides": (
        FORWARD, "bidirectional_concat", patched(rnn, "joined", exchanged_sides),
    ),
    "rnn_state_unwritten": (FORWARD, "", unwritten("dst_iter")),
    "rnn_cell_unwritten": (FORWARD, LSTM, unwritten("dst_iter_c")),
    "rnn_workspace_unwritten": (FORWARD, "", unwritten("workspace", np.s_[:, :, -1:])),
    "rnn_last_of_batch_unwritten": (FORWARD, "", unwritten("dst_layer", np.s_[:, -1:])),
    "rnn_back_last_of_batch": (BACKWARD, "", patched(rnn, "outer", last_of_batch)),
    "rnn_back_workspace_of_next_step": (BACKWARD, "", of_inputs("workspace", rolled(2))),
    "rnn_back_without_slope_of_state": (BACKWARD, "", of_inputs("diff_dst_iter", zeros)),
    "rnn_back_without_slope_of_cell": (BACKWARD, LSTM, of_inputs("diff_dst_iter_c", zeros)),
    "rnn_back_slope_of_tanh": (BACKWARD, LSTM, patched(rnn.Gradient, "_lstm", unshifted_tanh)),
    "rnn_back_adds_to_layer": (BACKWARD, "", added("diff_weights_layer")),
    "rnn_back_adds_to_iter": (BACKWARD, "", added("diff_weights_iter")),
    "rnn_back_adds_to_bias": (BACKWARD, "", added("diff_bias")),
    "rnn_back_adds_to_src": (BACKWARD, "", added("diff_src_layer")),
    "rnn_back_state_unwritten": (BACKWARD, "", unwritten("diff_src_iter")),
    "rnn_back_cell_unwritten": (BACKWARD, LSTM, unwritten("diff_src_iter_c")),
    "rnn_back_attention_s_sign": (
        BACKWARD, "AUGRU", of_output("diff_attention", lambda v, _op, _t: -v),
    ),
    "rnn_back_last_step_unwritten": (BACKWARD, "", unwritten("diff_src_layer", np.s_[-1:])),
}  # fmt: skip
