"""The steps of pooling: bands of rows, in place or through buffers, for `pooling/tasks.py`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dnncore.backend import MemoryDesc
from dnncore_cpu_numba.codegen.isa import BEST
from dnncore_cpu_numba.codegen.nest import Nest, nests
from dnncore_cpu_numba.codegen.nontemporal import LINE
from dnncore_cpu_numba.copies.copy_kernel import SIDE, CopyKernel
from dnncore_cpu_numba.pooling import tasks, windows
from dnncore_cpu_numba.pooling.box_kernel import BoxKernel
from dnncore_cpu_numba.pooling.fold import PoolingFold
from dnncore_cpu_numba.pooling.kernel import FIELDS, TILE, PoolingKernel
from dnncore_cpu_numba.pooling.row_kernel import RowKernel
from dnncore_cpu_numba.pooling.row_tiles import row_kernel
from dnncore_cpu_numba.runtime.program import Step, Table
from dnncore_cpu_numba.runtime.tensor import is_streamed, walked

_MAX_COLUMNS = 512
_BAND = 8192  # vectors of taps per band: some microseconds of work
_MOST_BANDS = 1024  # enough for any thread count; small buffers may need more bands
_FETCH_BYTES = 1 << 20  # bytes of all tensors; smaller tensors fit into a second-level cache


def fold_steps(fold: PoolingFold) -> list[Step]:
    """Return the steps of a fold whose tensors `are_even`."""
    steps = []
    for nest in _nests(fold):
        if _are_neighbours(nest, fold):
            steps += [_in_place(fold, part) for part in nest.rows(_MAX_COLUMNS)]
        elif bands := _fitting(fold):
            steps += [_staged(fold, part, bands) for part in nest.rows(SIDE)]
        else:
            steps += [_in_place(fold, part) for part in nest.rows(1)]
    return steps


def _nests(fold: PoolingFold) -> list[Nest]:
    """Return loop nests over batch and channels. The innermost loop is the columns.

    They include the padding of channels if it is equal in all tensors. All vectors of channels are
    then whole. Results in the padding are set to zero afterwards.
    """
    descs = [tensor.desc for tensor in fold.tensors.values()]
    batch, channels, *spatial = descs[0].dims
    padded = {desc.padded_dims[1] for desc in fold.used.values()}
    dims = (batch, padded.pop() if len(padded) == 1 else channels, *spatial)
    found = nests(dims, descs, without=range(2, len(dims)))
    return [nest.ordered() for nest in found]


def _are_neighbours(nest: Nest, fold: PoolingFold) -> bool:
    """Whether the columns are contiguous in all tensors."""
    return not nest.loops or set(nest.loops[-1].strides[: len(fold.used)]) == {1}


def are_even(fold: PoolingFold) -> bool:
    """Whether the kernel can work in place or through buffers.

    Channels or positions along w must be contiguous, and no spatial dim may be blocked.
    """
    if any(dim > 1 for desc in fold.used.values() for dim, _ in desc.inner_blocks):
        return False
    return _are_rows(fold) or all(_are_neighbours(nest, fold) for nest in _nests(fold))


def _are_rows(fold: PoolingFold) -> bool:
    """Whether positions along w are contiguous in all tensors."""
    return all(desc.strides[-1] == 1 or desc.dims[-1] == 1 for desc in fold.used.values())


def _in_place(fold: PoolingFold, part: Nest) -> Step:
    """Return a step whose kernel works on the tensors in place."""
    columns = part.loops[-1].extent
    strides = [_spatial(tensor.desc) for tensor in fold.tensors.values()]
    result, source = (fold.tensors[name].desc for name in ("result", "a"))
    kernel, rows = _kernel(fold, columns, result.data_type, source.data_type, strides)
    whole = kernel.lanes * fold.itemsize == LINE and columns % kernel.lanes == 0
    if isinstance(kernel, RowKernel) and whole:
        large = sum(desc.nbytes for desc in fold.used.values()) >= _FETCH_BYTES
        kernel = replace(kernel, fetches=large and kernel.vectors == 1)
    in_lines = whole and not any(step % LINE for step in strides[0])
    written = kernel.lanes * result.itemsize  # bytes at a time
    if isinstance(kernel, RowKernel):
        in_order = written * kernel.vectors % LINE == 0
    else:
        in_order = kernel.along == "columns" or written == LINE
    streams = in_lines and in_order and is_streamed(fold.tensors["result"])
    bands = _cut(fold, _height(fold, columns))
    return _step(fold, part, bands, strides, rows, {
        "kernel": kernel.address,
        "streamed": replace(kernel, streamed=True).address if streams else 0,
        "fields": Table(FIELDS.table([_fields(fold, columns, strides, of_rows=rows is not None)])),
        "staged": False, "staging": [],
    })  # fmt: skip


def _step(
    fold: PoolingFold, part: Nest, bands: _Bands, strides: Sequence[tuple[int, ...]],
    rows: np.ndarray | None, values: Mapping[str, Any],
) -> Step:  # fmt: skip
    """Return a step.

    strides: bytes along d, h and w of result, a and b. rows: the tiles of a row for the row kernel,
    for which a row is one place along w. values: parameters that depend on whether the kernel works
    in place or through buffers.
    """
    depths, _, widths = fold.axes
    row = windows.WindowSegment(first=0, count=1, source=0, source_step=0, tap=0, taps=1)
    segments = [
        [segment for d in range(len(depths.taps)) for segment in depths.segments(d, d + 1)],
        bands.runs,
        widths.segments(by_tap=fold.uses_b) if rows is None else [row],
    ]
    tiles = Table(TILE.table([dict.fromkeys(TILE.fields, 0)]) if rows is None else rows)
    along = [Table(_rows(fold, dim, found, strides)) for dim, found in enumerate(segments)]
    outer, count = part.without(1), len(bands.table)
    common = walked(outer, fold.tensors) | {
        "d": along[0], "runs": along[1], "segments": along[2], "segment_count": len(segments[2]),
        "tiles": tiles, "whole_rows": rows is not None,
        "bands": Table(bands.table), "band_count": count,
        "empty": fold.empty, "uniform": fold.divisor is not None,
    }  # fmt: skip
    height = _height(fold, part.loops[-1].extent)
    grain = -(-height // max(1, bands.rows[0])) // 4 or 1
    return Step(tasks.pool, {**common, **values}, outer.size * count, grain=grain)


def _height(fold: PoolingFold, columns: int) -> int:
    """Return the number of rows of results that are enough work for a band."""
    vectors = -(-columns // BEST.lanes)
    taps = math.prod(int(axis.taps.max(initial=1)) for axis in fold.axes[:2])
    work = -(-_BAND // max(1, vectors * taps * int(fold.axes[2].taps.sum())))
    return max(work, -(-len(fold.axes[1].taps) // _MOST_BANDS))


def _spatial(desc: MemoryDesc) -> tuple[int, ...]:
    """Return the strides along d, h and w in bytes."""
    return (0,) * (5 - desc.ndims) + tuple(desc.itemsize * s for s in desc.strides[2:])


def _kernel(
    fold: PoolingFold, columns: int, target: str, source: str, strides: Sequence[tuple[int, ...]]
) -> tuple[RowKernel | BoxKernel, np.ndarray | None]:
    """Return the kernel for this number of contiguous columns, and the tiles of a row, if any.

    strides: bytes along d, h and w of result, a and b.
    """
    lanes = min(4 * BEST.lanes // fold.itemsize, 1 << (columns.bit_length() - 1))
    types = source, target, fold.held
    kernel = PoolingKernel(fold.name, lanes, fold.index, *types, _is_power(fold.divisor))
    if found := row_kernel(fold, kernel, columns):
        return found[0], found[1].table(fold, strides)
    box = BoxKernel(**vars(kernel))
    if columns >= lanes * replace(box, along="columns").tile:
        return replace(box, along="columns"), None
    return box, None


def _rows(
    fold: PoolingFold,
    dim: int,
    segments: Sequence[windows.WindowSegment],
    strides: Sequence[tuple[int, ...]],
) -> np.ndarray:
    """Return the table of segments along a dim."""
    rows, period = [], fold.axes[dim].period
    for segment in segments:
        result, source = (segment.first, period), (segment.source, segment.source_step)
        of_tensors = result, source, result if fold.name == "largest" else source
        row = {"taps": segment.taps, "tap": segment.tap * fold.taps[dim], "count": segment.count}
        for name, (first, step), stride in zip(fold.tensors, of_tensors, strides, strict=True):
            row |= {name: first * stride[dim], f"{name}_step": step * stride[dim]}
        rows.append(row)
    return tasks.ALONG.table(rows)


def _fields(
    fold: PoolingFold, columns: int, strides: Sequence[tuple[int, ...]], *, of_rows: bool
) -> dict[str, float]:
    """Return the kernel's fields that are equal for all calls."""
    fields: dict[str, float] = dict.fromkeys(FIELDS.fields, 0)
    fields["columns"] = columns
    result, a, b = strides
    fields["result_step"] = result[-1]
    fields["b_step"] = b[-1] if fold.name == "largest" else 0
    for dim, (name, axis) in enumerate(zip("dhw", fold.axes, strict=True)):
        fields[f"a_{name}"] = axis.source_step * a[dim]
        fields[f"b_{name}"] = 0 if fold.name == "largest" else axis.source_step * b[dim]
        fields[f"tap_{name}"] = axis.tap_step * fold.taps[dim]
    if of_rows:  # from place to place
        fields["a_w"], fields["b_w"] = a[-1], 0 if fold.name == "largest" else b[-1]
    fields["start"] = -math.inf if fold.name == "largest" else 0.0
    if fold.divisor is not None:
        fields["divisor"] = 1 / fold.divisor if _is_power(fold.divisor) else fold.divisor
    return fields


