"""Attention: `--sdpa --dir=FWD_D --dt=f32 --mask_type=causal_top_left 2x4x5x8:2x2x8x7:2x2x7x8`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, cast

from dnncore.ops import AttentionBackward, AttentionForward, Operation
from dnncore.ops.attention import Attention
from dnncore.problem import options
from dnncore.problem.directions import direction_text, pair
from dnncore.problem.drivers.attention_errors import (
    backward_errors,
    forward_errors,
    workspace_errors,
)
from dnncore.problem.drivers.draws import PAIR_DIRECTIONS, Draws, shape_text
from dnncore.problem.drivers.driver import Driver, Golden, VerboseLine
from dnncore.problem.settings import (
    Dims,
    Misread,
    Settings,
    number_text,
    read_choice,
    read_integer,
    read_number,
)
from dnncore.problem.shapes import dims_text, mask_of, masked, read_dims
from dnncore.problem.tensors import read_tensors, write_tensors
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["SDPA"]

DIRECTIONS = pair(AttentionForward, AttentionBackward)
# mask_type -> whether there is a mask, causal
MASKS = {
    "none": (False, "none"),
    "buffer": (True, "none"),
    "causal_top_left": (False, "top_left"),
    "causal_bottom_right": (False, "bottom_right"),
    "buffer+causal_top_left": (True, "top_left"),
    "buffer+causal_bottom_right": (True, "bottom_right"),
}
DEFAULTS = {
    "dir": "FWD_D", "dt": "f32", "mdt": "f32", "qtag": "any", "ktag": "any", "vtag": "any",
    "mtag": "abx", "dtag": "any", "mask_type": "none", "mask_bits": "12", "scale": "default",
    **options.SDPA,
}  # fmt: skip


def read(settings: Settings) -> Operation:
    """Make the operation. As in benchdnn, the shape and ktag have the keys as NxGxDxK."""
    queries, keys, values = read_dims(settings, 3)
    if not len(queries) == len(keys) == len(values) == 4:
        raise Misread("shape", f"expected NxHxQxD:NxGxDxK:NxGxKxV; got {settings['shape']!r}")
    has_mask, causal = read_choice(settings, "mask_type", MASKS)
    dims: dict[str, Dims] = {
        "queries": queries,
        "keys": keys,
        "values": values,
        "dst": (*queries[:3], values[3]),
    }
    if has_mask:
        scores = (*queries[:3], keys[3])
        dims["mask"] = masked(settings, "mask_bits", read_integer(settings, "mask_bits"), scores)
    scale = None if settings["scale"] == "default" else read_number(settings, "scale")
    settings = {**settings, "dir": settings["dir"].upper()}
    direction = read_choice(settings, "dir", DIRECTIONS)
    names = [n for n in direction.names if n != "mask" or has_mask]
    tensors = read_tensors(settings, {n: dims[n.removeprefix("diff_")] for n in names})
    tensors |= {n: _swapped(tensors[n]) for n in ("keys", "diff_keys") if n in tensors}
    fields = {"prop_kind": direction.prop_kind} if direction.prop_kind else {}
    operation: Operation = direction.kind(**tensors, **fields, causal=causal, scale=scale)
    return operation


def write(op: Attention) -> Settings:
    """The inverse of `read`."""
    swapped = {n: _swapped(vars(op)[n]) for n in ("keys", "diff_keys") if n in vars(op)}
    op = op.with_descs(**swapped)
    mask = {} if op.mask is None else {"mask_bits": str(mask_of(op.mask.dims))}
    shape = dims_text(op.queries.dims, op.keys.dims, op.values.dims)
    return {
        "dir": direction_text(op.with_descs(mask=op.queries), DIRECTIONS),
        **write_tensors(op, DEFAULTS),
        **mask,
        "mask_type": _mask_type(op),
        "scale": _scale_text(op),
        "shape": shape,
    }


def _swapped(desc: MemoryDesc) -> MemoryDesc:
    """Return keys (N, G, K, D) as (N, G, D, K), or the other way round."""
    return desc.permute_axes((0, 1, 3, 2))


def _mask_type(op: Attention) -> str:
    wanted = (op.mask is not None, op.causal)
    return next(word for word, row in MASKS.items() if row == wanted)


def _scale_text(op: Attention) -> str:
    scale = cast("float", op.scale)
    default = 1.0 / math.sqrt(max(1, op.queries.dims[3]))
    return "default" if scale == default else number_text(scale)


def _words(op: Attention) -> Iterator[str]:
    """Words of verbose lines, if they do not have their defaults."""
    texts = {"mask_type": _mask_type(op), "scale": _scale_text(op)}
    if op.mask is not None:
        texts["mask_bits"] = str(mask_of(op.mask.dims))
    return (f"{name}:{text}" for name, text in texts.items() if text != DEFAULTS[name])


# -- correctness -----------------------------------------------------------------------------------


def _unseen(torch: Any, op: Attention) -> Any:
    """Return which keys each query does not see, (Q, K)."""
    _, _, _, q, k, _, _ = op.sizes
    queries, keys = torch.arange(q)[:, None], torch.arange(k)[None, :]
    last = {"none": queries * 0 + k, "top_left": queries, "bottom_right": queries + (k - q)}
    return keys > last[op.causal]


def _per_head(torch: Any, op: Attention, values: Any) -> Any:
    share = op.sizes[1] // max(1, op.sizes[2])
    return torch.repeat_interleave(values, share, dim=1)


def _scores(torch: Any, op: Attention, tensors: Mapping[str, Any]) -> Any:
    keys = _per_head(torch, op, tensors["keys"])
    product = torch.einsum("nhqd,nhkd->nhqk", tensors["queries"], keys)
    scores = product * op.scale + tensors.get("mask", 0.0)
    return scores.masked_fill(_unseen(torch, op), -math.inf)


def _forward(torch: Any, op: AttentionForward, tensors: Mapping[str, Any]) -> dict[str, Any]:
    scores = _scores(torch, op, tensors)
    lse = torch.logsumexp(scores, -1, keepdim=True)
    values = _per_head(torch, op, tensors["values"])
    weights = torch.softmax(scores, -1).masked_fill(torch.isneginf(lse), 0.0)
    return {"dst": torch.einsum("nhqk,nhkv->nhqv", weights, values), "workspace": lse}


def _backward(torch: Any, op: AttentionBackward, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Differentiate sum(weight * (slope - mean)) with lse, slope and mean as constants.

    Its derivative with respect to a score is weight * (slope - mean). The derivative with respect
    to values is added by the sum of weight * slope with the weights as constants.
    """
    names = ("queries", "keys", "values")
    leaves = {n: tensors[n].clone().requires_grad_() for n in names}
    scores = _scores(torch, op, {**tensors, **leaves})
    unused = torch.isneginf(scores.detach()) | torch.isneginf(tensors["workspace"])
    weights = torch.exp((scores - tensors["workspace"]).masked_fill(unused, -math.inf))
    values = _per_head(torch, op, leaves["values"])
    slopes = torch.einsum("nhqv,nhkv->nhqk", tensors["diff_dst"], values)
    mean = (tensors["diff_dst"] * tensors["dst"]).sum(-1, keepdim=True)
    change = (slopes.detach() - mean).masked_fill(unused, 0.0)
    total = (weights * change).sum() + (weights.detach() * slopes).sum()
    found = torch.autograd.grad(total, [leaves[n] for n in names])
    return {f"diff_{n}": slope for n, slope in zip(names, found, strict=True)}


