"""Sums column matrices into images: each pixel is the sum of its elements in all windows."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dnncore_cpu_numba.codegen.call_schema import Many, Record
from dnncore_cpu_numba.codegen.pointers import load_f32, load_f64, store_f32, store_f64
from dnncore_cpu_numba.codegen.task import device, task
from dnncore_cpu_numba.convolution.geometry import Geometry
from dnncore_cpu_numba.runtime.program import Param, Step


def col2im_step(
    columns: Param, image: Param, strides: Sequence[int], geometry: Geometry, images: int,
    data_type: str = "f32",
) -> Step:  # fmt: skip
    """Return a step that sums columns into an image.

    Columns are (n, channel, tap, pixel), row-major. The image is (n, channel, D, H, W). strides: of
    the image, in elements. data_type: f32 or f64. The order of additions is fixed.
    """
    g = geometry
    channels = g.groups * g.ic
    batch_stride, channel_stride, *pixel_strides = strides
    values = {
        "columns": columns, "image": image, "wide": data_type == "f64", "channels": channels,
        "pixels": math.prod(g.dst),
        "batch_stride": batch_stride, "channel_stride": channel_stride, "strides": pixel_strides,
        "src": g.src, "dst": g.dst, "kernel": g.kernel, "stride": g.stride,
        "dilation": g.dilation, "padding": g.padding,
    }  # fmt: skip
    return Step(col2im, values, images * channels)


D, H, W = 0, 1, 2


@task(Record(
    "col2im",
    ("columns image", "address"),
    ("wide", "flag", "elements are f64"),
    ("channels pixels", "count", "of all groups, of dst"),
    ("batch_stride channel_stride", "elements"),
    ("strides", Many("elements", 3), "of the image, along D, H and W"),
    ("src dst kernel stride dilation padding", Many("count", 3), "see `Geometry`"),
))  # fmt: skip
def col2im(params, begin, end):
    """Compute the planes [begin, end). A plane is one channel of one image."""
    channels = params.channels
    taps = params.kernel[D] * params.kernel[H] * params.kernel[W]
    pixels = params.pixels
    size = 8 if params.wide else 4
    for plane in range(begin, end):
        image = params.image + size * (
            plane // channels * params.batch_stride + plane % channels * params.channel_stride
        )
        _fill_zero(params, image)
        for tap in range(taps):
            column = params.columns + size * pixels * (plane * taps + tap)
            _add_tap(params, image, column, tap)


@device
def _fill_zero(params, image):
    step = params.strides[W]
    size = 8 if params.wide else 4
    for z in range(params.src[D]):
        for y in range(params.src[H]):
            row = image + size * (z * params.strides[D] + y * params.strides[H])
            for x in range(params.src[W]):
                if params.wide:
                    store_f64(row, x * step, 0.0)
                else:
                    store_f32(row, x * step, 0.0)


@device
def _add_tap(params, image, column, tap):
    """Add the pixels of one tap that are inside the image."""
    kernel_h = params.kernel[H]
    kernel_w = params.kernel[W]
    front, z_first, z_last = _span(params, D, tap // kernel_w // kernel_h)
    top, y_first, y_last = _span(params, H, tap // kernel_w % kernel_h)
    left, x_first, x_last = _span(params, W, tap % kernel_w)
    step = params.strides[W]
    across = params.stride[W] * step
    size = 8 if params.wide else 4
    for z in range(z_first, z_last):
        plane = (front + z * params.stride[D]) * params.strides[D]
        for y in range(y_first, y_last):
            line = (top + y * params.stride[H]) * params.strides[H]
            row = image + size * (plane + line + left * step)
            source = column + size * params.dst[W] * (z * params.dst[H] + y)
            for x in range(x_first, x_last):
                if params.wide:
                    store_f64(row, x * across, load_f64(row, x * across) + load_f64(source, x))
                else:
                    store_f32(row, x * across, load_f32(row, x * across) + load_f32(source, x))


@device
def _span(params, dim, tap):
    """Return the position of a tap in window 0, and the windows that have it in the image."""
    stride = params.stride[dim]
    place = tap * params.dilation[dim] - params.padding[dim]
    first = max(0, -(place // stride))
    last = min(params.dst[dim], (params.src[dim] - 1 - place) // stride + 1)
    return place, first, last
