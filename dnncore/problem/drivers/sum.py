"""Sum: `--sum --sdt=f32:f32:f32 --ddt=f32 --stag=abx --dtag=any --scales=1:2:-1 16x32`."""

from __future__ import annotations

from typing import Any

from dnncore.ops import Operation, Sum
from dnncore.problem.settings import (
    Driver,
    Settings,
    number_text,
    read_list,
    read_number,
)
from dnncore.problem.shapes import dims_text, read_dims
from dnncore.problem.tensors import joined, read_tensors, write_tensors

__all__ = ["SUM"]

DEFAULTS = {
    "sdt": "f32:f32", "ddt": "f32", "stag": "abx", "dtag": "any", "strides": "", "scales": "1",
    "inplace": "false",
}  # fmt: skip


def read(settings: Settings) -> Operation:
    """There are as many sources as types in sdt, all of the dims of the shape.

    For dst `undef` means what `any` means.
    """
    settings = {**settings, "dtag": settings["dtag"].replace("undef", "any")}
    (dims,) = read_dims(settings, 1)
    names = [f"src{i}" for i in range(len(settings["sdt"].split(":")))]
    scales = read_list(settings, "scales", len(names))
    tensors = read_tensors(settings, dict.fromkeys((*names, "dst"), dims))
    return Sum(
        tuple(read_number(settings, "scales", text) for text in scales),
        srcs=tuple(tensors[name] for name in names),
        dst=tensors["dst"],
    )


def write(op: Any) -> Settings:
    """The inverse of `read`."""
    return {
        **write_tensors(op, DEFAULTS),
        "sdt": ":".join(desc.data_type for desc in op.srcs),
        "scales": joined(map(number_text, op.scales)),
        "shape": dims_text(op.dst.dims),
    }


SUM = Driver("sum", (Sum,), DEFAULTS, read, write)
