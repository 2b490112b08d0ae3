"""Faults of attention and its gradients."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from dnncore_reference import attention
from wrong_formulas import (
    added,
    formula,
    of_inputs,
    of_op,
    of_output,
    patched,
    rolled,
    unwritten,
    zeros,
)

from dnncore import backend

FORWARD, BACKWARD = (backend.AttentionForward,), (backend.AttentionBackward,)
BOTH = FORWARD + BACKWARD
CAUSAL, MASK = "mask_type=.*causal", "mask_type=buffer"
SHARED = "x4x|1x2x70|1x3x40"
"""Problems whose heads share keys."""
OTHER = {"top_left": "bottom_right", "bottom_right": "top_left", "none": "none"}


def one_more(right, op):
    """Each query sees one key after its diagonal."""
    seen = right(op)
    return seen if op.diagonal is None else np.tril(np.ones_like(seen), op.diagonal + 1)


def one_less(right, op):
    seen = right(op)
    return seen if op.diagonal is None else np.tril(np.ones_like(seen), op.diagonal - 1)


def tiled(_right, op, values):
    """Head h has the keys of h modulo the number of groups."""
    _, h, g, *_ = op.sizes
    return np.tile(values, (1, h // max(1, g), *[1] * (values.ndim - 2)))


def mask_before_scale(right, op, queries, keys, mask):
    return right(op, queries, keys, None if mask is None else op.scale * mask)


def last_query_without_mask(right, op, queries, keys, mask):
    scores = right(op, queries, keys, mask)
    scores[..., -1:, :] = right(op, queries, keys, None)[..., -1:, :]
    return scores


def first_head_s_mask(right, op, queries, keys, mask):
    return right(op, queries, keys, None if mask is None else mask[:, :1])


def last_key_unseen(right, op):
    seen = right(op).copy()
    seen[..., -1:] = False
    return seen


def without_maximum(right, op, **t):
    """exp overflows in f32."""
    found = dict(right(op, **t))
    scores = attention.scores_of(op, t["queries"], t["keys"], t.get("mask"))
    powers = np.exp(scores.astype(np.float32))
    total = powers.sum(-1, keepdims=True)
    values = attention._per_head(op, t["values"])
    found["dst"] = np.where(total == 0, 0.0, (powers @ values) / total)
    return found


def uniform_rows(right, op, **t):
    """A query without keys has the average of all values."""
    found = dict(right(op, **t))
    values = attention._per_head(op, t["values"])
    if values.shape[2]:
        empty = np.isneginf(found["workspace"])
        found["dst"] = np.where(empty, values.mean(2, keepdims=True), found["dst"])
    return found


def in_base_2(values, _op, _t):
    return values / np.log(2)


def first_head_alone(right, op, values):
    """The gradients of the other heads of a group are lost."""
    n, h, g, *_ = op.sizes
    right(op, values)
    return values.reshape(n, g, h // max(1, g), *values.shape[2:])[:, :, 0]


FAULTS = {
    "attention_twice_scale": (BOTH, "", of_op(scale=lambda op: 2 * op.scale)),
    "attention_scale_of_1": (BOTH, "", of_op(scale=1.0)),
    "attention_other_corner": (
        BOTH, CAUSAL,
        formula(lambda right, op, **t: right(replace(op, causal=OTHER[op.causal]), **t)),
    ),
    "attention_one_more": (BOTH, CAUSAL, patched(attention, "_seen", one_more)),
    "attention_one_less": (BOTH, CAUSAL, patched(attention, "_seen", one_less)),
    "attention_last_key": (BOTH, "", patched(attention, "_seen", last_key_unseen)),
    "attention_other_head": (BOTH, SHARED, patched(attention, "_per_head", tiled)),
    "attention_without_mask": (BOTH, MASK, of_inputs("mask", zeros)),
    "attention_mask_of_neighbour": (BOTH, MASK, of_inputs("mask", rolled(-1))),
    "attention_scaled_mask": (BOTH, MASK, patched(attention, "scores_of", mask_before_scale)),
    "attention_last_row_of_mask": (
        BOTH, MASK, patched(attention, "scores_of", last_query_without_mask),
    ),
    "attention_first_head_s_mask": (BOTH, MASK, patched(attention, "scores_of", first_head_s_mask)),
    "attention_without_maximum": (FORWARD, "", formula(without_maximum)),
    "attention_uniform_rows": (FORWARD, "x0:|causal_bottom", formula(uniform_rows)),
    "attention_lse_unwritten": (FORWARD, "", unwritten("workspace")),
    "attention_lse_of_base_2": (FORWARD, "", of_output("workspace", in_base_2)),
    "attention_last_query": (FORWARD, "", unwritten("dst", np.s_[:, :, -1:])),
    "attention_back_last_query": (BACKWARD, "", unwritten("diff_queries", np.s_[:, :, -1:])),
    "attention_back_last_key": (BACKWARD, "", unwritten("diff_keys", np.s_[:, :, -1:])),
    "attention_back_lse_of_neighbour": (BACKWARD, "", of_inputs("workspace", rolled(2))),
    "attention_back_without_mean": (BACKWARD, "", of_inputs("dst", zeros)),
    "attention_back_first_head": (
        BACKWARD, SHARED, patched(attention, "_per_group", first_head_alone),
    ),
    "attention_back_adds_to_queries": (BACKWARD, "", added("diff_queries")),
    "attention_back_adds_to_keys": (BACKWARD, "", added("diff_keys")),
    "attention_back_adds_to_values": (BACKWARD, "", added("diff_values")),
    "attention_back_keys_without_scale": (
        BACKWARD, "", of_output("diff_keys", lambda v, op, _t: v / op.scale),
    ),
}  # fmt: skip
