"""Binary: dst = src0 op src1, each broadcast along its dims of size 1."""

from __future__ import annotations

from typing import Any

import numpy as np

from dnncore_reference.algorithms import BINARY
from dnncore_reference.definition import Definition

Array = np.ndarray[Any, Any]


def forward(op: Any, src0: Array, src1: Array) -> dict[str, Array]:
    """Combine each pair of elements."""
    return {"dst": BINARY[op.algorithm](src0, src1)}


TABLE = (Definition("binary", forward, like={"dst": "src0"}),)
