"""torch's fused attention: its CPU kernel, and on CUDA flash for half types, else efficient.

In float64, each head is computed by the definition, so that the scores of one head are in memory.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch

import dnncore as dnn
from benchmarks.contestants.by_torch_memory import Run, Tensors
from benchmarks.contestants.contestant import LeftOut

__all__ = ["ATTENTION"]

aten = torch.ops.aten


def _forward(op: Any, t: Tensors) -> Run:
    own, how = _arguments(op, t)
    if own[0].dtype == torch.float64:
        mask = how.get("attn_mask")
        return lambda: _by_heads(op, own, functools.partial(_of_head, mask=mask))
    if own[0].is_cuda and own[0].dtype != torch.float32:
        return lambda: aten._scaled_dot_product_flash_attention(*own, 0.0, **how)[0]
    return lambda: torch.nn.functional.scaled_dot_product_attention(*own, **how)


def _backward(op: Any, t: Tensors) -> Run:
    own, how = _arguments(op, t)
    diff = t["diff_dst"]
    if own[0].dtype == torch.float64:
        return lambda: _by_heads(op, [*own, diff], _gradients_of_head)
    if not own[0].is_cuda:
        forward = aten._scaled_dot_product_flash_attention_for_cpu
        backward = aten._scaled_dot_product_flash_attention_for_cpu_backward
        dst, lse = forward(*own, 0.0, **how)
        causal, scale = how["is_causal"], how["scale"]
        return lambda: backward(diff, *own, dst, lse, 0.0, causal, scale=scale)
    return (_efficient if own[0].dtype == torch.float32 else _flash)(own, diff, how)


def _flash(own: list[Any], diff: Any, how: dict[str, Any]) -> Run:
    found = aten._scaled_dot_product_flash_attention(*own, 0.0, **how)
    dst, lse, *sizes, seed, offset, _ = found
    backward = aten._scaled_dot_product_flash_attention_backward
    rest = 0.0, how["is_causal"], seed, offset
    return lambda: backward(diff, *own, dst, lse, *sizes, *rest, scale=how["scale"])


def _efficient(own: list[Any], diff: Any, how: dict[str, Any]) -> Run:
    forward = aten._scaled_dot_product_efficient_attention
    dst, lse, seed, offset = forward(*own, None, True, 0.0, **how)
    backward = aten._scaled_dot_product_efficient_attention_backward
    arguments = diff, *own, None, dst, lse, seed, offset, 0.0, [True, True, True, False]
    return lambda: backward(*arguments, how["is_causal"], scale=how["scale"])[:3]


def _arguments(op: Any, t: Tensors) -> tuple[list[Any], dict[str, Any]]:
    """Queries, keys and values, and the settings. Raises `LeftOut` for what torch lacks."""
    _, heads, shared, queries, keys, _, _ = op.sizes
    is_forward, is_causal = isinstance(op, dnn.AttentionForward), op.causal != "none"
    if queries != keys and op.causal == "bottom_right":
        raise LeftOut("torch aligns causal masks at the top left")
    if is_causal and op.mask is not None:
        raise LeftOut("torch takes a causal mask or an additive one")
    if not is_forward and (op.mask is not None or heads != shared):
        raise LeftOut("torch's gradients are measured without masks and shared heads")
    how = {"is_causal": is_causal, "scale": op.scale}
    if op.mask is not None:
        how["attn_mask"] = t["mask"]
    if heads != shared:
        how["enable_gqa"] = True
    return [t[name] for name in ("queries", "keys", "values")], how


# -- exact results ---------------------------------------------------------------------------------


def _by_heads(op: Any, tensors: list[Any], compute: Callable[..., list[Any]]) -> list[Any]:
    """The results of all heads of all sequences. Tensors of fewer heads are shared."""
    images, heads = op.sizes[:2]
    rows = [
        compute(op, *(t[n, head * t.shape[1] // heads] for t in tensors), place=(n, head))
        for n in range(images)
        for head in range(heads)
    ]
    return [torch.stack(column).unflatten(0, (images, heads)) for column in zip(*rows, strict=True)]


def _scores(op: Any, queries: Any, keys: Any) -> Any:
    scores = torch.matmul(queries, keys.T).mul_(op.scale)
    if op.causal != "none":
        unseen = torch.ones(scores.shape, dtype=torch.bool, device=scores.device).triu_(1)
        scores.masked_fill_(unseen, -math.inf)
    return scores


def _of_head(
    op: Any, queries: Any, keys: Any, values: Any, *, place: tuple[int, int], mask: Any
) -> list[Any]:
    scores = _scores(op, queries, keys)
    if mask is not None:
        scores += mask.expand(*op.sizes[:2], -1, -1)[place]
    return [torch.matmul(torch.softmax(scores, -1), values)]


def _gradients_of_head(
    op: Any, queries: Any, keys: Any, values: Any, diff: Any, **_place: Any
) -> list[Any]:
    weights = torch.softmax(_scores(op, queries, keys), -1)
    mean = (diff * torch.matmul(weights, values)).sum(-1, keepdim=True)
    slopes = torch.matmul(diff, values.T).sub_(mean).mul_(weights).mul_(op.scale)
    return [
        torch.matmul(slopes, keys),
        torch.matmul(slopes.T, queries),
        torch.matmul(weights.T, diff),
    ]


ATTENTION: dict[type[dnn.Operation], Callable[[Any, Tensors], Run]] = {
    dnn.AttentionForward: _forward,
    dnn.AttentionBackward: _backward,
}
