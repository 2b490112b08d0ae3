"""Reduction: `--reduction --sdt=f32 --ddt=f32 --stag=abx --dtag=any --alg=sum 2x3x4:2x1x4`."""

from __future__ import annotations

from typing import Any

from dnncore.algorithms import reduction
from dnncore.ops import Operation, Reduction
from dnncore.problem.settings import (
    Driver,
    Settings,
    algorithm_text,
    number_text,
    read_algorithm,
    read_number,
)
from dnncore.problem.shapes import dims_text, read_dims
from dnncore.problem.tensors import read_tensors, write_tensors

__all__ = ["REDUCTION"]

ALGORITHMS = {name: name for name in reduction.REDUCTION}
DEFAULTS = {
    "sdt": "f32", "ddt": "f32", "stag": "abx", "dtag": "any", "strides": "",
    "alg": "sum", "p": "1", "eps": "0",
}  # fmt: skip


def read(settings: Settings) -> Operation:
    """The dims of src and dst."""
    src, dst = read_dims(settings, 2)
    return Reduction(
        read_algorithm(settings, ALGORITHMS, "reduction_"),
        **read_tensors(settings, {"src": src, "dst": dst}),
        p=read_number(settings, "p"),
        eps=read_number(settings, "eps"),
    )


def write(op: Any) -> Settings:
    """The inverse of `read`."""
    return {
        **write_tensors(op, DEFAULTS),
        "alg": algorithm_text(op.algorithm, ALGORITHMS),
        "p": number_text(op.p),
        "eps": number_text(op.eps),
        "shape": dims_text(op.src.dims, op.dst.dims),
    }


REDUCTION = Driver("reduction", (Reduction,), DEFAULTS, read, write)
