"""The native loops of normalizations of sets that lie in one piece of memory, see `rows/whole.py`.

A set is read once and stays in the cache, while its statistics, the results and its share of the
gradients of scale and shift are computed. It consists of runs. Scale and shift have one number per
element of a run, or one per run.
"""

from __future__ import annotations

import numpy as np

from dnncore_cpu_numba.codegen.call_schema import Record
from dnncore_cpu_numba.codegen.nontemporal import ROWS_AHEAD, prefetch, stream_row
from dnncore_cpu_numba.codegen.pointers import load_f32, load_f64, stack, store_f32, store_f64
from dnncore_cpu_numba.codegen.task import device, exact, task
from dnncore_cpu_numba.rows.apply_kernel import APPLY_AHEAD, APPLY_CALL
from dnncore_cpu_numba.rows.gradient_kernel import GRADIENT_CALL, TOGETHER
from dnncore_cpu_numba.rows.sums_kernel import SUMS_AHEAD, SUMS_CALL

CHUNK = 2048  # elements whose sums are f32; sums of chunks are f64
JOINED = 256  # elements of scale whose parts are added up at once
SAMPLE = 64  # first elements of a row whose average serves as mean
FAR = 1.25  # an average is far off if it has four fifths of the squares of deviations
_ROOM = CHUNK // 2
_FEW = TOGETHER // 2
BLOCK = 1 << 14  # most elements of several rows that are differentiated together
_AHEAD = 1024  # most bytes of the next set that are prefetched
NEXT_ROW = 1 << 14  # most bytes of a row that is prefetched while results of the last are written
NEXT_ROWS = 1 << 16  # the same for gradients
ZERO = np.float32(0)

SETS = Record(
    "whole sets",
    ("x diff y", "address", "of the first set; f32; diff is 0 forward"),
    ("mean variance factor", "address", "per set; f32; forward writes the first two"),
    ("weight shift", "address", "f32"),
    ("runs count", "count", "of a set, and elements of each"),
    ("groups", "count", "sets after which scale and shift repeat"),
    ("centred streamed", "flag"),
    ("epsilon", "float32"),
    ("sets parts", "count"),
    ("sums", "address", "per part: gradients of shift, then of scale; f32"),
    ("vector", "count", "elements of scale"),
)


@device
def _sum(x, count):
    total = ZERO
    for i in range(count):
        total += load_f32(x, i)
    return total


@device
def _moments(x, mean, count):
    off, squares = ZERO, ZERO
    for i in range(count):
        deviation = load_f32(x, i) - mean
        off += deviation
        squares += deviation * deviation
    return off, squares


@exact
def _statistics(x, size, centred):
    """Return average and variance of a set; squares are of deviations from a rounded average."""
    total, off, squares = 0.0, 0.0, 0.0
    if centred != 0:
        for start in range(0, size, CHUNK):
            total += np.float64(_sum(x + 4 * start, min(CHUNK, size - start)))
    mean = np.float32(total / size)
    for start in range(0, size, CHUNK):
        one, two = _moments(x + 4 * start, mean, min(CHUNK, size - start))
        off += np.float64(one)
        squares += np.float64(two)
    if centred == 0:
        return 0.0, squares / size
    rest = off / size
    return np.float64(mean) + rest, max(squares / size - rest * rest, 0.0)


@device
def _run(x, weight, shift, place, centre, factor, count):
    own, rest = factor * load_f32(weight, 0), load_f32(shift, 0)
    for i in range(count):
        store_f32(place, i, (load_f32(x, i) - centre) * own + rest)


ROWS = Record(
    "whole rows",
    ("x y", "address", "of the first row"),
    ("x_size y_size", "bytes", "of an element"),
    ("mean variance", "address", "per row; f32; written"),
    ("weight shift", "address", "f32"),
    ("count", "count", "elements of a row"),
    ("centred", "flag"),
    ("epsilon", "float32"),
    ("plain deviations", "address", "`SUMS_CALL` of rows"),
    ("apply", "address", "`APPLY_CALL`"),
)


@exact
def _statistics_of(params, x, room):
    """Return average and variance of a row; squares are of deviations from a rounded average.

    The average of the first elements serves at first. If it is far off, sums are computed again.
    """
    count, step = params.count, params.x_size * CHUNK
    mean, off, squares, times = np.float32(0), 0.0, 0.0, 1
    if params.centred != 0:
        few = min(count, SAMPLE)
        SUMS_CALL.call(
            params.plain, y=0, x=x, diff=0, mask=0, y_row=0, x_row=0, diff_row=0, mask_row=0,
            rows=1, columns=few, means=room, sums=room + 8, ahead=SUMS_AHEAD,
        )  # fmt: skip
        mean, times = load_f32(room, 2) / np.float32(few), 2
    while times > 0:
        store_f32(room, 0, mean)
        off, squares = 0.0, 0.0
        for start in range(0, count, CHUNK):
            SUMS_CALL.call(
                params.deviations, y=0, x=x + params.x_size * start, diff=0, mask=0, y_row=0,
                x_row=step, diff_row=0, mask_row=0, rows=1, columns=min(CHUNK, count - start),
                means=room, sums=room + 8, ahead=SUMS_AHEAD,
            )  # fmt: skip
            off += np.float64(load_f32(room, 2))
            squares += np.float64(load_f32(room, 3))
        rest = off / count
        times -= 1
        if times > 0:
            if FAR * off * rest > squares:
                mean = np.float32(np.float64(mean) + rest)
            else:
                times = 0
    if params.centred == 0:
        return 0.0, squares / count
    rest = off / count
    return np.float64(mean) + rest, max(squares / count - rest * rest, 0.0)


