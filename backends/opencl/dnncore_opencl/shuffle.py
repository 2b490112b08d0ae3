"""Shuffle: a transpose of the axis, as a copy between views in which the axis is two dims.

If a view is impossible, because the axis is blocked, or if there are post-ops, the tensors are
copied to plain ones in the scratchpad first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dnncore import backend as core
from dnncore.backend import Accepted, Attributes, MemoryDesc, Refused
from dnncore_opencl.copies.apart import apart_desc, copied, finished, has_steps
from dnncore_opencl.copies.staging import ALIGNMENT, ROW_MAJOR
from dnncore_opencl.elementwise.implementation import Passes, refuse_common
from dnncore_opencl.runtime.launch import Launch, padded
from dnncore_opencl.runtime.program import LaunchProgram
from dnncore_opencl.runtime.schema import Arg, Scratch


class Shuffle(Passes[core.Shuffle]):
    """Both directions: the gradient transposes the matrix back."""

    name = "opencl:copies"

    def accept(
        self, op: core.Shuffle, attr: Attributes, engine: Any, hint: Any
    ) -> Accepted | Refused:
        """Accept layouts of up to 11 dims."""
        (_, src), _ = op.tensors()
        op = op.resolve_any(**{op.result_name: src})
        if refused := refuse_common(op, attr, engine):
            return refused
        if src.ndims == len(ROW_MAJOR):
            return Refused("shape", f"needs a dim more; got {src.ndims} dims, which is the most")
        return Accepted(
            op,
            lambda: LaunchProgram(engine, self.launches(op, attr, engine)),
            efficiency=self.efficiency(engine, [desc for _, desc in op.tensors()]),
            scratchpad_bytes=sum(_room(desc) for desc in _copies(op, attr)),
            notes=("compiles",),
        )

    def launches(self, op: core.Shuffle, attr: Attributes, engine: Any) -> Sequence[Launch]:
        """Plan the copies."""
        if not op.result.nelems:
            return []
        (_, src), (_, dst) = op.tensors()
        source: Arg | Scratch = Arg(0)
        target: Arg | Scratch = Arg(1)
        before: Sequence[Launch] = ()
        after: Sequence[Launch] = ()
        if copies := _copies(op, attr):
            plain, apart = copies
            plain = plain.with_offset0(_room(apart) // plain.itemsize)
            before = copied(engine, src, plain, source, Scratch())
            after = finished(engine, op, attr, apart)
            src, dst, source, target = plain, apart, Scratch(), Scratch()
        views = _split(src, op.axis, op.rows), _split(dst, op.axis, op.columns)
        swapped = list(range(src.ndims + 1))
        swapped[op.axis : op.axis + 2] = swapped[op.axis + 1], swapped[op.axis]
        within = copied(engine, views[0].permute_axes(swapped), views[1], source, target)
        return [*before, *within, *after]


def _split(desc: MemoryDesc, axis: int, count: int) -> MemoryDesc:
    """Return a view of a plain tensor with `count` rows of neighbours along the axis."""
    size = desc.dims[axis] // count
    dims = (*desc.dims[:axis], count, size, *desc.dims[axis + 1 :])
    step = desc.strides[axis]
    strides = (*desc.strides[:axis], step * size, step, *desc.strides[axis + 1 :])
    return MemoryDesc(dims, desc.data_type, strides=strides, offset0=desc.offset0)


def _copies(op: core.Shuffle, attr: Attributes) -> tuple[MemoryDesc, ...]:
    """Return plain copies of the source and the result; none if views of both suffice."""
    (_, src), (_, dst) = op.tensors()
    if not has_steps(attr) and src.is_plain and dst.is_plain:
        return ()
    return src.with_format(ROW_MAJOR[: src.ndims]), apart_desc(op, attr)


def _room(desc: MemoryDesc) -> int:
    return padded(desc.nbytes, ALIGNMENT)


TABLE = (Shuffle(),)
