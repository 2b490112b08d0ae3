"""The native loops of `rows/channels.py`: tiles of rows, summed and applied by kernels.

A tile has rows of contiguous elements. The elements of a row belong to one channel (`along`), or
each column belongs to another channel. Short contiguous rows of columns are folded: `fold` rows are
one long row, in which channels repeat.

The outcome of a part has three numbers of f64 per channel. For moments, they are the number of
elements, their mean, and the sum of the squares of their deviations. Parts are combined as by Chan,
Golub and LeVeque (1979, "Updating Formulae and a Pairwise Algorithm for Computing Sample
Variances"). So sums of squares do not cancel. For sums, they are

    the number of elements,  sum of g,  sum of g * (x - mean)
"""

from __future__ import annotations

import numpy as np

from dnncore_cpu_numba.codegen.call_schema import Pointer, Record
from dnncore_cpu_numba.codegen.nest import MAX_LOOPS, NEST, advance, seek
from dnncore_cpu_numba.codegen.pointers import load_f32, load_f64, stack, store_f32, store_f64
from dnncore_cpu_numba.codegen.task import device, exact, task
from dnncore_cpu_numba.rows.apply_kernel import APPLY_AHEAD, APPLY_CALL
from dnncore_cpu_numba.rows.sums_kernel import SUMS_AHEAD, SUMS_CALL

MOST_COLUMNS = 1024  # channels in a row
MOST_ROW = 2048  # most elements of a row of one channel
ONCE_AHEAD = 8192  # bytes; prefetch distance of deviations
FOLDED = 128  # least columns of a folded row
JOINED = 256  # sets whose parts are combined at once
_ROOM = MOST_COLUMNS // 2  # size of a buffer of f32 in int64
_ROOMS = 2 * _ROOM
_OUTCOMES = 3 * JOINED

TENSORS = Record("tensors of sums", ("target mean x diff mask y", "address"))
SUMS = Record(
    "sums of channels",
    ("results places", Pointer(NEST), "over channels, and over the tiles of a channel"),
    ("steps parts per_part", "count", "tiles of a channel, its parts, and tiles of a part"),
    ("part_bytes plane", "bytes", "from part to part, and from number to number of an outcome"),
    ("along", "flag"),
    ("rows columns fold", "count", "of a tile; rows that are folded into one"),
    ("channels", "count", "of a tile"),
    ("x_row diff_row mask_row y_row", "bytes"),
    ("first second", "address", "kernels: of sums, and of deviations for moments"),
    ("has_second", "flag", "whether there are two sums"),
    ("is_direct", "flag", "whether mean and target have numbers of elements, not of channels"),
    ("starts", TENSORS),
)


@device
def _clear(room, plane, count):
    for number in range(3):
        for i in range(count):
            store_f64(room + number * plane, i, 0.0)


@exact
def _merge(target, plane, count, each, means, sums, total):
    """Add the moments of rows or columns of `each` elements to those of as many channels."""
    before = load_f64(target, 0)  # equal for all of them
    share = each / (before + each)
    one, weight = 1.0 / each, before * share
    for i in range(count):
        store_f64(target, i, before + each)
    for i in range(count):
        first = np.float64(load_f32(sums, i))
        rest = first * one
        off = np.float64(load_f32(means, i)) + rest - load_f64(target + plane, i)
        own = np.float64(load_f32(sums, total + i)) - rest * first
        squares = load_f64(target + 2 * plane, i) + own + off * off * weight
        store_f64(target + plane, i, load_f64(target + plane, i) + off * share)
        store_f64(target + 2 * plane, i, squares)


@device
def _add(target, plane, count, each, sums, total):
    """Add the sums. total: the distance of the second ones; 0 if there are none."""
    for i in range(count):
        store_f64(target, i, load_f64(target, i) + each)
    for i in range(count):
        one = load_f64(target + plane, i) + np.float64(load_f32(sums, i))
        store_f64(target + plane, i, one)
    for i in range(count if total else 0):
        one = load_f64(target + 2 * plane, i) + np.float64(load_f32(sums, total + i))
        store_f64(target + 2 * plane, i, one)


