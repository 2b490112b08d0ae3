"""Post-op chains as one function in OpenCL C, for kernels that know an element's coordinates.

The function is

    float post_ops(float x, float old, int i0, int i1, ... POST_PARAMS)

for a result `x`, the value `old` that the destination held (read it only `#ifdef POST_READS_DST`)
and the element's coordinates. The kernel declares `POST_PARAMS` behind its own parameters and
passes `POST_ARGS` on; both begin with a comma, or are empty. Numbers and strides are arguments, not
constants, so that a chain makes one program for all shapes; a coordinate along which an operand is
broadcast does not appear in the code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dnncore.backend import PostOp
from dnncore_opencl.codegen.halves import HALVES, TO_FLOAT, functions
from dnncore_opencl.codegen.layout import Parameters
from dnncore_opencl.codegen.vectors import TYPES, with_lanes
from dnncore_opencl.elementwise.algorithms import chain
from dnncore_opencl.runtime.program import Arg

__all__ = ["Epilogue", "Operand", "epilogue"]


@dataclass(frozen=True)
class Operand:
    """An operand of a step: the place of its memory, its first element, its strides.

    One stride per coordinate of the kernel, in elements, 0 where it is broadcast.
    """

    index: int
    offset: int
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Epilogue:
    """The code of a chain and the kernel arguments that it adds."""

    code: str
    args: tuple[Any, ...]


def epilogue(post_ops: Sequence[PostOp], operands: Sequence[Operand], rank: int) -> Epilogue:
    """Generate a chain for `rank` coordinates; `operands` are those of its steps, in order."""
    parameters = Parameters()
    kinds = [desc.data_type for post_op in post_ops for _, desc in post_op.operands]
    values = [
        TO_FLOAT.get(kind, "{}").format(_value(place, operand, parameters))
        for place, (kind, operand) in enumerate(zip(kinds, operands, strict=True))
    ]
    steps = [step.text for step in chain(post_ops, values, "old", parameters.real)]
    types = [TYPES[kind] for kind in kinds]
    reads_dst = any(post_op.kind == "sum" for post_op in post_ops)
    halves = functions() if set(HALVES) & set(kinds) else ""
    return Epilogue(
        halves + with_lanes(_code(steps, types, parameters, rank, reads_dst=reads_dst), 1),
        (*(Arg(operand.index) for operand in operands), *parameters.values),
    )


def _value(place: int, operand: Operand, parameters: Parameters) -> str:
    """Return the expression of an operand's element."""
    at = parameters.index(operand.offset)
    for i, stride in enumerate(operand.strides):
        if stride:
            at += f" + i{i} * {parameters.index(stride)}"
    return f"post{place}[{at}]"


def _code(
    steps: Sequence[str],
    types: Sequence[str],
    parameters: Parameters,
    rank: int,
    *,
    reads_dst: bool,
) -> str:
    pointers = "".join(f", __global const {kind} *post{i}" for i, kind in enumerate(types))
    names = (*(f"post{i}" for i in range(len(types))), *parameters.names)
    coordinates = "".join(f", const int i{i}" for i in range(rank))
    lines = [
        f"#define POST_PARAMS {pointers}{parameters.defines['PARAMETERS']}",
        f"#define POST_ARGS {''.join(f', {name}' for name in names)}",
        *(["#define POST_READS_DST"] if reads_dst else []),
        f"static inline float post_ops(float x, const float old{coordinates} POST_PARAMS) {{",
        *(f"    {step}" for step in steps),
        "    return x;",
        "}",
    ]
    return "\n".join(lines)
