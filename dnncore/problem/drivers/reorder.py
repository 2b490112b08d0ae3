"""Reorder: `--reorder --sdt=f32 --ddt=s8 --stag=abx --dtag=axb 2x3x4`."""

from __future__ import annotations

from typing import Any

from dnncore.ops import Operation, Reorder
from dnncore.problem import options
from dnncore.problem.settings import Driver, Settings
from dnncore.problem.shapes import dims_text, read_dims
from dnncore.problem.tensors import read_tensors, write_tensors

__all__ = ["REORDER"]

DEFAULTS = {
    "sdt": "f32", "ddt": "f32", "stag": "abx", "dtag": "abx", "strides": "", **options.REORDER,
}  # fmt: skip


def read(settings: Settings) -> Operation:
    """Both tensors have the dims of the shape."""
    (dims,) = read_dims(settings, 1)
    return Reorder(**read_tensors(settings, {"src": dims, "dst": dims}))


def write(op: Any) -> Settings:
    """The inverse of `read`."""
    return {**write_tensors(op, DEFAULTS), "shape": dims_text(op.src.dims)}


REORDER = Driver("reorder", (Reorder,), DEFAULTS, read, write)
