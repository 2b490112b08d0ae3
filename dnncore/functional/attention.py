"""Scaled dot-product attention: `AttentionForward`."""

from __future__ import annotations

from dnncore.errors import DescriptorError
from dnncore.functional.call import EngineLike, Plan, call
from dnncore.functional.operands import (
    Operand,
    Result,
    Values,
    check_rank,
    given,
    is_true,
    result_desc,
)
from dnncore.ops import AttentionForward
from dnncore.ops.attention import Causal

__all__ = ["scaled_dot_product_attention"]


def scaled_dot_product_attention(
    queries: Values,
    keys: Values,
    values: Values,
    mask: Values = None,
    *,
    causal: Causal = "none",
    scale: float | None = None,
    lse: bool = False,
    engine: EngineLike = None,
) -> Result:
    """dst = softmax(scale * queries @ keys.T + mask) @ values, without storing the scores.

    queries (N, H, Q, D), keys (N, G, K, D), values (N, G, K, V), dst (N, H, Q, V); leading dims may
    be absent. H is a multiple of G: groups of H / G heads share keys and values.
    mask: numbers that are added to the scores, -inf where a query does not see a key. Its dims are
        the last ones of (N, H, Q, K), or 1. It does not change the type of dst.
    causal: "none"; "top_left": query q sees the keys up to q, as with torch's is_causal;
        "bottom_right": the last query sees all keys, and each query before it one key less.
    scale: by default 1 / sqrt(D).
    lse: whether to return a pair: dst and the logarithm of the sum of exponentials of each query's
        scores, float32, ([[N,] H,] Q, 1). The gradient reads it.

    A query that sees no key has the result 0. (T. Dao et al. 2022, "FlashAttention".)

    >>> scaled_dot_product_attention([[1], [0]], [[0], [1000]], [[2], [4]]).tolist()
    [[4.0], [3.0]]
    >>> scaled_dot_product_attention([[1], [0]], [[0], [0]], [[2], [4]], causal="top_left").tolist()
    [[2.0], [3.0]]
    """
    tensors = {"queries": queries, "keys": keys, "values": values, **given(mask=mask)}
    return call(_attention, "scaled_dot_product_attention", tensors, engine, causal, scale, lse)


def _attention(
    function: str, operands: dict[str, Operand], causal: Causal, scale: float | None, lse: bool
) -> Plan:
    q, k, v = (operands[name] for name in ("queries", "keys", "values"))
    check_rank(function, "queries", q, "([[N,] H,] Q, D)", 2, 3, 4)
    check_rank(function, "keys", k, "([[N,] G,] K, D), of queries' rank", q.ndim)
    check_rank(function, "values", v, "([[N,] G,] K, V), of queries' rank", q.ndim)
    mask = operands.get("mask")
    scores = (*q.shape[:-1], k.shape[-2])
    if mask is not None and not _broadcasts(mask.shape, scores):
        raise DescriptorError(
            f"{function}: mask must have the last dims of the scores {scores}, or 1 in place of a"
            f" dim; got {mask.shape}"
        )
    op = AttentionForward(
        "forward_training" if is_true(function, "lse", lse) else "forward_inference",
        queries=q.with_rank(4).desc,
        keys=k.with_rank(4).desc,
        values=v.with_rank(4).desc,
        mask=None if mask is None else mask.with_rank(4).desc,
        dst=result_desc((*q.with_rank(4).shape[:3], v.shape[-1]), q),
        causal=causal,
        scale=scale,
    )
    more = {"workspace": (*q.shape[:-1], 1)} if lse else {}
    return Plan(op, (*q.shape[:-1], v.shape[-1]), more=more)


def _broadcasts(dims: tuple[int, ...], scores: tuple[int, ...]) -> bool:
    """Whether a mask of these dims has a number for each score."""
    whole = (*(1,) * (4 - len(scores)), *scores)
    fits = zip(reversed(dims), reversed(whole), strict=False)
    return len(dims) <= 4 and all(dim in (1, size) for dim, size in fits)
