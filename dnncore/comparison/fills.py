"""Values of inputs for checks of results: integers or random numbers, from a seed."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from dnncore.algorithms.post_ops import POST_OPS
from dnncore.attributes import Attributes
from dnncore.ops import Operation
from dnncore.problem import driver_of
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["Fill", "fill_inputs", "fill_integers", "fill_normal", "keeps_integers", "reads"]

Array = np.ndarray[Any, Any]
Seed = int | Sequence[int]
Fill: TypeAlias = Callable[[MemoryDesc, Seed], Array]


def fill_integers(
    desc: MemoryDesc, seed: Seed, low: int = -4, high: int = 4, density: float = 1.0
) -> Array:
    """Draw integers from low to high, then set a share of 1 - density of them to zero.

    A million products of such numbers have an exact sum in float32, in any order. Unsigned types
    start at 0. Returns an array of desc's dims and dtype.
    """
    rng = np.random.default_rng(seed)
    low = max(low, 0) if desc.data_type.startswith("u") else low
    values = rng.integers(low, high, desc.dims, endpoint=True)
    return (values * (rng.random(desc.dims) < density)).astype(desc.dtype)


def fill_normal(desc: MemoryDesc, seed: Seed, scale: float = 1.0) -> Array:
    """Draw from the normal distribution. Return an array of desc's dims and dtype."""
    return (scale * np.random.default_rng(seed).standard_normal(desc.dims)).astype(desc.dtype)


def reads(op: Operation, attr: Attributes) -> dict[str, MemoryDesc]:
    """The tensors that an execution reads, as argument name -> descriptor.

    They include dst if a post-op reads its old values. A workspace is left out, because a forward
    operation determines its values.
    """
    descs = {a.name: desc for a, desc in op.tensors() if a.direction == "in"}
    descs.update(attr.operands())
    if attr.reads_dst:
        descs[op.result_name] = op.result
    return descs


def fill_inputs(op: Operation, attr: Attributes, fill: Fill, seed: int = 0) -> dict[str, Array]:
    """Return an array for each tensor of `reads`. Each name has its own seed."""
    return {
        name: fill(desc, (seed, zlib.crc32(name.encode())))
        for name, desc in reads(op, attr).items()
    }


# -- exactness ------------------------------------------------------------------------------------


def keeps_integers(op: Operation, attr: Attributes) -> bool:
    """Whether integer inputs give integer outputs, so that every order of summation is exact."""
    return driver_of(type(op)).keeps_integers(op) and all(
        POST_OPS[step.kind].keeps_integers(step) for step in attr.post_ops
    )
