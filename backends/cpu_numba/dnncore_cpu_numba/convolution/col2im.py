"""From a column matrix back to an image: each pixel sums what its windows computed for it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dnncore_cpu_numba.codegen.pointers import load_f32, load_i64, store_f32
from dnncore_cpu_numba.codegen.task import device, task
from dnncore_cpu_numba.convolution.geometry import Geometry
from dnncore_cpu_numba.runtime.program import Param, Step

__all__ = ["col2im_step"]


def col2im_step(
    columns: Param, image: Param, strides: Sequence[int], geometry: Geometry, images: int
) -> Step:
    """Add up columns (n, channel, tap, pixel), row-major, into an image (n, channel, D, H, W).

    strides: of the image, in elements. The order of additions is fixed.
    """
    g = geometry
    channels = g.groups * g.ic
    params = [columns, image, channels, math.prod(g.dst), *strides]
    for triple in (g.src, g.dst, g.kernel, g.stride, g.dilation, g.padding):
        params += triple
    return Step(col2im, params, images * channels)


# The slots of the task's parameters; those from STRIDES on are one per dim, depth first.
COLUMNS, IMAGE, CHANNELS, PIXELS, BATCH_STRIDE, CHANNEL_STRIDE, STRIDES = range(7)
SRC, DST, KERNEL, STRIDE, DILATION, PADDING = range(STRIDES + 3, STRIDES + 21, 3)
D, H, W = range(3)


@task
def col2im(params, begin, end):
    """Sum up the planes [begin, end); a plane is one channel of one image."""
    channels = load_i64(params, CHANNELS)
    taps = (
        load_i64(params, KERNEL + D) * load_i64(params, KERNEL + H) * load_i64(params, KERNEL + W)
    )
    pixels = load_i64(params, PIXELS)
    for plane in range(begin, end):
        image = load_i64(params, IMAGE) + 4 * (
            plane // channels * load_i64(params, BATCH_STRIDE)
            + plane % channels * load_i64(params, CHANNEL_STRIDE)
        )
        _fill_zero(params, image)
        for tap in range(taps):
            column = load_i64(params, COLUMNS) + 4 * pixels * (plane * taps + tap)
            _add_tap(params, image, column, tap)


@device
def _fill_zero(params, image):
    step = load_i64(params, STRIDES + W)
    for z in range(load_i64(params, SRC + D)):
        for y in range(load_i64(params, SRC + H)):
            row = image + 4 * (
                z * load_i64(params, STRIDES + D) + y * load_i64(params, STRIDES + H)
            )
            for x in range(load_i64(params, SRC + W)):
                store_f32(row, x * step, 0.0)


@device
def _add_tap(params, image, column, tap):
    """Add the pixels of one tap where they lie inside the image."""
    kernel_h = load_i64(params, KERNEL + H)
    kernel_w = load_i64(params, KERNEL + W)
    front, z_first, z_last = _span(params, D, tap // kernel_w // kernel_h)
    top, y_first, y_last = _span(params, H, tap // kernel_w % kernel_h)
    left, x_first, x_last = _span(params, W, tap % kernel_w)
    step = load_i64(params, STRIDES + W)
    across = load_i64(params, STRIDE + W) * step
    for z in range(z_first, z_last):
        plane = (front + z * load_i64(params, STRIDE + D)) * load_i64(params, STRIDES + D)
        for y in range(y_first, y_last):
            line = (top + y * load_i64(params, STRIDE + H)) * load_i64(params, STRIDES + H)
            row = image + 4 * (plane + line + left * step)
            source = column + 4 * load_i64(params, DST + W) * (z * load_i64(params, DST + H) + y)
            for x in range(x_first, x_last):
                store_f32(row, x * across, load_f32(row, x * across) + load_f32(source, x))


@device
def _span(params, dim, tap):
    """Where window 0 has this tap, and the first and end of the windows that have it inside."""
    stride = load_i64(params, STRIDE + dim)
    place = tap * load_i64(params, DILATION + dim) - load_i64(params, PADDING + dim)
    first = max(0, -(place // stride))
    last = min(load_i64(params, DST + dim), (load_i64(params, SRC + dim) - 1 - place) // stride + 1)
    return place, first, last
