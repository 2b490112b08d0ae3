"""Shuffle: the axis is a matrix that is transposed.

If rows of other dims are contiguous, they are copied between views in which the axis is two loops.
If the axis itself is contiguous or blocked, its elements are moved by tables of their places.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from dnncore.backend import Accepted, Attributes, Implementation, MemoryDesc, Refused, Shuffle
from dnncore_cpu_numba.codegen.nest import Loop, Nest, nests, places
from dnncore_cpu_numba.codegen.type_conversion import FLOATS, INTEGERS
from dnncore_cpu_numba.copies.places_task import move_by_places
from dnncore_cpu_numba.copies.reformat import copies_of_nests
from dnncore_cpu_numba.elementwise.finish import WORDS
from dnncore_cpu_numba.elementwise.implementation import offered, refuse_post_ops
from dnncore_cpu_numba.runtime.program import Step, Table
from dnncore_cpu_numba.runtime.tensor import Tensor, arguments, refuse_long, walked

_GRAIN = 4096  # least elements of a part


class ShuffleImplementation(Implementation[Shuffle]):
    """Both directions: the gradient transposes the matrix back."""

    name = "cpu_numba:rows"
    data_types = (*FLOATS, *INTEGERS)
    attributes = WORDS
    takes_repeats = True

    def accept(self, op: Shuffle, attr: Attributes, engine: Any, hint: Any) -> Accepted | Refused:
        """Accept every layout with strides, and every attribute."""
        (source, desc), _ = op.tensors()
        op = op.resolve_any(**{op.result_name: desc})
        refusal = refuse_post_ops(op, attr) or refuse_long(desc.dims[op.axis])
        if refusal:
            return refusal
        return offered(op, attr, engine, partial(_steps, op, source.name), efficiency=0.5)


def _steps(op: Shuffle, source: str, dst: Tensor) -> list[Step]:
    """Return the steps that write the result to dst, perhaps in another data type."""
    src, axis = arguments(op)[source], op.axis
    if not dst.desc.nelems:
        return []
    parts = nests(dst.desc.dims, (dst.desc, src.desc), without=(axis,))
    count = dst.desc.dims[axis]
    order = [v * op.columns + u for u in range(op.columns) for v in range(op.rows)]
    targets = places(dst.desc, axis, range(count))
    sources = places(src.desc, axis, order)
    if dst.desc.data_type != src.desc.data_type:
        parts = [
            Nest((part.offsets[0] + t, part.offsets[1] + s), part.loops)
            for part in parts
            for t, s in zip(targets, sources, strict=True)
        ]
        return copies_of_nests(parts, dst, src)
    if _is_apart(dst.desc, axis) and _is_apart(src.desc, axis):
        d, s = dst.desc.strides[axis], src.desc.strides[axis]
        rows, columns = Loop(op.rows, (d, s * op.columns)), Loop(op.columns, (d * op.rows, s))
        parts = [Nest(part.offsets, (*part.loops, columns, rows)) for part in parts]
        return copies_of_nests(parts, dst, src)
    size = dst.desc.itemsize
    return [_moves(part.ordered(), dst, src, np.array(targets) * size, np.array(sources) * size)
            for part in parts]  # fmt: skip


def _is_apart(desc: MemoryDesc, axis: int) -> bool:
    """Whether neighbours along the axis are apart, so that rows of other dims may lie between."""
    return desc.strides[axis] != 1 and all(dim != axis for dim, _ in desc.inner_blocks)


def _moves(part: Nest, dst: Tensor, src: Tensor, targets: Any, sources: Any) -> Step:
    values = walked(part, {"dst": dst, "src": src}) | {
        "count": len(targets), "size": dst.desc.itemsize,
        "targets": Table(targets), "sources": Table(sources),
    }  # fmt: skip
    return Step(move_by_places, values, part.size, grain=-(-_GRAIN // max(1, len(targets))))


TABLE = (ShuffleImplementation(),)
