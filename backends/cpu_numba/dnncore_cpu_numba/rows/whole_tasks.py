"""The native loops of normalizations of sets that lie in one piece of memory, see `rows/whole.py`.

A set is read once and stays in the cache, while its statistics, the results and its share of the
gradients of scale and shift are computed. It consists of runs. Scale and shift have one number per
element of a run, or one per run.
"""

from __future__ import annotations

import numpy as np

from dnncore_cpu_numba.codegen.call_schema import Record
from dnncore_cpu_numba.codegen.nontemporal import prefetch, stream_row
from dnncore_cpu_numba.codegen.pointers import load_f32, load_f64, stack, store_f32, store_f64
from dnncore_cpu_numba.codegen.task import device, exact, task
from dnncore_cpu_numba.copies.typed_rows import convert_row, stream_row_as
from dnncore_cpu_numba.rows.apply_kernel import APPLY_AHEAD, APPLY_CALL
from dnncore_cpu_numba.rows.sums_kernel import SUMS_AHEAD, SUMS_CALL

CHUNK = 2048  # elements whose sums are f32; sums of chunks are f64
JOINED = 256  # elements of scale whose parts are added up at once
HELD = 1 << 13  # most elements of a set that is converted once
_ROOM = CHUNK // 2
_SET = HELD // 2
_AHEAD = 1024  # most bytes of the next set that are prefetched
ZERO = np.float32(0)

