"""Sum: dst = scales[0] * src0 + scales[1] * src1 + ..."""

from __future__ import annotations

from typing import Any

import numpy as np

from dnncore.backend import Sum
from dnncore_reference.definition import Definition

Array = np.ndarray[Any, Any]


def forward(op: Sum, **srcs: Array) -> dict[str, Array]:
    """Sum the scaled src0, src1, ..."""
    dst = np.zeros(op.dst.dims)
    for i, scale in enumerate(op.scales):
        dst += scale * srcs[f"src{i}"]
    return {"dst": dst}


TABLE = (Definition("sum", forward, like={"dst": "src0"}),)
