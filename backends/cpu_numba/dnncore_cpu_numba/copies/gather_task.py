"""The task behind all copies between layouts; `copies/gather.py` plans them.

Each axis has tables of places; along the inner two of them, vectors are moved. The inner axis is
copied in units, in one of these modes:

ALONG       the unit is evenly spaced on both sides
ACROSS      it is contiguous in the target, and the middle axis is contiguous in the source: blocks
            are transposed in registers
SCATTERED   neither: element by element
"""

from __future__ import annotations

import numpy as np

from dnncore_cpu_numba.codegen.pointers import load_f32, load_i64, store_f32
from dnncore_cpu_numba.codegen.task import device, task
from dnncore_cpu_numba.copies.blocks import WIDTH, copy_vector, transpose_block

__all__ = ["ACROSS", "ALONG", "SCATTERED", "copy"]

ALONG, ACROSS, SCATTERED = range(3)
UNITS = 8  # of a row that are copied before the next row, where rows are contiguous

# The slots of the task's parameters: these, then those of each axis, innermost first.
(
    SOURCE, TARGET, MODE, UNIT, STEP_FROM, STEP_TO, MIDDLE_STRETCH, MIDDLE_STEP_TO, OUTER_AXES,
    FIRST_AXIS,
) = range(10)  # fmt: skip
SOURCE_PLACES, TARGET_PLACES, EXTENT, START, STOP, SLOTS = range(6)
INNER, MIDDLE, OUTER = (8 * (FIRST_AXIS + i * SLOTS) for i in range(3))  # in bytes


@task
def copy(params, begin, end):
    """Copy the rows [begin, end); a row runs along the inner axis."""
    middle = load_i64(params + MIDDLE, EXTENT)
    row = begin
    while row < end:
        outer = row // middle
        until = min(end - outer * middle, middle)
        source = load_i64(params, SOURCE)
        target = load_i64(params, TARGET)
        inside = True
        index = outer
        for i in range(load_i64(params, OUTER_AXES)):
            axis = params + OUTER + 8 * SLOTS * i
            place = index % load_i64(axis, EXTENT)
            index //= load_i64(axis, EXTENT)
            inside, source = _enter(axis, place, inside, source)
            target += 4 * load_i64(load_i64(axis, TARGET_PLACES), place)
        _copy_rows(params, inside, source, target, row - outer * middle, until)
        row = outer * middle + until


@device
def _enter(axis, index, inside, source):
    """Move the source's address to an index of an axis, if it has that index."""
    start = load_i64(axis, START)
    inside = inside and start <= index and index < load_i64(axis, STOP)
    if inside:
        source += 4 * load_i64(load_i64(axis, SOURCE_PLACES), index - start)
    return inside, source


@device
def _copy_rows(params, inside, source, target, begin, end):
    """Copy some rows of one outer index, a few units at a time."""
    size = load_i64(params + INNER, EXTENT)
    low = load_i64(params + INNER, START)
    high = load_i64(params + INNER, STOP)
    sources = load_i64(params + INNER, SOURCE_PLACES) - 8 * low
    targets = load_i64(params + INNER, TARGET_PLACES)
    rows_of_target = load_i64(params + MIDDLE, TARGET_PLACES)
    mode = load_i64(params, MODE)
    unit = load_i64(params, UNIT)
    step_from = load_i64(params, STEP_FROM)
    step_to = load_i64(params, STEP_TO)
    across = 4 * load_i64(params, MIDDLE_STEP_TO)
    width = unit if mode == ACROSS else UNITS * unit
    for group in range(0, size, width):
        row = begin
        while row < end:
            is_in, start = _enter(params + MIDDLE, row, inside, source)
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
    """Whether `WIDTH` indices of the middle axis from here on are there and evenly spaced."""
    stretch = load_i64(params, MIDDLE_STRETCH)
    until = min(end, load_i64(params + MIDDLE, STOP))
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
    """Copy elements by their places."""
    for i in range(first, last):
        store_f32(target, load_i64(targets, i), load_f32(source, load_i64(sources, i)))


@device
def _copy_edge(params, inside, source, target, first, last):
    """Copy that part of a unit which the source has; the rest is zero."""
    start = load_i64(params + INNER, START)
    sources = load_i64(params + INNER, SOURCE_PLACES) - 8 * start
    targets = load_i64(params + INNER, TARGET_PLACES)
    low = min(max(start, first), last)
    high = max(min(load_i64(params + INNER, STOP), last), low) if inside else low
    for i in range(first, low):
        store_f32(target, load_i64(targets, i), np.float32(0))
    if high > low and load_i64(params, MODE) == ALONG:
        origin = source + 4 * load_i64(sources, low)
        out = target + 4 * load_i64(targets, low)
        _copy_evenly(
            origin, load_i64(params, STEP_FROM), out, load_i64(params, STEP_TO), high - low
        )
    else:
        _copy_scattered(source, sources, target, targets, low, high)
    for i in range(high, last):
        store_f32(target, load_i64(targets, i), np.float32(0))
