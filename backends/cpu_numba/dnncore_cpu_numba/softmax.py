"""Softmax and log-softmax along one axis, and their gradients.

Where the axis is contiguous in memory, a work item is one vector along it, processed in pieces.
Elsewhere an item is a slab: some neighbouring vectors, its columns, processed place by place of the
axis. Either way the arithmetic runs over short contiguous buffers, so that it is vectorised in
every layout and may be done in place. A vector of -inf alone, or with NaN or +inf in it, gives NaN,
as the formula does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dnncore.backend import Accepted, Attributes, Executable, Implementation, MemoryDesc, Refused
from dnncore_cpu_numba import vecmath
from dnncore_cpu_numba.elementwise import refuse_post_ops, second_pass_bytes, with_post_ops
from dnncore_cpu_numba.nest import MAX_LOOPS, advance, nests, places, seek
from dnncore_cpu_numba.pointers import load_f32, load_i64, stack, store_f32
from dnncore_cpu_numba.program import Arg, Program, Step, Table
from dnncore_cpu_numba.task import Task, device, exact, task

__all__ = ["BACKWARD", "FORWARD"]

_PIECE = 256  # elements of a buffer: a piece of a vector, or the columns of a slab, at most
_BUFFER = _PIECE // 2  # int64
_LANES = 64  # maxima kept side by side, which makes their comparisons independent
_LANES_BUFFER = _LANES // 2
_GRAIN = 2048  # elements of a part at least: exponentials take their time
_ZERO, _ONE = np.float32(0), np.float32(1)
_LOWEST = np.float32("-inf")


class SimdSoftmax(Implementation):
    """The three passes of the formula over vectors or slabs."""

    name = "cpu_numba:simd"

    def __init__(self, inputs: Sequence[str], vectors: Task, slabs: Task) -> None:
        self.inputs = tuple(inputs)
        self.vectors = vectors
        self.slabs = slabs

    def accept(self, op: Any, attr: Attributes, engine: Any, hint: Any) -> Accepted | Refused:
        """Accept every layout that has strides, any axis, and post-ops."""
        first = getattr(op, self.inputs[0])
        op = op.resolve_any(**{a.name: first for a, _ in op.tensors() if a.name != self.inputs[0]})
        refusal = refuse_post_ops(op, attr)
        if refusal:
            return refusal
        contiguous = _is_contiguous([desc for _, desc in op.tensors()], op.axis)
        return Accepted(
            op,
            build=lambda: self._build(op, attr, engine.num_threads),
            efficiency=0.5 if contiguous else 0.3,
            scratchpad_bytes=second_pass_bytes(op, attr),
        )

    def _build(self, op: Any, attr: Attributes, num_threads: int) -> Executable:
        names = [argument.name for argument, _ in op.tensors()]
        arguments = [names.index(name) for name in (op.result_name, *self.inputs)]
        descs = [getattr(op, names[i]) for i in arguments]
        contiguous = _is_contiguous(descs, op.axis)
        function = self.vectors if contiguous else self.slabs
        columns = 1 if contiguous else _PIECE
        steps = _steps(function, columns, descs, arguments, op.axis, op.algorithm == "log")
        return Program(with_post_ops(steps, op, attr, arguments[0], len(names)), num_threads)


def _is_contiguous(descs: Sequence[MemoryDesc], axis: int) -> bool:
    return all(
        desc.strides[axis] == 1 and axis not in {dim for dim, _ in desc.inner_blocks}
        for desc in descs
    )


def _steps(
    function: Task,
    columns: int,
    descs: Sequence[MemoryDesc],
    arguments: Sequence[int],
    axis: int,
    log: bool,
) -> list[Step]:
    """The steps over all dims but the axis; descs and arguments: the result first."""
    dims = descs[0].dims
    tables = [Table(4 * np.array(places(desc, axis), np.int64)) for desc in descs]
    steps = []
    for nest in nests(dims, descs, without=(axis,)):
        for part in nest.ordered().rows(columns):
            row, outer = part.loops[-1], part.without(1)
            params = [Table(outer.table([4] * len(descs))), dims[axis], int(log), row.extent]
            params += [*row.strides, *tables]
            params += [Arg(a, 4 * o) for a, o in zip(arguments, part.offsets, strict=True)]
            grain = -(-_GRAIN // (dims[axis] * row.extent))
            steps.append(Step(function, params, outer.size, grain=grain))
    return steps


# -- forward: dst, src -----------------------------------------------------------------------------


@task
def _forward_vectors(params, begin, end):
    """Softmax of vectors that are contiguous in memory."""
    table, length, log = load_i64(params, 0), load_i64(params, 1), load_i64(params, 2)
    position, tensors, x = stack(MAX_LOOPS), stack(2), stack(_BUFFER)
    seek(table, begin, position, params + 8 * 8, tensors, 1)
    for _ in range(begin, end):
        dst, src = load_i64(tensors, 0), load_i64(tensors, 1)
        top = _largest(src, length)
        total = _ZERO
        for start in range(0, length, _PIECE):
            count = min(_PIECE, length - start)
            for i in range(count):
                e = vecmath.exp(load_f32(src, start + i) - top)
                store_f32(x, i, e)
                total += e
            if not log:
                _copy(x, 1, dst + 4 * start, 1, count)
        rest = vecmath.log(total) if log else _ONE / total
        for start in range(0, length, _PIECE):
            count = min(_PIECE, length - start)
            if log:
                for i in range(count):
                    store_f32(x, i, _shifted(load_f32(src, start + i), top, rest))
                _copy(x, 1, dst + 4 * start, 1, count)
            else:
                for i in range(count):
                    store_f32(dst, start + i, load_f32(dst, start + i) * rest)
        advance(table, position, tensors, 1)


@task
def _forward_slabs(params, begin, end):
    """Softmax of slabs."""
    table, length, log = load_i64(params, 0), load_i64(params, 1), load_i64(params, 2)
    columns, dst_stride, src_stride = load_i64(params, 3), load_i64(params, 4), load_i64(params, 5)
    dst_places, src_places = load_i64(params, 6), load_i64(params, 7)
    position, tensors = stack(MAX_LOOPS), stack(2)
    x, top, total = stack(_BUFFER), stack(_BUFFER), stack(_BUFFER)
    seek(table, begin, position, params + 8 * 8, tensors, 1)
    for _ in range(begin, end):
        dst, src = load_i64(tensors, 0), load_i64(tensors, 1)
        for c in range(columns):
            store_f32(top, c, _LOWEST)
            store_f32(total, c, _ZERO)
        for j in range(length):
            _copy(src + load_i64(src_places, j), src_stride, x, 1, columns)
            for c in range(columns):
                value, largest = load_f32(x, c), load_f32(top, c)
                store_f32(top, c, value if value > largest else largest)
        for j in range(length):
            _copy(src + load_i64(src_places, j), src_stride, x, 1, columns)
            for c in range(columns):
                e = vecmath.exp(load_f32(x, c) - load_f32(top, c))
                store_f32(x, c, e)
                store_f32(total, c, load_f32(total, c) + e)
            if not log:
                _copy(x, 1, dst + load_i64(dst_places, j), dst_stride, columns)
        for c in range(columns):
            value = load_f32(total, c)
            store_f32(total, c, vecmath.log(value) if log else _ONE / value)
        for j in range(length):
            to = dst + load_i64(dst_places, j)
            if log:
                _copy(src + load_i64(src_places, j), src_stride, x, 1, columns)
                for c in range(columns):
                    store_f32(x, c, _shifted(load_f32(x, c), load_f32(top, c), load_f32(total, c)))
            else:
                _copy(to, dst_stride, x, 1, columns)
                for c in range(columns):
                    store_f32(x, c, load_f32(x, c) * load_f32(total, c))
            _copy(x, 1, to, dst_stride, columns)
        advance(table, position, tensors, 1)


# -- backward: diff_src, dst, diff_dst -------------------------------------------------------------


@task
def _backward_vectors(params, begin, end):
    """The gradient for vectors that are contiguous in memory."""
    table, length, log = load_i64(params, 0), load_i64(params, 1), load_i64(params, 2)
    position, tensors, x = stack(MAX_LOOPS), stack(3), stack(_BUFFER)
    seek(table, begin, position, params + 8 * 10, tensors, 1)
    for _ in range(begin, end):
        diff_src, dst = load_i64(tensors, 0), load_i64(tensors, 1)
        diff_dst = load_i64(tensors, 2)
        total = _ZERO
        if log:
            for i in range(length):
                total += load_f32(diff_dst, i)
        else:
            for i in range(length):
                total += load_f32(diff_dst, i) * load_f32(dst, i)
        for start in range(0, length, _PIECE):
            count = min(_PIECE, length - start)
            if log:
                for i in range(count):
                    y, g = load_f32(dst, start + i), load_f32(diff_dst, start + i)
                    store_f32(x, i, g - vecmath.exp(y) * total)
            else:
                for i in range(count):
                    y, g = load_f32(dst, start + i), load_f32(diff_dst, start + i)
                    store_f32(x, i, y * (g - total))
            _copy(x, 1, diff_src + 4 * start, 1, count)
        advance(table, position, tensors, 1)


@task
def _backward_slabs(params, begin, end):
    """The gradient for slabs."""
    table, length, log = load_i64(params, 0), load_i64(params, 1), load_i64(params, 2)
    columns, out_stride = load_i64(params, 3), load_i64(params, 4)
    y_stride, g_stride = load_i64(params, 5), load_i64(params, 6)
    out_places, y_places, g_places = load_i64(params, 7), load_i64(params, 8), load_i64(params, 9)
    position, tensors = stack(MAX_LOOPS), stack(3)
    y, g, total = stack(_BUFFER), stack(_BUFFER), stack(_BUFFER)
    seek(table, begin, position, params + 8 * 10, tensors, 1)
    for _ in range(begin, end):
        diff_src, dst = load_i64(tensors, 0), load_i64(tensors, 1)
        diff_dst = load_i64(tensors, 2)
        for c in range(columns):
            store_f32(total, c, _ZERO)
        for j in range(length):
            _copy(diff_dst + load_i64(g_places, j), g_stride, g, 1, columns)
            if log:
                for c in range(columns):
                    store_f32(total, c, load_f32(total, c) + load_f32(g, c))
            else:
                _copy(dst + load_i64(y_places, j), y_stride, y, 1, columns)
                for c in range(columns):
                    product = load_f32(g, c) * load_f32(y, c)
                    store_f32(total, c, load_f32(total, c) + product)
        for j in range(length):
            _copy(diff_dst + load_i64(g_places, j), g_stride, g, 1, columns)
            _copy(dst + load_i64(y_places, j), y_stride, y, 1, columns)
            if log:
                for c in range(columns):
                    product = vecmath.exp(load_f32(y, c)) * load_f32(total, c)
                    store_f32(g, c, load_f32(g, c) - product)
            else:
                for c in range(columns):
                    centred = load_f32(g, c) - load_f32(total, c)
                    store_f32(g, c, load_f32(y, c) * centred)
            _copy(g, 1, diff_src + load_i64(out_places, j), out_stride, columns)
        advance(table, position, tensors, 1)


# -- parts -----------------------------------------------------------------------------------------


@device
def _copy(x, x_stride, y, y_stride, count):
    for i in range(count):
        store_f32(y, i * y_stride, load_f32(x, i * x_stride))


@exact
def _shifted(x, top, rest):
    return (x - top) - rest  # in this order: top may be so large that it swallows rest


@device
def _largest(x, length):
    """The maximum of a contiguous vector; NaN is passed over."""
    best = stack(_LANES_BUFFER)
    for lane in range(_LANES):
        store_f32(best, lane, _LOWEST)
    for start in range(0, length, _LANES):
        for lane in range(min(_LANES, length - start)):
            value, largest = load_f32(x, start + lane), load_f32(best, lane)
            store_f32(best, lane, value if value > largest else largest)
    top = _LOWEST
    for lane in range(min(_LANES, length)):
        value = load_f32(best, lane)
        top = value if value > top else top
    return top


FORWARD = (SimdSoftmax(["src"], _forward_vectors, _forward_slabs),)
BACKWARD = (SimdSoftmax(["dst", "diff_dst"], _backward_vectors, _backward_slabs),)
