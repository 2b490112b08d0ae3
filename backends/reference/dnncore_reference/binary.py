"""Binary: dst = src0 op src1, each broadcast along its dims of size 1."""

from __future__ import annotations

from typing import Any

import numpy as np

from dnncore.backend import Binary
from dnncore_reference.algorithms import BINARY
from dnncore_reference.definition import Definition

Array = np.ndarray[Any, Any]


def forward(op: Binary, **srcs: Array) -> dict[str, Array]:
    """Combine src0 and src1 element by element. For `select`, src2 is the condition."""
    return {"dst": BINARY[op.algorithm](*srcs.values())}


TABLE = (
    Definition(
        "binary", forward, like={"dst": "src0"}, has_formula=lambda op: op.algorithm in BINARY
    ),
)
