"""The implementation that eltwise, binary and sum share, and post-ops as a second pass.

Both are chains of stages over any layouts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from dnncore.backend import (
    Accepted,
    Attributes,
    Implementation,
    MemoryDesc,
    Operation,
    OpT,
    Refused,
)
from dnncore_cpu_numba.codegen.type_conversion import FLOATS, INTEGERS
from dnncore_cpu_numba.elementwise import post_ops
from dnncore_cpu_numba.elementwise.chains import MAX_TENSORS, chain_steps, zero_padding
from dnncore_cpu_numba.runtime.program import Program, Scratch, Step
from dnncore_cpu_numba.runtime.tensor import Tensor, arguments


class ElementWise(Implementation[OpT]):
    """result = chain(first input, the other inputs), then the post-ops, in one pass over memory.

    stages: the chain of an operation, whose inputs are numbered from 1 on.
    """

    name = "cpu_numba:simd"
    data_types = (*FLOATS, *INTEGERS)
    takes_repeats = True

    def __init__(self, stages: Callable[[OpT], list[post_ops.Stage]]) -> None:
        self.stages = stages

    def accept(self, op: OpT, attr: Attributes, engine: Any, hint: Any) -> Accepted | Refused:
        """Accept every layout that has strides, and every post-op chain of a reasonable length."""
        first, *others = (argument.name for argument, _ in op.tensors())
        op = op.resolve_any(**dict.fromkeys(others, getattr(op, first)))
        descs = [desc for _, desc in op.tensors()]
        if refusal := refuse_layouts(descs) or refuse_operands(attr):
            return refusal
        try:
            stages = self.stages(op)
        except post_ops.UnknownAlgorithm as error:
            return Refused("algorithm", str(error))
        stages += post_ops.stages_of(attr.post_ops, len(descs))
        return self.accepted(op, attr, engine, stages)

    def accepted(
        self, op: OpT, attr: Attributes, engine: Any, stages: Sequence[post_ops.Stage]
    ) -> Accepted | Refused:
        """Offer the whole chain, if a thread has room for its tensors."""
        named = arguments(op, attr=attr)
        tensors = [named.pop(op.result_name), *named.values()]
        if len(tensors) > MAX_TENSORS:
            return Refused("attribute", f"takes up to {MAX_TENSORS} tensors; got {len(tensors)}")

        def build() -> Program:
            steps = partial(chain_steps, op.result.dims, tensors, stages)
            return Program(steps, engine.num_threads)

        return Accepted(op, build, efficiency=efficiency(stages), notes=("compiles",))


def efficiency(stages: Iterable[post_ops.Stage]) -> float:
    """The measured efficiency: the speed of memory, reduced by the cost of arithmetic."""
    return 0.8 / (1.0 + sum(stage.cost for stage in stages))


def refuse_layouts(descs: Iterable[MemoryDesc]) -> Refused | None:
    """Refuse layouts without strides."""
    for desc in descs:
        if desc.format_kind != "blocked":
            return Refused("format", f"needs formats made of strides; got {desc.tag}")
    return None


def refuse_operands(attr: Attributes) -> Refused | None:
    """Refuse chains that no stages exist for, or whose operands a thread has no room for."""
    count = len(attr.operands())
    if count + 2 > MAX_TENSORS:
        return Refused("attribute", f"takes up to {MAX_TENSORS - 2} post-op operands; got {count}")
    return post_ops.refuse_unknown(attr.post_ops)


def refuse_post_ops(
    op: Operation, attr: Attributes, workspace: MemoryDesc | None = None
) -> Refused | None:
    """Refuse what an operation cannot do whose post-ops are a second pass, see `offered`."""
    descs = [desc for _, desc in op.tensors(workspace)]
    return refuse_operands(attr) or refuse_layouts(descs)


def offered(
    op: Operation, attr: Attributes, engine: Any, steps: Callable[[Tensor], Sequence[Step]],
    nbytes: int = 0, workspace: MemoryDesc | None = None, *, in_f32: bool = False, **answer: Any,
) -> Accepted:  # fmt: skip
    """Offer an operation with a second pass: its post-ops, and zeros in what pads outputs.

    steps: makes the steps that write the result into a tensor, whatever its padding: into dst, or
    as f32 into the scratchpad. nbytes: of the scratchpad that they use. in_f32: they need a result
    of f32. answer: fields of `Accepted`.
    """
    rounded = op.result.data_type != "f32"
    is_apart = attr.reads_dst or (rounded and (in_f32 or bool(attr.post_ops)))
    desc = op.result.with_data_type("f32").with_offset0(0)
    apart = Tensor(Scratch(nbytes), desc) if is_apart else None

    def build() -> Program:
        passes = partial(_with_second_pass, steps, op, attr, workspace, apart)
        return Program(passes, engine.num_threads)

    room = nbytes + (apart.desc.nbytes if apart else 0)
    return Accepted(
        op, build, scratchpad_bytes=room, workspace=workspace, notes=("compiles",), **answer
    )


def _with_second_pass(
    make_steps: Callable[[Tensor], Sequence[Step]], op: Operation, attr: Attributes,
    workspace: MemoryDesc | None, apart: Tensor | None,
) -> list[Step]:  # fmt: skip
    """apart: where the result before the post-ops goes, if not into dst.

    That is so if dst is still read, or if a type other than f32 would round it twice.
    """
    tensors = arguments(op, workspace, attr)
    result = tensors[op.result_name]
    steps = make_steps(apart or result)
    if attr.post_ops or apart:
        operands = [tensors[name] for name, _ in attr.operands()]
        stages = post_ops.stages_of(attr.post_ops, 2)
        after = chain_steps(op.result.dims, [result, apart or result, *operands], stages)
    else:
        after = zero_padding(result)
    if workspace is not None and op.result_name == "dst":
        after += zero_padding(tensors["workspace"])
    return [*steps, *after]