@task(ROWS)
def normalize_rows(params, begin, end):
    """Normalize rows whose elements have their own scale and shift."""
    room, ahead = stack(4), params.x_size * params.count
    if ahead > NEXT_ROW:
        ahead = APPLY_AHEAD
    row = params.y_size * params.count
    for item in range(begin, end):
        x, y = params.x + params.x_size * params.count * item, params.y + row * item
        mean, variance = _statistics_of(params, x, room)
        store_f32(params.mean, item, np.float32(mean))
        store_f32(params.variance, item, np.float32(variance))
        store_f32(room, 0, np.float32(mean))
        root = np.sqrt(variance + np.float64(params.epsilon))
        store_f32(room, 1, np.float32(1.0 / root))
        APPLY_CALL.call(
            params.apply, y=y, x=x, other=0, mask=0, y_row=row, x_row=0, other_row=0, mask_row=0,
            rows=1, columns=params.count, mean=room, slope=room + 4, share=params.weight,
            rest=params.shift, weight=0, step=0, ahead=ahead,
        )  # fmt: skip


@task(SETS)
def normalize_runs(params, begin, end):
    """Normalize sets of runs."""
    runs, count = params.runs, params.count
    size = runs * count
    room = stack(_ROOM)
    for item in range(begin, end):
        x, y = params.x + 4 * item * size, params.y + 4 * item * size
        prefetch(x + 4 * size, min(4 * size, _AHEAD))
        mean, variance = _statistics(x, size, params.centred)
        store_f32(params.mean, item, np.float32(mean))
        store_f32(params.variance, item, np.float32(variance))
        factor = np.float32(1.0 / np.sqrt(variance + np.float64(params.epsilon)))
        channel = item % params.groups * runs
        for run in range(runs):
            own = 4 * (channel + run)
            if params.streamed != 0:
                prefetch(y + 4 * count * (run + ROWS_AHEAD), 1)
            for start in range(run * count, (run + 1) * count, CHUNK):
                width = min(CHUNK, (run + 1) * count - start)
                source, target = x + 4 * start, y + 4 * start
                place = room if params.streamed != 0 else target
                _run(
                    source, params.weight + own, params.shift + own, place, np.float32(mean),
                    factor, width,
                )  # fmt: skip
                if params.streamed != 0:
                    stream_row(room, target, width)


@device
def _per_run(x, diff, weight, of_shift, of_scale, mean, factor, count):
    """Add to the gradients of shift and scale, which are one number each; return both sums."""
    total, product = ZERO, ZERO
    for i in range(count):
        d = load_f32(diff, i)
        total += d
        product += d * ((load_f32(x, i) - mean) * factor)
    store_f32(of_shift, 0, load_f32(of_shift, 0) + total)
    store_f32(of_scale, 0, load_f32(of_scale, 0) + product)
    own = load_f32(weight, 0)
    return total * own, product * own


@device
def _run_of_gradient(x, diff, weight, place, mean, average, slope, factor, count):
    own = load_f32(weight, 0)
    for i in range(count):
        taken = average + (load_f32(x, i) - mean) * slope
        store_f32(place, i, (load_f32(diff, i) * own - taken) * factor)