LOG_3 = 1.0986123
GOLDEN = (
    Golden(  # the weights are 1/4 and 3/4
        "--sdpa --scale=1 1x1x1x1:1x1x1x2:1x1x2x2",
        {"queries": [[[[1]]]], "keys": [[[[0], [LOG_3]]]], "values": [[[[4, 0], [0, 8]]]]},
        {"dst": [[[[1, 6]]]]},
    ),
    Golden(  # the first query sees the first key only
        "--sdpa --mask_type=causal_top_left 1x1x2x1:1x1x1x2:1x1x2x1",
        {"queries": [[[[0], [0]]]], "keys": [[[[5], [7]]]], "values": [[[[2], [6]]]]},
        {"dst": [[[[2], [4]]]]},
    ),
    Golden(  # two heads share keys; slopes 4 and 8, mean 6, diff_score -1 and 1 times 1 and 2
        "--sdpa --dir=BWD_D --scale=2 1x2x1x1:1x1x1x2:1x1x2x1",
        {
            "queries": [[[[1]], [[3]]]], "keys": [[[[0], [0]]]], "values": [[[[4], [8]]]],
            "dst": [[[[6]], [[6]]]], "diff_dst": [[[[1]], [[2]]]],
            "workspace": [[[[0.6931472]], [[0.6931472]]]],
        },
        {
            "diff_queries": [[[[0]], [[0]]]], "diff_keys": [[[[-14], [14]]]],
            "diff_values": [[[[1.5], [1.5]]]],
        },
    ),
)  # fmt: skip


def _draw_shape(draws: Draws) -> str:
    n, share, g = draws.integer(1, 2), draws.integer(1, 3), draws.integer(1, 2)
    q, k, d, v = (draws.channels() for _ in "qkdv")
    k *= draws.one_of("111110") == "1"  # there may be no keys
    return shape_text((n, share * g, q, d), (n, g, d, k), (n, g, k, v))


TAGS = ("any", "abcd", "acbd", "abdc", "aBcd8b", "abCd16c")

SDPA = Driver(
    name="sdpa",
    operations=(AttentionForward, AttentionBackward),
    defaults=DEFAULTS,
    read=read,
    write=write,
    verbose=VerboseLine(
        tensors={
            AttentionForward: "queries keys values mask? dst workspace?",
            AttentionBackward: "queries keys values mask? dst diff_dst workspace?"
            " diff_queries diff_keys diff_values",
        },
        words=_words,
    ),
    golden=GOLDEN,
    oracles={AttentionForward: _forward, AttentionBackward: _backward},
    errors={AttentionForward: forward_errors, AttentionBackward: backward_errors},
    workspace_errors=workspace_errors,
    special_inputs=("diff_dst", "queries"),
    keeps_integers=lambda _op: False,
    options={
        "dir": PAIR_DIRECTIONS, "mask_type": tuple(MASKS), "mask_bits": ("12", "15", "8", "0", "9"),
        "scale": ("default", "0.5", "-1"), "qtag": TAGS, "ktag": TAGS, "vtag": TAGS, "dtag": TAGS,
        "mtag": TAGS[1:],
    },
    draw_shape=_draw_shape,
)  # fmt: skip
