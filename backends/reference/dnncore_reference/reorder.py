"""Reorder: dst = src. Reading and rounding in `definition.py` convert layouts and types."""

from __future__ import annotations

from typing import Any

import numpy as np

from dnncore.backend import Reorder
from dnncore_reference.definition import Definition

Array = np.ndarray[Any, Any]


def forward(_op: Reorder, src: Array) -> dict[str, Array]:
    """Return the values unchanged."""
    return {"dst": src}


TABLE = (Definition("reorder", forward),)
