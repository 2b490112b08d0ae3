"""Every operation by its definition, as plain loops: an oracle for the reference.

The module shares no code with the reference. Small problems are computed exactly, in fractions.
Larger ones are computed with 64-bit mantissas (`np.longdouble`). Functions of one or two numbers
are formulas from the algorithms' records, evaluated number by number. The definitions are those of
oneDNN's developer guide.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import recurrent_definitions
from ml_dtypes import finfo

import dnncore as dnn
from dnncore.algorithms.binary import BINARY
from dnncore.algorithms.eltwise import ELTWISE, USE_DST

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]
Place = tuple[int, ...]

EXACT_PRODUCTS = 3000  # larger problems take too long in fractions


def outputs(op: Any, attr: dnn.Attributes, inputs: Arrays) -> dict[str, Array]:
    """The outputs of an operation with the dtypes of its descriptors, each rounded once."""
    with np.errstate(all="ignore"):
        numbers = {name: _long(array) for name, array in inputs.items()}
        if _is_exact(op, numbers):
            numbers = {name: _fractions(array) for name, array in numbers.items()}
        found = DEFINITIONS[type(op)](op, **{n: a for n, a in numbers.items() if _is_own(op, n)})
        result = op.result_name
        found[result] = _chain(attr, found[result], numbers, op)
        descs = {a.name: d for a, d in op.tensors(op.workspace_desc()) if a.direction == "out"}
        descs[result] = attr.stored(op)
        return {name: _stored(found[name], desc) for name, desc in descs.items()}


def _is_exact(op: Any, numbers: Arrays) -> bool:
    """Whether the result is rational, and the problem is small enough for fractions."""
    is_rational = type(op).__name__.startswith(
        ("Convolution", "Deconvolution", "InnerProduct", "MatMul", "Sum")
    )
    is_small = op.flops <= 2 * EXACT_PRODUCTS
    return is_rational and is_small and all(np.isfinite(a).all() for a in numbers.values())


def _is_own(op: Any, name: str) -> bool:
    return any(a.name == name and a.direction == "in" for a, _ in op.tensors(op.workspace_desc()))


def _long(array: Array) -> Array:
    return array.astype(np.float64).astype(np.longdouble)


def _fractions(array: Array) -> Array:
    values = [Fraction(float(value)) for value in array.ravel()]
    return np.array([*values, None], object)[:-1].reshape(array.shape)


def _zeros(dims: tuple[int, ...], like: Array) -> Array:
    zero = Fraction(0) if like.dtype == object else like.dtype.type(0)
    return np.full(dims, zero, like.dtype)


def _stored(values: Array, desc: dnn.MemoryDesc) -> Array:
    """Convert to a type: round to nearest, ties to even. Integers saturate; their NaN becomes 0."""
    dtype = desc.dtype
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return _each(lambda v: _saturated(v, limits), values).astype(dtype)
    return _rounded(values.astype(np.longdouble), finfo(dtype)).astype(dtype)


def _rounded(values: Array, limits: Any) -> Array:
    """Round to the nearest number of a type, ties to even.

    From half a step beyond the largest number on, the result is infinite.
    """
    _, exponents = np.frexp(values)
    least = math.frexp(float(limits.tiny))[1]
    step = np.ldexp(np.longdouble(1), np.maximum(exponents, least) - limits.nmant - 1)
    nearest = np.where(np.isfinite(values), np.rint(values / step) * step, values)
    beyond = np.abs(nearest) > np.longdouble(float(limits.max))
    return np.where(beyond, np.copysign(np.inf, values), nearest)


def _saturated(value: Any, limits: Any) -> int:
    if value != value:
        return 0
    return round(float(min(max(value, limits.min), limits.max)))


def _each(function: Callable[..., Any], *arrays: Array) -> Array:
    """Apply a function of numbers to broadcast arrays, number by number."""
    arrays = tuple(np.broadcast_arrays(*arrays))
    values = [function(*numbers) for numbers in zip(*(a.ravel() for a in arrays), strict=True)]
    return np.array([*values, None], object)[:-1].reshape(arrays[0].shape)


# -- windows ---------------------------------------------------------------------------------------


def _seen(op: Any, kernel: Place, size: Place, places: Place) -> Iterator[tuple[Any, Any, Any]]:
    """All triples (output position, kernel tap, image cell) whose cell is inside the image."""
    for place in np.ndindex(places):
        for tap in np.ndindex(kernel):
            cell = tuple(
                y * stride - left + t * (dilation + 1)
                for y, t, stride, left, dilation in zip(
                    place, tap, op.strides, op.padding_l, op.dilations, strict=True
                )
            )
            if all(0 <= x < n for x, n in zip(cell, size, strict=True)):
                yield place, tap, cell


def _convolution_parts(op: Any) -> Any:
    groups, oc, ic, *kernel = op.grouped_weights
    images = op.src_role.dims[0]
    size, places = op.src_role.dims[2:], op.dst_role.dims[2:]
    return groups, oc, ic, tuple(kernel), images, tuple(size), tuple(places)


def convolution(op: Any, src: Array, weights: Array, bias: Array | None = None) -> dict[str, Array]:
    """dst[n, g, o, y] = bias[g, o] + sum of src[n, g, i, x] * weights[g, o, i, t]."""
    groups, oc, ic, kernel, n, size, places = _convolution_parts(op)
    x, w = src.reshape(n, groups, ic, *size), weights.reshape(groups, oc, ic, *kernel)
    dst = _zeros((n, groups, oc, *places), src)
    for y, t, cell in _seen(op, kernel, size, places):
        by_tap = w[:, :, :, *t].swapaxes(1, 2)
        dst[:, :, :, *y] += np.matmul(x[:, :, None, :, *cell], by_tap)[:, :, 0]
    dst = dst.reshape(op.dst.dims)
    if bias is not None:
        dst = dst + bias.reshape(-1, *[1] * len(size))
    return {"dst": dst}


def convolution_data(op: Any, diff_dst: Array, weights: Array) -> dict[str, Array]:
    """diff_src[n, g, i, x] = sum of diff_dst[n, g, o, y] * weights[g, o, i, t] with x(y, t) = x."""
    groups, oc, ic, kernel, n, size, places = _convolution_parts(op)
    dy, w = diff_dst.reshape(n, groups, oc, *places), weights.reshape(groups, oc, ic, *kernel)
    dx = _zeros((n, groups, ic, *size), diff_dst)
    for y, t, cell in _seen(op, kernel, size, places):
        dx[:, :, :, *cell] += np.matmul(dy[:, :, None, :, *y], w[:, :, :, *t])[:, :, 0]
    return {"diff_src": dx.reshape(op.diff_src.dims)}


def convolution_weights(op: Any, src: Array, diff_dst: Array) -> dict[str, Array]:
    """diff_weights[g, o, i, t] = sum of diff_dst[n, g, o, y] * src[n, g, i, x(y, t)]."""
    groups, oc, ic, kernel, n, size, places = _convolution_parts(op)
    x, dy = src.reshape(n, groups, ic, *size), diff_dst.reshape(n, groups, oc, *places)
    dw = _zeros((groups, oc, ic, *kernel), src)
    for y, t, cell in _seen(op, kernel, size, places):
        for image in range(n):
            dw[:, :, :, *t] += dy[image, :, :, None, *y] * x[image, :, None, :, *cell]
    sums = _zeros((groups * oc,), src)
    for image in range(n):
        for y in np.ndindex(places):
            sums = sums + dy[image, :, :, *y].reshape(-1)
    return {"diff_weights": dw.reshape(op.diff_weights.dims), "diff_bias": sums}


def deconvolution(
    op: Any, src: Array, weights: Array, bias: Array | None = None
) -> dict[str, Array]:
    """dst[n, g, o, x(y, t)] = bias[g, o] + sum of src[n, g, i, y] * weights[g, o, i, t]."""
    groups, oc, ic, kernel, n, size, places = _convolution_parts(op)
    x, w = src.reshape(n, groups, ic, *size), weights.reshape(groups, oc, ic, *kernel)
    dst = _zeros((n, groups, oc, *places), src)
    for y, t, cell in _seen(op, kernel, places, size):
        by_tap = w[:, :, :, *t].swapaxes(1, 2)
        dst[:, :, :, *cell] += np.matmul(x[:, :, None, :, *y], by_tap)[:, :, 0]
    dst = dst.reshape(op.dst.dims)
    if bias is not None:
        dst = dst + bias.reshape(-1, *[1] * len(size))
    return {"dst": dst}


def deconvolution_data(op: Any, diff_dst: Array, weights: Array) -> dict[str, Array]:
    """diff_src[n, g, i, y] = sum of diff_dst[n, g, o, x(y, t)] * weights[g, o, i, t]."""
    groups, oc, ic, kernel, n, size, places = _convolution_parts(op)
    dy, w = diff_dst.reshape(n, groups, oc, *places), weights.reshape(groups, oc, ic, *kernel)
    dx = _zeros((n, groups, ic, *size), diff_dst)
    for y, t, cell in _seen(op, kernel, places, size):
        dx[:, :, :, *y] += np.matmul(dy[:, :, None, :, *cell], w[:, :, :, *t])[:, :, 0]
    return {"diff_src": dx.reshape(op.diff_src.dims)}


def deconvolution_weights(op: Any, src: Array, diff_dst: Array) -> dict[str, Array]:
    """diff_weights[g, o, i, t] = sum of diff_dst[n, g, o, x(y, t)] * src[n, g, i, y]."""
    groups, oc, ic, kernel, n, size, places = _convolution_parts(op)
    x, dy = src.reshape(n, groups, ic, *size), diff_dst.reshape(n, groups, oc, *places)
    dw = _zeros((groups, oc, ic, *kernel), src)
    for y, t, cell in _seen(op, kernel, places, size):
        for image in range(n):
            dw[:, :, :, *t] += dy[image, :, :, None, *cell] * x[image, :, None, :, *y]
    sums = _zeros((groups * oc,), src)
    for image in range(n):
        for place in np.ndindex(places):
            sums = sums + dy[image, :, :, *place].reshape(-1)
    return {"diff_weights": dw.reshape(op.diff_weights.dims), "diff_bias": sums}


def pooling(op: Any, src: Array) -> dict[str, Array]:
    """The largest cell and the number of its tap, or the average of the cells."""
    size, places = tuple(op.src.dims[2:]), tuple(op.dst.dims[2:])
    number = {tap: i for i, tap in enumerate(np.ndindex(op.kernel))}
    best = np.full(op.dst.dims, float(finfo(op.dst.dtype).min), np.longdouble)
    winner, total = np.zeros(op.dst.dims, int), np.zeros(op.dst.dims, np.longdouble)
    count = np.zeros(places, int)
    for y, t, cell in _seen(op, op.kernel, size, places):
        value, old = src[:, :, *cell], best[:, :, *y]
        is_better = (count[y] == 0) | (value > old) | (np.isnan(value) & ~np.isnan(old))
        best[:, :, *y] = np.where(is_better, value, old)
        winner[:, :, *y] = np.where(is_better, number[t], winner[:, :, *y])
        total[:, :, *y] += value
        count[y] += 1
    if op.algorithm == "max":
        return {"dst": best, "workspace": winner}
    whole = op.algorithm == "avg_include_padding"
    return {"dst": total / (math.prod(op.kernel) if whole else count)}


def pooling_data(op: Any, diff_dst: Array, workspace: Array | None = None) -> dict[str, Array]:
    """Each gradient goes to the maximum of its window, or in equal shares to all its cells."""
    size, places = tuple(op.diff_src.dims[2:]), tuple(op.diff_dst.dims[2:])
    number = {tap: i for i, tap in enumerate(np.ndindex(op.kernel))}
    dx = np.zeros(op.diff_src.dims, np.longdouble)
    seen = list(_seen(op, op.kernel, size, places))
    count = np.full(places, math.prod(op.kernel))
    if op.algorithm == "avg_exclude_padding":
        count[...] = 0
        for y, _, _ in seen:
            count[y] += 1
    for y, t, cell in seen:
        share = diff_dst[:, :, *y] / count[y]
        if op.algorithm == "max":
            assert workspace is not None
            share = np.where(workspace[:, :, *y] == number[t], diff_dst[:, :, *y], 0)
        dx[:, :, *cell] += share
    return {"diff_src": dx}


def _neighbours(op: Any, dims: tuple[int, ...]) -> Iterator[tuple[Place, Place]]:
    """LRN: pairs of a position and a position in its window, without the batch."""
    half = (op.local_size - 1) // 2
    is_across = op.algorithm == "across_channels"
    reach = [half if (axis == 0) == is_across else 0 for axis in range(len(dims) - 1)]
    for place in np.ndindex(dims[1:]):
        ranges = [
            range(max(0, p - h), min(n, p + h + 1))
            for p, h, n in zip(place, reach, dims[1:], strict=True)
        ]
        for offsets in np.ndindex(*map(len, ranges)):
            yield place, tuple(r[o] for r, o in zip(ranges, offsets, strict=True))


def _lrn_count(op: Any) -> int:
    if op.algorithm == "across_channels":
        return int(op.local_size)
    return int(op.local_size ** (op.src.ndims - 2))


def lrn(op: Any, src: Array) -> dict[str, Array]:
    """dst = src * (k + alpha / n * sum of src**2)**-beta."""
    squares = np.zeros(src.shape, np.longdouble)
    for place, other in _neighbours(op, src.shape):
        squares[:, *place] += src[:, *other] ** 2
    base = op.k + np.longdouble(op.alpha) * squares / _lrn_count(op)
    return {"dst": src / base**op.beta, "workspace": base}


def lrn_data(op: Any, src: Array, diff_dst: Array, workspace: Array) -> dict[str, Array]:
    """The derivative of sum(diff_dst * dst) with respect to each src, term by term."""
    base = workspace
    dx = diff_dst / base**op.beta
    slope = -op.beta * base ** (-op.beta - 1) * 2 * np.longdouble(op.alpha) / _lrn_count(op)
    for place, other in _neighbours(op, src.shape):  # dst[place] depends on src[other]
        dx[:, *other] += diff_dst[:, *place] * src[:, *place] * slope[:, *place] * src[:, *other]
    return {"diff_src": dx}


# -- products and sums -----------------------------------------------------------------------------


def inner_product(_op: Any, src: Array, weights: Array, bias: Any = 0) -> dict[str, Array]:
    """dst[n, o] = bias[o] + sum over the features f of src[n, f] * weights[o, f]."""
    x, w = _flat(src), _flat(weights)
    dst = _zeros((len(x), len(w)), src) + bias
    for f in range(x.shape[1]):
        dst = dst + x[:, None, f] * w[None, :, f]
    return {"dst": dst}


def inner_product_data(op: Any, diff_dst: Array, weights: Array) -> dict[str, Array]:
    """diff_src[n, f] = sum over o of diff_dst[n, o] * weights[o, f]."""
    w = _flat(weights)
    dx = _zeros((len(diff_dst), w.shape[1]), diff_dst)
    for o in range(len(w)):
        dx = dx + diff_dst[:, o, None] * w[o]
    return {"diff_src": dx.reshape(op.diff_src.dims)}


def inner_product_weights(op: Any, src: Array, diff_dst: Array) -> dict[str, Array]:
    """diff_weights[o, f] = sum over n of diff_dst[n, o] * src[n, f]."""
    x = _flat(src)
    dw, sums = _zeros((diff_dst.shape[1], x.shape[1]), src), _zeros((diff_dst.shape[1],), src)
    for image, gradient in zip(x, diff_dst, strict=True):
        dw = dw + gradient[:, None] * image
        sums = sums + gradient
    return {"diff_weights": dw.reshape(op.diff_weights.dims), "diff_bias": sums}


def _flat(array: Array) -> Array:
    return array.reshape(len(array), math.prod(array.shape[1:]))


def matmul(op: Any, src: Array, weights: Array, bias: Any = 0) -> dict[str, Array]:
    """dst[..., m, n] = bias + sum over k of src[..., m, k] * weights[..., k, n]."""
    dst = _zeros(op.dst.dims, src) + bias
    for k in range(src.shape[-1]):
        dst = dst + src[..., :, k, None] * weights[..., None, k, :]
    return {"dst": dst}


def _keys_of(op: Any, query: int) -> range:
    """Attention: the keys that a query sees."""
    queries, keys = op.queries.dims[2], op.keys.dims[2]
    after = {"none": keys, "top_left": query + 1, "bottom_right": query + 1 + keys - queries}
    return range(min(keys, max(0, after[op.causal])))


def _score(op: Any, at: Place, k: int, queries: Array, keys: Array, mask: Any) -> Any:
    """Attention: the score of a query at (batch, head, place) and a key."""
    n, h, q = at
    group = h * op.keys.dims[1] // op.queries.dims[1]
    total = sum(queries[n, h, q, d] * keys[n, group, k, d] for d in range(queries.shape[3]))
    added = 0 if mask is None else np.broadcast_to(mask, (*op.dst.dims[:3], keys.shape[2]))[*at, k]
    return total * op.scale + added


def attention(
    op: Any, queries: Array, keys: Array, values: Array, mask: Any = None
) -> dict[str, Array]:
    """The mean of the values that a query sees, weighted by the exponentials of the scores."""
    dst = _zeros(op.dst.dims, queries)
    lse = np.full((*op.dst.dims[:3], 1), -np.inf, queries.dtype)
    for at in np.ndindex(*op.dst.dims[:3]):
        group = at[1] * op.keys.dims[1] // op.queries.dims[1]
        scores = {k: _score(op, at, k, queries, keys, mask) for k in _keys_of(op, at[2])}
        most = max(scores.values(), default=-np.inf)
        if most == -np.inf:
            continue
        weights = {k: np.exp(s - most) for k, s in scores.items()}
        total = sum(weights.values())
        dst[at] = sum(w * values[at[0], group, k] for k, w in weights.items()) / total
        lse[at] = most + np.log(total)
    return {"dst": dst, "workspace": lse}


def attention_data(
    op: Any, queries: Array, keys: Array, values: Array, dst: Array, diff_dst: Array,
    workspace: Array, mask: Any = None,
) -> dict[str, Array]:  # fmt: skip
    """Each pair of a query and a key adds to the gradients of both."""
    found = {n: _zeros(getattr(op, n).dims, queries)
             for n in ("diff_queries", "diff_keys", "diff_values")}  # fmt: skip
    for at in np.ndindex(*op.dst.dims[:3]):
        n, group = at[0], at[1] * op.keys.dims[1] // op.queries.dims[1]
        mean = sum(a * b for a, b in zip(diff_dst[at], dst[at], strict=True))
        for k in _keys_of(op, at[2]) if workspace[at][0] != -np.inf else ():
            weight = np.exp(_score(op, at, k, queries, keys, mask) - workspace[at][0])
            slope = sum(a * b for a, b in zip(diff_dst[at], values[n, group, k], strict=True))
            change = op.scale * weight * (slope - mean)
            found["diff_queries"][at] += change * keys[n, group, k]
            found["diff_keys"][n, group, k] += change * queries[at]
            found["diff_values"][n, group, k] += weight * diff_dst[at]
    return found


def softmax(op: Any, src: Array) -> dict[str, Array]:
    """exp(s) / sum of exp, or its logarithm, of each row along the axis."""

    def of(row: Array) -> Array:
        shifted = row - max(row)
        total = sum(np.exp(s) for s in shifted)
        return shifted - np.log(total) if op.algorithm == "log" else np.exp(shifted) / total

    def statistics(row: Array) -> Array:
        return 0 * row + max(row) + np.log(sum(np.exp(s - max(row)) for s in row))

    lse = {} if op.lse is None else {"lse": _along(op.axis, statistics, src).take([0], op.axis)}
    return {"dst": _along(op.axis, of, src)} | lse


def softmax_data(op: Any, dst: Array, diff_dst: Array) -> dict[str, Array]:
    """The gradient times the Jacobian matrix of each row, number by number."""

    def of(y: Array, dy: Array) -> Array:
        if op.algorithm == "log":
            return dy - np.exp(y) * sum(dy)
        return y * (dy - sum(a * b for a, b in zip(y, dy, strict=True)))

    return {"diff_src": _along(op.axis, of, dst, diff_dst)}


def _along(axis: int, function: Callable[..., Array], *arrays: Array) -> Array:
    rows = [np.moveaxis(array, axis, -1) for array in arrays]
    result = np.zeros(rows[0].shape, np.longdouble)
    if result.size:
        for place in np.ndindex(result.shape[:-1]):
            result[place] = function(*(row[place] for row in rows))
    return np.moveaxis(result, -1, axis)


def prelu(_op: Any, src: Array, weights: Array) -> dict[str, Array]:
    """x where it is positive, else its weight times x."""
    slopes = np.broadcast_to(weights, src.shape)
    pairs = zip(src.flat, slopes.flat, strict=True)
    return {"dst": np.array([x if x > 0 else w * x for x, w in pairs]).reshape(src.shape)}


def prelu_data(_op: Any, src: Array, weights: Array, diff_dst: Array) -> dict[str, Array]:
    """The gradient of each element, which is added to that of its weight."""
    dx, dw = _zeros(src.shape, src), _zeros(weights.shape, src)
    for place in np.ndindex(src.shape):
        own = tuple(i if n > 1 else 0 for i, n in zip(place, weights.shape, strict=True))
        positive = src[place] > 0
        dx[place] = diff_dst[place] * (1 if positive else weights[own])
        dw[own] += 0 if positive else src[place] * diff_dst[place]
    return {"diff_src": dx, "diff_weights": dw}


REDUCTIONS: dict[str, Callable[[list[Any], float, float], Any]] = {
    "max": lambda s, _p, _eps: np.nan if np.isnan(s).any() else max(s),
    "min": lambda s, _p, _eps: np.nan if np.isnan(s).any() else min(s),
    "sum": lambda s, _p, _eps: sum(s),
    "mul": lambda s, _p, _eps: math.prod(s),
    "mean": lambda s, _p, _eps: sum(s) / len(s),
    "norm_lp_max": lambda s, p, eps: max(sum(abs(x) ** p for x in s), eps) ** (1 / p),
    "norm_lp_sum": lambda s, p, eps: (sum(abs(x) ** p for x in s) + eps) ** (1 / p),
    "norm_lp_power_p_max": lambda s, p, eps: max(sum(abs(x) ** p for x in s), eps),
    "norm_lp_power_p_sum": lambda s, p, eps: sum(abs(x) ** p for x in s) + eps,
}


def reduction(op: Any, src: Array) -> dict[str, Array]:
    """Each element of dst is a function of the elements of src that are reduced to it."""
    dst = np.zeros(op.dst.dims, np.longdouble)
    terms: dict[Place, list[Any]] = {}
    for place in np.ndindex(src.shape):
        left = tuple(0 if n == 1 else i for i, n in zip(place, op.dst.dims, strict=True))
        terms.setdefault(left, []).append(src[place])
    for place, values in terms.items():
        dst[place] = REDUCTIONS[op.algorithm](values, np.longdouble(op.p), np.longdouble(op.eps))
    return {"dst": dst}


def sum_(op: Any, **srcs: Array) -> dict[str, Array]:
    """dst = scales[0] * src0 + scales[1] * src1 + ..."""
    is_exact = srcs["src0"].dtype == object
    scales = [Fraction(s) if is_exact else np.longdouble(s) for s in op.scales]
    terms = [scale * srcs[f"src{i}"] for i, scale in enumerate(scales)]
    return {"dst": np.array(sum(terms))}


def concat(op: Any, **srcs: Array) -> dict[str, Array]:
    """dst[..., start + j, ...] = src{i}[..., j, ...], where start is the size of all before."""
    dst = np.empty(op.dst.dims, srcs["src0"].dtype)
    start = 0
    for i in range(len(op.srcs)):
        src = srcs[f"src{i}"]
        for place in np.ndindex(src.shape):
            moved = (*place[: op.axis], start + place[op.axis], *place[op.axis + 1 :])
            dst[moved] = src[place]
        start += src.shape[op.axis]
    return {"dst": dst}


def shuffle(op: Any, src: Array) -> dict[str, Array]:
    """dst[u * (C / G) + v] = src[v * G + u] along the axis."""
    dst = np.empty_like(src)
    for place in np.ndindex(src.shape):
        dst[_shuffled(op, place)] = src[place]
    return {"dst": dst}


def shuffle_data(op: Any, diff_dst: Array) -> dict[str, Array]:
    """diff_src[v * G + u] = diff_dst[u * (C / G) + v] along the axis."""
    diff_src = np.empty_like(diff_dst)
    for place in np.ndindex(diff_src.shape):
        diff_src[place] = diff_dst[_shuffled(op, place)]
    return {"diff_src": diff_src}


def _shuffled(op: Any, place: Place) -> Place:
    v, u = divmod(place[op.axis], op.group_size)
    moved = u * (op.result.dims[op.axis] // op.group_size) + v
    return (*place[: op.axis], moved, *place[op.axis + 1 :])


def resampling(op: Any, src: Array) -> dict[str, Array]:
    """dst = the sum of weights * src at the elements near (o + 1/2) * I / O - 1/2."""
    dst = np.zeros(op.dst.dims, src.dtype)
    for place in np.ndindex(dst.shape):
        for cell, weight in _near(op, place):
            dst[place] += weight * src[cell]
    return {"dst": dst}


def resampling_data(op: Any, diff_dst: Array) -> dict[str, Array]:
    """Add weight * diff_dst to diff_src at each element near a place."""
    diff_src = np.zeros(op.diff_src.dims, diff_dst.dtype)
    for place in np.ndindex(diff_dst.shape):
        for cell, weight in _near(op, place):
            diff_src[cell] += weight * diff_dst[place]
    return {"diff_src": diff_src}


def _near(op: Any, place: Place) -> Iterator[tuple[Place, Any]]:
    """Yield the elements of src near a place of dst, with weights that are not 0."""
    along = []
    for o, inner, outer in zip(place[2:], op.src_role.dims[2:], op.dst_role.dims[2:], strict=True):
        x = Fraction((2 * o + 1) * inner - outer, 2 * outer)
        if op.algorithm == "nearest":
            terms = [(math.floor(x + Fraction(1, 2)), Fraction(1))]
        else:
            terms = [(i, 1 - abs(x - i)) for i in range(math.floor(x), math.ceil(x) + 1)]
        along.append([(min(max(i, 0), inner - 1), weight) for i, weight in terms if weight])
    for chosen in itertools.product(*along):
        weight = math.prod((weight for _, weight in chosen), start=Fraction(1))
        exact = np.longdouble(weight.numerator) / np.longdouble(weight.denominator)
        yield (*place[:2], *(i for i, _ in chosen)), exact


# -- functions of numbers --------------------------------------------------------------------------

NAMES = {
    **{name: getattr(np, name) for name in ("exp", "log", "sqrt", "tanh")},
    "erf": math.erf, "erfc": math.erfc, "pi": np.longdouble(math.pi), "round": np.rint,
}  # fmt: skip


# Formulas in another form than in the records, because their terms overflow or cancel.
OTHER_FORMS = {
    ("gelu_erf", "formula"): "s * erfc(-s / sqrt(2)) / 2",
    ("soft_relu", "formula"): "(max(alpha * s, 0) + log(1 + exp(-abs(alpha * s)))) / alpha",
    ("logistic", "slope"): "exp(-abs(s)) / (1 + exp(-abs(s)))**2",
    ("swish", "slope"): "1 / (1 + exp(-alpha * s))"
    " + alpha * s * exp(-abs(alpha * s)) / (1 + exp(-abs(alpha * s)))**2",
}


@cache
def _function(arguments: str, text: str) -> Callable[..., Any]:
    function: Callable[..., Any] = eval(f"lambda {arguments}: {text}", dict(NAMES))
    return function


def _eltwise(name: str, part: str, x: Array, alpha: float, beta: float) -> Array:
    """Evaluate a formula of the algorithm's record. part: formula, slope, or slope_of_dst."""
    variable = "d" if part == "slope_of_dst" else "s"
    text = OTHER_FORMS.get((name, part), getattr(ELTWISE[name], part))
    function = _function(f"{variable}, alpha, beta", text)
    a, b = np.longdouble(alpha), np.longdouble(beta)
    if name == "relu" and part == "formula" and not alpha:  # 0 * -inf would be NaN
        return np.where(x > 0, x, np.where(np.isnan(x), x, 0))
    if name == "abs" and part == "slope":  # numpy has no differences of truth values
        return np.sign(x)
    keeps_nan = part == "formula" and name != "pow"
    of = (lambda v: v if np.isnan(v) else function(v, a, b)) if keeps_nan else None
    return _each(of or (lambda v: function(v, a, b)), x).astype(np.longdouble)


