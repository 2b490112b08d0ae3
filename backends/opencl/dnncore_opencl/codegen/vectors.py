"""Vectors of a kernel: their widths, and their loads and stores in OpenCL C."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from dnncore.backend import Attributes, MemoryDesc, Operation, Refused, Reorder
from dnncore_opencl.devices.nvidia import capability, is_nvidia
from dnncore_opencl.runtime.launch import template

TYPES = {
    "f32": "float",
    "f64": "double",
    "f16": "ushort",
    "bf16": "ushort",
    "f8_e4m3": "uchar",
    "f8_e5m2": "uchar",
    "s64": "long",
    "s32": "int",
    "s8": "char",
    "u8": "uchar",
    "s4": "char",
    "u4": "uchar",
}
"""The types of elements in registers before they are converted.

f16, bf16 and f8 are integers of their bits. A 4-bit number is in a byte.
"""

SMALL = {"ushort": 2, "char": 1, "uchar": 1}  # bytes of types that are less than a word

HALVES = ("f16", "bf16")
BYTES = ("s8", "u8")
INTEGERS = ("s32", *BYTES)
F8 = ("f8_e4m3", "f8_e5m2")
PACKED = ("s4", "u4")  # two elements per byte
WHOLE = (*INTEGERS, *PACKED, "s64")
COMPUTED = ("f32", *HALVES, *INTEGERS)  # in f32, by all kernels
WITH_F64 = (*COMPUTED, "f64")  # f64 is computed in f64
CONVERTED = (*HALVES, *F8, *INTEGERS, *PACKED)  # types that need conversion functions
# Expressions that convert one element of a result or an operand.
TO_FLOAT = {"f32": "({})", "f64": "({})"} | {name: f"{name}_to_float({{}})" for name in CONVERTED}
FROM_FLOAT = {"f32": "({})", "f64": "({})"} | {name: f"float_to_{name}({{}})" for name in CONVERTED}
BF16_CAPABILITY = (8, 0)  # from this capability on, NVIDIA's GPUs have instructions to convert bf16
MAXIMA_CAPABILITY = (8, 0)  # of the instruction in maxima_nvidia.cl
PAIRS_CAPABILITY = {"f16": (8, 0), "bf16": (9, 0)}  # of the instructions in pairs_nvidia.cl

LITERAL = re.compile(r"\b(\d+\.\d*)f\b")  # a float literal

CPU_LANES = 16  # floats: a register of AVX-512, two of AVX2
USUAL = 2.0**50  # limit of scalars; two scale a denormal f32 to at most 2^-26, in f16 a zero
GPU_BYTES = 16  # of a work-item's widest access; two or more accesses were 1 to 6 % slower


def with_lanes(text: str, lanes: int, *, is_wide: bool = False) -> str:
    """Replace LANES by the number of elements computed at once, and `real` by its type.

    is_wide: whether real numbers, including literals, are doubles.
    """
    text = LITERAL.sub(r"\1", text) if is_wide else text
    text = text.replace("realLANES", "doubleLANES" if is_wide else "floatLANES")
    return text.replace("LANES", str(lanes) if lanes > 1 else "")


def is_wide(op: Operation) -> bool:
    """Whether an operation computes in f64. Reorders compute in f32."""
    return op.data_type == "f64" and not isinstance(op, Reorder)


def refuse_doubles(engine: Any, op: Operation) -> Refused | None:
    """Refuse f64 on devices that lack it."""
    has_doubles = any(desc.data_type == "f64" for _, desc in op.tensors())
    if has_doubles and "cl_khr_fp64" not in engine.native.device.extensions:
        name = engine.device.name
        return Refused("device", f"{name} does not compute in f64 (no cl_khr_fp64)")
    return None


def reciprocal(value: str, *, is_wide: bool) -> str:
    """Return the expression of a correctly rounded reciprocal. A quotient of doubles is one."""
    return f"(1.0 / (double)({value}))" if is_wide else f"reciprocalLANES({value})"


def most_lanes(engine: Any, counts: Iterable[int], steps: Iterable[int], itemsize: int = 4) -> int:
    """Return the lanes of the widest vector whose size divides all `counts`.

    steps: numbers whose sums are the offsets of vectors. On a GPU a wide access must be aligned to
    its size, on a CPU it need not be. itemsize: bytes of the smallest elements.
    """
    divided = [*counts, *(() if engine.is_cpu else steps)]
    lanes = CPU_LANES if engine.is_cpu else GPU_BYTES // max(itemsize, 2)
    while any(n % lanes for n in divided):
        lanes //= 2
    return lanes


def smallest_float(descs: Iterable[MemoryDesc]) -> int:
    """Return the bytes of the smallest floating-point elements or, without any, of the smallest."""
    sizes = [(desc.data_type in INTEGERS, desc.itemsize) for desc in descs]
    return min(sizes)[1]


def vector(kind: str, lanes: int) -> str:
    """Return the type of `lanes` values of type `kind`."""
    return kind if lanes == 1 else f"{kind}{lanes}"


def load(engine: Any, kind: str, lanes: int, pointer: str) -> str:
    """Return the expression that reads consecutive values."""
    if lanes == 1:
        return f"(*({pointer}))"
    if engine.is_cpu:
        return f"vload{lanes}(0, {pointer})"
    word = _word(kind, lanes)
    if word:
        return f"as_{kind}{lanes}(*(__global const {word} *)({pointer}))"
    return f"(*(__global const {kind}{lanes} *)({pointer}))"


def store(engine: Any, kind: str, lanes: int, pointer: str, value: str) -> str:
    """Return the statement that writes consecutive values."""
    if lanes == 1:
        return f"*({pointer}) = {value}"
    if engine.is_cpu:
        return f"vstore{lanes}({value}, 0, {pointer})"
    word = _word(kind, lanes)
    if word:
        return f"*(__global {word} *)({pointer}) = as_{word}({value})"
    return f"*(__global {kind}{lanes} *)({pointer}) = {value}"


def _word(kind: str, lanes: int) -> str | None:
    """Return the type of 32-bit words that moves a vector of smaller elements; None if none.

    Without it, GPU compilers move 16-bit and 8-bit elements one by one.
    """
    words, rest = divmod(SMALL[kind] * lanes, 4) if kind in SMALL else (0, 0)
    return None if rest or not words else vector("uint", words)


def value_type(data_type: str) -> str:
    """Return the type in which a tensor's elements are computed."""
    return "float" if data_type in CONVERTED else TYPES[data_type]


