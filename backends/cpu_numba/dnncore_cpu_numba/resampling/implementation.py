"""Resampling, forward and backward: both are sums by tables of taps, so the gradient scatters
nothing.

Images and channels are the loops of a nest. The innermost one, if it is contiguous in both tensors,
is a pixel. Short pixels are permuted from vectors of rows, others are sums of vectors of pixels.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from dnncore.backend import Accepted, Attributes, Implementation, Refused, Resampling
from dnncore.planning.taps import Taps, taps_of
from dnncore_cpu_numba.codegen.isa import BEST
from dnncore_cpu_numba.codegen.nest import Nest, nests
from dnncore_cpu_numba.codegen.type_conversion import FLOATS, INTEGERS
from dnncore_cpu_numba.elementwise.finish import WORDS
from dnncore_cpu_numba.elementwise.implementation import offered, refuse_post_ops
from dnncore_cpu_numba.resampling.rows_task import MOST_SUMMED
from dnncore_cpu_numba.resampling.stages import (
    MOST_TAPS,
    Images,
    Stage,
    in_pixels,
    permuted,
    strides_of,
)
from dnncore_cpu_numba.resampling.tables import Padded, Tables
from dnncore_cpu_numba.resampling.whole_images import step_of_whole
from dnncore_cpu_numba.runtime.program import Step
from dnncore_cpu_numba.runtime.tensor import Tensor, arguments, refuse_long

_MOST_ROWS = 16  # that are summed before their kernel runs


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
    planes, rows, pixels = map(Tables, tables)
    images = Images(Nest(nest.offsets, outer), dst, src, planes, rows, pixels, inner)
    return step_of_whole(images) or _step_of_rows(images)


def _step_of_rows(images: Images) -> Step:
    """Return the step of rows. Those of an item are summed first, or an item is one row."""
    src, rows, group = images.src, images.rows, 0
    width = images.pixels.inputs * images.inner
    if images.sums_first:
        group = _group(rows.outputs, MOST_SUMMED // width)
        src = src.seen_as(src.desc.with_data_type("f32"))
    stage = _permuted_rows(images, src, group) or _rows_of_pixels(images, src, group)
    first = None
    if group:
        pixel = Padded.same(1)
        first = in_pixels(pixel, src, images.src, width, (0, 0))
    return images.step(stage, first, rows, max(1, group), 4 * width)


def _group(rows: int, most: int) -> int:
    """Return the number of rows that are summed before the kernel runs."""
    return next(n for n in range(min(rows, most, _MOST_ROWS), 0, -1) if rows % n == 0)


def _permuted_rows(images: Images, src: Tensor, group: int) -> Stage | None:
    """Return a stage of vectors of whole rows; None if rows have gaps or many taps.

    group: the number of rows that are summed first, to src; 0 if none are.
    """
    pixels, inner = images.pixels, images.inner
    if not images.is_dense or inner >= BEST.lanes or pixels.taps > MOST_TAPS:
        return None
    taps, width = pixels.padded().joined(Padded.same(inner), inner), pixels.inputs * inner
    streams = images.streams(taps.outputs * images.dst.desc.itemsize)
    steps = 1 if streams else max(1, group)  # such stores need the order of memory
    stage = permuted(
        taps, images.dst, src, width, steps, (4 * width, strides_of(images.dst.desc)[1]),
        is_copy=images.is_copy, is_single=group > 0,
    )  # fmt: skip
    if stage is None:
        return None
    stage = replace(stage, rows=steps)
    return stage.streaming() if streams else stage


def _rows_of_pixels(images: Images, src: Tensor, group: int) -> Stage:
    """Return a stage of vectors of pixels, with the arguments of `_permuted_rows`."""
    table, inner = images.pixels, images.inner
    moves = strides_of(src.desc)[-1], strides_of(images.dst.desc)[-1]
    padded = table.padded() if table.taps <= MOST_TAPS and table.is_even else None
    taps = padded if padded and padded.weights.all() else table
    stage = in_pixels(
        taps, images.dst, src, inner, moves, is_copy=images.is_copy, is_single=group > 0
    )
    is_whole = inner % stage.kernel.lanes == 0 and images.streams(moves[1])
    return stage.streaming() if is_whole else stage


TABLE = (ResamplingImplementation(),)
