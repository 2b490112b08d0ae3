"""The common implementation of eltwise, binary and sum, and post-ops as a second pass.

Both are chains of stages over tensors of any layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
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
from dnncore_cpu_numba.codegen.nontemporal import LINE
from dnncore_cpu_numba.codegen.type_conversion import FLOATS, INTEGERS
from dnncore_cpu_numba.elementwise import post_ops
from dnncore_cpu_numba.elementwise.chains import MAX_TENSORS, chain_steps, zero_padding
from dnncore_cpu_numba.elementwise.finish import WORDS, Finish, finish, is_finished
from dnncore_cpu_numba.runtime.program import Program, Scratch, Step
from dnncore_cpu_numba.runtime.tensor import Tensor, arguments


class ElementWise(Implementation[OpT]):
    """result = chain(first input, the other inputs), then the post-ops, in one pass over memory.

    stages: returns the chain of an operation. Tensor 1 is the first input.
    """

    name = "cpu_numba:simd"
    data_types = ("f64", *FLOATS, *INTEGERS)
    attributes = WORDS
    takes_repeats = True

    def __init__(self, stages: Callable[[OpT], list[post_ops.Stage]]) -> None:
        self.stages = stages

    def accept(self, op: OpT, attr: Attributes, engine: Any, hint: Any) -> Accepted | Refused:
        """Accept every layout with strides, and post-op chains with at most `MAX_TENSORS`."""
        first, *others = (argument.name for argument, _ in op.tensors())
        op = op.resolve_any(**dict.fromkeys(others, getattr(op, first)))
        descs = [desc for _, desc in op.tensors()]
        if refusal := refuse_layouts(descs) or refuse_operands(attr):
            return refusal
        try:
            stages = self.stages(op)
        except post_ops.UnknownAlgorithm as error:
            return Refused("algorithm", str(error))
        return self.accepted(op, attr, engine, stages)

    def accepted(
        self, op: OpT, attr: Attributes, engine: Any, stages: Sequence[post_ops.Stage]
    ) -> Accepted | Refused:
        """Accept the complete chain, or refuse it if it has more than `MAX_TENSORS` tensors."""
        named, result = arguments(op, attr=attr), op.result_name
        inputs = [argument.name for argument, _ in op.tensors() if argument.name != result]
        scaled = [name for name in inputs if name in attr.scales]
        tensors = [named[name] for name in (result, *inputs)]
        tensors += [named[f"{name}_scales"] for name in scaled]
        factors = {1 + inputs.index(name): i for i, name in enumerate(scaled, 1 + len(inputs))}
        ending = finish(op, attr, named, len(tensors))
        stages = [*_scaled(stages, factors), *ending.stages]
        tensors += ending.tensors
        if len(tensors) > MAX_TENSORS:
            return Refused("attribute", f"takes up to {MAX_TENSORS} tensors; got {len(tensors)}")

        def steps() -> list[Step]:
            return ending.before() + chain_steps(op.result.dims, tensors, stages, held_of(op))

        return Accepted(
            op,
            build=lambda: Program(steps, engine.num_threads),
            efficiency=efficiency(stages),
            scratchpad_bytes=ending.nbytes,
            notes=("compiles",),
        )


def _scaled(
    stages: Iterable[post_ops.Stage], factors: Mapping[int, int]
) -> Iterator[post_ops.Stage]:
    """Yield the stages with scaled inputs. factors: tensor number -> number of its scale."""
    if 1 in factors:
        yield post_ops.binary("mul", factors[1])
    for stage in stages:
        yield replace(stage, factor=factors.get(stage.operand, stage.factor))


def efficiency(stages: Iterable[post_ops.Stage]) -> float:
    """Return the measured efficiency: the memory speed, reduced by the cost of arithmetic."""
    return 0.8 / (1.0 + sum(stage.cost for stage in stages))


def held_of(op: Operation) -> str:
    """Return the type in which the stages of an operation compute."""
    return "f64" if any(desc.data_type == "f64" for _, desc in op.tensors()) else "f32"


def refuse_layouts(descs: Iterable[MemoryDesc]) -> Refused | None:
    """Refuse layouts without strides."""
    for desc in descs:
        if desc.format_kind != "blocked":
            return Refused("format", f"needs formats made of strides; got {desc.tag}")
    return None


def refuse_operands(attr: Attributes) -> Refused | None:
    """Refuse chains with unknown stages or with more than `MAX_TENSORS` tensors."""
    count = len(attr.operands())
    if count + 2 > MAX_TENSORS:
        return Refused("attribute", f"takes up to {MAX_TENSORS - 2} post-op operands; got {count}")
    return post_ops.refuse_unknown(attr.post_ops)


def refuse_post_ops(
    op: Operation, attr: Attributes, workspace: MemoryDesc | None = None
) -> Refused | None:
    """Refuse operations that `offered` does not support: unknown post-ops, opaque layouts."""
    descs = [desc for _, desc in op.tensors(workspace)]
    return refuse_operands(attr) or refuse_layouts(descs)


def offered(
    op: Operation, attr: Attributes, engine: Any, steps: Callable[[Tensor], Sequence[Step]],
    nbytes: int = 0, workspace: MemoryDesc | None = None, *, in_f32: bool = False, **answer: Any,
) -> Accepted:  # fmt: skip
    """Accept an operation with a second pass.

    The second pass computes the stages after the result (`elementwise/finish.py`) and zeros the
    padding of outputs.

    steps: returns the steps that write the result to a tensor: to dst, or without rounding to the
    scratchpad. They may write anything to its padding. nbytes: the scratchpad that they use.
    in_f32: they require a result of f32. answer: fields of `Accepted`.
    """
    held = held_of(op)
    rounded = op.result.data_type != held
    is_apart = attr.reads_dst or (rounded and (in_f32 or is_finished(op, attr)))
    desc = op.result.with_data_type(held).with_offset0(0)
    apart = Tensor(Scratch(nbytes), desc) if is_apart else None
    room = nbytes + (-(-desc.nbytes // LINE) * LINE if apart else 0)
    named = arguments(op, workspace, attr)
    ending = finish(op, attr, named, 2, room)

    def passes() -> list[Step]:
        return _with_second_pass(steps, op, named, apart, ending)

    return Accepted(
        op,
        build=lambda: Program(passes, engine.num_threads),
        scratchpad_bytes=room + ending.nbytes,
        workspace=workspace,
        notes=("compiles",),
        **answer,
    )


def _with_second_pass(
    make_steps: Callable[[Tensor], Sequence[Step]], op: Operation, named: Mapping[str, Tensor],
    apart: Tensor | None, ending: Finish,
) -> list[Step]:  # fmt: skip
    """Return the steps of both passes.

    apart: the tensor of the result before the second pass; None for dst. It is separate if dst is
    read later, or if its type would round the result twice.
    """
    result = named[op.result_name]
    steps = [*make_steps(apart or result), *ending.before()]
    if ending.stages or apart:
        tensors = [result, apart or result, *ending.tensors]
        steps += chain_steps(op.result.dims, tensors, ending.stages, held_of(op))
    else:
        steps += zero_padding(result)
    if "workspace" in named and op.result_name == "dst":
        steps += zero_padding(named["workspace"])
    return steps
