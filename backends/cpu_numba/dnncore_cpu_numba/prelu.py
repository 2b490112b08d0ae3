"""PReLU: one chain forward; both gradients in one pass, or chains and sums for odd layouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from dnncore.backend import (
    Accepted,
    Attributes,
    Implementation,
    MemoryDesc,
    PReLUBackward,
    PReLUForward,
    Reduction,
    Refused,
)
from dnncore_cpu_numba.codegen.nontemporal import LINE
from dnncore_cpu_numba.codegen.type_conversion import FLOATS
from dnncore_cpu_numba.elementwise import algorithms
from dnncore_cpu_numba.elementwise.chains import chain_steps, zero_padding
from dnncore_cpu_numba.elementwise.finish import WORDS
from dnncore_cpu_numba.elementwise.implementation import ElementWise, offered, refuse_post_ops
from dnncore_cpu_numba.elementwise.post_ops import Stage, binary
from dnncore_cpu_numba.reduction.implementations import plan
from dnncore_cpu_numba.rows.channels import ChannelSums, Kernels
from dnncore_cpu_numba.rows.prelu_kernel import PReLUKernel
from dnncore_cpu_numba.runtime.program import Scratch, Step
from dnncore_cpu_numba.runtime.tensor import Tensor, arguments, is_streamed

SUM_OF_TWO = Reduction("sum", src=MemoryDesc((2,)), dst=MemoryDesc((1,)))


def _plain(desc: MemoryDesc) -> MemoryDesc:
    return desc.with_format(None) if desc.is_any else desc


class Forward(ElementWise[PReLUForward]):
    """One chain of one stage."""

    def accept(self, op: PReLUForward, attr: Attributes, engine: Any, hint: Any) -> Any:
        """Accept every layout with strides. Weights of format `any` are row-major."""
        op = op.with_descs(weights=_plain(op.weights))
        return super().accept(op, attr, engine, hint)


class Backward(Implementation[PReLUBackward]):
    """One pass in which tensors have contiguous rows in common, else chains and sums."""

    name = "cpu_numba:simd"
    data_types = FLOATS
    attributes = WORDS
    takes_repeats = True

    def accept(
        self, op: PReLUBackward, attr: Attributes, engine: Any, hint: Any
    ) -> Accepted | Refused:
        """Accept every layout with strides, and post-ops of diff_src."""
        op = op.with_descs(weights=_plain(op.weights))
        op = op.resolve_any(diff_dst=op.src, diff_src=op.src, diff_weights=op.weights)
        if refusal := refuse_post_ops(op, attr):
            return refusal
        plan = _OnePass(op)
        if plan.sums:
            return offered(op, attr, engine, plan.steps, plan.nbytes, efficiency=0.7)
        chains = _Chains(op)
        return offered(op, attr, engine, chains.steps, chains.nbytes, efficiency=0.3)


class _OnePass:
    """The plan of both gradients in one pass.

    The weights and sums of products are dense f32 in the scratchpad, unless each element of src has
    a weight.
    """

    def __init__(self, op: PReLUBackward) -> None:
        self.op, self.is_sum = op, bool(op.shared_dims)
        self.numbers = MemoryDesc(op.weights.dims, "f32")
        tensors = {"x": op.src, "diff": op.diff_dst, "y": op.diff_src.with_data_type("f32")}
        direct = () if self.is_sum else (op.diff_weights, op.weights)
        self.sums = ChannelSums.planned(op.src.dims, op.weights.dims, tensors, direct)
        self.start = 2 * self._room if self.is_sum else 0
        self.nbytes = self.start + (self.sums.nbytes if self.sums else 0)

    @property
    def _room(self) -> int:
        return -(-self.numbers.nbytes // LINE) * LINE

    def steps(self, result: Tensor) -> list[Step]:
        """Return the steps that write diff_src to a tensor, and diff_weights."""
        assert self.sums
        src, weights, diff, _, slopes = arguments(self.op).values()
        tensors = {"x": src, "diff": diff, "y": result}
        dense, dims = self.numbers, self.op.weights.dims
        if not self.is_sum:
            direct = slopes.address, tensors, weights.address, self._kernels(result)
            return [*self.sums.steps(*direct), *zero_padding(slopes)]
        own, outcome, room = weights, slopes, Scratch(self.start)
        made: list[Step] = []
        if weights.desc != dense:
            own = Tensor(Scratch(0), dense)
            made += chain_steps(dims, [own, weights], [])
        if slopes.desc != dense:
            outcome = Tensor(Scratch(self._room), dense)
        made += self.sums.steps(room, tensors, own.address, self._kernels(result))
        made.append(self.sums.combined(room, True, 0.0, outcome.address))
        if outcome is not slopes:
            made += chain_steps(dims, [slopes, outcome], [])
        return made

    def _kernels(self, result: Tensor) -> Callable[[bool], Kernels]:
        source, target = self.op.src.data_type, result.desc.data_type
        streamed = is_streamed(result)

        def kernels(along: bool) -> Kernels:
            if not self.is_sum:
                slope = self.op.weights.data_type
                return PReLUKernel(source, target, "element", slope, streamed), None
            kind: Literal["row", "column"] = "row" if along else "column"
            return PReLUKernel(source, target, kind, streamed=streamed), None

        return kernels


class _Chains:
    """The products of each weight are stored, then added. diff_src is written last, because it may
    be the memory of diff_dst.
    """

    def __init__(self, op: PReLUBackward) -> None:
        self.op, self.is_sum = op, bool(op.shared_dims)
        self.products = op.src.with_data_type("f32").with_offset0(0)
        start = -(-self.products.nbytes // LINE) * LINE if self.is_sum else 0
        self.total = SUM_OF_TWO.with_descs(src=self.products, dst=op.diff_weights.with_offset0(0))
        self.folds, nbytes = plan(self.total, start) if self.is_sum else ([], 0)
        self.nbytes = start + nbytes

    def steps(self, result: Tensor) -> list[Step]:
        """Return the steps that write diff_src to a tensor, and diff_weights."""
        op = self.op
        src, weights, diff, _, slopes = arguments(op).values()
        target = Tensor(Scratch(0), self.products) if self.is_sum else slopes
        product = Stage(algorithms.PRELU_PRODUCT, operand=2)
        made = chain_steps(op.src.dims, [target, src, diff], [product])
        for fold in self.folds:
            made += fold.steps(self.total, slopes, target.address)
        made += zero_padding(slopes)
        chain = [Stage(algorithms.PRELU_SLOPE, operand=2), binary("mul", 3)]
        return made + chain_steps(op.src.dims, [result, src, weights, diff], chain)


FORWARD = (Forward(lambda _op: [Stage(algorithms.PRELU, operand=2)]),)
BACKWARD = (Backward(),)