def _is_power(divisor: int | None) -> bool:
    """Whether a divisor is a power of two, so that its reciprocal is exact."""
    return divisor is not None and divisor.bit_count() == 1


# -- bands -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Bands:
    """Bands of rows of results.

    table: records `BAND`. runs: the segments that the table refers to. rows: the most rows of
    result, a and b that a band needs.
    """

    table: np.ndarray
    runs: list[windows.WindowSegment]
    rows: tuple[int, int, int]

    def planes(self, fold: PoolingFold) -> list[int]:
        """Return the bytes that one depth takes in the buffers of result, a and b."""
        return [
            SIDE * _held(fold, name, desc) * desc.dims[-1] * rows
            for (name, desc), rows in zip(fold.used.items(), self.rows, strict=False)
        ]

    def places(self, fold: PoolingFold) -> list[int]:
        """Return the offset of each buffer, then the end of the last one."""
        depth = int(fold.axes[0].taps.max())
        depths = 1, depth, 1 if fold.name == "largest" else depth
        sizes = [n * depth for n, depth in zip(self.planes(fold), depths, strict=False)]
        return list(itertools.accumulate(sizes, initial=0))


def _fitting(fold: PoolingFold) -> _Bands | None:
    """Return bands whose buffers fit into `BUFFERS` bytes, or None."""
    least = sum(SIDE * _held(fold, name, desc) * desc.dims[-1] for name, desc in fold.used.items())
    if least > tasks.BUFFERS:
        return None
    height = min(_height(fold, SIDE), len(fold.axes[1].taps))
    while height:
        bands = _cut(fold, height)
        if bands.places(fold)[-1] <= tasks.BUFFERS:
            return bands
        height //= 2
    return None


