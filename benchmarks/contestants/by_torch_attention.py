"""torch's fused attention: its CPU kernel, and on CUDA flash for half types, else efficient.

In float64, each head is computed by the definition, so that the scores of one head are in memory.
"""

from __future__ import annotations

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
        return lambda: _by_heads(op, own, _of_head)
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
    is_square = queries == keys or op.causal != "bottom_right"
    if op.mask is not None or heads != shared or not is_square:
        raise LeftOut("torch is measured without masks and shared heads")
    how = {"is_causal": op.causal != "none", "scale": op.scale}
    return [t[name] for name in ("queries", "keys", "values")], how


# -- exact results ---------------------------------------------------------------------------------


def _by_heads(op: Any, tensors: list[Any], compute: Callable[..., list[Any]]) -> list[Any]:
    """The results of all heads of all sequences."""
    images, heads = op.sizes[:2]
    places = [(image, head) for image in range(images) for head in range(heads)]
    rows = [compute(op, *(tensor[place] for tensor in tensors)) for place in places]
    return [torch.stack(column).unflatten(0, (images, heads)) for column in zip(*rows, strict=True)]


def _weights(op: Any, queries: Any, keys: Any) -> Any:
    scores = torch.matmul(queries, keys.T).mul_(op.scale)
    if op.causal != "none":
        unseen = torch.ones(scores.shape, dtype=torch.bool, device=scores.device).triu_(1)
        scores.masked_fill_(unseen, -math.inf)
    return torch.softmax(scores, -1)


def _of_head(op: Any, queries: Any, keys: Any, values: Any) -> list[Any]:
    return [torch.matmul(_weights(op, queries, keys), values)]


def _gradients_of_head(op: Any, queries: Any, keys: Any, values: Any, diff: Any) -> list[Any]:
    weights = _weights(op, queries, keys)
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
