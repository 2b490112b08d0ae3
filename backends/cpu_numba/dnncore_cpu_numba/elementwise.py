"""The implementation that eltwise, binary and sum share: chains of stages over any layouts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from dnncore.backend import Accepted, Attributes, Executable, Implementation, MemoryDesc, Refused
from dnncore_cpu_numba.chains import MAX_TENSORS, chain_steps
from dnncore_cpu_numba.post_ops import Stage, stages_of
from dnncore_cpu_numba.program import Program, Step

__all__ = ["ElementWise", "post_op_steps", "refuse_layouts", "refuse_post_ops"]


class ElementWise(Implementation):
    """result = chain(first input, the other inputs), then the post-ops, in one pass over memory.

    stages: the chain of an operation, whose inputs are numbered from 1 on; called when a primitive
    is built.
    """

    name = "cpu_numba:simd"

    def __init__(self, stages: Callable[[Any], list[Stage]]) -> None:
        self.stages = stages

    def accept(self, op: Any, attr: Attributes, engine: Any, hint: Any) -> Accepted | Refused:
        """Accept every layout that has strides, and every post-op chain of a reasonable length."""
        first, *others = (argument.name for argument, _ in op.tensors())
        op = op.resolve_any(**dict.fromkeys(others, getattr(op, first)))
        descs = [desc for _, desc in op.tensors()]
        operands = [desc for _, desc in attr.operands()]
        refusal = refuse_layouts([*descs, *operands], op.result)
        if refusal:
            return refusal
        if len(descs) + len(operands) > MAX_TENSORS:
            return Refused(
                "attribute",
                f"takes up to {MAX_TENSORS} tensors; got {len(descs)} and {len(operands)} operands",
            )
        # Measured on 2 cores: the speed of memory, or half of it where there are exponentials.
        exponential = getattr(op, "algorithm", "") in ("tanh", "logistic")
        return Accepted(
            op,
            build=lambda: self._build(op, attr, engine.num_threads),
            efficiency=0.4 if exponential else 0.8,
        )

    def _build(self, op: Any, attr: Attributes, num_threads: int) -> Executable:
        *inputs, result = enumerate(desc for _, desc in op.tensors())
        operands = enumerate([desc for _, desc in attr.operands()], len(inputs) + 1)
        stages = self.stages(op) + stages_of(attr.post_ops, 1 + len(inputs))
        steps = chain_steps(op.result.dims, [result, *inputs, *operands], stages)
        return Program(steps, num_threads)


def refuse_layouts(descs: Iterable[MemoryDesc], *results: MemoryDesc) -> Refused | None:
    """Refuse layouts without strides, and results in which elements share a place."""
    for desc in descs:
        if desc.format_kind != "blocked":
            return Refused("format", f"needs formats made of strides; got {desc.tag}")
    for desc in results:
        if any(s == 0 and n > 1 for s, n in zip(desc.strides, desc.dims, strict=True)):
            return Refused("format", f"cannot write to a repeated dim; got strides {desc.strides}")
    return None


def refuse_post_ops(op: Any, attr: Attributes) -> Refused | None:
    """Refuse what an operation cannot do whose post-ops run as a second pass over its result."""
    if attr.reads_dst:
        return Refused("attribute", "has overwritten dst before a post-op sum could read it")
    operands = [desc for _, desc in attr.operands()]
    if len(operands) + 2 > MAX_TENSORS:
        return Refused(
            "attribute", f"takes up to {MAX_TENSORS - 2} post-op operands; got {len(operands)}"
        )
    return refuse_layouts([*(desc for _, desc in op.tensors()), *operands], op.result)


def post_op_steps(op: Any, attr: Attributes, place: int, arguments: int) -> list[Step]:
    """The second pass: result = chain(result); nothing without post-ops.

    place: the result's in binding order. arguments: how many come before the post-ops' operands.
    """
    if not attr.post_ops:
        return []
    result = (place, op.result)
    operands = enumerate([desc for _, desc in attr.operands()], arguments)
    return chain_steps(op.result.dims, [result, result, *operands], stages_of(attr.post_ops, 2))
