"""Post-op chains of matrix products as OpenCL C: one function generated per chain, of any length.

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
from dnncore_opencl.algorithms import BINARY, eltwise
from dnncore_opencl.layout import Parameters
from dnncore_opencl.program import Arg


@dataclass(frozen=True)
class Operand:
    """An operand of a binary step: the place of its memory, its first element, its strides.

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
    """Generate a chain for `rank` coordinates; `operands` belong to its binary steps, in order."""
    parameters = Parameters()
    waiting = iter(enumerate(operands))
    steps = []
    for post_op in post_ops:
        if post_op.kind == "eltwise":
            texts = eltwise(post_op.algorithm, post_op.alpha, post_op.beta, "x", parameters.real)
        elif post_op.kind == "sum":
            texts = [f"x + {parameters.real(post_op.scale)} * old"]
        else:
            value = _value(*next(waiting), parameters)
            texts = [BINARY[post_op.algorithm].format("x", value)]
        steps += [f"    x = {text};" for text in texts]
    buffers = [f"post{place}" for place in range(len(operands))]
    return Epilogue(
        _code(post_ops, steps, buffers, parameters, rank),
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
    post_ops: Sequence[PostOp],
    steps: Sequence[str],
    buffers: Sequence[str],
    parameters: Parameters,
    rank: int,
) -> str:
    index, scalars = parameters.defines["INDEX"], parameters.defines["PARAMETERS"]
    pointers = "".join(f", __global const float *{buffer}" for buffer in buffers)
    names = (*buffers, *(f"p{i}" for i in range(len(parameters.values))))
    coordinates = "".join(f", const int i{i}" for i in range(rank))
    lines = [
        f"#define INDEX {index}",
        f"#define POST_PARAMS {pointers}{scalars}",
        f"#define POST_ARGS {''.join(f', {name}' for name in names)}",
        *(["#define POST_READS_DST"] if any(p.kind == "sum" for p in post_ops) else []),
        f"static inline float post_ops(float x, const float old{coordinates} POST_PARAMS) {{",
        *steps,
        "    return x;",
        "}",
    ]
    return "\n".join(lines)
