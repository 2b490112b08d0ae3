"""The native loops of statistics of sets, see `rows/statistics.py`.

A set is reduced in parts. The outcome of a part has three numbers of f64. For moments, they are the
number of elements, their mean, and the sum of the squares of their deviations. Parts are combined
as by Chan, Golub and LeVeque (1979, "Updating Formulae and a Pairwise Algorithm for Computing
Sample Variances"). So sums of squares do not cancel. For sums, they are

    the number of elements,  sum of g,  sum of g * (x - mean) * factor      g = weight * diff

Absent tensors have the address 0. A row of `count` elements is either in the set (`along`), or each
of its elements belongs to another set (`across`).
"""

from __future__ import annotations

import numpy as np

from dnncore_cpu_numba.codegen.call_schema import Many, Pointer, Record
from dnncore_cpu_numba.codegen.nest import MAX_LOOPS, NEST, advance, seek
from dnncore_cpu_numba.codegen.nontemporal import prefetch
from dnncore_cpu_numba.codegen.pointers import load_f32, load_f64, stack, store_f32, store_f64
from dnncore_cpu_numba.codegen.task import device, exact, task
from dnncore_cpu_numba.copies.typed_rows import convert_row

TENSORS = Record("tensors of statistics", ("target x diff mask mean factor weight", "address"))
COUNT = TENSORS.size
MOST = 2048  # most elements of a row or of a tile
ROWS_AT_ONCE = 16  # most rows of a tile whose elements belong to different sets
_ROOM = MOST // 2  # size of a buffer of f32 in int64
_TILE_ROOM = _ROOM * (ROWS_AT_ONCE + 1) // 4
_ROOMS = 4 * _ROOM
_AHEAD = 2048  # prefetch distance in bytes

FOLD = Record(
    "statistics",
    ("results places", Pointer(NEST), "over sets or rows of sets, and over the rows of a set"),
    ("steps parts per_part", "count", "rows of a set, its parts, and rows of a part"),
    ("count", "count", "elements of a row"),
    ("part_bytes plane", "bytes", "from part to part, and from number to number of an outcome"),
    ("strides", Many("elements", COUNT), "from element to element of a row"),
    ("sizes", Many("bytes", COUNT)),
    ("kernels", Many("address", COUNT), "that convert rows to f32; 0 for f32"),
    ("starts", TENSORS),
)
X, DIFF, MASK, MEAN, FACTOR, WEIGHT = range(1, COUNT)


@device
def _row(params, tensor, address, room, count):
    """Return the address of a row as contiguous f32: in place, or in a buffer."""
    kernel, stride, size = params.kernels[tensor], params.strides[tensor], params.sizes[tensor]
    if kernel == 0 and stride == 1:
        return address
    if kernel == 0:
        for i in range(count):
            store_f32(room, i, load_f32(address, i * stride))
    else:
        convert_row(kernel, address, stride * size, room, 4, count)
    return room


@exact
def _merge(target, plane, place, count, mean, squares):
    """Add the moments of further elements to those of a set."""
    before = load_f64(target, place)
    total = before + count
    off = mean - load_f64(target + plane, place)
    share = count / total
    store_f64(target, place, total)
    store_f64(target + plane, place, load_f64(target + plane, place) + off * share)
    old = load_f64(target + 2 * plane, place)
    store_f64(target + 2 * plane, place, old + squares + off * off * before * share)


@device
def _clear(target, plane, step, count):
    for number in range(3):
        for i in range(count):
            store_f64(target + number * plane, i * step, 0.0)


@device
def _sum_of(x, count):
    total = np.float32(0)
    for i in range(count):
        total += load_f32(x, i)
    return total


@device
def _deviations(x, mean, count):
    """Return the sum of deviations from a rounded mean, and of their squares."""
    off, squares = np.float32(0), np.float32(0)
    for i in range(count):
        deviation = load_f32(x, i) - mean
        off += deviation
        squares += deviation * deviation
    return off, squares


@device
def _squares_of(x, count):
    squares = np.float32(0)
    for i in range(count):
        squares += load_f32(x, i) * load_f32(x, i)
    return squares


