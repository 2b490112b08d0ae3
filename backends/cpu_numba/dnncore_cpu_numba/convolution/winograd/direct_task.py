"""Direct sums of elements whose Winograd sums are not finite.

Intermediate values of Winograd's algorithm overflow f32 before direct sums do. The taps are
computed from the transformed weights, because the program may have no other weights. The sums are
computed in f64.
"""

from __future__ import annotations

import math

from dnncore.planning.toom_cook import F43, TAPS
from dnncore_cpu_numba.codegen.pointers import load_f32, store_f32
from dnncore_cpu_numba.codegen.task import device, native_function
from dnncore_cpu_numba.convolution.winograd.task import WINOGRAD
from dnncore_cpu_numba.convolution.winograd.transforms import DIRECT_CALL, OUTPUTS, POSITIONS, SPAN

FIRST, MIDDLE = float(F43.taps[0][0]), float(F43.taps[1][1])


@native_function(DIRECT_CALL)
def direct_sums(loop, tile, vector, row, columns, pixels):
    """Replace elements that are not finite in `columns` pixels. A pixel is a vector of channels."""
    params = WINOGRAD.at(loop)
    lanes = params.lane_bytes // 4
    for column in range(columns):
        for lane in range(lanes):
            place = column * lanes + lane
            if not math.isfinite(load_f32(pixels, place)):
                store_f32(pixels, place, _sum(params, tile, vector, lane, row, column))


@device
def _sum(params, tile, vector, lane, row, column):
    """Return the direct sum of an element."""
    across, down = params.tiles_across, params.tiles_down
    lanes = params.lane_bytes // 4
    y = tile // across % down * OUTPUTS - params.top + row
    x = tile % across * OUTPUTS - params.left + column
    image = params.src + tile // (across * down) * params.src_batch
    filters = params.weights + vector * POSITIONS * params.depth * params.lane_bytes + 4 * lane
    total = 0.0
    for k in range(params.depth):
        channel = image + k // lanes * params.src_step + k % lanes * 4
        for r in range(max(0, -y), min(TAPS, params.height - y)):
            for s in range(max(0, -x), min(TAPS, params.width - x)):
                pixel = channel + (y + r) * params.src_row + (x + s) * params.src_pixel
                points = filters + k * params.lane_bytes
                plane = params.depth * params.lane_bytes
                tap = _tap(points, plane, r, s)
                total += tap * load_f32(pixel, 0)
        if math.isnan(total):
            break
    return total


@device
def _tap(points, plane, r, s):
    """Return a tap of the weights, computed from their values at the points."""
    if r == 1:
        return MIDDLE * (_of_row(points, plane, 1, s) - _of_row(points, plane, 2, s))
    if r == 0:
        return FIRST * _of_row(points, plane, 0, s)
    return _of_row(points, plane, SPAN - 1, s)


@device
def _of_row(points, plane, row, s):
    """Return tap s of a row, computed from the values at the points of the row."""
    first = points + row * SPAN * plane
    if s == 1:
        return MIDDLE * (load_f32(first + plane, 0) - load_f32(first + 2 * plane, 0))
    if s == 0:
        return FIRST * load_f32(first, 0)
    return load_f32(first + (SPAN - 1) * plane, 0)