def read(engine: Any, data_type: str, lanes: int, pointer: str) -> str:
    """Return the expression that reads consecutive elements of a tensor, as numbers."""
    return value(data_type, lanes, read_bits(engine, data_type, lanes, pointer))


def read_bits(
    engine: Any, data_type: str, lanes: int, pointer: str, *, is_raw: bool = False
) -> str:
    """Return the expression that reads consecutive elements of a tensor, as stored in memory.

    is_raw: whether the elements are never converted, so that their type has no functions.
    """
    kind = TYPES[data_type]
    if data_type in HALVES and _converts(engine) and lanes > 1 and not is_raw:
        return f"load_{vector(kind, lanes)}({pointer})"
    return load(engine, kind, lanes, pointer)


def value(data_type: str, lanes: int, bits: str) -> str:
    """Return the expression that converts `bits` from memory to numbers."""
    return f"{data_type}_to_{vector('float', lanes)}({bits})" if data_type in CONVERTED else bits


def write(engine: Any, data_type: str, lanes: int, pointer: str, values: str) -> str:
    """Return the statement that writes numbers as consecutive elements of a tensor."""
    return write_bits(engine, data_type, lanes, pointer, bits(data_type, lanes, values))


def write_bits(
    engine: Any, data_type: str, lanes: int, pointer: str, values: str, *, is_raw: bool = False
) -> str:
    """Return the statement that writes consecutive elements of a tensor, as stored in memory.

    is_raw: whether the elements are never converted, so that their type has no functions.
    """
    kind = TYPES[data_type]
    if data_type in HALVES and _converts(engine) and lanes > 1 and not is_raw:
        return f"store_{vector(kind, lanes)}({pointer}, {values})"
    return store(engine, kind, lanes, pointer, values)