@device
def _add_moments(x, count, centred, target, plane):
    if centred:
        mean = _sum_of(x, count) / np.float32(count)
        off, squares = _deviations(x, mean, count)
        rest = np.float64(off) / count
        exact_mean = np.float64(mean) + rest
        _merge(target, plane, 0, np.float64(count), exact_mean, squares - rest * off)
    else:
        store_f64(target, 0, load_f64(target, 0) + count)
        before = load_f64(target + 2 * plane, 0)
        store_f64(target + 2 * plane, 0, before + np.float64(_squares_of(x, count)))


def _moments_along(centred: bool):
    def along(params, begin, end):
        count, steps, plane = params.count, params.steps, params.plane
        position, inner = stack(MAX_LOOPS), stack(MAX_LOOPS)
        outer, tensors, room = TENSORS.room(), TENSORS.room(), stack(_ROOM)
        direct = count >= MOST // 4 and params.kernels[X] == 0 and params.strides[X] == 1
        for item in range(begin, end):
            part = item % params.parts
            seek(params.results, item // params.parts, position, params.starts, outer, 1)
            target = outer.target + part * params.part_bytes
            first = part * params.per_part
            last = min(first + params.per_part, steps)
            seek(params.places, first, inner, outer, tensors, 1)
            _clear(target, plane, 1, 1)
            held = 0
            for _ in range(first, last):
                if direct:
                    prefetch(tensors.x + 4 * count, min(4 * count, 512))
                    _add_moments(tensors.x, count, centred, target, plane)
                else:
                    if held + count > MOST:
                        _add_moments(room, held, centred, target, plane)
                        held = 0
                    x = _row(params, X, tensors.x, room + 4 * held, count)
                    if x != room + 4 * held:
                        for i in range(count):
                            store_f32(room, held + i, load_f32(x, i))
                    held += count
                advance(params.places, inner, tensors, 1)
            if held > 0:
                _add_moments(room, held, centred, target, plane)

    along.__name__ = "moments_along" if centred else "squares_along"
    return task(FOLD)(along)


def _moments_across(centred: bool):
    @device
    def add_tile(x, rows, count, sums, squares, target, plane, step):
        """Add the moments of a tile to those of each column."""
        one = np.float32(1) / np.float32(rows)
        for i in range(count):
            store_f32(sums, i, np.float32(0))
            store_f32(squares, i, np.float32(0))
        if centred:
            for row in range(rows):
                start = x + 4 * count * row
                for i in range(count):
                    store_f32(sums, i, load_f32(sums, i) + load_f32(start, i))
            for i in range(count):
                store_f32(sums, i, load_f32(sums, i) * one)
        offs = x + 4 * count * rows
        for i in range(count):
            store_f32(offs, i, np.float32(0))
        for row in range(rows):
            start = x + 4 * count * row
            for i in range(count):
                deviation = load_f32(start, i) - load_f32(sums, i)
                store_f32(offs, i, load_f32(offs, i) + deviation)
                store_f32(squares, i, load_f32(squares, i) + deviation * deviation)
        for i in range(count):
            if centred:
                off = load_f32(offs, i)
                rest = np.float64(off) / rows
                mean = np.float64(load_f32(sums, i)) + rest
                own = load_f32(squares, i) - rest * off
                _merge(target, plane, i * step, np.float64(rows), mean, own)
            else:
                place = i * step
                store_f64(target, place, load_f64(target, place) + rows)
                own = load_f64(target + 2 * plane, place) + np.float64(load_f32(squares, i))
                store_f64(target + 2 * plane, place, own)

    def across(params, begin, end):
        count, steps, plane = params.count, params.steps, params.plane
        step = params.strides[0]
        position, inner = stack(MAX_LOOPS), stack(MAX_LOOPS)
        outer, tensors = TENSORS.room(), TENSORS.room()
        room = stack(_TILE_ROOM)
        sums, squares = stack(_ROOM), stack(_ROOM)
        for item in range(begin, end):
            part = item % params.parts
            seek(params.results, item // params.parts, position, params.starts, outer, 1)
            target = outer.target + part * params.part_bytes
            first = part * params.per_part
            last = min(first + params.per_part, steps)
            seek(params.places, first, inner, outer, tensors, 1)
            _clear(target, plane, step, count)
            held = 0
            for _ in range(first, last):
                to = room + 4 * count * held
                x = _row(params, X, tensors.x, to, count)
                if x != to:
                    for i in range(count):
                        store_f32(to, i, load_f32(x, i))
                held += 1
                if held == ROWS_AT_ONCE:
                    add_tile(room, held, count, sums, squares, target, plane, step)
                    held = 0
                advance(params.places, inner, tensors, 1)
            if held > 0:
                add_tile(room, held, count, sums, squares, target, plane, step)

    across.__name__ = "moments_across" if centred else "squares_across"
    return task(FOLD)(across)


MOST_COLUMNS = MOST // 4
"""Most sets of a row of `across`."""


# -- sums of products ------------------------------------------------------------------------------


@device
def _masked(params, tensors, g, room, other, count):
    """Return diff, where the mask is not 0."""
    if tensors.mask == 0:
        return g
    mask = _row(params, MASK, tensors.mask, other, count)
    for i in range(count):
        value = load_f32(g, i)
        store_f32(room, i, value if load_f32(mask, i) != np.float32(0) else np.float32(0))
    return room


@device
def _products(params, tensors, rooms, count):
    """Store g and g * (x - mean) * factor of a row. Returns the addresses of both."""
    room = 4 * MOST
    g = _row(params, DIFF, tensors.diff, rooms, count)
    g = _masked(params, tensors, g, rooms, rooms + room, count)
    x = _row(params, X, tensors.x, rooms + room, count)
    products = rooms + 2 * room
    if tensors.weight != 0:
        weight = _row(params, WEIGHT, tensors.weight, rooms + 3 * room, count)
        for i in range(count):
            store_f32(rooms, i, load_f32(g, i) * load_f32(weight, i))
        g = rooms
    if tensors.mean != 0 and params.strides[MEAN] == 0:
        mean = load_f32(tensors.mean, 0)
        for i in range(count):
            store_f32(products, i, (load_f32(x, i) - mean) * load_f32(g, i))
    elif tensors.mean != 0:
        means = _row(params, MEAN, tensors.mean, rooms + 3 * room, count)
        for i in range(count):
            store_f32(products, i, (load_f32(x, i) - load_f32(means, i)) * load_f32(g, i))
    else:
        for i in range(count):
            store_f32(products, i, load_f32(x, i) * load_f32(g, i))
    if tensors.factor != 0:
        factor = _row(params, FACTOR, tensors.factor, rooms + 3 * room, count)
        for i in range(count):
            store_f32(products, i, load_f32(products, i) * load_f32(factor, i))
    return g, products


@task(FOLD)
def sums_along(params, begin, end):
    """Sum products over rows of a set."""
    count, steps, plane = params.count, params.steps, params.plane
    position, inner = stack(MAX_LOOPS), stack(MAX_LOOPS)
    outer, tensors, rooms = TENSORS.room(), TENSORS.room(), stack(_ROOMS)
    for item in range(begin, end):
        part = item % params.parts
        seek(params.results, item // params.parts, position, params.starts, outer, 1)
        target = outer.target + part * params.part_bytes
        first = part * params.per_part
        last = min(first + params.per_part, steps)
        seek(params.places, first, inner, outer, tensors, 1)
        total, product = 0.0, 0.0
        for _ in range(first, last):
            g, products = _products(params, tensors, rooms, count)
            total += np.float64(_sum_of(g, count))
            product += np.float64(_sum_of(products, count))
            advance(params.places, inner, tensors, 1)
        store_f64(target, 0, np.float64((last - first) * count))
        store_f64(target + plane, 0, total)
        store_f64(target + 2 * plane, 0, product)


@task(FOLD)
def sums_across(params, begin, end):
    """Sum products of rows whose elements belong to different sets."""
    count, steps, plane = params.count, params.steps, params.plane
    step = params.strides[0]
    position, inner = stack(MAX_LOOPS), stack(MAX_LOOPS)
    outer, tensors, rooms = TENSORS.room(), TENSORS.room(), stack(_ROOMS)
    sums, squares = stack(_ROOM), stack(_ROOM)
    for item in range(begin, end):
        part = item % params.parts
        seek(params.results, item // params.parts, position, params.starts, outer, 1)
        target = outer.target + part * params.part_bytes
        first = part * params.per_part
        last = min(first + params.per_part, steps)
        seek(params.places, first, inner, outer, tensors, 1)
        _clear(target, plane, step, count)
        for i in range(count):
            store_f64(target, i * step, np.float64(last - first))
        for start in range(first, last, ROWS_AT_ONCE):
            for i in range(count):
                store_f32(sums, i, np.float32(0))
                store_f32(squares, i, np.float32(0))
            for _ in range(start, min(start + ROWS_AT_ONCE, last)):
                g, products = _products(params, tensors, rooms, count)
                for i in range(count):
                    store_f32(sums, i, load_f32(sums, i) + load_f32(g, i))
                    store_f32(squares, i, load_f32(squares, i) + load_f32(products, i))
                advance(params.places, inner, tensors, 1)
            for i in range(count):
                place = i * step
                total = load_f64(target + plane, place) + np.float64(load_f32(sums, i))
                product = load_f64(target + 2 * plane, place) + np.float64(load_f32(squares, i))
                store_f64(target + plane, place, total)
                store_f64(target + 2 * plane, place, product)


MOMENTS = {
    (centred, along): _moments_along(centred) if along else _moments_across(centred)
    for centred in (False, True)
    for along in (False, True)
}
SUMS = {True: sums_along, False: sums_across}


# -- outcomes --------------------------------------------------------------------------------------

COMBINE = Record(
    "outcomes of parts",
    ("source", "address", "of the first part"),
    ("parts", "count"),
    ("part_bytes plane", "bytes", "as in `FOLD`"),
    ("is_sum", "flag"),
    ("first second third", "address", "mean, variance, factor; or both sums; f32; 0 if absent"),
    ("epsilon", "float32"),
)


@task(COMBINE)
def combine(params, begin, end):
    """Combine the parts of sets: means, variances and 1 / sqrt(variance + epsilon), or sums."""
    plane, parts, part_bytes = params.plane, params.parts, params.part_bytes
    room = stack(4)
    for i in range(begin, end):
        _clear(room, 8, 1, 1)
        for part in range(parts):
            source = params.source + part * part_bytes
            count = load_f64(source, i)
            second, third = load_f64(source + plane, i), load_f64(source + 2 * plane, i)
            if params.is_sum:
                store_f64(room, 1, load_f64(room, 1) + second)
                store_f64(room, 2, load_f64(room, 2) + third)
            elif count > 0.0:
                _merge(room, 8, 0, count, second, third)
        first, second = load_f64(room, 1), load_f64(room, 2)
        if params.is_sum == 0:
            count = load_f64(room, 0)
            second = second / count if count > 0.0 else 0.0
            root = np.sqrt(second + np.float64(params.epsilon))
            store_f32(params.third, i, np.float32(1.0 / root))
        store_f32(params.first, i, np.float32(first))
        store_f32(params.second, i, np.float32(second))


GIVEN = Record("given variances", ("source target", "address"), ("epsilon", "float32"))


@task(GIVEN)
def factors(params, begin, end):
    """target = 1 / sqrt(variance + epsilon)."""
    for i in range(begin, end):
        root = np.sqrt(np.float64(load_f32(params.source, i)) + np.float64(params.epsilon))
        store_f32(params.target, i, np.float32(1.0 / root))


SHARES = Record(
    "averages of a gradient",
    ("first second factor", "address", "sums of g and of g * (x - mean), and factors; replaced"),
    ("scale", "address", "per set; 0 if absent"),
    ("count", "float32"),
)


@task(SHARES)
def shares(params, begin, end):
    """first = average of g; second = -average of g * (x - mean) * factor**2."""
    for i in range(begin, end):
        factor = np.float64(load_f32(params.factor, i))
        weight = np.float64(load_f32(params.scale, i)) if params.scale != 0 else 1.0
        share = weight / np.float64(params.count)
        first, second = load_f32(params.first, i), load_f32(params.second, i)
        store_f32(params.first, i, np.float32(share * first))
        store_f32(params.second, i, np.float32(-share * factor * factor * second))
