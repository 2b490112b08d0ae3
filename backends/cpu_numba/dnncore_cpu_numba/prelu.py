"""PReLU: one chain forward; the gradient is a chain for diff_src and sums of products."""

from __future__ import annotations

from typing import Any

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
from dnncore_cpu_numba.codegen.type_conversion import FLOATS
from dnncore_cpu_numba.elementwise import algorithms
from dnncore_cpu_numba.elementwise.chains import chain_steps, zero_padding
from dnncore_cpu_numba.elementwise.finish import WORDS
from dnncore_cpu_numba.elementwise.implementation import ElementWise, offered, refuse_post_ops
from dnncore_cpu_numba.elementwise.post_ops import Stage, binary
from dnncore_cpu_numba.reduction.implementations import plan
from dnncore_cpu_numba.runtime.program import Scratch, Step
from dnncore_cpu_numba.runtime.tensor import Tensor, arguments

SUM_OF_TWO = Reduction("sum", src=MemoryDesc((2,)), dst=MemoryDesc((1,)))
LINE = 64  # bytes


def _plain(desc: MemoryDesc) -> MemoryDesc:
    return desc.with_format(None) if desc.is_any else desc


class Forward(ElementWise[PReLUForward]):
    """One chain of one stage."""

    def accept(self, op: PReLUForward, attr: Attributes, engine: Any, hint: Any) -> Any:
        """Accept every layout with strides. Weights of format `any` are row-major."""
        op = op.with_descs(weights=_plain(op.weights))
        return super().accept(op, attr, engine, hint)


class Backward(Implementation[PReLUBackward]):
    """The products of each weight are stored, then added. diff_src is written last, because it may
    be the memory of diff_dst.
    """

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
        products = op.src.with_data_type("f32").with_offset0(0)
        is_sum = bool(op.shared_dims)
        start = -(-products.nbytes // LINE) * LINE if is_sum else 0
        sums = SUM_OF_TWO.with_descs(src=products, dst=op.diff_weights.with_offset0(0))
        folds, nbytes = plan(sums, start) if is_sum and op.src.nelems else ([], 0)

        def steps(result: Tensor) -> list[Step]:
            src, weights, diff, _, slopes = arguments(op).values()
            target = Tensor(Scratch(0), products) if is_sum else slopes
            product = Stage(algorithms.PRELU_PRODUCT, operand=2)
            made = chain_steps(op.src.dims, [target, src, diff], [product])
            for fold in folds:
                made += fold.steps(sums, slopes, target.address)
            if not op.src.nelems:  # x < x is 0, also for NaN
                made = chain_steps(op.weights.dims, [slopes, weights], [binary("lt", 1)])
            made += zero_padding(slopes)
            chain = [Stage(algorithms.PRELU_SLOPE, operand=2), binary("mul", 3)]
            return made + chain_steps(op.src.dims, [result, src, weights, diff], chain)

        return offered(op, attr, engine, steps, start + nbytes, efficiency=0.4)


FORWARD = (Forward(lambda _op: [Stage(algorithms.PRELU, operand=2)]),)
BACKWARD = (Backward(),)
