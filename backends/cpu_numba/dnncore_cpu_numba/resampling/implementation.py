"""Resampling, forward and backward: both are sums by tables of taps, so the gradient scatters
nothing.

Images and channels are the loops of a nest. The innermost one, if it is contiguous in both tensors,
is a pixel. Short pixels are permuted from vectors of rows, others are sums of vectors of pixels.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from dnncore.backend import Accepted, Attributes, Implementation, MemoryDesc, Refused, Resampling
from dnncore.planning.taps import Taps, taps_of
from dnncore_cpu_numba.codegen.isa import BEST
from dnncore_cpu_numba.codegen.nest import Nest, nests
from dnncore_cpu_numba.codegen.nontemporal import LINE, STREAM_BYTES
from dnncore_cpu_numba.codegen.type_conversion import FLOATS, INTEGERS
from dnncore_cpu_numba.copies.permuted_kernel import PERMUTED, PermutedKernel, windows_of
from dnncore_cpu_numba.elementwise.finish import WORDS
from dnncore_cpu_numba.elementwise.implementation import offered, refuse_post_ops
from dnncore_cpu_numba.resampling.pixel_kernel import PIXELS, PixelKernel
from dnncore_cpu_numba.resampling.rows_task import MOST_SUMMED, resample_rows
from dnncore_cpu_numba.runtime.program import Step, Table
from dnncore_cpu_numba.runtime.tensor import Tensor, arguments, refuse_long, walked

_MOST_TAPS = 8  # of a result and a row, in registers
_MOST_ROWS = 16  # that are summed before their kernel runs
_GRAIN = 4096  # least elements of a part


class ResamplingImplementation(Implementation[Resampling]):
    """Rows of any type, which are computed in f32."""

    name = "cpu_numba:rows"
    data_types = (*FLOATS, *INTEGERS)
    attributes = WORDS
    takes_repeats = True

    def accept(
        self, op: Resampling, attr: Attributes, engine: Any, hint: Any
    ) -> Accepted | Refused:
        """Accept layouts without blocks along spatial dims, and every attribute."""
        (source, desc), _ = op.tensors()
        op = op.resolve_any(**{op.result_name: desc})
        refusal = refuse_post_ops(op, attr) or refuse_long(*desc.dims[2:], *op.result.dims[2:])
        if refusal:
            return refusal
        for argument, own in op.tensors():
            if any(dim > 1 for dim, _ in own.inner_blocks):
                return Refused("format", f"needs plain spatial dims; {argument.name} has {own.tag}")
        return offered(op, attr, engine, partial(_steps, op, source.name), efficiency=0.3)


def _steps(op: Resampling, source: str, dst: Tensor) -> list[Step]:
    """Return the steps that write the result to dst, perhaps in another data type."""
    src = arguments(op)[source]
    spatial = range(2, dst.desc.ndims)
    parts = nests(dst.desc.dims, (dst.desc, src.desc), without=spatial)
    one = Taps((0,), ((1.0,),))
    tables = ([one, one, *(_taps(op, dim) for dim in spatial)])[-3:]
    return [_step(part.ordered(), dst, src, tables) for part in parts]


def _taps(op: Resampling, dim: int) -> Taps:
    inputs, outputs = op.src_role.dims[dim], op.dst_role.dims[dim]
    taps = taps_of(op.algorithm, inputs, outputs)
    return taps if op.result_name == "dst" else taps.transposed(inputs)


def _step(nest: Nest, dst: Tensor, src: Tensor, tables: list[Taps]) -> Step:
    """Return the step of the images of a nest. Its innermost loop is a pixel if it is dense."""
    loops = nest.loops
    is_pixel = bool(loops) and loops[-1].strides == (1, 1)
    outer, inner = (loops[:-1], loops[-1].extent) if is_pixel else (loops, 1)
    planes, rows, pixels = map(_Tables, tables)
    is_copy = dst.desc.data_type == src.desc.data_type and all(
        table.is_copy for table in (planes, rows, pixels)
    )
    group, row = 0, src
    if _sums_first(planes, rows, pixels, src, inner):
        group = _group(rows.outputs, MOST_SUMMED // (pixels.inputs * inner))
        row = src.seen_as(src.desc.with_data_type("f32"))
    make = _permuted(pixels, dst, row, inner, group, is_copy=is_copy) or _in_pixels(
        pixels, dst, row, inner, is_single=group > 0, is_copy=is_copy
    )
    kernel, shape, streams, at_once = make
    streamed = replace(kernel, streamed=True).address if streams else 0
    first = _first(pixels, src, inner, group)
    (dst_plane, dst_row, _), (src_plane, src_row, _) = (_strides(t.desc) for t in (dst, src))
    values = walked(Nest(nest.offsets, outer), {"dst": dst, "src": src}) | {
        "planes": planes.outputs, "rows": rows.outputs,
        "dst_plane": dst_plane, "dst_row": dst_row, "src_plane": src_plane, "src_row": src_row,
        "along_planes": planes.record(), "along_rows": rows.record(),
        "kernel": kernel.address, "streamed": streamed, "shape": shape, **first,
        "at_once": at_once,
    }  # fmt: skip
    group = max(1, group)
    items = math.prod(loop.extent for loop in outer) * planes.outputs * rows.outputs // group
    grain = -(-_GRAIN // max(1, pixels.outputs * inner * group))
    return Step(resample_rows, values, items, grain=grain)


def _sums_first(planes: _Tables, rows: _Tables, pixels: _Tables, src: Tensor, inner: int) -> bool:
    """Whether there are fewer products if input rows are summed before pixels."""
    summed = planes.taps * rows.taps
    is_dense = _strides(src.desc)[-1] == inner * src.desc.itemsize
    products = pixels.inputs * summed + pixels.outputs * pixels.taps
    is_less = products < pixels.outputs * pixels.taps * summed
    return is_dense and is_less and pixels.inputs * inner <= MOST_SUMMED


def _at_once(count: int) -> int:
    """Return the number of vectors of a pixel that are computed together."""
    return 4 if count >= 4 * BEST.lanes else 2


def _group(rows: int, most: int) -> int:
    """Return the number of rows that are summed before the kernel runs."""
    return next(n for n in range(min(rows, most, _MOST_ROWS), 0, -1) if rows % n == 0)


def _first(pixels: _Tables, src: Tensor, inner: int, group: int) -> dict[str, Any]:
    """Return the values of the sum of input rows: of one pixel, which is the whole row."""
    plane, row, _ = _strides(src.desc)
    one, count = Table(np.ones(1, np.float32)), pixels.inputs * inner
    shape = PIXELS.pack({
        "pixels": 1, "inner": count, "src_pixel": 0, "dst_pixel": 0, "plane": plane, "row": row,
        "firsts": Table(np.zeros(1, np.int64)), "starts": 0, "weights": one,
    })  # fmt: skip
    kernel = PixelKernel(src.desc.data_type, "f32", taps=1, at_once=_at_once(count))
    return {
        "first": kernel.address if group else 0, "first_shape": shape, "one": one,
        "group": max(1, group), "summed_row": 4 * count,
    }  # fmt: skip


def _strides(desc: MemoryDesc) -> list[int]:
    """Return the strides of planes, rows and pixels in bytes."""
    return [stride * desc.itemsize for stride in (0, 0, *desc.strides[2:])[-3:]]


class _Tables:
    """The taps of a dim as arrays."""

    def __init__(self, taps: Taps) -> None:
        self.firsts = np.array(taps.firsts, np.int64)
        self.counts = np.array([len(row) for row in taps.weights], np.int64)
        self.starts = np.concatenate(([0], np.cumsum(self.counts)))
        self.weights = np.array([w for row in taps.weights for w in row], np.float32)
        self.is_copy = bool((self.counts == 1).all() and (self.weights == 1).all())
        self.outputs = len(self.firsts)
        self.inputs = int((self.firsts + self.counts).max())

    def record(self) -> dict[str, Table]:
        """Return the values of `TAPS`."""
        return {name: Table(getattr(self, name)) for name in ("firsts", "starts", "weights")}

    @property
    def taps(self) -> int:
        """The most taps of a result."""
        return max(1, int(self.counts.max()))

    def padded(self) -> tuple[Any, Any]:
        """Return the places and the weights of equally many taps of each result: one row per tap.

        Of two taps, a missing one repeats the other, each with half its weight, because other
        inputs may be infinite. Of more taps, missing ones have the weight 0.
        """
        numbers = np.arange(self.taps)[:, None]
        there = numbers < self.counts
        weights = np.zeros(there.shape, np.float32)
        weights[there] = self.weights[(self.starts[:-1] + numbers)[there]]
        if self.taps == 2:
            single = self.counts == 1
            weights[:, single] = weights[0, single] / 2
        return self.firsts + np.where(there, numbers, 0), weights


def _streams(dst: Tensor, src: Tensor, nbytes: int) -> bool:
    """Whether rows of this size are written by non-temporal stores."""
    return nbytes % LINE == 0 and dst.desc.nbytes + src.desc.nbytes >= STREAM_BYTES


def _permuted(
    table: _Tables, dst: Tensor, src: Tensor, inner: int, group: int, *, is_copy: bool
) -> tuple[PermutedKernel, list[Any], bool, int] | None:
    """Return a kernel of vectors of whole rows; None if rows have gaps or many taps.

    group: the number of rows that are summed first; 0 if none are. The result also has the values
    of `PERMUTED`, whether rows permit non-temporal stores, and the number of rows of a call.
    """
    sizes = dst.desc.itemsize, src.desc.itemsize
    pixel = _strides(dst.desc)[-1], _strides(src.desc)[-1]
    is_dense = pixel == tuple(inner * size for size in sizes)
    if not is_dense or inner >= BEST.lanes or table.taps > _MOST_TAPS:
        return None
    lanes, count, width = BEST.lanes, table.outputs * inner, table.inputs * inner
    begins = np.minimum(np.arange(0, count, lanes), max(0, count - lanes))
    pixels, places = np.divmod(np.minimum(begins[:, None] + np.arange(lanes), count - 1), inner)
    pixel_places, weights = table.padded()
    places = np.moveaxis(pixel_places[:, pixels] * inner + places, 0, 1)
    shares = np.ascontiguousarray(np.moveaxis(weights[:, pixels], 0, 1))
    windows = windows_of(places, lanes, width)
    if windows is None:
        return None
    bases, lane_places = windows
    kernel = PermutedKernel(
        src.desc.data_type, dst.desc.data_type, lanes, is_copy, table.taps, bases.shape[-1],
        is_single=group > 0,
        ragged=bool((shares == 0).any()), is_short=width < lanes, is_narrow=count < lanes,
    )  # fmt: skip
    plane, row, _ = _strides(src.desc)
    streams = _streams(dst, src, count * sizes[0])
    steps = 1 if streams else max(1, group)  # such stores need the order of memory
    values = PERMUTED.pack({
        "vectors": len(begins), "steps": steps, "src_step": 4 * width,
        "dst_step": _strides(dst.desc)[1],
        "plane": plane, "row": row,
        "targets": Table(begins * sizes[0]), "bases": Table(bases * sizes[1]),
        "lanes": Table(lane_places), "shares": Table(shares),
        "src_count": width, "dst_count": count,
    })  # fmt: skip
    return kernel, values, streams, steps


def _in_pixels(
    table: _Tables, dst: Tensor, src: Tensor, inner: int, *, is_single: bool, is_copy: bool
) -> tuple[PixelKernel, list[Any], bool, int]:
    """Return a kernel of vectors of pixels, the values of `PIXELS`, and as `_permuted`."""
    plane, row, src_pixel = _strides(src.desc)
    dst_pixel = _strides(dst.desc)[-1]
    tables: dict[str, Any] = table.record() | {"firsts": Table(table.firsts * src_pixel)}
    unrolled = 0
    if table.taps <= _MOST_TAPS:
        places, weights = table.padded()
        if weights.all():
            unrolled = table.taps
            rows = (np.ascontiguousarray(array.T) for array in (places * src_pixel, weights))
            tables = dict(zip(("firsts", "weights"), map(Table, rows), strict=True)) | {"starts": 0}
    kernel = PixelKernel(
        src.desc.data_type, dst.desc.data_type, is_copy, unrolled, is_single, _at_once(inner)
    )
    values = PIXELS.pack({
        "pixels": table.outputs, "inner": inner, "src_pixel": src_pixel, "dst_pixel": dst_pixel,
        "plane": plane, "row": row, **tables,
    })  # fmt: skip
    is_whole = inner % kernel.lanes == 0 and dst_pixel % LINE == 0
    return kernel, values, is_whole and _streams(dst, src, dst_pixel), 1


TABLE = (ResamplingImplementation(),)
