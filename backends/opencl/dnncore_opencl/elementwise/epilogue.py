"""Post-op chains as one function in OpenCL C, for kernels that have the coordinates of an element.

The function is

    float post_ops(float x, float old, int i0, int i1, ... POST_PARAMS)

for a result `x`, the old value `old` of dst (to be read only `#ifdef POST_READS_DST`) and the
element's coordinates. If tensors are f64, both values are doubles. The chain's parameters follow
those of the kernel, which passes POST_ARGS. A function that calls `post_ops` declares POST_PARAMS.
Both begin with a comma, or are empty. Numbers and strides are arguments, so a chain has one program
for all shapes. A coordinate along which an operand is broadcast is not in the code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dnncore.backend import Attributes, PostOp
from dnncore_opencl.codegen.layout import Parameters
from dnncore_opencl.codegen.vectors import (
    PACKED,
    TO_FLOAT,
    TYPES,
    reciprocal,
    scalar_functions,
    with_lanes,
)
from dnncore_opencl.elementwise.algorithms import chain
from dnncore_opencl.elementwise.random import MASK, dropped, rounded
from dnncore_opencl.runtime.launch import template
from dnncore_opencl.runtime.schema import Arg, Schema

CONTRACT = "#pragma OPENCL FP_CONTRACT"


@dataclass(frozen=True)
class Operand:
    """An operand of a step: the place of its memory, its first element, its strides.

    strides: per coordinate of the kernel, in elements; 0 if the operand is broadcast. shares: how
    many neighbours along each coordinate share one element; () for 1 along all.
    """

    index: int
    offset: int
    strides: tuple[int, ...]
    shares: tuple[int, ...] = ()


@dataclass(frozen=True)
class Random:
    """Dropout after the first `before` steps of a chain, and stochastic rounding after all steps.

    scalars: (name, type, place) of arguments of one element. After all other operands there are two
    more: the place of an element in row-major order, whose memory is not used, and the mask of
    dropout, if any.
    """

    attr: Attributes
    before: int
    data_type: str
    scalars: tuple[tuple[str, str, int], ...]

    def steps(self, chain: Sequence[str], place: str, mask: str) -> list[str]:
        """Insert the statements into those of the chain."""
        drop = [dropped(self.attr, place)] if self.attr.dropout else []
        store = [f"{mask} = is_kept_here;"] if mask else []
        return [*chain[: self.before], *drop, *store, *chain[self.before :]]


@dataclass(frozen=True)
class Scaling:
    """The steps around a chain, by the data types of their operands.

    x is multiplied by `factors` before the chain. After it, x is divided by `scales`, and
    `zero_points` are added.
    """

    factors: tuple[str, ...] = ()
    scales: tuple[str, ...] = ()
    zero_points: tuple[str, ...] = ()
    random: Random | None = None


NO_SCALING = Scaling()


@dataclass(frozen=True)
class Epilogue:
    """The code of a chain, and the parameters that it adds to a kernel, with their arguments."""

    code: str
    schema: Schema
    arguments: Mapping[str, Any]


def epilogue(
    post_ops: Sequence[PostOp],
    operands: Sequence[Operand],
    rank: int,
    scaling: Scaling = NO_SCALING,
    *,
    is_exact: bool = False,
    is_wide: bool = False,
) -> Epilogue:
    """Generate a chain for `rank` coordinates. `operands` are the operands of its steps, in order.

    is_exact: whether each operation is rounded, so that results are equal on all devices. is_wide:
    whether values are doubles.
    """
    parameters = Parameters(is_wide=is_wide)
    own = [desc.data_type for post_op in post_ops for _, desc in post_op.operands]
    kinds = [*scaling.factors, *own, *scaling.scales, *scaling.zero_points]
    values, random = [], scaling.random
    for place, (kind, operand) in enumerate(zip(kinds, operands, strict=random is None)):
        parameters.buffer(f"post{place}", f"const {TYPES[kind]}", Arg(operand.index))
        value = TO_FLOAT.get(kind, "{}").format(_value(place, kind, operand, parameters))
        values.append(f"(double){value}" if is_wide else value)
    first, last = len(scaling.factors), len(scaling.factors) + len(own)
    steps = [f"x = x * ({' * '.join(values[:first])});"] if first else []
    texts = [step.text for step in chain(post_ops, values[first:last], "old", parameters)]
    at_random = ""
    if random:
        for name, kind, index in random.scalars:
            parameters.buffer(name, f"const {TYPES[kind]}", Arg(index))
        number, *masks = operands[len(kinds) :]
        at_random, mask = _offset(number, parameters), ""
        for operand in masks:
            parameters.buffer(MASK, "uchar", Arg(operand.index))
            mask = f"{MASK}[{_offset(operand, parameters)}]"
        texts = random.steps(texts, at_random, mask)
    steps += texts
    behind = [f"x = x * {reciprocal('{}', is_wide=is_wide)};"] * len(scaling.scales)
    behind += ["x = x + {};"] * len(scaling.zero_points)
    steps += [text.format(value) for text, value in zip(behind, values[last:], strict=True)]
    if random and random.attr.rounding == "stochastic":
        steps.append(rounded(random.data_type, at_random))
    reads_dst = any(post_op.kind == "sum" for post_op in post_ops)
    code = _code(steps, parameters.schema, rank, reads_dst=reads_dst)
    code = with_lanes(code, 1, is_wide=is_wide)
    functions = scalar_functions(kinds) + (template("philox") if random else "")
    if scaling.scales or random:
        functions += with_lanes(template("reciprocal"), 1)
    if is_exact:
        code = f"{CONTRACT} OFF\n{code}\n{CONTRACT} ON"
    return Epilogue(functions + code, parameters.schema, parameters.arguments)


def _value(place: int, kind: str, operand: Operand, parameters: Parameters) -> str:
    """Return the expression of an operand's element."""
    offset = _offset(operand, parameters)
    return f"load_{kind}(post{place}, {offset})" if kind in PACKED else f"post{place}[{offset}]"


def _offset(operand: Operand, parameters: Parameters) -> str:
    """Return the offset of an operand's element."""
    at = parameters.index(operand.offset)
    shares = operand.shares or (1,) * len(operand.strides)
    for i, (stride, share) in enumerate(zip(operand.strides, shares, strict=True)):
        if stride:
            place = f"i{i} / {parameters.size(share)}" if share > 1 else f"i{i}"
            at += f" + {place} * {parameters.index(stride)}"
    return at


def _code(steps: Sequence[str], schema: Schema, rank: int, *, reads_dst: bool) -> str:
    coordinates = "".join(f", const int i{i}" for i in range(rank))
    values = "realLANES x, const realLANES old"
    lines = [
        f"#define POST_PARAMS {''.join(f', {text}' for text in schema.declarations)}",
        f"#define POST_ARGS {''.join(f', {name}' for name in schema.types)}",
        *(["#define POST_READS_DST"] if reads_dst else []),
        f"static inline realLANES post_ops({values}{coordinates} POST_PARAMS) {{",
        *(f"    {step}" for step in steps),
        "    return x;",
        "}",
    ]
    return "\n".join(lines)