def _cut(fold: PoolingFold, height: int) -> _Bands:
    """Return bands of `height` rows."""
    depths, heights, _ = fold.axes
    table: list[Any] = []
    runs: list[Any] = []
    for first in range(0, len(heights.taps), height):
        last = min(first + height, len(heights.taps))
        found = heights.segments(first, last, by_tap=fold.uses_b)
        start, stop = heights.reads(first, last)
        band = {
            "first": first, "last": last, "first_run": len(runs),
            "last_run": len(runs) + len(found), "start": start, "stop": stop,
            "depth_step": depths.source_step,
        }  # fmt: skip
        runs += found
        table += [band | {"depth": d, "source_depth": z} for d, z in enumerate(depths.source)]
    most = max(band["stop"] - band["start"] for band in table)
    b = height if fold.name == "largest" else most
    table.sort(key=lambda band: (band["depth"], band["first"]))
    return _Bands(tasks.BAND.table(table), runs, (height, most, b))


def _held(fold: PoolingFold, name: str, desc: MemoryDesc) -> int:
    """Return the bytes of an element in a buffer. b keeps its type; others have type `held`."""
    return desc.itemsize if name == "b" else fold.itemsize


def _staged(fold: PoolingFold, part: Nest, bands: _Bands) -> Step:
    """Return a step whose kernel works on buffers."""
    columns, planes, views = part.loops[-1], bands.planes(fold), []
    strides = [_spatial(tensor.desc) for tensor in fold.tensors.values()]
    moves = [0] * len(strides)
    places = bands.places(fold)
    for i, ((name, desc), place) in enumerate(zip(fold.used.items(), places, strict=False)):
        size, width = _held(fold, name, desc), desc.dims[-1]
        step = desc.itemsize * columns.strides[i]
        channels = np.minimum(np.arange(SIDE), columns.extent - 1) * step
        pixels = np.arange(bands.rows[i] * width) * (SIDE * size)
        depth, height, _ = strides[i]
        views.append({
            "buffer": place, "outside": Table(channels.astype(np.int64)),
            "inside": Table(pixels.astype(np.int64)), "depth": depth, "height": height,
            "width": width, "joined": height == width * desc.itemsize, "item": size,
            "plane": planes[i],
        })  # fmt: skip
        kinds = [desc.data_type, desc.data_type if name == "b" else fold.held]
        moves[i] = CopyKernel("transposed", *(kinds if i else reversed(kinds))).address
        strides[i] = (0, SIDE * size * width, SIDE * size)
    reads = fold.uses_b and fold.name != "largest"
    kernel, rows = _kernel(fold, SIDE, fold.held, fold.held, strides)
    fields = _fields(fold, SIDE, strides, of_rows=rows is not None) | {"a_d": planes[1]}
    if reads:
        fields["b_d"] = planes[2]
    staging = {
        "channels": columns.extent, "moves": moves, "b_read": reads,
        "b_written": fold.uses_b and not reads, "views": views,
    }  # fmt: skip
    return _step(fold, part, bands, strides, rows, {
        "kernel": kernel.address, "streamed": 0,
        "fields": Table(FIELDS.table([fields])), "staged": True, "staging": [staging],
    })  # fmt: skip
