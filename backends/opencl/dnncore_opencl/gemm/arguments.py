"""Arguments common to the kernels of products: the epilogue, zero points, and a window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dnncore_opencl.codegen.digits import INT4, extended, int4
from dnncore_opencl.codegen.vectors import TYPES
from dnncore_opencl.elementwise.epilogue import Epilogue, Operand, epilogue
from dnncore_opencl.gemm.product import Decoding, Gemm, Matrix, Window
from dnncore_opencl.runtime.schema import INT, Arg, Buffer, Schema

# An element of an image is inside if 0 <= at + n * digits of n + k * digits of k < size, per dim.
WINDOW = Schema(w_at=INT4, w_n=INT4, w_k=INT4, w_size=INT4)

ZERO_POINTS = ("a_zero", "b_zero")
COORDINATES = 8  # of an element of c: three digits of the batch, m, four digits of n


def gemm_epilogue(gemm: Gemm) -> Epilogue:
    """Return the epilogue of a product, for an element's batch, m and n."""
    operands = []
    for matrix in gemm.operands:
        batch, n = extended(matrix.strides.batch, 3), extended(matrix.strides.n, 4)
        strides = (*batch, matrix.strides.m, *n)
        shares = (1, 1, 1, matrix.shares.m, 1, 1, 1, matrix.shares.n)
        operands.append(Operand(matrix.index, matrix.offset, strides, shares))
    kinds = {"is_exact": gemm.is_exact, "is_wide": gemm.is_wide}
    return epilogue(gemm.post_ops, operands, COORDINATES, gemm.scaling, **kinds)


def zero_point_buffers(
    zero_points: Sequence[Matrix | None],
) -> tuple[Schema, dict[str, Arg]]:
    """Return the parameters for the zero points of a and b, and their arguments."""
    named = {
        name: own for name, own in zip(ZERO_POINTS, zero_points, strict=True) if own is not None
    }
    buffers = {name: Buffer(f"const {TYPES[own.data_type]}") for name, own in named.items()}
    return Schema(**buffers), {name: Arg(own.index) for name, own in named.items()}


def decoding_parameters(decoding: Decoding | None) -> tuple[Schema, dict[str, Any]]:
    """Return the parameters `scale` and `zero` with their strides, and their arguments."""
    schema = Schema()
    arguments: dict[str, Any] = {}
    codes = (decoding.scales, decoding.zero_points) if decoding else ()
    for name, own in zip(("scale", "zero"), codes, strict=False):
        if own:
            kinds = {"batch": INT4, "k": INT4, "k_share": INT4, "n": INT, "n_share": INT}
            schema |= Schema(
                **{name: Buffer(f"const {TYPES[own.data_type]}")},
                **{f"{name}_{word}": kind for word, kind in kinds.items()},
            )
            arguments |= {
                name: Arg(own.index),
                f"{name}_batch": batch_argument(own.strides.batch, own.offset),
                f"{name}_k": int4(own.strides.k),
                f"{name}_k_share": int4(own.shares.k, 1),
                f"{name}_n": own.strides.n[-1],
                f"{name}_n_share": own.shares.n,
            }
    return schema, arguments


def batch_argument(batch: Sequence[int], offset: int) -> Any:
    """Return the batch's strides, then the offset of the first element."""
    return int4((*extended(batch, 3), offset))


def window_arguments(window: Window) -> dict[str, Any]:
    """Return the arguments of `WINDOW`."""
    return {
        "w_at": int4(window.at),
        "w_n": int4(window.n),
        "w_k": int4(window.k),
        "w_size": int4(window.size, 1),
    }
