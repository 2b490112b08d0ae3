"""PReLU: one pass forward; the gradient is one pass for diff_src, and sums of products."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from dnncore.backend import (
    Accepted,
    Attributes,
    Implementation,
    MemoryDesc,
    PReLUBackward,
    PReLUForward,
    Refused,
)
from dnncore_opencl.codegen.vectors import COMPUTED
from dnncore_opencl.copies.staging import redirected
from dnncore_opencl.elementwise.algorithms import POST_OP_WORDS, Step
from dnncore_opencl.elementwise.implementation import Elementwise, Pass, refuse_common
from dnncore_opencl.elementwise.random import RANDOM
from dnncore_opencl.rows.statistics import Output, Statistics, Tensor
from dnncore_opencl.runtime.launch import Launch
from dnncore_opencl.runtime.program import LaunchProgram
from dnncore_opencl.runtime.schema import Arg, Scratch

SRC, _WEIGHTS, DIFF_DST, DIFF_SRC, DIFF_WEIGHTS = range(5)  # places in bind order
LINE = 128  # bytes


def _with_weights(op: Any) -> Any:
    """Return the operation, with row-major weights if their format is `any`."""
    return op.with_descs(weights=op.weights.with_format(None)) if op.weights.is_any else op


class Forward(Elementwise[PReLUForward]):
    """One pass, with post-ops."""

    like: ClassVar = {"dst": "src"}

    def accept(
        self, op: PReLUForward, attr: Attributes, engine: Any, hint: Any
    ) -> Accepted | Refused:
        """Accept every layout of strides and blocks."""
        return super().accept(_with_weights(op), attr, engine, hint)

    def compute(self, op: PReLUForward, attr: Attributes, work: Pass) -> None:
        """Multiply by the weight unless v0 is positive."""
        work.start("v0")
        work.then(Step("x = x > 0.0f ? x : v1 * x;"))
        work.post_ops(attr)


class Backward(Implementation[PReLUBackward]):
    """The sums of the weights, then one pass. It is last, because diff_src may be diff_dst."""

    name = "opencl:staged"
    data_types = COMPUTED
    attributes = (*POST_OP_WORDS, *RANDOM)
    takes_repeats = True

    def accept(
        self, op: PReLUBackward, attr: Attributes, engine: Any, hint: Any
    ) -> Accepted | Refused:
        """Accept every layout of strides and blocks, and post-ops of diff_src."""
        op = _with_weights(op)
        op = op.resolve_any(diff_dst=op.src, diff_src=op.src, diff_weights=op.weights)
        if refused := refuse_common(op, attr, engine):
            return refused
        launches, nbytes = _of_weights(op, engine)
        return Accepted(
            op,
            lambda: LaunchProgram(engine, [*launches, *_of_src(op, attr, engine)]),
            efficiency=0.4 if engine.is_cpu else 0.6,
            scratchpad_bytes=nbytes,
            notes=("compiles",),
        )


def _of_weights(op: PReLUBackward, engine: Any) -> tuple[list[Launch], int]:
    """Return the launches of diff_weights, and their bytes of scratchpad.

    Blocks are written by a pass of their own, which also writes their padding.
    """
    sources = [Tensor(op.src, Arg(SRC)), Tensor(op.diff_dst, Arg(DIFF_DST))]
    desc = op.diff_weights
    result, start = Tensor(desc, Arg(DIFF_WEIGHTS)), 0
    if desc.inner_blocks:
        apart = MemoryDesc(desc.dims, "f32")
        result, start = Tensor(apart, Scratch()), -(-apart.nbytes // LINE) * LINE
    product = "v0 > 0.0f ? (KIND)(0.0f) : v0 * v1"
    outputs = [Output(result, "total_a")]
    sums = Statistics(engine, sources, outputs, op.shared_dims, [product], scratchpad_start=start)
    launches = sums.launches()
    if desc.inner_blocks:
        copy = Pass(engine, [result.desc, desc], 1)
        copy.start("v0")
        launches += _with(copy.launches(), {0: Scratch(), 1: Arg(DIFF_WEIGHTS)})
    return launches, start + sums.scratchpad_bytes


def _of_src(op: PReLUBackward, attr: Attributes, engine: Any) -> list[Launch]:
    operands = [desc for _, desc in attr.operands()]
    work = Pass(engine, [op.src, op.weights, op.diff_dst, op.diff_src, *operands], DIFF_SRC)
    work.take(op, attr)
    work.start("v0")
    work.then(Step("x = x > 0.0f ? v2 : v1 * v2;"))
    work.post_ops(attr)
    count = len(attr.arguments(op))
    after = {DIFF_SRC + 1 + i: Arg(DIFF_WEIGHTS + 1 + i) for i in range(count)}
    return _with(work.launches(), after)


def _with(launches: Sequence[Launch], buffers: Mapping[int, Arg | Scratch]) -> list[Launch]:
    return [redirected(launch, buffers) for launch in launches]


FORWARD = (Forward(),)
BACKWARD = (Backward(),)
