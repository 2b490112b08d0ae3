"""The rules of memory descriptors: dims, format, strides, offset and size.

A violation raises `DescriptorError`.
"""

from __future__ import annotations

import itertools
import math
import operator
import re
from collections.abc import Iterable, Mapping, Set
from typing import NoReturn, SupportsIndex, TypeAlias

from dnncore.errors import DescriptorError
from dnncore.tensors.datatypes import data_type
from dnncore.tensors.format_tags import MAX_NDIMS, parse_tag
from dnncore.tensors.strides import Blocks, Dims, dense_strides, outer_counts, row_major

__all__ = ["LARGEST", "Opaque", "check_dims", "check_range", "integers", "layout_of", "refuse"]

Opaque: TypeAlias = tuple[str, int]  # format, bytes

LARGEST = 2**59  # elements, so that 8 bytes for each still fit into a signed 64-bit integer
_OPAQUE = re.compile(r"[^:\s]+:[^:\s]+(:\S*)?")


def layout_of(
    dims: Dims,
    format_name: str | None,
    strides: Iterable[SupportsIndex] | None,
    nbytes: int | None,
) -> tuple[str, Dims, Blocks, Opaque | None]:
    """Return format kind, strides, inner blocks and opaque format for a constructor's arguments."""
    if format_name is None:
        steps = row_major(dims) if strides is None else _checked_strides(dims, strides, ())
        return "blocked", steps, (), None
    if not isinstance(format_name, str):
        refuse(f"a format is a string, or None for row-major; got {format_name!r}")
    if format_name in ("any", "undef") or ":" in format_name:
        if strides is not None:
            refuse(f"strides go only with a format tag or None; got them with {format_name!r}")
        if ":" in format_name:
            return "opaque", (), (), _checked_opaque(format_name, nbytes)
        return format_name, (), (), None
    order, blocks = parse_tag(format_name, len(dims))
    dense = dense_strides(dims, order, blocks)
    steps = dense if strides is None else _checked_strides(dims, strides, blocks)
    return "blocked", steps, blocks, None


def integers(what: str, values: Iterable[SupportsIndex]) -> Dims:
    """Return `values` as a tuple of Python ints."""
    if isinstance(
        values, bytes | bytearray | memoryview | Set | Mapping
    ):  # not iterable, or not integers
        refuse(f"{what} must be a sequence of integers; got {values!r}")
    try:
        # An iterable may be infinite; more than MAX_NDIMS values are an error anyway.
        return tuple(map(operator.index, itertools.islice(values, MAX_NDIMS + 1)))
    except Exception:  # a third-party iterable may raise any exception
        refuse(f"{what} must be a sequence of integers; got {values!r}")


def check_dims(dims: Dims, data_type_name: str, format_name: str | None) -> None:
    """Refuse invalid dims and unknown data types."""
    data_type(data_type_name)
    if not dims and format_name != "undef":
        refuse(
            "a tensor has dims; got none; use (1,) for a scalar, MemoryDesc.zero() for no tensor"
        )
    if len(dims) > MAX_NDIMS:
        refuse(f"a tensor has at most {MAX_NDIMS} dims; got {len(dims)}: {dims}")
    if dims and min(dims) < 0:
        refuse(f"a dim is at least 0; got {dims}")


def check_range(padded: Dims, outer: Dims, strides: Dims, offset0: int) -> None:
    """Refuse layouts whose bytes cannot be counted in 64 bits, as numpy and kernels count them."""
    last = offset0 + sum(map(operator.mul, outer, strides))
    if max(math.prod([n or 1 for n in padded]), last) >= LARGEST:
        refuse(
            "a tensor must have less than 2**59 elements and places; got padded dims"
            f" {padded}, strides {strides}, offset0 {offset0}"
        )


def _checked_opaque(format_name: str, nbytes: int | None) -> Opaque:
    if _OPAQUE.fullmatch(format_name) is None:
        refuse(f"an opaque format is owner:name or owner:name:params; got {format_name!r}")
    if nbytes is None:
        refuse(f"an opaque format needs its size in bytes, nbytes; got none for {format_name!r}")
    (size,) = integers("nbytes", (nbytes,))
    if not 0 <= size < 8 * LARGEST:
        refuse(
            f"an opaque format needs its size in bytes, nbytes, below 2**62; got {size} for"
            f" {format_name!r}"
        )
    return format_name, size


def _checked_strides(dims: Dims, strides: Iterable[SupportsIndex], blocks: Blocks) -> Dims:
    """Return `strides` as a tuple. Refuse strides that overlap elements, except stride 0."""
    steps = integers("strides", strides)
    if len(steps) != len(dims):
        refuse(f"there is one stride per dim; got strides {steps} for dims {dims}")
    if steps and min(steps) < 0:
        refuse(f"a stride is at least 0; got {steps}; copy the array first")
    span = math.prod(size for _, size in blocks)
    outer = outer_counts(dims, blocks)
    for step, size in sorted(zip(steps, outer, strict=True)) if 0 not in dims else ():
        if step == 0 or size == 1:
            continue
        if step < span:
            refuse(
                f"elements must not overlap; got strides {steps} for dims {dims}: stride {step} is "
                f"less than the {span} elements that the inner dims span; use 0 to repeat a dim"
            )
        span += step * (size - 1)
    return steps


def refuse(reason: str) -> NoReturn:
    """Raise `DescriptorError`."""
    raise DescriptorError(f"memory descriptor: {reason}")
