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

CHUNK = 2048  # elements whose sums are f32; sums of chunks are f64
JOINED = 256  # elements of scale whose parts are added up at once
_ROOM = CHUNK // 2
_AHEAD = 1024  # most bytes of the next set that are prefetched
ZERO = np.float32(0)

SETS = Record(
    "whole sets",
    ("x diff y", "address", "of the first set; diff is 0 forward"),
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
def _write(room, y, count):
    """Stream a chunk of results to y."""
    if room != y:
        stream_row(room, y, count)


@device
def _elements(x, weight, shift, place, centre, factor, count):
    for i in range(count):
        value = (load_f32(x, i) - centre) * factor
        store_f32(place, i, value * load_f32(weight, i) + load_f32(shift, i))


@device
def _run(x, weight, shift, place, centre, factor, count):
    own, rest = factor * load_f32(weight, 0), load_f32(shift, 0)
    for i in range(count):
        store_f32(place, i, (load_f32(x, i) - centre) * own + rest)


def _normalize(per_element: bool):
    results = _elements if per_element else _run

    def normalize(params, begin, end):
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
                for start in range(run * count, (run + 1) * count, CHUNK):
                    width = min(CHUNK, (run + 1) * count - start)
                    source, target = x + 4 * start, y + 4 * start
                    place = room if params.streamed != 0 else target
                    own = 4 * (start if per_element else channel + run)
                    results(
                        source, params.weight + own, params.shift + own, place,
                        np.float32(mean), factor, width,
                    )  # fmt: skip
                    _write(place, target, width)

    normalize.__name__ = "normalize_rows" if per_element else "normalize_runs"
    return task(SETS)(normalize)


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
        size = runs * count
        room = stack(_ROOM)
        for part in range(begin, end):
            of_shift = params.sums + 8 * part * vector
            of_scale = of_shift + 4 * vector
            for i in range(2 * vector):
                store_f32(of_shift, i, ZERO)
            first = params.sets * part // params.parts
            for item in range(first, params.sets * (part + 1) // params.parts):
                offset = 4 * item * size
                x, diff, y = params.x + offset, params.diff + offset, params.y + offset
                prefetch(x + 4 * size, min(4 * size, _AHEAD))
                prefetch(diff + 4 * size, min(4 * size, _AHEAD))
                mean = load_f32(params.mean, item) if params.centred != 0 else ZERO
                factor = load_f32(params.factor, item)
                channel = item % params.groups * runs
                total, product = 0.0, 0.0
                for run in range(runs):
                    for start in range(run * count, (run + 1) * count, CHUNK):
                        width, at = min(CHUNK, (run + 1) * count - start), 4 * start
                        own = at if per_element else 4 * (channel + run)
                        one, two = sums(
                            x + at, diff + at, params.weight + own, of_shift + own,
                            of_scale + own, mean, factor, width,
                        )  # fmt: skip
                        total += np.float64(one)
                        product += np.float64(two)
                average = np.float32(total / size) if params.centred != 0 else ZERO
                slope = np.float32(product / size) * factor
                for run in range(runs):
                    for start in range(run * count, (run + 1) * count, CHUNK):
                        width, at = min(CHUNK, (run + 1) * count - start), 4 * start
                        own = at if per_element else 4 * (channel + run)
                        place = room if params.streamed != 0 else y + at
                        results(
                            x + at, diff + at, params.weight + own, place, mean, average, slope,
                            factor, width,
                        )  # fmt: skip
                        _write(place, y + at, width)

    differentiate.__name__ = "differentiate_rows" if per_element else "differentiate_runs"
    return task(SETS)(differentiate)


NORMALIZE = {per_element: _normalize(per_element) for per_element in (False, True)}
"""The tasks that compute statistics and results of some sets."""

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
