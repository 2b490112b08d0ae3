"""Attention and its gradients, with all scores in memory.

dst = weight @ values with weight = exp(score - lse), score = scale * queries @ keys.T + mask
diff_score = weight * (diff_dst @ values.T - sum(diff_dst * dst))
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dnncore.backend import Attention
from dnncore_reference.definition import Definition

Array = np.ndarray[Any, Any]


def scores_of(op: Attention, queries: Array, keys: Array, mask: Array | None) -> Array:
    """Return the scores (N, H, Q, K). Keys that a query does not see have -inf."""
    scores = op.scale * (queries @ _transposed(_per_head(op, keys)))
    if mask is not None:
        scores = scores + mask
    return np.where(_seen(op), scores, -np.inf)


def forward(
    op: Attention, queries: Array, keys: Array, values: Array, mask: Array | None = None
) -> dict[str, Array]:
    """Compute the results and lse."""
    scores = scores_of(op, queries, keys, mask)
    most = scores.max(-1, keepdims=True, initial=-np.inf)
    is_empty = np.isneginf(most)
    weights = np.exp(scores - np.where(is_empty, 0.0, most))
    total = weights.sum(-1, keepdims=True)
    dst = (weights @ _per_head(op, values)) / np.where(is_empty, 1.0, total)
    lse = np.where(is_empty, -np.inf, most + np.log(total))
    return {"dst": np.where(is_empty, 0.0, dst), "workspace": lse}


def backward(
    op: Attention, queries: Array, keys: Array, values: Array, dst: Array, diff_dst: Array,
    workspace: Array, mask: Array | None = None,
) -> dict[str, Array]:  # fmt: skip
    """Compute the three gradients from lse, the workspace."""
    scores = scores_of(op, queries, keys, mask)
    is_used = _seen(op) & ~np.isneginf(workspace)
    weights = np.where(is_used, np.exp(scores - workspace), 0.0)
    slopes = diff_dst @ _transposed(_per_head(op, values))
    mean = (diff_dst * dst).sum(-1, keepdims=True)
    diff = np.where(is_used, weights * (slopes - mean), 0.0)
    return {
        "diff_queries": op.scale * (diff @ _per_head(op, keys)),
        "diff_keys": op.scale * _per_group(op, _transposed(diff) @ queries),
        "diff_values": _per_group(op, _transposed(weights) @ diff_dst),
    }


def _seen(op: Attention) -> Array:
    """Return which keys each query sees: (Q, K)."""
    _, _, _, q, k, _, _ = op.sizes
    seen = np.ones((q, k), np.bool_)
    return seen if op.diagonal is None else np.tril(seen, op.diagonal)


def _transposed(values: Array) -> Array:
    return np.swapaxes(values, -1, -2)


def _per_head(op: Attention, values: Array) -> Array:
    """Return keys or values for each head of the queries."""
    _, h, g, *_ = op.sizes
    return np.repeat(values, h // max(1, g), axis=1)


def _per_group(op: Attention, values: Array) -> Array:
    """Add up the gradients of heads that share keys and values."""
    n, h, g, *_ = op.sizes
    total: Array = values.reshape(n, g, h // max(1, g), *values.shape[2:]).sum(2)
    return total


FORWARD = (Definition("attention", forward),)
BACKWARD = (Definition("attention", backward),)
