"""Concat of rows: one launch that copies several sources to dst.

Along the axis and the dims within it, elements of each tensor are contiguous. They are its rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dnncore.backend import MemoryDesc
from dnncore_opencl.codegen.grid import Grid
from dnncore_opencl.codegen.layout import Parameters
from dnncore_opencl.codegen.vectors import PACKED
from dnncore_opencl.runtime.launch import Launch
from dnncore_opencl.runtime.schema import Arg

UNITS = {16: "uint4", 8: "uint2", 4: "uint"}  # bytes of an access
MOST_SOURCES = 8


def joined(engine: Any, srcs: Sequence[MemoryDesc], dst: MemoryDesc, axis: int) -> Launch | None:
    """Return the launch; None on CPUs and if the tensors have no such rows.

    The sources are the first arguments, dst is the next one.
    """
    places = [place for place, src in enumerate(srcs) if src.nelems]
    descs = [*(srcs[place] for place in places), dst]
    if engine.is_cpu or len(places) < 2 or len(places) > MOST_SOURCES:
        return None
    if dst.data_type in PACKED or any(desc.data_type != dst.data_type for desc in descs):
        return None
    if not all(_has_rows(desc, dst, axis) for desc in descs):
        return None
    widths = [_width(desc, axis) for desc in descs]
    sizes = [size * dst.itemsize for size in (*widths, *(desc.offset0 for desc in descs))]
    unit = next((unit for unit in UNITS if all(size % unit == 0 for size in sizes)), 0)
    if not unit:
        return None
    share = unit // dst.itemsize
    parameters = Parameters(max(desc.nbytes for desc in descs) // unit)
    for place in places:
        parameters.buffer(f"src{place}", f"const {UNITS[unit]}", Arg(place))
    parameters.buffer("dst", UNITS[unit], Arg(len(srcs)))
    text, end = "", 0
    for place, src, width in zip(places, descs, widths, strict=False):
        begin, end = parameters.index(end // share), end + width
        at = f"{parameters.index(src.offset0 // share)} + row * {parameters.size(width // share)}"
        condition = f"if (t < {parameters.size(end // share)}) " if place != places[-1] else ""
        text += f"{condition}x = src{place}[{at} + t - {begin}]; else "
    grid = Grid.of(engine, dst.nelems // share)
    defines = {
        "UNIT": UNITS[unit],
        "WIDTH": parameters.size(widths[-1] // share),
        "START": parameters.index(dst.offset0 // share),
        "READ": text.removesuffix("else "),
        **grid.defines(parameters),
    }
    return grid.launch("concat_rows", parameters, defines, ())


def _width(desc: MemoryDesc, axis: int) -> int:
    """Return the elements of a row."""
    return desc.dims[axis] * desc.strides[axis]


def _has_rows(desc: MemoryDesc, dst: MemoryDesc, axis: int) -> bool:
    """Whether a tensor is dense, with rows in the order of dst's."""
    if not desc.is_plain or not desc.is_dense or desc.strides[axis] != dst.strides[axis]:
        return False
    width, whole = _width(desc, axis), _width(dst, axis)
    others = [dim for dim in range(dst.ndims) if dim != axis and dst.dims[dim] > 1]
    return all(
        desc.strides[dim] * whole == dst.strides[dim] * width
        if dst.strides[dim] >= whole
        else desc.strides[dim] == dst.strides[dim]
        for dim in others
    )