def bits(data_type: str, lanes: int, values: str) -> str:
    """Return the expression that converts numbers to bits in memory."""
    return f"float_to_{vector(data_type, lanes)}({values})" if data_type in CONVERTED else values


def conversions(engine: Any, data_types: Iterable[str], widths: Iterable[int]) -> tuple[str, ...]:
    """Return the texts of the functions that convert these types."""
    types = set(data_types)
    names = [half_template(engine)] if types & set(HALVES) else []
    names += ["integers"] if types & set(INTEGERS) else []
    names += ["small"] if types & {*F8, *PACKED} else []
    names += ["fp64"] if "f64" in types else []
    return tuple(with_lanes(template(name), n) for name in names for n in sorted(set(widths)))


def half_template(engine: Any) -> str:
    """Return the template that converts f16 and bf16 on a device."""
    return "halves_nvidia" if _converts(engine) else "halves"


def scalar_functions(data_types: Iterable[str], halves: str = "halves") -> str:
    """Return the text of the functions that convert one element of these types.

    halves: the template of half types. If a source contains several such texts, the first applies.
    """
    types = set(data_types)
    names = {"HALVES": halves} if types & set(HALVES) else {}
    names |= {"INTEGERS": "integers"} if types & set(INTEGERS) else {}
    names |= {"SMALL": "small"} if types & {*F8, *PACKED} else {}
    names |= {"NIBBLES": "nibbles"} if types & {*PACKED} else {}
    texts = ((guard, with_lanes(template(name), 1)) for guard, name in names.items())
    return "".join(f"#ifndef {guard}\n#define {guard}\n{text}\n#endif\n" for guard, text in texts)


def result_defines(data_type: str) -> dict[str, str]:
    """Return RESULT, the element type of a result, and its conversions from and to float."""
    return {
        "RESULT": TYPES[data_type],
        "TO_RESULT(x)": FROM_FLOAT[data_type].format("x"),
        "FROM_RESULT(x)": TO_FLOAT[data_type].format("x"),
    }


def _converts(engine: Any) -> bool:
    """Whether a device has the instructions in halves_nvidia.cl."""
    return capability(engine) >= BF16_CAPABILITY


def maxima_template(engine: Any) -> str:
    """Return the template of the function for the larger of two floats."""
    return "maxima_nvidia" if capability(engine) >= MAXIMA_CAPABILITY else "maxima"


def has_pairs(engine: Any, data_type: str) -> bool:
    """Whether a device has the instructions in pairs_nvidia.cl for f16 or bf16."""
    return capability(engine) >= PAIRS_CAPABILITY[data_type]


def pairs_template(engine: Any, data_type: str) -> str:
    """Return the template that compares and adds words of two elements."""
    return "pairs_nvidia" if has_pairs(engine, data_type) else "pairs"


def quick_functions(engine: Any, result_type: str, attr: Attributes) -> dict[str, str]:
    """Return defines of fast functions whose errors disappear when rounded to the result's type.

    The error of NVIDIA's native_exp(x) is 2 + 1.2 |x| units in the last place. A chain of post-ops
    might enlarge it. The OpenCL standard does not limit it.
    """
    is_last = result_type in HALVES and not (attr.post_ops or attr.words)
    return {"exp": "native_exp"} if is_nvidia(engine) and is_last else {}


def quick_options(
    engine: Any, descs: Iterable[MemoryDesc], attr: Attributes, scalars: Iterable[float] = ()
) -> tuple[str, ...]:
    """Return compiler options whose effect disappears when results are rounded to f16.

    If all tensors are f16, denormal f32 numbers may become 0, because they are below 2^-100 times
    the smallest f16. Products with two scalars must not make them visible in f16. On NVIDIA's GPUs
    this halves the time of exponentials and quotients.
    """
    is_f16 = all(desc.data_type == "f16" for desc in descs) and not (attr.post_ops or attr.words)
    are_usual = all(x == 0 or 1 / USUAL < abs(x) < USUAL for x in scalars)
    return ("-cl-denorms-are-zero",) if is_nvidia(engine) and is_f16 and are_usual else ()
