"""Sum: dst = scales[0] * src0 + scales[1] * src1 + ..."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from dnncore import backend as core
from dnncore.backend import Attributes, MemoryDesc
from dnncore_opencl.copies.staging import redirected
from dnncore_opencl.elementwise.implementation import Pass, Passes
from dnncore_opencl.runtime.launch import Launch
from dnncore_opencl.runtime.schema import Arg, Scratch

MOST_SRCS = 16  # per pass: devices need accept only 1024 bytes of arguments, and a src may need 60


class Sum(Passes[core.Sum]):
    """One pass per `MOST_SRCS` srcs, the last with post-ops. Partial sums are in scratchpad."""

    like: ClassVar = {"dst": "src0"}

    def launches(self, op: core.Sum, attr: Attributes, engine: Any) -> Sequence[Launch]:
        """Plan one or several passes."""
        last = len(op.srcs) - 1
        starts = range(0, len(op.srcs), MOST_SRCS)
        return [
            launch
            for first in starts
            for launch in self._part(op, attr, engine, first, min(first + MOST_SRCS - 1, last))
        ]

    def scratchpad_bytes(self, op: core.Sum) -> int:
        """Return the bytes of dst in f32 if there are several passes, else 0."""
        return _partial(op).nbytes if len(op.srcs) > MOST_SRCS else 0

    def _part(
        self, op: core.Sum, attr: Attributes, engine: Any, first: int, last: int
    ) -> Sequence[Launch]:
        """Add the srcs from `first` to `last` to the partial sum."""
        is_whole = last == len(op.srcs) - 1
        buffers: list[Arg | Scratch] = [Arg(i) for i in range(first, last + 1)]
        descs = [*op.srcs[first : last + 1]]
        if first:
            buffers.append(Scratch())
            descs.append(_partial(op))
        buffers.append(Arg(len(op.srcs)) if is_whole else Scratch())
        descs.append(op.dst if is_whole else _partial(op))
        result = len(descs) - 1
        if is_whole:
            buffers += [Arg(len(op.srcs) + 1 + i) for i in range(len(attr.arguments(op)))]
        operands = attr.operands() if is_whole else []
        work = Pass(engine, [*descs, *(desc for _, desc in operands)], result)
        if is_whole:
            work.take(op, attr)
        scales = op.scales[first : last + 1]
        terms = [f"{work.parameters.real(scale)} * v{i}" for i, scale in enumerate(scales)]
        work.start(" + ".join((*terms, f"v{len(terms)}") if first else terms))
        work.keeps_zero = any(scale > 0 for scale in scales)  # otherwise zeros could sum to -0
        if is_whole:
            work.post_ops(attr)
        return [redirected(launch, dict(enumerate(buffers))) for launch in work.launches()]


def _partial(op: core.Sum) -> MemoryDesc:
    """Return the descriptor of partial sums, which are not rounded to dst's type."""
    return op.dst.with_data_type("f32")


TABLE = (Sum(),)
