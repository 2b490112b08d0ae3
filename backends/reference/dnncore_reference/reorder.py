"""Reorder: dst = src; what converts is the reading and the rounding in `definition.py`."""

from __future__ import annotations

from typing import Any

import numpy as np

from dnncore.backend import Reorder
from dnncore_reference.definition import Definition

Array = np.ndarray[Any, Any]


def forward(_op: Reorder, src: Array) -> dict[str, Array]:
    """Leave the values as they are."""
    return {"dst": src}


TABLE = (Definition("reorder", forward),)