@device
def _known_means(params, target, total, means):
    """Use the means of earlier tiles, if there are any: the next tile is then read once.

    If the next averages differ, the squares of all elements are larger than the rounding errors.
    """
    if params.second == 0 or load_f64(target, 0) == 0.0:
        return 0
    for start in range(0, total, params.channels):
        for i in range(params.channels):
            store_f32(means, start + i, np.float32(load_f64(target + params.plane, i)))
    return 1


@task(SUMS)
def sums(params, begin, end):
    """Compute moments, if there is a kernel of deviations, or else sums of products."""
    steps, plane, along = params.steps, params.plane, params.along
    fold, period = params.fold, params.channels
    position, inner = stack(MAX_LOOPS), stack(MAX_LOOPS)
    outer, tensors = TENSORS.room(), TENSORS.room()
    means, results = stack(_ROOM), stack(_ROOMS)
    for item in range(begin, end):
        part = item % params.parts
        seek(params.results, item // params.parts, position, params.starts, outer, 1)
        target = outer.target + part * params.part_bytes
        first = part * params.per_part
        seek(params.places, first, inner, outer, tensors, 1)
        if params.is_direct == 0:
            _clear(target, plane, period)
        for _ in range(first, min(first + params.per_part, steps)):
            done = 0
            while done < params.rows:  # whole folded rows, then the rest as one shorter row
                rows, columns = (params.rows - done) // fold, params.columns * fold
                if rows == 0:
                    rows, columns = 1, params.columns * (params.rows - done)
                total, each = (rows, columns) if along != 0 else (columns, rows)
                numbers, outcomes = means, results
                if params.is_direct != 0:
                    numbers, outcomes = tensors.mean, tensors.target
                elif params.second == 0:
                    for start in range(0, total, period):
                        for i in range(period):
                            store_f32(means, start + i, load_f32(tensors.mean, i))
                known = _known_means(params, target, total, means)
                if known == 0:
                    SUMS_CALL.call(
                        params.first, x=tensors.x + done * params.x_row,
                        diff=tensors.diff + done * params.diff_row,
                        mask=tensors.mask + done * params.mask_row,
                        y=tensors.y + done * params.y_row, x_row=fold * params.x_row,
                        diff_row=fold * params.diff_row, mask_row=fold * params.mask_row,
                        y_row=fold * params.y_row, rows=rows, columns=columns, means=numbers,
                        sums=outcomes, ahead=SUMS_AHEAD,
                    )  # fmt: skip
                if params.second != 0:
                    share = np.float32(1) / np.float32(each)
                    for i in range(total if known == 0 else 0):
                        store_f32(means, i, load_f32(results, i) * share)
                    SUMS_CALL.call(
                        params.second, x=tensors.x + done * params.x_row, diff=0, mask=0, y=0,
                        x_row=fold * params.x_row, diff_row=0, mask_row=0, y_row=0, rows=rows,
                        columns=columns, means=means, sums=results, ahead=ONCE_AHEAD,
                    )  # fmt: skip
                for start in range(0, total if params.is_direct == 0 else 0, period):
                    if params.second != 0:
                        _merge(
                            target, plane, period, np.float64(each), means + 4 * start,
                            results + 4 * start, total,
                        )  # fmt: skip
                    else:
                        own, second = results + 4 * start, params.has_second * total
                        _add(target, plane, period, np.float64(each), own, second)
                done += rows * columns // params.columns
            advance(params.places, inner, tensors, 1)


COMBINE = Record(
    "outcomes of parts",
    ("source", "address", "of the first part"),
    ("parts members", "count", "members: neighbouring channels that a set has"),
    ("part_bytes plane", "bytes", "as in `SUMS`"),
    ("is_sum", "flag"),
    ("first second third", "address", "mean, variance, factor; or one or both sums; f32"),
    ("epsilon", "float32"),
)


@exact
def _merge_part(room, plane, source, source_plane, members, count):
    """Add the moments of a part of channels to those of sets. Other channels have 0 elements."""
    for i in range(count):
        place = i * members
        more, before = load_f64(source, place), load_f64(room, i)
        share = more / max(before + more, 1.0)
        mean = load_f64(room + plane, i)
        off = load_f64(source + source_plane, place) - mean
        squares = load_f64(room + 2 * plane, i) + load_f64(source + 2 * source_plane, place)
        store_f64(room, i, before + more)
        store_f64(room + plane, i, mean + off * share)
        store_f64(room + 2 * plane, i, squares + off * off * before * share)


@device
def _add_part(room, source, members, count):
    for i in range(count):
        store_f64(room, i, load_f64(room, i) + load_f64(source, i * members))


@task(COMBINE)
def combine(params, begin, end):
    """Combine the parts of sets: means, variances and 1 / sqrt(variance + epsilon), or sums."""
    plane, members = params.plane, params.members
    room, own = stack(_OUTCOMES), 8 * JOINED
    for start in range(begin, end, JOINED):
        count = min(JOINED, end - start)
        _clear(room, own, count)
        for part in range(params.parts):
            for member in range(members):
                source = params.source + part * params.part_bytes + 8 * (start * members + member)
                if params.is_sum == 0:
                    _merge_part(room, own, source, plane, members, count)
                else:
                    for number in range(1, 3):
                        _add_part(room + number * own, source + number * plane, members, count)
        if params.is_sum == 0:
            for i in range(count):
                variance = load_f64(room + 2 * own, i) / max(load_f64(room, i), 1.0)
                store_f64(room + 2 * own, i, variance)
                root = np.sqrt(variance + np.float64(params.epsilon))
                store_f32(params.third, start + i, np.float32(1.0 / root))
        for i in range(count):
            store_f32(params.first, start + i, np.float32(load_f64(room + own, i)))
        for i in range(count if params.second != 0 else 0):
            store_f32(params.second, start + i, np.float32(load_f64(room + 2 * own, i)))


GIVEN = Record("given variances", ("source target", "address"), ("epsilon", "float32"))


@task(GIVEN)
def factors(params, begin, end):
    """target = 1 / sqrt(variance + epsilon)."""
    for i in range(begin, end):
        root = np.sqrt(np.float64(load_f32(params.source, i)) + np.float64(params.epsilon))
        store_f32(params.target, i, np.float32(1.0 / root))


SLOPES = Record(
    "numbers of a gradient",
    ("first second", "address", "sums of g and of g * (x - mean) per channel; 0: not needed"),
    ("factor", "address", "per set"),
    ("scale", "address", "per channel of an image; 0 if absent"),
    ("members groups", "count", "channels of a set, and sets of an image"),
    ("count", "float32", "elements of a set"),
    ("slope share rest", "address", "per channel"),
)


@task(SLOPES)
def slopes(params, begin, end):
    """Compute what `APPLY_CALL` takes, so that y is the gradient of src."""
    members = params.members
    for item in range(begin, end):
        factor = np.float64(load_f32(params.factor, item))
        own = item % params.groups * members
        average, product = 0.0, 0.0
        for member in range(members):
            weight = 1.0
            if params.scale != 0:
                weight = np.float64(load_f32(params.scale, own + member))
            share = weight * factor
            place = item * members + member
            store_f32(params.share, place, np.float32(share))
            if params.first != 0:
                average += share * np.float64(load_f32(params.first, place))
                product += share * np.float64(load_f32(params.second, place))
        for place in range(item * members, (item + 1) * members):
            slope = -product * factor * factor / np.float64(params.count)
            store_f32(params.slope, place, np.float32(slope))
            store_f32(params.rest, place, np.float32(-average / np.float64(params.count)))


VECTORS = Record(
    "gradients of vectors",
    ("first second", "address", "sums of g and of g * (x - mean) per channel"),
    ("factor", "address", "per set"),
    ("images channels members", "count", "members: channels of a set"),
    ("shift scale", "address", "f32"),
)


@device
def _add_scaled(totals, first, second, factor, step, count):
    """Add numbers to the sums of channels. step: 1 if each channel has a factor, or else 0."""
    for i in range(count):
        store_f64(totals, i, load_f64(totals, i) + np.float64(load_f32(first, i)))
    others = totals + 8 * JOINED
    for i in range(count):
        own = np.float64(load_f32(factor, step * i)) * np.float64(load_f32(second, i))
        store_f64(others, i, load_f64(others, i) + own)


@task(VECTORS)
def vectors(params, begin, end):
    """Add up the gradients of shift and scale over images."""
    channels, members, start = params.channels, params.members, begin
    room, step = stack(2 * JOINED), 1 if members == 1 else 0
    while start < end:  # channels of a set, or channels that are sets
        one = start // members
        count = min(JOINED, end - start)
        if members > 1:
            count = min(count, (one + 1) * members - start)
        for i in range(count):
            store_f64(room, i, 0.0)
            store_f64(room, JOINED + i, 0.0)
        for image in range(params.images):
            place = 4 * (image * channels + start)
            factor = params.factor + 4 * (image * (channels // members) + one)
            _add_scaled(room, params.first + place, params.second + place, factor, step, count)
        for i in range(count):
            store_f32(params.shift, start + i, np.float32(load_f64(room, i)))
            store_f32(params.scale, start + i, np.float32(load_f64(room, JOINED + i)))
        start += count


OPERANDS = Record("tensors", ("y x other mask mean slope share rest", "address"))
APPLY = Record(
    "application to channels",
    ("nest", Pointer(NEST), "over tiles"),
    ("along", "flag"),
    ("rows columns fold", "count", "as in `SUMS`"),
    ("y_row x_row other_row mask_row", "bytes"),
    ("step", "bytes", "between the numbers of rows"),
    ("kernel", "address"),
    ("starts", OPERANDS),
)


@device
def _repeated(numbers, room, columns, fold):
    if numbers != 0:
        for row in range(fold):
            for i in range(columns):
                store_f32(room, row * columns + i, load_f32(numbers, i))


@task(APPLY)
def apply(params, begin, end):
    """Apply the numbers of channels to tiles."""
    fold, columns = params.fold, params.columns
    position, tensors = stack(MAX_LOOPS), OPERANDS.room()
    means, slopes_, shares, rests = stack(_ROOM), stack(_ROOM), stack(_ROOM), stack(_ROOM)
    known_mean, known_slope = 0, 0  # each of them may be shared by all images
    seek(params.nest, begin, position, params.starts, tensors, 1)
    for _ in range(begin, end):
        mean, slope, share, rest = tensors.mean, tensors.slope, tensors.share, tensors.rest
        if fold > 1:
            if known_mean != mean or known_slope != slope:
                known_mean, known_slope = mean, slope
                _repeated(mean, means, columns, fold)
                _repeated(slope, slopes_, columns, fold)
                _repeated(share, shares, columns, fold)
                _repeated(rest, rests, columns, fold)
            mean, slope, share, rest = means, slopes_, shares, rests
        done = 0
        while done < params.rows:
            rows, width = (params.rows - done) // fold, columns * fold
            if rows == 0:
                rows, width = 1, columns * (params.rows - done)
            APPLY_CALL.call(
                params.kernel, y=tensors.y + done * params.y_row, x=tensors.x + done * params.x_row,
                other=tensors.other + done * params.other_row,
                mask=tensors.mask + done * params.mask_row, y_row=fold * params.y_row,
                x_row=fold * params.x_row, other_row=fold * params.other_row,
                mask_row=fold * params.mask_row, rows=rows, columns=width, mean=mean,
                slope=slope, share=share, rest=rest, weight=0, step=params.step,
                ahead=APPLY_AHEAD,
            )  # fmt: skip
            done += rows * width // columns
        advance(params.nest, position, tensors, 1)