SETS = Record(
    "whole sets",
    ("x diff y", "address", "of the first set; diff is 0 forward"),
    ("x_size diff_size y_size", "bytes", "of an element"),
    ("load_x load_diff", "address", "kernels that convert rows to f32; 0 for f32"),
    ("store store_streamed", "address", "kernels that convert rows of f32 to y; 0 for f32"),
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
def _held(load, address, itemsize, room, count):
    """Return the address of a set as f32: in place, or in a buffer."""
    if load == 0:
        return address
    convert_row(load, address, itemsize, room, 4, count)
    return room


@device
def _write(params, room, y, count):
    """Stream or convert a chunk of results to y."""
    if params.store != 0:
        if params.streamed != 0:
            stream_row_as(params.store, params.store_streamed, room, y, params.y_size, count)
        else:
            convert_row(params.store, room, 4, y, params.y_size, count)
    elif room != y:
        stream_row(room, y, count)


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
    """Return average and variance of a row; squares are of deviations from a rounded average."""
    count, step = params.count, params.x_size * CHUNK
    total, off, squares = 0.0, 0.0, 0.0
    if params.centred != 0:
        for start in range(0, count, CHUNK):
            SUMS_CALL.call(
                params.plain, y=0, x=x + params.x_size * start, diff=0, mask=0, y_row=0, x_row=0,
                diff_row=0, mask_row=0, rows=1, columns=min(CHUNK, count - start), means=room,
                sums=room + 8, ahead=SUMS_AHEAD,
            )  # fmt: skip
            total += np.float64(load_f32(room, 2))
    mean = np.float32(total / count)
    store_f32(room, 0, mean)
    for start in range(0, count, CHUNK):
        SUMS_CALL.call(
            params.deviations, y=0, x=x + params.x_size * start, diff=0, mask=0, y_row=0,
            x_row=step, diff_row=0, mask_row=0, rows=1, columns=min(CHUNK, count - start),
            means=room, sums=room + 8, ahead=SUMS_AHEAD,
        )  # fmt: skip
        off += np.float64(load_f32(room, 2))
        squares += np.float64(load_f32(room, 3))
    if params.centred == 0:
        return 0.0, squares / count
    rest = off / count
    return np.float64(mean) + rest, max(squares / count - rest * rest, 0.0)


@task(ROWS)
def normalize_rows(params, begin, end):
    """Normalize rows whose elements have their own scale and shift."""
    room = stack(4)
    for item in range(begin, end):
        x = params.x + params.x_size * params.count * item
        y = params.y + params.y_size * params.count * item
        mean, variance = _statistics_of(params, x, room)
        store_f32(params.mean, item, np.float32(mean))
        store_f32(params.variance, item, np.float32(variance))
        store_f32(room, 0, np.float32(mean))
        root = np.sqrt(variance + np.float64(params.epsilon))
        store_f32(room, 1, np.float32(1.0 / root))
        APPLY_CALL.call(
            params.apply, y=y, x=x, other=0, mask=0, y_row=0, x_row=0, other_row=0, mask_row=0,
            rows=1, columns=params.count, mean=room, slope=room + 4, share=params.weight,
            rest=params.shift, step=0, ahead=APPLY_AHEAD,
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
            for start in range(run * count, (run + 1) * count, CHUNK):
                width = min(CHUNK, (run + 1) * count - start)
                source, target = x + 4 * start, y + 4 * start
                place = room if params.streamed != 0 else target
                _run(
                    source, params.weight + own, params.shift + own, place, np.float32(mean),
                    factor, width,
                )  # fmt: skip
                _write(params, place, target, width)


@device
def _per_element(x, diff, weight, of_shift, of_scale, mean, factor, count):
    """Add to the gradients of shift and scale; return the sums of g and of g * normalized x."""
    total, product = ZERO, ZERO
    for i in range(count):
        d = load_f32(diff, i)
        normalized = (load_f32(x, i) - mean) * factor
        g = d * load_f32(weight, i)
        total += g
        product += g * normalized
    for i in range(count):  # LLVM vectorises loops of few arrays
        store_f32(of_shift, i, load_f32(of_shift, i) + load_f32(diff, i))
    for i in range(count):
        normalized = (load_f32(x, i) - mean) * factor
        store_f32(of_scale, i, load_f32(of_scale, i) + load_f32(diff, i) * normalized)
    return total, product


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
def _elements_of_gradient(x, diff, weight, place, mean, average, slope, factor, count):
    for i in range(count):
        taken = average + (load_f32(x, i) - mean) * slope
        store_f32(place, i, (load_f32(diff, i) * load_f32(weight, i) - taken) * factor)


@device
def _run_of_gradient(x, diff, weight, place, mean, average, slope, factor, count):
    own = load_f32(weight, 0)
    for i in range(count):
        taken = average + (load_f32(x, i) - mean) * slope
        store_f32(place, i, (load_f32(diff, i) * own - taken) * factor)


def _differentiate(per_element: bool):
    sums = _per_element if per_element else _per_run
    results = _elements_of_gradient if per_element else _run_of_gradient

    def differentiate(params, begin, end):
        runs, count, vector = params.runs, params.count, params.vector
        size, bytes_of_y = runs * count, params.y_size
        room, held_x, held_diff = stack(_ROOM), stack(_SET), stack(_SET)
        apart = params.streamed | params.store
        for part in range(begin, end):
            of_shift = params.sums + 8 * part * vector
            of_scale = of_shift + 4 * vector
            for i in range(2 * vector):
                store_f32(of_shift, i, ZERO)
            first = params.sets * part // params.parts
            for item in range(first, params.sets * (part + 1) // params.parts):
                x, y = params.x + params.x_size * item * size, params.y + bytes_of_y * item * size
                diff = params.diff + params.diff_size * item * size
                prefetch(x + params.x_size * size, min(params.x_size * size, _AHEAD))
                prefetch(diff + params.diff_size * size, min(params.diff_size * size, _AHEAD))
                load_x, load_diff = params.load_x, params.load_diff
                x_size, diff_size = params.x_size, params.diff_size
                if size <= HELD:
                    x = _held(load_x, x, x_size, held_x, size)
                    diff = _held(load_diff, diff, diff_size, held_diff, size)
                    load_x, load_diff, x_size, diff_size = 0, 0, 4, 4
                mean = load_f32(params.mean, item) if params.centred != 0 else ZERO
                factor = load_f32(params.factor, item)
                channel = item % params.groups * runs
                total, product = 0.0, 0.0
                for run in range(runs):
                    for start in range(run * count, (run + 1) * count, CHUNK):
                        width = min(CHUNK, (run + 1) * count - start)
                        own = 4 * (start if per_element else channel + run)
                        one, two = sums(
                            _held(load_x, x + x_size * start, x_size, held_x, width),
                            _held(load_diff, diff + diff_size * start, diff_size, held_diff, width),
                            params.weight + own, of_shift + own, of_scale + own, mean, factor,
                            width,
                        )  # fmt: skip
                        total += np.float64(one)
                        product += np.float64(two)
                average = np.float32(total / size) if params.centred != 0 else ZERO
                slope = np.float32(product / size) * factor
                for run in range(runs):
                    for start in range(run * count, (run + 1) * count, CHUNK):
                        width = min(CHUNK, (run + 1) * count - start)
                        own = 4 * (start if per_element else channel + run)
                        target = y + bytes_of_y * start
                        place = room if apart != 0 else target
                        results(
                            _held(load_x, x + x_size * start, x_size, held_x, width),
                            _held(load_diff, diff + diff_size * start, diff_size, held_diff, width),
                            params.weight + own, place, mean, average, slope, factor, width,
                        )  # fmt: skip
                        _write(params, place, target, width)

    differentiate.__name__ = "differentiate_rows" if per_element else "differentiate_runs"
    return task(SETS)(differentiate)


DIFFERENTIATE = {per_element: _differentiate(per_element) for per_element in (False, True)}
"""The tasks that compute all gradients of some parts of the sets."""


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
