"""The task of `copies/gather.py`: copies f32 by tables of places.

Vectors are copied along the two innermost axes. The inner axis is copied in units, in one of these
modes:

ALONG       a unit is evenly spaced in source and target
ACROSS      a unit is contiguous in the target, and the middle axis is contiguous in the source:
            blocks are transposed in registers
SCATTERED   otherwise: element by element
"""

from __future__ import annotations

import numpy as np

from dnncore_cpu_numba.codegen.call_schema import Many, Record
from dnncore_cpu_numba.codegen.pointers import load_f32, load_i64, store_f32
from dnncore_cpu_numba.codegen.task import device, task
from dnncore_cpu_numba.copies.intrinsics import WIDTH, copy_vector, transpose_block

ALONG, ACROSS, SCATTERED = 0, 1, 2
UNITS = 8  # units of a row that are copied before the next row; not in mode ACROSS

AXIS = Record(
    "axis of a copy",
    ("source target", "address", "of tables of places in elements"),
    ("extent", "count"),
    ("start stop", "index", "those that the source has"),
)


@task(Record(
    "copy",
    ("source target", "address"),
    ("mode", "index"),
    ("unit", "count", "of the inner axis"),
    ("step_from step_to", "elements", "from place to place of a unit"),
    ("middle_stretch", "count", "of the middle axis that are evenly spaced"),
    ("middle_step_to", "elements"),
    ("outer_axes", "count"),
    ("inner middle", AXIS),
    ("outer", Many(AXIS), "innermost first"),
))  # fmt: skip
def copy(params, begin, end):
    """Copy the rows [begin, end). A row runs along the inner axis."""
    middle = params.middle.extent
    row = begin
    while row < end:
        outer = row // middle
        until = min(end - outer * middle, middle)
        source = params.source
        target = params.target
        inside = True
        index = outer
        for i in range(params.outer_axes):
            axis = params.outer[i]
            place = index % axis.extent
            index //= axis.extent
            inside, source = _enter(axis, place, inside, source)
            target += 4 * load_i64(axis.target, place)
        _copy_rows(params, inside, source, target, row - outer * middle, until)
        row = outer * middle + until


@device
def _enter(axis, index, inside, source):
    """Move the source address to an index of an axis if the source has that index."""
    start = axis.start
    inside = inside and start <= index and index < axis.stop
    if inside:
        source += 4 * load_i64(axis.source, index - start)
    return inside, source


@device
def _copy_rows(params, inside, source, target, begin, end):
    """Copy some rows of one outer index, a few units at a time."""
    inner = params.inner
    size, low, high = inner.extent, inner.start, inner.stop
    sources = inner.source - 8 * low
    targets = inner.target
    rows_of_target = params.middle.target
    mode, unit = params.mode, params.unit
    step_from, step_to = params.step_from, params.step_to
    across = 4 * params.middle_step_to
    width = unit if mode == ACROSS else UNITS * unit
    for group in range(0, size, width):
        row = begin
        while row < end:
            is_in, start = _enter(params.middle, row, inside, source)
            to_row = target + 4 * load_i64(rows_of_target, row)
            block = mode == ACROSS and is_in and _is_block(params, row, end)
            for first in range(group, min(group + width, size), unit):
                last = min(first + unit, size)
                if not is_in or first < low or last > high:
                    for i in range(WIDTH if block else 1):
                        _copy_edge(params, is_in, start + 4 * i, to_row + across * i, first, last)
                elif mode == ALONG:
                    origin = start + 4 * load_i64(sources, first)
                    out = to_row + 4 * load_i64(targets, first)
                    _copy_evenly(origin, step_from, out, step_to, last - first)
                elif block:
                    out = to_row + 4 * load_i64(targets, first)
                    _transpose(start, sources + 8 * first, out, across, last - first)
                else:
                    _copy_scattered(start, sources, to_row, targets, first, last)
            row += WIDTH if block else 1


@device
def _is_block(params, row, end):
    """Whether the next `WIDTH` indices of the middle axis exist and are evenly spaced."""
    stretch = params.middle_stretch
    until = min(end, params.middle.stop)
    return row + WIDTH <= until and row % stretch + WIDTH <= stretch


@device
def _transpose(source, sources, target, across, length):
    """Copy a unit of `WIDTH` rows whose sources are contiguous across the rows."""
    done = 0
    while done + WIDTH <= length:
        transpose_block(source, sources + 8 * done, target + 4 * done, across)
        done += WIDTH
    for i in range(WIDTH):
        for j in range(done, length):
            value = load_f32(source + 4 * i, load_i64(sources, j))
            store_f32(target + across * i, j, value)


@device
def _copy_evenly(source, step_from, target, step_to, length):
    """Copy evenly spaced elements."""
    done = 0
    if step_from == 1 and step_to == 1:
        while done + WIDTH <= length:
            copy_vector(source + 4 * done, target + 4 * done)
            done += WIDTH
    for i in range(done, length):
        store_f32(target, i * step_to, load_f32(source, i * step_from))


@device
def _copy_scattered(source, sources, target, targets, first, last):
    """Copy elements by tables of places."""
    for i in range(first, last):
        store_f32(target, load_i64(targets, i), load_f32(source, load_i64(sources, i)))


@device
def _copy_edge(params, inside, source, target, first, last):
    """Copy the part of a unit that is in the source, and write zeros to the rest."""
    inner = params.inner
    start = inner.start
    sources = inner.source - 8 * start
    targets = inner.target
    low = min(max(start, first), last)
    high = max(min(inner.stop, last), low) if inside else low
    for i in range(first, low):
        store_f32(target, load_i64(targets, i), np.float32(0))
    if high > low and params.mode == ALONG:
        origin = source + 4 * load_i64(sources, low)
        out = target + 4 * load_i64(targets, low)
        _copy_evenly(origin, params.step_from, out, params.step_to, high - low)
    else:
        _copy_scattered(source, sources, target, targets, low, high)
    for i in range(high, last):
        store_f32(target, load_i64(targets, i), np.float32(0))
