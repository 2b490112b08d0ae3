"""Matrix multiplication: `--matmul --dt=f32 --bia-dt=f32 --bia_mask=2 12x128x64:12x64x128`."""

from __future__ import annotations

from typing import Any

from dnncore.ops import MatMul, Operation
from dnncore.problem import options
from dnncore.problem.settings import (
    Driver,
    Misread,
    Settings,
    Unsupported,
    read_integer,
)
from dnncore.problem.shapes import broadcast, dims_text, mask_of, masked, read_dims
from dnncore.problem.tensors import read_tensors, write_tensors

__all__ = ["MATMUL"]

DEFAULTS = {
    "dt": "f32", "bia-dt": "undef", "bia_mask": "2",
    "stag": "any", "wtag": "any", "btag": "abx", "dtag": "any", "strides": "", **options.MATMUL,
}  # fmt: skip


def read(settings: Settings) -> Operation:
    """A bias is there where it has a type; bit d of its mask says that dim d is dst's, not 1."""
    src, weights, *given = read_dims(settings, 2, 3)
    if settings["grouped"]:  # in which dims mean something else
        raise Unsupported(["grouped encoding"])
    if min(len(src), len(weights)) < 2:
        raise Misread("shape", f"expected MxK:KxN, with batch dims before; got {settings['shape']}")
    batch = broadcast(src[:-2], weights[:-2])
    dst = given[0] if given else (*batch, src[-2], weights[-1])
    dims = {"src": src, "weights": weights, "dst": dst}
    if settings["bia-dt"] != "undef":
        mask = read_integer(settings, "bia_mask")
        dims["bias"] = masked(settings, "bia_mask", mask, dst)
    return MatMul(**read_tensors(settings, dims))


def write(op: Any) -> Settings:
    """The shape without dst, which follows."""
    bias = {} if op.bias is None else {"bia_mask": str(mask_of(op.bias.dims))}
    shape = dims_text(op.src.dims, op.weights.dims)
    return {**write_tensors(op, DEFAULTS), **bias, "shape": shape}


MATMUL = Driver("matmul", (MatMul,), DEFAULTS, read, write)