def eltwise(op: Any, src: Array) -> dict[str, Array]:
    """dst = f(src)."""
    return {"dst": _eltwise(op.algorithm.removesuffix(USE_DST), "formula", src, op.alpha, op.beta)}


def eltwise_data(op: Any, diff_dst: Array, **kept: Array) -> dict[str, Array]:
    """diff_src = diff_dst * f'. The slope f' is computed from src or from dst."""
    (x,) = kept.values()
    part = "slope_of_dst" if op.algorithm.endswith(USE_DST) else "slope"
    name = op.algorithm.removesuffix(USE_DST)
    return {"diff_src": diff_dst * _eltwise(name, part, x, op.alpha, op.beta)}


def _binary(name: str, *srcs: Array) -> Array:
    arguments = ", ".join(f"src{i}" for i in range(len(srcs)))
    function = _function(arguments, BINARY[name].formula)

    def of(*values: Any) -> Any:
        if name in ("max", "min") and any(np.isnan(v) for v in values):
            return np.longdouble(np.nan)
        return np.longdouble(function(*values))

    return _each(of, *srcs).astype(np.longdouble)


def binary(op: Any, **srcs: Array) -> dict[str, Array]:
    """dst = src0 op src1, broadcast."""
    return {"dst": _binary(op.algorithm, *srcs.values())}


