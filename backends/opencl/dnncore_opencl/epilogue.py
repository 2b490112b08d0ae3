"""Post-op chains as one function in OpenCL C, for kernels that know an element's coordinates.

The function is

    float post_ops(float x, float old, int i0, int i1, ... POST_PARAMS)

for a result `x`, the value `old` that the destination held (read it only `#ifdef POST_READS_DST`)
and the element's coordinates. The kernel declares `POST_PARAMS` behind its own parameters and
passes `POST_ARGS` on; both begin with a comma, or are empty. Numbers and strides are arguments, not
constants, so that a chain makes one program for all shapes; a coordinate along which an operand is
broadcast does not appear in the code.

A kernel that computes several elements at once, neighbours along one coordinate, gives that of the
first and gets a function of float vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dnncore.backend import MemoryDesc, PostOp
from dnncore_opencl.algorithms import chain, with_lanes
from dnncore_opencl.layout import Digit, Digits, Parameters, digits, offset_text
from dnncore_opencl.program import Arg
from dnncore_opencl.vectors import TYPES

__all__ = ["Epilogue", "Operand", "epilogue"]


@dataclass(frozen=True)
class Operand:
    """An operand of a step: the place of its memory, its first element, and where others are.

    chains: per coordinate of the kernel its digits, as in `dnncore_opencl.layout`; none where the
    operand is broadcast. end: elements of its buffer, if these may be too many for an int.
    """

    index: int
    offset: int
    chains: tuple[Digits, ...]
    end: int = 0

    @classmethod
    def strided(cls, index: int, offset: int, strides: Sequence[int]) -> Operand:
        """Make one that has a stride, in elements, per coordinate; 0 where it is broadcast."""
        return cls(index, offset, tuple((Digit(2, s),) if s else () for s in strides))

    @classmethod
    def of(cls, index: int, desc: MemoryDesc, dims: Sequence[int | None]) -> Operand:
        """Make one of any layout; `dims` are the coordinates' logical dims, None for no dim."""
        chains = (() if d is None or desc.dims[d] == 1 else digits(desc, d) for d in dims)
        return cls(index, desc.offset0, tuple(chains), desc.nbytes // desc.itemsize)


@dataclass(frozen=True)
class Epilogue:
    """The code of a chain and the kernel arguments that it adds."""

    code: str
    args: tuple[Any, ...]


def epilogue(
    post_ops: Sequence[PostOp],
    operands: Sequence[Operand],
    rank: int,
    *,
    lanes: int = 1,
    along: int = 0,
) -> Epilogue:
    """Generate a chain for `rank` coordinates; `operands` are those of its steps, in order.

    lanes: elements that are computed at once, neighbours along the coordinate `along`, of which the
        first one's is a multiple of `lanes`.
    """
    parameters = Parameters(max((operand.end for operand in operands), default=0), "post_p")
    types = [TYPES[desc.data_type] for post_op in post_ops for _, desc in post_op.operands]
    values = [
        _value(f"post{place}", kind, operand, parameters, lanes, along)
        for place, (operand, kind) in enumerate(zip(operands, types, strict=True))
    ]
    steps = [step.text for step in chain(post_ops, values, "old", parameters.real)]
    reads_dst = any(post_op.kind == "sum" for post_op in post_ops)
    return Epilogue(
        with_lanes(_code(steps, types, parameters, rank, reads_dst=reads_dst), lanes),
        (*(Arg(operand.index) for operand in operands), *parameters.values),
    )


def _value(
    name: str, kind: str, operand: Operand, parameters: Parameters, lanes: int, along: int
) -> str:
    """Return the expression of an operand's elements."""
    at = parameters.index(operand.offset)
    for i, chain_ in enumerate(operand.chains):
        if i != along or lanes == 1:
            at += offset_text(chain_, f"i{i}", parameters)
    if lanes == 1:
        return f"{name}[{at}]"
    own = operand.chains[along]
    if not own:
        return f"({kind}{lanes})({name}[{at}])"
    if own[0].stride == 1 and (len(own) == 1 or own[0].size % lanes == 0):
        return f"vload{lanes}(0, {name} + {at}{offset_text(own, f'i{along}', parameters)})"
    places = (offset_text(own, f"(i{along} + {lane})", parameters) for lane in range(lanes))
    return f"({kind}{lanes})({', '.join(f'{name}[{at}{place}]' for place in places)})"


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
        "static inline",
        f"floatLANES post_ops(floatLANES x, const floatLANES old{coordinates} POST_PARAMS) {{",
        *(f"    {step}" for step in steps),
        "    return x;",
        "}",
    ]
    return "\n".join(lines)
