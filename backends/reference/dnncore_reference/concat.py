"""Concat: dst is the sources side by side along one axis."""

from __future__ import annotations

from typing import Any

import numpy as np

from dnncore.backend import Concat
from dnncore_reference.definition import Definition

Array = np.ndarray[Any, Any]


def forward(op: Concat, **srcs: Array) -> dict[str, Array]:
    """Join src0, src1, ... along the axis."""
    return {"dst": np.concatenate([srcs[name] for name in op.source_names], op.axis)}


TABLE = (Definition("concat", forward, like={"dst": "src0"}),)
