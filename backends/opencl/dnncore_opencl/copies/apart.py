"""Results in the scratchpad: copies write them there, and one pass with post-ops to the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dnncore.backend import Attributes, MemoryDesc, Operation, Reorder
from dnncore_opencl.copies.conversion import start_copy
from dnncore_opencl.copies.staging import ROW_MAJOR, redirected
from dnncore_opencl.copies.transpose import TransposedPass
from dnncore_opencl.elementwise.implementation import Pass
from dnncore_opencl.runtime.launch import Launch
from dnncore_opencl.runtime.schema import Arg, Scratch


def apart_desc(op: Operation, attr: Attributes) -> MemoryDesc:
    """Return a row-major tensor for the result, in f32 if there are steps after it."""
    result = op.result.with_format(ROW_MAJOR[: op.result.ndims])
    return result.with_data_type("f32") if has_steps(attr) else result


def has_steps(attr: Attributes) -> bool:
    """Whether there are steps after the result. Scales belong to inputs."""
    return bool(attr.post_ops or attr.rounding != "environment" or attr.dropout)


def copied(
    engine: Any, src: MemoryDesc, dst: MemoryDesc, source: Arg | Scratch, target: Arg | Scratch
) -> Sequence[Launch]:
    """Return the launches of dst = src. Both have the same dims."""
    transposed = TransposedPass(engine, [src, dst], 1)
    work = transposed if transposed.is_fit else Pass(engine, [src, dst], 1)
    start_copy(work, src.data_type, dst.data_type)
    return [redirected(launch, {0: source, 1: target}) for launch in work.launches()]


def scaled(
    engine: Any, attr: Attributes, src: MemoryDesc, dst: MemoryDesc, buffers: Sequence[Any]
) -> Sequence[Launch]:
    """Return the launches of dst = src times its scale. buffers: of src, dst and the scale."""
    work = Pass(engine, [src, dst], 1)
    work.take(Reorder(src=src, dst=dst), attr)
    work.start(work.dequantized("src"))
    return [redirected(launch, dict(enumerate(buffers))) for launch in work.launches()]


def finished(engine: Any, op: Operation, attr: Attributes, apart: MemoryDesc) -> Sequence[Launch]:
    """Return the launches of the steps from the scratchpad to the result."""
    result = len(op.tensors()) - 1
    if not has_steps(attr):
        return copied(engine, apart, op.result, Scratch(), Arg(result))
    names = [argument.name for argument, _ in attr.arguments(op)]
    steps = replace(attr, scales={}, zero_points={})
    moved = Reorder(src=apart, dst=op.result)
    places = [result + 1 + names.index(a.name) for a, _ in steps.arguments(moved)]
    work = Pass(engine, [apart, op.result, *(desc for _, desc in steps.operands())], 1)
    work.take(moved, steps)
    work.start("v0")
    work.post_ops(steps)
    buffers: list[Arg | Scratch] = [Scratch(), *map(Arg, (result, *places))]
    return [redirected(launch, dict(enumerate(buffers))) for launch in work.launches()]
