"""Sums of the rows of a strided matrix: the gradient of a bias."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dnncore_opencl.digits import int4, merged
from dnncore_opencl.program import Arg, Launch, Source, template

if TYPE_CHECKING:
    from dnncore_opencl.engine import OpenCLEngine
    from dnncore_opencl.gemm import Matrix

LANES = 16  # sums at a time in a CPU's work-item, to hide the latency of addition
SIDE = 16  # a GPU's group has SIDE x SIDE work-items


def row_sums(
    engine: OpenCLEngine, rows: int, size: Sequence[int], x: Matrix, result: Matrix
) -> Launch:
    """Launch result[m] = sum over k of x[m, k], in an order that does not depend on timing."""
    side, lanes = (1, LANES) if engine.is_cpu else (SIDE, 1)
    source = Source("row_sums", {"SIDE": side, "LANES": lanes}, (template("digits"),))
    size, strides = merged(size, x.strides.k)
    args: tuple[Any, ...] = (
        Arg(x.index),
        Arg(result.index),
        np.int32(rows),
        int4(size, 1),
        int4(strides),
        np.int32(x.offset),
        np.int32(x.strides.m),
        np.int32(result.offset),
        np.int32(result.strides.m),
    )
    return Launch(source, "row_sums", args, (side * side * rows,), (side * side,))
