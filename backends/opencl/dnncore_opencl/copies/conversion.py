"""Expressions that convert a value from one data type to another, rounding once."""

from __future__ import annotations

from dnncore_opencl.codegen.vectors import F8, HALVES, PACKED, TYPES
from dnncore_opencl.elementwise.implementation import Pass

FLOATS = ("f32", "f64")
SMALL = (*HALVES, *F8, *PACKED)  # types whose values are floats
TO_FLOAT = dict.fromkeys(("f32", *SMALL), "{}") | {  # "odd": see odd.cl
    "f64": "double_to_odd_floatLANES({})",
    "s32": "int_to_odd_floatLANES({})",
    "s8": "convert_floatLANES({})",
    "u8": "convert_floatLANES({})",
}


def start_copy(work: Pass, src: str, dst: str) -> None:
    """Convert v0 of type `src` to the result's type `dst`. The pass must have no other steps."""
    work.copies_bits = src == dst
    work.keeps_integers = True
    if dst in SMALL and "_odd_" in TO_FLOAT[src]:
        work.snippets.append("odd")
    work.start(converted(src, dst, "v0"), work.kind(1))


def converted(src: str, dst: str, value: str) -> str:
    """Return the expression that converts a value. f16 and bf16 are floats, rounded when stored.

    Conversions round to nearest even. Integers saturate, and NaN becomes 0.
    """
    if src == dst:
        return value
    if dst in SMALL:
        return TO_FLOAT[src].format(value)
    if src in SMALL:
        return converted("f32", dst, value)
    convert = f"convert_{TYPES[dst]}LANES"
    if dst in FLOATS:
        return f"{convert}({value})"
    if src in FLOATS:
        number = f"{value} == {value} ? {value} : 0"
        return f"{convert}_sat_rte({number})"
    return f"{convert}_sat({value})"
