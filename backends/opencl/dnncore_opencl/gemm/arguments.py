"""Arguments that kernels of products share: the steps of a result, and the window of an image."""

from __future__ import annotations

from typing import Any

from dnncore_opencl.codegen.digits import extended, int4
from dnncore_opencl.elementwise.epilogue import Epilogue, Operand, epilogue
from dnncore_opencl.gemm.product import Gemm, Window

__all__ = ["gemm_epilogue", "window_args"]

COORDINATES = 8  # of an element of c: three digits of the batch, m, four digits of n


def gemm_epilogue(gemm: Gemm) -> Epilogue:
    """The chain of a product's steps, by an element's batch, m and n."""
    operands = []
    for matrix in gemm.operands:
        batch, n = extended(matrix.strides.batch, 3), extended(matrix.strides.n, 4)
        strides = (*batch, matrix.strides.m, *n)
        operands.append(Operand(matrix.index, matrix.offset, strides))
    return epilogue(gemm.post_ops, operands, COORDINATES)


def window_args(window: Window | None) -> tuple[Any, ...]:
    """The window's arguments, none where there is none."""
    if window is None:
        return ()
    return int4(window.at), int4(window.n), int4(window.k), int4(window.size, 1)
