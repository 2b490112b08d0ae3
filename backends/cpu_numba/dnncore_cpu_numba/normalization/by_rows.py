"""Gradients of layer normalization from dense copies, for rows that `rows/whole.py` does not take.

With the averages A of g, and B of g * x over a row, where x = (src - mean) * factor,

    diff_src = (g - A - x * B) * factor      g = diff_dst * scale
"""

from __future__ import annotations

from collections.abc import Iterator

from dnncore_cpu_numba.copies.fill_task import fill_step
from dnncore_cpu_numba.elementwise.chains import chain_steps
from dnncore_cpu_numba.elementwise.post_ops import binary, eltwise
from dnncore_cpu_numba.normalization.plan import Plan, Tensors, copied, layouts_of_copies
from dnncore_cpu_numba.rows.channels import ChannelSums
from dnncore_cpu_numba.runtime.program import Step
from dnncore_cpu_numba.runtime.tensor import Tensor


class BackwardByRows:
    """The plan of all gradients. The tensors x and g, and sums of each row, are dense rooms."""

    def __init__(self, plan: Plan) -> None:
        self.plan, dims, places = plan, plan.op.src.dims, plan.places
        for desc in layouts_of_copies(plan.op.src):
            both = {"x": desc, "diff": desc}
            rows = ChannelSums.planned(dims, places.sets, both)
            columns = ChannelSums.planned(dims, places.vector, both)
            if rows is not None and columns is not None:
                break
        assert rows is not None
        assert columns is not None
        self.rows, self.columns = rows, columns
        self.x, self.g = plan.tensor(desc), plan.tensor(desc)
        self.first, self.second = plan.room(places.sets), plan.room(places.sets)
        self.zeros = plan.room((max(self.rows.count, self.columns.count),))
        self.sums = plan.reserve(max(self.rows.nbytes, self.columns.nbytes))

    def steps(self, named: Tensors, result: Tensor, shift: Tensor, scale: Tensor) -> Iterator[Step]:
        """Yield the steps that write diff_src, and the gradients of shift and scale to rooms."""
        plan, dims = self.plan, self.plan.op.src.dims
        wants_vectors = "diff_shift" in named or "diff_scale" in named
        g = named["diff_dst"]
        if wants_vectors or not plan.op.use_global_stats:
            yield fill_step(self.zeros)
            yield from self._normalized(named["src"])
        if wants_vectors:
            if g.desc != self.g.desc:
                yield from copied(self.g, g)
                g = self.g
            yield from self._summed(self.columns, g, shift, scale)
        weights = [plan.places.of_vector(named["scale"])] if "scale" in named else []
        if plan.op.use_global_stats:
            tensors = [result, named["diff_dst"], plan.factor, *weights]
            stages = [binary("mul", place) for place in range(2, len(tensors))]
            yield from chain_steps(dims, tensors, stages)
            return
        if weights or g.desc != self.g.desc:
            yield from chain_steps(dims, [self.g, g, *weights], [binary("mul", 2) for _ in weights])
            g = self.g
        yield from self._summed(self.rows, g, self.first, self.second)
        yield from self._gradient(g, result)

    def _normalized(self, src: Tensor) -> list[Step]:
        plan = self.plan
        tensors, stages = [self.x, src, plan.factor], [binary("mul", 2)]
        if plan.op.has_mean:
            tensors.append(plan.mean)
            stages.insert(0, binary("sub", 3))
        return chain_steps(src.desc.dims, tensors, stages)

    def _summed(
        self, sums: ChannelSums, g: Tensor, first: Tensor, second: Tensor
    ) -> Iterator[Step]:
        """Yield the steps that sum g and g * x."""
        yield from sums.steps(self.sums, {"x": self.x, "diff": g}, self.zeros.address)
        yield sums.combined(self.sums, True, 0.0, first.address, second.address)

    def _gradient(self, g: Tensor, result: Tensor) -> list[Step]:
        op = self.plan.op
        tensors = [result, self.x, self.second, g, self.plan.factor, self.first]
        centred = [binary("add", 5)] if op.has_mean else []
        average = eltwise("linear", -1 / op.count, 0.0)
        stages = [binary("mul", 2), *centred, average, binary("add", 3), binary("mul", 4)]
        return chain_steps(op.src.dims, tensors[: None if centred else 5], stages)
