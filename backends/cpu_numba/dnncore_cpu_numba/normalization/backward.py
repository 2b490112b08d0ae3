"""Plans of gradients of normalizations. See `normalization/implementations.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dnncore.backend import LayerNormalization, MemoryDesc
from dnncore_cpu_numba.normalization.by_channels import BackwardByChannels
from dnncore_cpu_numba.normalization.by_rows import BackwardByRows
from dnncore_cpu_numba.normalization.plan import Plan, Tensors, copied, passed, zeros
from dnncore_cpu_numba.rows.whole import Whole, whole_sets
from dnncore_cpu_numba.runtime.program import Step
from dnncore_cpu_numba.runtime.tensor import Tensor, arguments


class Backward(Plan):
    """Averages of g and of g * x over sets, then the gradients.

    workspace: the mask of a fused relu, if there is one.
    """

    def __init__(self, op: Any, workspace: MemoryDesc | None) -> None:
        super().__init__(op)
        self.workspace = workspace
        self.shift, self.scale = (self.room((op.channels,)) for _ in range(2))
        self.whole = whole_sets(op, op.src)
        self.by_rows: BackwardByRows | None = None
        self.by_channels: BackwardByChannels | None = None
        if self.whole is not None:
            self.sums = self.reserve(self.whole.nbytes)
        elif isinstance(op, LayerNormalization):
            self.by_rows = BackwardByRows(self)
        else:
            self.by_channels = BackwardByChannels(self, workspace)

    def steps(self, result: Tensor) -> list[Step]:
        """Return the steps that write all gradients."""
        named = arguments(self.op, self.workspace)
        if not self.op.src.nelems:
            return zeros([named[n] for n in ("diff_scale", "diff_shift") if n in named])
        return [*self._all(named, result)]

    def _all(self, given: Tensors, result: Tensor) -> Iterator[Step]:
        named, steps = self.with_dense_vectors(given)
        yield from steps
        yield from self.given_statistics(named)
        if "diff_src1" in named:
            yield from passed(named["diff_src1"], named)
        if self.whole is not None:
            yield from self._of_whole_sets(self.whole, named, result)
        for plan in (self.by_rows, self.by_channels):
            if plan is not None:
                yield from plan.steps(named, result, self.shift, self.scale)
        for name, room in (("diff_shift", self.shift), ("diff_scale", self.scale)):
            if name in named:
                yield from copied(named[name], room)

    def _of_whole_sets(self, whole: Whole, named: Tensors, result: Tensor) -> Iterator[Step]:
        rooms = {"mean": self.mean.address, "variance": 0, "factor": self.factor.address}
        src, diff = named["src"], named["diff_dst"]
        yield whole.backward(self.op, src, diff, result, rooms, named, self.sums)
        if "diff_scale" in named or "diff_shift" in named:
            yield whole.joined(self.sums, self.shift.address, self.scale.address)
