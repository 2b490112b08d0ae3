"""Products with k split into parts, used if m x n is too small to keep a device busy.

The scratchpad holds the sums of the parts. A second launch adds them in order, so results do not
depend on timing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from dnncore_opencl.codegen.digits import INT4, UINT4, extended, int4, inverses
from dnncore_opencl.codegen.grid import power_of_two_within
from dnncore_opencl.codegen.vectors import TYPES, result_defines, scalar_functions
from dnncore_opencl.elementwise.epilogue import NO_SCALING
from dnncore_opencl.gemm.arguments import gemm_epilogue
from dnncore_opencl.gemm.family import Plan
from dnncore_opencl.gemm.product import Gemm, Matrix, Strides
from dnncore_opencl.runtime.launch import Launch, Source, padded, template
from dnncore_opencl.runtime.schema import INT, Arg, Buffer, Schema, Scratch

FLOAT = 4  # bytes
LANES = 4  # contiguous elements that a GPU work-item reads or writes at once
GROUP = 64  # work-items
MANY_ITEMS = 1024  # work-items per multiprocessor that keep a memory-bound kernel busy
ROOM = 8  # elements: kernels may pad a line to a multiple of this
MOST_WAYS = 16  # work-items that add the parts of one element
MOST_ROUNDS = 8  # rounds of concurrent work-groups for which parts are made
# An element has eight digits, slowest first: four outer and four inner.
SCHEMA = Schema(
    partial=Buffer("const REALS"),
    c=Buffer("RESULT"),
    first=INT,  # index in `partial` of the first part's first vector
    step=INT,  # vectors between consecutive parts
    parts=INT,
    line=INT,  # vectors between consecutive lines
    vectors=INT,  # of c
    outer=INT4,  # sizes; the last digit counts vectors
    outer_inverse=UINT4,
    inner=INT4,
    inner_inverse=UINT4,
    c_first=INT,  # first element of c
    c_outer=INT4,  # strides in elements
    c_inner=INT4,
)
DIGITS = ["out.x", "out.y", "out.z", "out.w", "in.x", "in.y", "in.z", "in.w"]


def part_lengths(
    depth: int, groups: int, at_once: int, least: int, step: int = 1, rounds: int = MOST_ROUNDS
) -> Iterator[int]:
    """Yield lengths of a part of k to choose from: all of k, and those for whole rounds of groups.

    depth: values (or stages) of k. groups: work-groups of the product without parts. at_once:
    work-groups that run at once. least: the shortest part that is worth a work-group. step: parts
    are multiples of it. rounds: the most rounds.
    """
    yield max(depth, 1)
    for count in range(1, rounds + 1):
        parts = min(count * at_once // groups, depth // least)
        if parts > 1:
            yield padded(math.ceil(depth / parts), step)


def plan(gemm: Gemm, parts: int, start: int, items: int, launch: Callable[[Gemm], Launch]) -> Plan:
    """Return one launch, or two if k is split.

    start: bytes at the beginning of the scratchpad that are already used. items: as in `reduction`.
    launch: creates the launch of the product itself, or of a product with c in the scratchpad.
    """
    if parts == 1:
        return Plan(lambda: (launch(gemm),))
    first = start // gemm.sum_bytes

    def launches() -> tuple[Launch, ...]:
        return launch(partial(gemm, first)), reduction(gemm, parts, first, items)

    return Plan(launches, parts * part_size(gemm) * gemm.sum_bytes)


def part_size(gemm: Gemm) -> int:
    """Return the elements between consecutive parts: c with gaps after lines, in whole vectors."""
    sizes, strides = _in_order(gemm)
    return padded(gemm.size // sizes[-1] * _line(sizes, strides), LANES)


def partial(gemm: Gemm, first: int) -> Gemm:
    """Return the product without epilogue whose c is in the scratchpad from element `first` on."""
    sizes, strides = _in_order(gemm)
    extents = [*sizes[:-1], _line(sizes, strides)]
    dense = [0] * len(sizes)
    for place, digit in enumerate(_order(gemm)):
        dense[digit] = math.prod(extents[place + 1 :])
    n = tuple(dense[len(dense) - len(gemm.n) :])
    c = Matrix(-1, first, Strides(tuple(dense[3 - len(gemm.batch) : 3]), dense[3], n))
    c = replace(c, data_type=gemm.sum_type)
    return replace(gemm, c=c, post_ops=(), operands=(), scaling=NO_SCALING, keeps_floats=False)


def reduction(gemm: Gemm, parts: int, first: int, items: int) -> Launch:
    """Return the launch that adds the parts and applies the epilogue.

    first: the element of the scratchpad at which the first part begins. items: the number of
    work-items that keeps a GPU busy, so that several may add one element; 0 on CPUs, where each
    element has one work-item.
    """
    c = gemm.c
    sizes, strides = _in_order(gemm)
    line = _line(sizes, strides)
    lanes = _lanes(sizes, strides, line, c.offset, first) if items else 1
    sizes[-1] //= lanes
    strides[-1] *= lanes
    vectors = gemm.size // lanes
    ways = power_of_two_within(MOST_WAYS, parts, items // vectors)
    steps = gemm_epilogue(gemm)
    result = result_defines(c.data_type)
    width = str(lanes) if lanes > 1 else ""
    real = TYPES[gemm.sum_type]
    kind = "uint" if gemm.is_integer else real
    defines: dict[str, str | int | float] = {
        "LANES": lanes,
        "WAYS": ways,
        "REAL": real,
        "REALS": f"{real}{width}",
        "RESULTS": result["RESULT"] + width,
        "SUM": kind,
        "SUMS": f"{kind}{width}",
        "AS_SUMS": f"as_{kind}{width}",
        "SUM_VALUE(sum)": sum_value(gemm),
        "COORDINATES(lane)": _coordinates(_order(gemm), lanes),
        **result,
    }
    functions = scalar_functions([c.data_type])
    texts = (functions,) if functions else ()
    snippets = (*texts, steps.code, template("digits"))
    schema, is_exact = SCHEMA | steps.schema, gemm.is_exact
    source = Source("gemm_reduce", schema, defines, snippets, is_exact=is_exact)
    arguments = {
        "partial": Scratch(),
        "c": Arg(c.index) if c.index >= 0 else Scratch(),
        "first": first // lanes,
        "step": part_size(gemm) // lanes,
        "parts": parts,
        "line": line // lanes,
        "vectors": vectors,
        "outer": int4(sizes[:4]),
        "outer_inverse": inverses(sizes[:4]),
        "inner": int4(sizes[4:]),
        "inner_inverse": inverses(sizes[4:]),
        "c_first": c.offset,
        "c_outer": int4(strides[:4]),
        "c_inner": int4(strides[4:]),
        **steps.arguments,
    }
    return Launch(source, arguments, (padded(vectors * ways, GROUP),), (GROUP,))


def sum_value(gemm: Gemm) -> str:
    """Return the float of a sum: the bits of a partial sum of integers, otherwise its value."""
    if not gemm.is_integer:
        return "(sum)"
    is_partial = gemm.c.index < 0 and not gemm.keeps_floats
    return "as_float(sum)" if is_partial else "(float)as_int(sum)"


def _digits(gemm: Gemm) -> tuple[Sequence[int], Sequence[int]]:
    """Return sizes and c's strides of an element's digits: three of the batch, m, four of n."""
    c = gemm.c.strides
    sizes = (*extended(gemm.batch, 3, 1), gemm.m, *extended(gemm.n, 4, 1))
    return sizes, (*extended(c.batch, 3), c.m, *extended(c.n, 4))


def _order(gemm: Gemm) -> list[int]:
    """Return the digits in the order of c's layout, slowest first."""
    sizes, strides = _digits(gemm)
    return sorted(range(len(sizes)), key=lambda digit: (sizes[digit] > 1, -strides[digit]))