def reorder(_op: Any, src: Array) -> dict[str, Array]:
    """dst = src."""
    return {"dst": src}


def _chain(attr: dnn.Attributes, x: Array, numbers: Arrays, op: Any) -> Array:
    """Apply the post-ops in order."""
    if attr.post_ops:
        x = x.astype(np.float64).astype(np.longdouble) if x.dtype == object else x
        numbers = {n: a.astype(np.float64).astype(np.longdouble) for n, a in numbers.items()}
    for i, step in enumerate(attr.post_ops):
        operands = [numbers[f"post_op_{i}_{name}"] for name, _ in step.operands]
        if step.kind == "eltwise":
            x = _eltwise(step.algorithm, "formula", x, step.alpha, step.beta)
        elif step.kind == "sum":
            x = x + np.longdouble(step.scale) * numbers[op.result_name]
        elif step.kind == "depthwise":
            x = _depthwise(step, _long(_stored(x, op.result)), *operands)
        elif step.kind == "prelu":
            x = _each(lambda v, w: v if v > 0 else v * w, x, *operands).astype(np.longdouble)
        else:
            x = _binary(step.algorithm, x, *operands)
    return x


def _depthwise(step: Any, x: Array, weights: Array, bias: Array | None = None) -> Array:
    dims = [(n + 2 * step.padding - weights.shape[3]) // step.stride + 1 for n in x.shape[2:]]
    dst = np.zeros((*x.shape[:2], *dims), np.longdouble)
    for n, c, *place in np.ndindex(dst.shape):
        for tap in np.ndindex(weights.shape[3:]):
            cell = [y * step.stride - step.padding + t for y, t in zip(place, tap, strict=True)]
            if all(0 <= at < size for at, size in zip(cell, x.shape[2:], strict=True)):
                dst[n, c, *place] += x[n, c, *cell] * weights[c, 0, 0, *tap]
        dst[n, c, *place] += 0 if bias is None else bias[c]
    return dst


def _sets(op: Any) -> Iterator[tuple[Place, list[Place]]]:
    """Places of each statistic, and the places of src's elements that share it."""
    found: dict[Place, list[Place]] = {place: [] for place in np.ndindex(op.statistics_dims)}
    for place in np.ndindex(op.src.dims):
        found[_statistic_of(op, place)].append(place)
    yield from found.items()


def _statistic_of(op: Any, place: Place) -> Place:
    kind = type(op).__name__
    if kind.startswith("Batch"):
        return place[1:2]
    if kind.startswith("Layer"):
        return place[:-1]
    return place[0], place[1] * op.groups // op.src.dims[1]


def _channel_of(op: Any, place: Place) -> int:
    return place[-1] if type(op).__name__.startswith("Layer") else place[1]


def normalization(
    op: Any, src: Array, mean: Any = None, variance: Any = None, scale: Any = None,
    shift: Any = None, src1: Any = None,
) -> dict[str, Array]:  # fmt: skip
    """dst = scale * (src - mean) / sqrt(variance + epsilon) + shift, element by element."""
    dst, mask = _zeros(op.src.dims, src), _zeros(op.src.dims, src)
    means, variances = (_zeros(op.statistics_dims, src) for _ in range(2))
    for at, places in _sets(op):
        if op.use_global_stats:
            middle, spread = mean[at] if mean is not None else 0, variance[at]
        else:
            count = max(1, len(places))
            middle = sum(src[p] for p in places) / count if op.has_mean else 0
            spread = sum((src[p] - middle) ** 2 for p in places) / count
        means[at], variances[at] = middle, spread
        for p in places:
            c = _channel_of(op, p)
            z = (src[p] - middle) / np.sqrt(np.longdouble(spread) + np.longdouble(op.epsilon))
            z = z if scale is None else z * scale[c]
            z = z if shift is None else z + shift[c]
            z = z if src1 is None else z + src1[p]
            is_cut = getattr(op, "fuse_relu", False) and z <= 0
            dst[p], mask[p] = (0, 0) if is_cut else (z, 1)
    return {"dst": dst, "mean": means, "variance": variances, "workspace": mask}


def normalization_data(
    op: Any, src: Array, diff_dst: Array, variance: Array, mean: Any = None, scale: Any = None,
    workspace: Any = None,
) -> dict[str, Array]:  # fmt: skip
    """The derivatives of all elements of dst in a set, with respect to each of its elements."""
    result, slopes = _zeros(op.src.dims, src), _zeros(op.src.dims, src)
    of_scale, of_shift = (_zeros((op.channels,), src) for _ in range(2))
    for p in np.ndindex(op.src.dims):
        slopes[p] = diff_dst[p] if workspace is None or workspace[p] else 0
    for at, places in _sets(op):
        middle = mean[at] if mean is not None else 0
        root = np.sqrt(np.longdouble(variance[at]) + np.longdouble(op.epsilon))
        along_mean = along_variance = np.longdouble(0)
        for p in places:
            c, off = _channel_of(op, p), src[p] - middle
            of_scale[c] += slopes[p] * off / root
            of_shift[c] += slopes[p]
            g = slopes[p] if scale is None else slopes[p] * scale[c]
            along_mean -= g / root
            along_variance -= g * off / (2 * root**3)
            result[p] = g / root
        if not op.use_global_stats:
            for p in places:
                result[p] += along_mean / len(places) if op.has_mean else 0
                result[p] += along_variance * 2 * (src[p] - middle) / len(places)
    return {
        "diff_src": result, "diff_scale": of_scale, "diff_shift": of_shift, "diff_src1": slopes,
    }  # fmt: skip


DEFINITIONS: dict[type[dnn.Operation], Callable[..., dict[str, Array]]] = {
    dnn.AttentionForward: attention,
    dnn.AttentionBackward: attention_data,
    dnn.BatchNormalizationForward: normalization,
    dnn.BatchNormalizationBackward: normalization_data,
    dnn.Binary: binary,
    dnn.Concat: concat,
    dnn.ConvolutionForward: convolution,
    dnn.ConvolutionBackwardData: convolution_data,
    dnn.ConvolutionBackwardWeights: convolution_weights,
    dnn.DeconvolutionForward: deconvolution,
    dnn.DeconvolutionBackwardData: deconvolution_data,
    dnn.DeconvolutionBackwardWeights: deconvolution_weights,
    dnn.EltwiseForward: eltwise,
    dnn.EltwiseBackward: eltwise_data,
    dnn.GroupNormalizationForward: normalization,
    dnn.GroupNormalizationBackward: normalization_data,
    dnn.InnerProductForward: inner_product,
    dnn.InnerProductBackwardData: inner_product_data,
    dnn.InnerProductBackwardWeights: inner_product_weights,
    dnn.LayerNormalizationForward: normalization,
    dnn.LayerNormalizationBackward: normalization_data,
    dnn.LRNForward: lrn,
    dnn.LRNBackward: lrn_data,
    dnn.MatMul: matmul,
    dnn.PoolingForward: pooling,
    dnn.PoolingBackward: pooling_data,
    dnn.PReLUForward: prelu,
    dnn.PReLUBackward: prelu_data,
    dnn.Reduction: reduction,
    dnn.Reorder: reorder,
    dnn.RNNForward: recurrent_definitions.forward,
    dnn.RNNBackward: recurrent_definitions.backward,
    dnn.ResamplingForward: resampling,
    dnn.ResamplingBackward: resampling_data,
    dnn.ShuffleForward: shuffle,
    dnn.ShuffleBackward: shuffle_data,
    dnn.SoftmaxForward: softmax,
    dnn.SoftmaxBackward: softmax_data,
    dnn.Sum: sum_,
}
