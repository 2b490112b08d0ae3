"""Images of another size: `ResamplingForward`."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np

from dnncore.errors import DescriptorError
from dnncore.functional.call import EngineLike, Plan, call
from dnncore.functional.operands import Operand, Result, Values, brief, check_rank, result_desc
from dnncore.functional.window import Sizes
from dnncore.ops import ResamplingForward
from dnncore.ops.window import entries

__all__ = ["resample"]

Factors = float | Sequence[float]


def resample(
    src: Values,
    size: Sizes | None = None,
    *,
    factors: Factors | None = None,
    algorithm: str = "nearest",
    engine: EngineLike = None,
) -> Result:
    """dst is src with another image size: src (N, C, spatial dims), 1 to 3 spatial dims.

    size: the spatial dims of dst, one number for all or a sequence or array with one for each.
    factors: instead of `size`, what the sizes of src are multiplied by, one number for all or one
        for each. The products are rounded down.
    algorithm: "nearest" or "linear" (bilinear, trilinear).

    Along a dim of I elements in src and O in dst, element o of dst lies at (o + 1/2) * I / O - 1/2,
    as in oneDNN. It is the nearest element of src, the upper one of two, or linearly interpolated.
    Beyond the outer elements, src continues with their values. torch's `interpolate` has these
    definitions in the modes "nearest-exact" and "linear" with align_corners=False.

    >>> resample([[[0, 8]]], 4, algorithm="linear").tolist()
    [[[0.0, 2.0, 6.0, 8.0]]]
    """
    options = (_kept(size), _kept(factors), algorithm)
    return call(_resample, "resample", {"src": src}, engine, *options)


def _kept(values: Any) -> Any:
    """Return a sequence or an array of numbers as a tuple, anything else as it is."""
    if isinstance(values, np.ndarray) and not values.ndim:
        return values[()]
    return tuple(values) if np.iterable(values) and not isinstance(values, str) else values


def _resample(
    function: str,
    operands: dict[str, Operand],
    size: Sizes | None,
    factors: Factors | None,
    algorithm: str,
) -> Plan:
    x = operands["src"]
    check_rank(function, "src", x, "(N, C, spatial dims)", 3, 4, 5)
    spatial = x.shape[2:]
    if (size is None) == (factors is None):
        raise DescriptorError(
            f"{function}: give either size or factors; got size {brief(size)}"
            f" and factors {brief(factors)}"
        )
    if factors is not None:
        sizes = _multiplied(function, spatial, factors)
    else:
        assert size is not None
        sizes = entries(function, "size", size, len(spatial))
    if min(sizes, default=0) < 0:
        raise DescriptorError(f"{function}: size must not be negative; got {brief(size)}")
    dst = result_desc((*x.shape[:2], *sizes), x)
    return Plan(ResamplingForward("forward_inference", algorithm, src=x.desc, dst=dst))


def _multiplied(function: str, spatial: Sequence[int], factors: Factors) -> tuple[int, ...]:
    each = factors if isinstance(factors, tuple) else (factors,) * len(spatial)
    sizes: tuple[int, ...] = (-1,)
    if all(isinstance(factor, Real) for factor in each):
        with contextlib.suppress(ValueError, OverflowError):
            sizes = tuple(int(n * factor) for n, factor in zip(spatial, each, strict=True))
    if min(sizes) < 0:
        raise DescriptorError(
            f"{function}: factors must be one number of at least 0, or one for each of"
            f" {len(spatial)} spatial dims; got {brief(factors)}"
        )
    return sizes