def _in_order(gemm: Gemm) -> tuple[list[int], list[int]]:
    """Return sizes and c's strides of the digits in the order of c's layout."""
    order = _order(gemm)
    sizes, strides = ([values[digit] for digit in order] for values in _digits(gemm))
    return sizes, strides


def _line(sizes: Sequence[int], strides: Sequence[int]) -> int:
    """Return the elements between lines of the last digit, including a gap if c has one."""
    size, jumps = sizes[-1], [s for n, s in zip(sizes[:-1], strides[:-1], strict=True) if n > 1]
    if strides[-1] != 1 or not jumps:
        return size
    return max(size, min(jumps[-1], padded(size, ROOM)))


def _coordinates(order: Sequence[int], lanes: int) -> str:
    """Return the digits of an element, in the order of the epilogue's coordinates."""
    names = dict(zip(order, DIGITS, strict=True))
    names[order[-1]] += f" * {lanes} + lane"
    return ", ".join(names[digit] for digit in range(len(order)))


def _lanes(sizes: Sequence[int], strides: Sequence[int], *offsets: int) -> int:
    """Return the elements per vector along the last digit: LANES if all vectors are aligned."""
    *jumps, step = (s if size > 1 else 0 for size, s in zip(sizes, strides, strict=True))
    places = (sizes[-1], *jumps, *offsets)
    return LANES if step == 1 and not any(place % LANES for place in places) else 1
