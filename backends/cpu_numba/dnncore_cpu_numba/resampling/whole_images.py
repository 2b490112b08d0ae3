"""Small images without gaps, whose vectors cross the ends of rows: no vector is short.

An item is one image or several. Rows that repeat the taps of other rows share their tables, so the
kernel takes a few rows per step.
"""

from __future__ import annotations

from dataclasses import replace

from dnncore_cpu_numba.codegen.isa import BEST
from dnncore_cpu_numba.codegen.nest import Loop, Nest
from dnncore_cpu_numba.codegen.nontemporal import LINE
from dnncore_cpu_numba.resampling.rows_task import MOST_SUMMED
from dnncore_cpu_numba.resampling.stages import (
    MOST_TAPS,
    ONE,
    Images,
    Stage,
    in_pixels,
    permuted,
    strides_of,
)
from dnncore_cpu_numba.resampling.tables import Padded
from dnncore_cpu_numba.runtime.program import Step

_MOST_ITEM = 4096  # elements of several images that are an item


def step_of_whole(images: Images) -> Step | None:
    """Return the step; None if images are large or have gaps, or if results have many taps."""
    dst, src, inner = images.dst, images.src, images.inner
    (ih, iw), (oh, ow) = ((1, *t.desc.dims[2:])[-2:] for t in (src, dst))
    iw, ow = iw * inner, ow * inner
    most, nbytes = max(ih * iw, oh * iw, oh * ow), ow * dst.desc.itemsize
    rows = ((dst.desc, ow), (src.desc, iw))
    if (
        not images.is_dense
        or any(strides_of(desc)[1] not in (0, n * desc.itemsize) for desc, n in rows)
        or inner >= BEST.lanes
        or most > MOST_SUMMED
        or max(images.rows.taps, images.pixels.taps) > MOST_TAPS
    ):
        return None
    count, nest = 1, images.nest
    if nest.loops and nest.loops[-1].strides == (oh * ow, ih * iw) and images.planes.outputs == 1:
        extent = nest.loops[-1].extent
        count = _count(extent, _MOST_ITEM // most, oh * nbytes)
        loop = Loop(extent // count, (count * oh * ow, count * ih * iw))
        nest = Nest(nest.offsets, (*nest.loops[:-1], loop))
    first, along = None, Padded.same(count).joined(images.rows.padded(), ih)
    if images.sums_first and not images.is_copy:
        first = _summed_rows(images, along, iw, count * ih * iw)
        if first is None:
            return None
        src, along, ih = src.seen_as(src.desc.with_data_type("f32")), Padded.same(count * oh), oh
    elif images.rows.taps * images.pixels.taps > MOST_TAPS:
        return None
    run = _run(along, ow, iw, nbytes)
    step, steps = along.step(run), along.outputs // run
    across = images.pixels.padded().joined(Padded.same(inner), inner)
    stage = permuted(
        along.first(run).joined(across, iw), dst, src, iw * (count * ih - step * (steps - 1)),
        steps, (step * iw * src.desc.itemsize, run * nbytes),
        is_copy=images.is_copy, is_single=first is not None,
    )  # fmt: skip
    if stage is None:
        return None
    if images.streams(run * nbytes):
        stage = stage.streaming(in_order=True)
    return replace(images, nest=nest).step(stage, first, ONE)


def _summed_rows(images: Images, along: Padded, width: int, inputs: int) -> Stage | None:
    """Return a stage that sums rows of `width` elements."""
    src, is_single = images.src, images.planes.is_copy
    row = src.seen_as(src.desc.with_data_type("f32"))
    if width >= BEST.lanes and along.weights.all():
        if not is_single:  # single rows are as fast, because planes are a loop for each row
            return None
        moves = width * src.desc.itemsize, width * row.desc.itemsize
        return in_pixels(along, row, src, width, moves, is_single=is_single)
    taps = along.joined(Padded.same(width), width)
    return permuted(taps, row, src, inputs, 1, (0, 0), is_single=is_single)


def _count(extent: int, most: int, nbytes: int) -> int:
    """Return the number of images of an item, a divisor of `extent`. It prefers whole lines."""
    counts = [n for n in range(1, min(extent, most) + 1) if extent % n == 0]
    return max(counts, key=lambda n: (n * nbytes % LINE == 0, n), default=1)


def _run(along: Padded, ow: int, iw: int, nbytes: int) -> int:
    """Return the number of rows of a step: few whose vectors and cache lines are full."""

    def score(run: int) -> tuple[bool, bool, bool, int]:
        empty = -run * ow % BEST.lanes
        return run * iw < BEST.lanes, run * nbytes % LINE != 0, 10 * empty > run * ow, run

    rows = along.outputs
    runs = [n for n in range(1, rows) if rows % n == 0 and along.step(n)]
    return min([*runs, rows], key=score)
