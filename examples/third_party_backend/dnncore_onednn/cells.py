"""Recurrent cells as arguments of oneDNN's functions, and hidden arguments.

oneDNN has a function per cell. Its gradients have more arguments than dnncore's: the bias and the
results of the forward operation, which it does not read, and gradients that a user may omit. These
hidden arguments are memories of the backend. Layer normalization has one, too.
"""

from __future__ import annotations

import ctypes
from typing import Any

from dnncore.backend import (
    Attributes,
    LayerNormalizationBackward,
    MemoryDesc,
    Operation,
    RNNBackward,
    RNNForward,
)
from dnncore_onednn.library import Library, Owned

__all__ = ["direction", "hidden", "recurrent", "set_qparams"]

# The functions dnnl_x_forward_..., and the arguments and parameters that only some cells have.
STEMS = {
    "vanilla_rnn": "vanilla_rnn", "vanilla_lstm": "lstm", "vanilla_gru": "gru",
    "lbr_gru": "lbr_gru", "vanilla_augru": "augru", "lbr_augru": "lbr_augru",
}  # fmt: skip
DIRECTIONS = ("left2right", "right2left", "bidirectional_concat", "bidirectional_sum")
FORWARD = (
    "src_layer src_iter{c}{attention} weights_layer weights_iter{lstm} bias dst_layer dst_iter"
)
BACKWARD = (
    "diff_src_layer diff_src_iter{c}{attention} diff_weights_layer diff_weights_iter{lstm}"
    " diff_bias diff_dst_layer diff_dst_iter"
)


def direction(op: Any) -> int:
    """The enumerator of a direction, dnnl_rnn_direction_t."""
    return DIRECTIONS.index(op.direction) + 1


def recurrent(op: Any) -> tuple[str, str]:
    """The function's name and its parameters, as in the table `OPERATIONS`."""
    is_forward = op.forward_op is None
    vanilla = op.algorithm == "vanilla_rnn"
    words = ["engine prop_kind" if is_forward else "engine gradients"]
    words += ["activation"] * vanilla + ["direction", _tensors(op, FORWARD, "")]
    words += [] if is_forward else [_tensors(op, BACKWARD, "diff_")]
    words += ["flags"] + ["alpha beta"] * vanilla + ([] if is_forward else ["hint"])
    suffix = "forward" if is_forward else "backward"
    return f"{STEMS[op.algorithm]}_{suffix}", " ".join(words)


def _tensors(op: Any, names: str, prefix: str) -> str:
    lstm = op.is_lstm
    filled = names.format(
        c=f" {prefix}src_iter_c" if lstm else "",
        attention=f" {prefix}attention" if op.has_attention else "",
        lstm=f" {prefix}weights_peephole {prefix}weights_projection" if lstm else "",
    )
    return filled + (f" {prefix}dst_iter_c" if lstm else "")


def set_qparams(library: Library, made: Owned, attr: Attributes) -> None:
    """Set the scales and the shift of cells of integers."""
    data = attr.rnn_data_qparams
    if data is not None:
        numbers = ctypes.c_float(data.scale), ctypes.c_float(data.shift)
        library("primitive_attr_set_rnn_data_qparams", made, *numbers)
    for name in ("rnn_weights_qparams", "rnn_weights_projection_qparams"):
        own = getattr(attr, name)
        if own is not None:
            count = len(own.scales)
            scales = (ctypes.c_float * count)(*own.scales)
            library(f"primitive_attr_set_{name}", made, ctypes.c_int64(count), own.mask, scales)


def hidden(op: Operation) -> dict[str, MemoryDesc]:
    """The descriptors of the arguments of a gradient that only oneDNN has."""
    if isinstance(op, LayerNormalizationBackward) and op.diff_shift is not None:
        return {"shift": MemoryDesc((op.channels,), "f32")}
    if not isinstance(op, RNNBackward):
        return {}
    forward = op.forward_op
    assert isinstance(forward, RNNForward)
    given = {row.name for row, _ in op.tensors()}
    found: dict[str, MemoryDesc] = {}
    for name in ("bias", "dst_layer", "dst_iter", "dst_iter_c"):
        desc = getattr(forward, name)
        if desc is not None and f"diff_{name}" in given:
            found[name] = desc
    for name in ("src_layer", "src_iter", "src_iter_c", "attention"):
        desc = getattr(op, name)
        if desc is not None and f"diff_{name}" not in given:
            found[f"diff_{name}"] = MemoryDesc(desc.dims, desc.data_type)
    return found
