"""Softmax and log-softmax along one axis, and their gradients.

Where the axis is contiguous in memory and long, a work item is one vector along it, processed in a
buffer, or several pieces. Elsewhere an item is a slab: some neighbouring vectors, its columns,
processed place by place of the axis. Either way the arithmetic runs over short contiguous buffers,
so that it is vectorised in every layout and may be done in place. A vector of -inf alone, or with
NaN or +inf in it, gives NaN, as the formula does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dnncore.backend import Accepted, Attributes, Executable, Implementation, MemoryDesc, Refused
from dnncore_cpu_numba.codegen.nest import nests
from dnncore_cpu_numba.codegen.nontemporal import STREAM_BYTES
from dnncore_cpu_numba.codegen.task import Task
from dnncore_cpu_numba.copies.gather import places
from dnncore_cpu_numba.elementwise.implementation import (
    refuse_post_ops,
    second_pass_bytes,
    with_post_ops,
)
from dnncore_cpu_numba.runtime.program import Arg, Program, Step, Table
from dnncore_cpu_numba.softmax.tasks import (
    COLUMNS,
    LINE_LENGTH,
    SLAB,
    backward_slabs,
    backward_vectors,
    forward_slabs,
    forward_vectors,
)

__all__ = ["BACKWARD", "FORWARD"]

_SHORT = 32  # elements; shorter vectors are slabs, side by side in the lanes
_GRAIN = 2048  # elements of a part at least: exponentials take their time


class SoftmaxImplementation(Implementation[Any]):
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
        tensors = {name: names.index(name) for name in (op.result_name, *self.inputs)}
        descs = [getattr(op, name) for name in tensors]
        in_vectors = _is_contiguous(descs, op.axis) and descs[0].dims[op.axis] >= _SHORT
        function = self.vectors if in_vectors else self.slabs
        columns = 1 if in_vectors else _slab_columns(descs[0].dims[op.axis])
        steps = _steps(function, columns, descs, tensors, op.axis, op.algorithm == "log")
        return Program(with_post_ops(steps, op, attr), num_threads)


def _is_contiguous(descs: Sequence[MemoryDesc], axis: int) -> bool:
    return all(
        desc.strides[axis] == 1 and axis not in {dim for dim, _ in desc.inner_blocks}
        for desc in descs
    )


def _slab_columns(length: int) -> int:
    """The most vectors of a slab. If possible, the buffer has room for all of them."""
    columns = min(COLUMNS, SLAB // max(1, length)) // LINE_LENGTH * LINE_LENGTH
    return columns or COLUMNS


def _steps(
    function: Task,
    columns: int,
    descs: Sequence[MemoryDesc],
    tensors: Mapping[str, int],
    axis: int,
    log: bool,
) -> list[Step]:
    """The steps over all dims but the axis.

    descs: of the tensors. tensors: their places in binding order, the result's first.
    """
    dims = descs[0].dims
    streamed = sum(desc.nbytes for desc in descs) >= STREAM_BYTES
    tables = [Table(4 * places(desc, axis)[: dims[axis]]) for desc in descs]
    steps = []
    for nest in nests(dims, descs, without=(axis,)):
        for part in nest.ordered().rows(columns):
            row, outer = part.loops[-1], part.without(1)
            starts = [Arg(a, 4 * o) for a, o in zip(tensors.values(), part.offsets, strict=True)]
            values = {
                "nest": outer.table([4] * len(descs)), "length": dims[axis], "log": log,
                "streamed": streamed, "columns": row.extent,
                "starts": dict(zip(tensors, starts, strict=True)),
                "strides": dict(zip(tensors, row.strides, strict=True)),
                "places": dict(zip(tensors, tables, strict=True)),
            }  # fmt: skip
            grain = -(-_GRAIN // (dims[axis] * row.extent))
            steps.append(Step(function, values, outer.size, grain=grain))
    return steps


FORWARD = (SoftmaxImplementation(["src"], forward_vectors, forward_slabs),)
BACKWARD = (SoftmaxImplementation(["dst", "diff_dst"], backward_vectors, backward_slabs),)
