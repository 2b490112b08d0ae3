"""What tensors are filled with to check a result: whole numbers or random ones, from a seed."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from dnncore.algorithms.binary import BINARY
from dnncore.algorithms.eltwise import ELTWISE
from dnncore.algorithms.post_ops import POST_OPS
from dnncore.algorithms.reduction import REDUCTION
from dnncore.attributes import Attributes
from dnncore.ops import Binary, EltwiseBackward, EltwiseForward, Operation, Reduction
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["Fill", "fill_inputs", "fill_integers", "fill_normal", "keeps_integers", "reads"]

Array = np.ndarray[Any, Any]
Seed = int | Sequence[int]
Fill: TypeAlias = Callable[[MemoryDesc, Seed], Array]


def fill_integers(
    desc: MemoryDesc, seed: Seed, low: int = -4, high: int = 4, density: float = 1.0
) -> Array:
    """Draw whole numbers from low to high and zero a share of 1 - density of them.

    A million products of such numbers add up exactly in float32, in any order. Unsigned types start
    at 0. Returns an array of desc's dims and dtype.
    """
    rng = np.random.default_rng(seed)
    low = max(low, 0) if desc.data_type.startswith("u") else low
    values = rng.integers(low, high, desc.dims, endpoint=True)
    return (values * (rng.random(desc.dims) < density)).astype(desc.dtype)


def fill_normal(desc: MemoryDesc, seed: Seed, scale: float = 1.0) -> Array:
    """Draw from the normal distribution; returns an array of desc's dims and dtype."""
    return (scale * np.random.default_rng(seed).standard_normal(desc.dims)).astype(desc.dtype)


def reads(op: Operation, attr: Attributes) -> dict[str, MemoryDesc]:
    """What an execution reads, as argument name -> descriptor: old values of dst among it.

    A workspace is left out, since what it holds is for a forward operation to say.
    """
    descs = {a.name: desc for a, desc in op.tensors() if a.direction == "in"}
    descs.update(attr.operands())
    if attr.reads_dst:
        descs[op.result_name] = op.result
    return descs


def fill_inputs(op: Operation, attr: Attributes, fill: Fill, seed: int = 0) -> dict[str, Array]:
    """An array per tensor of `reads`; each name has a seed of its own."""
    return {
        name: fill(desc, (seed, zlib.crc32(name.encode())))
        for name, desc in reads(op, attr).items()
    }


# -- exactness ------------------------------------------------------------------------------------

_ROUNDING_KINDS = ("softmax", "softmax backward", "lrn", "lrn backward")


def keeps_integers(op: Any, attr: Attributes) -> bool:
    """Whether whole numbers go to whole numbers, so that every order of summation is exact."""
    return _operation_keeps_integers(op) and all(
        POST_OPS[step.kind].keeps_integers(step) for step in attr.post_ops
    )


def _operation_keeps_integers(op: Any) -> bool:
    if isinstance(op, EltwiseForward | EltwiseBackward):
        whole = op.alpha.is_integer() and op.beta.is_integer()
        return ELTWISE[op.function].keeps_integers and whole
    if isinstance(op, Binary):
        return BINARY[op.algorithm].keeps_integers
    if isinstance(op, Reduction):
        return REDUCTION[op.algorithm].keeps_integers
    return (
        op.KIND not in _ROUNDING_KINDS
        and getattr(op, "is_max", True)
        and all(scale.is_integer() for scale in getattr(op, "scales", ()))
    )