@task(SETS)
def differentiate_runs(params, begin, end):
    """Compute all gradients of some parts of sets of runs."""
    runs, count, vector = params.runs, params.count, params.vector
    size = runs * count
    room = stack(_ROOM)
    for part in range(begin, end):
        of_shift = params.sums + 8 * part * vector
        of_scale = of_shift + 4 * vector
        for i in range(2 * vector):
            store_f32(of_shift, i, ZERO)
        first = params.sets * part // params.parts
        for item in range(first, params.sets * (part + 1) // params.parts):
            place = 4 * item * size
            x, diff, y = params.x + place, params.diff + place, params.y + place
            prefetch(x + 4 * size, min(4 * size, _AHEAD))
            prefetch(diff + 4 * size, min(4 * size, _AHEAD))
            mean, factor = load_f32(params.mean, item), load_f32(params.factor, item)
            channel = item % params.groups * runs
            total, product = 0.0, 0.0
            for run in range(runs):
                own = 4 * (channel + run)
                for start in range(run * count, (run + 1) * count, CHUNK):
                    one, two = _per_run(
                        x + 4 * start, diff + 4 * start, params.weight + own, of_shift + own,
                        of_scale + own, mean, factor, min(CHUNK, (run + 1) * count - start),
                    )  # fmt: skip
                    total += np.float64(one)
                    product += np.float64(two)
            average, slope = np.float32(total / size), np.float32(product / size) * factor
            for run in range(runs):
                own = 4 * (channel + run)
                if params.streamed != 0:
                    prefetch(y + 4 * count * (run + ROWS_AHEAD), 1)
                for start in range(run * count, (run + 1) * count, CHUNK):
                    width = min(CHUNK, (run + 1) * count - start)
                    target = y + 4 * start
                    result = room if params.streamed != 0 else target
                    _run_of_gradient(
                        x + 4 * start, diff + 4 * start, params.weight + own, result, mean,
                        average, slope, factor, width,
                    )  # fmt: skip
                    if params.streamed != 0:
                        stream_row(room, target, width)


GRADIENTS = Record(
    "gradients of whole rows",
    ("x diff y", "address", "of the first row"),
    ("x_size diff_size y_size", "bytes", "of an element"),
    ("mean factor", "address", "per row; f32"),
    ("weight", "address", "f32"),
    ("count", "count", "elements of a row"),
    ("centred", "flag"),
    ("sets parts", "count"),
    ("sums", "address", "per part: gradients of shift, then of scale; f32"),
    ("gradient", "address", "`GRADIENT_CALL`"),
    ("apply", "address", "`APPLY_CALL`"),
)


@task(GRADIENTS)
def differentiate_rows(params, begin, end):
    """Compute all gradients of some parts of rows whose elements have their own scale."""
    count, x_row = params.count, params.x_size * params.count
    diff_row, y_row = params.diff_size * count, params.y_size * count
    means, factors, slopes, rests = stack(_FEW), stack(_FEW), stack(_FEW), stack(_FEW)
    results, totals = stack(2 * _FEW), stack(2 * TOGETHER)
    most = max(1, min(TOGETHER, BLOCK // count))
    ahead = most * x_row
    if ahead > NEXT_ROWS:
        ahead = APPLY_AHEAD
    for part in range(begin, end):
        of_shift = params.sums + 8 * part * count
        of_scale = of_shift + 4 * count
        for i in range(2 * count):
            store_f32(of_shift, i, ZERO)
        last = params.sets * (part + 1) // params.parts
        for first in range(params.sets * part // params.parts, last, most):
            rows = min(most, last - first)
            x, diff = params.x + x_row * first, params.diff + diff_row * first
            for i in range(rows):
                mean = load_f32(params.mean, first + i) if params.centred != 0 else ZERO
                store_f32(means, i, mean)
                store_f32(factors, i, load_f32(params.factor, first + i))
            for i in range(2 * rows):
                store_f64(totals, i, 0.0)
            for start in range(0, count, CHUNK):
                own = 4 * start
                GRADIENT_CALL.call(
                    params.gradient, x=x + params.x_size * start,
                    diff=diff + params.diff_size * start, x_row=x_row, diff_row=diff_row,
                    rows=rows, columns=min(CHUNK, count - start), means=means, factors=factors,
                    weight=params.weight + own, shift=of_shift + own, scale=of_scale + own,
                    sums=results,
                )  # fmt: skip
                for i in range(2 * rows):
                    store_f64(totals, i, load_f64(totals, i) + np.float64(load_f32(results, i)))
            for i in range(rows):
                average = load_f64(totals, i) / count if params.centred != 0 else 0.0
                factor = np.float64(load_f32(factors, i))
                product = load_f64(totals, rows + i) * factor / count
                store_f32(slopes, i, np.float32(-product * factor))
                store_f32(rests, i, np.float32(-average))
            APPLY_CALL.call(
                params.apply, y=params.y + y_row * first, x=x, other=diff, mask=0, y_row=y_row,
                x_row=x_row, other_row=diff_row, mask_row=0, rows=rows, columns=count,
                mean=means, slope=slopes, share=factors, rest=rests, weight=params.weight, step=4,
                ahead=ahead,
            )  # fmt: skip


PARTS = Record(
    "sums of parts", ("sums", "address"), ("parts vector", "count"), ("shift scale", "address")
)


@task(PARTS)
def join_parts(params, begin, end):
    """Add up the sums of all parts for some elements of shift and scale."""
    vector = params.vector
    totals, others = stack(JOINED), stack(JOINED)
    for start in range(begin, end, JOINED):
        count = min(JOINED, end - start)
        for i in range(count):
            store_f64(totals, i, 0.0)
            store_f64(others, i, 0.0)
        for part in range(params.parts):
            shift = params.sums + 8 * part * vector + 4 * start
            scale = shift + 4 * vector
            for i in range(count):
                store_f64(totals, i, load_f64(totals, i) + np.float64(load_f32(shift, i)))
            for i in range(count):
                store_f64(others, i, load_f64(others, i) + np.float64(load_f32(scale, i)))
        for i in range(count):
            store_f32(params.shift, start + i, np.float32(load_f64(totals, i)))
            store_f32(params.scale, start + i, np.float32(load_f64(others, i)))
