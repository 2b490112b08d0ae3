"""Declarations of the built-in functions that a program calls, instead of PoCL's header.

The release of PoCL on PyPI reads a header of 1 MB twice for each program, because it declares each
built-in function for each type. This takes 0.12 s. A define makes the header empty. Then a program
declares the types, and only the functions whose names it contains. This takes 0.02 s. Clang has the
same types in its own header, so it warns about each type. The driver prints the number of warnings.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator
from typing import Any

from dnncore_opencl.devices.pocl import RELEASE

WITHOUT_HEADER = ("-D_OPENCL_H_", "-w")

TYPES = """
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef __SIZE_TYPE__ size_t;
typedef __PTRDIFF_TYPE__ ptrdiff_t;
typedef uint cl_mem_fence_flags;
#define CLK_LOCAL_MEM_FENCE 1
#define CLK_GLOBAL_MEM_FENCE 2
#define INFINITY (__builtin_inff())
#define NAN as_float(INT_MAX)
#define INT_MAX 2147483647
#define INT_MIN (-2147483647 - 1)
#define SCHAR_MIN (-128)
#define FLT_MAX 0x1.fffffep127f
#define FLT_MIN 0x1.0p-126f
#define FLT_EPSILON 0x1.0p-23f
#define CONSTANT __attribute__((overloadable, const))
#define READING __attribute__((overloadable, pure))
#define ANY __attribute__((overloadable))
#define MEETING __attribute__((overloadable, convergent))
"""
UNDEFINED = "#undef CONSTANT\n#undef READING\n#undef ANY\n#undef MEETING\n"

INTEGERS = ("char", "uchar", "short", "ushort", "int", "uint", "long", "ulong")
REALS = ("float", "double")
WIDTHS = ("", "2", "3", "4", "8", "16")

# Functions whose arguments have the type of the result, with the number of arguments.
OF_REALS = {
    "ceil": 1, "erfc": 1, "exp": 1, "expm1": 1, "fabs": 1, "floor": 1, "log": 1, "log1p": 1,
    "log2": 1, "rint": 1, "round": 1, "rsqrt": 1, "sqrt": 1, "tanh": 1, "trunc": 1, "fmax": 2,
    "fmin": 2, "pow": 2, "fma": 3, "mad": 3,
}  # fmt: skip
OF_INTEGERS = {"mul_hi": 2}
OF_ALL = {"max": 2, "min": 2, "clamp": 3, "bitselect": 3}
ALSO_OF_SCALARS = {"max", "min", "clamp", "fmax", "fmin"}  # as all arguments but the first
TESTS = {"isfinite", "isinf", "isnan"}
OF_ITEMS = {
    "get_global_id", "get_global_size", "get_group_id", "get_local_id", "get_local_size",
    "get_num_groups",
}  # fmt: skip
BY_NAME = re.compile(r"(vload|vstore)(\d*)$|convert_([a-z]+)(\d*)(?:_sat)?(?:_rt[ezpn])?$")
NAMED = {*OF_REALS, *OF_INTEGERS, *OF_ALL, *TESTS, *OF_ITEMS, "abs", "barrier", "prefetch"}


def is_quicker(device: Any) -> bool:
    """Whether a pyopencl device builds programs faster with `declarations`."""
    return RELEASE in device.platform.version


def declarations(source: str) -> str:
    """Return the text to put before a program: the types, and the functions that it mentions."""
    names = set(re.findall(r"[A-Za-z_]\w*", source))
    reals = REALS if any(name.startswith("double") for name in names) else REALS[:1]
    functions = frozenset(name for name in names if name in NAMED or BY_NAME.match(name))
    return _declarations(functions, reals)


@functools.lru_cache(maxsize=64)
def _declarations(names: frozenset[str], reals: tuple[str, ...]) -> str:
    lines = [*_types((*INTEGERS, *reals))]
    for name in sorted(names):
        lines += _functions(name, reals)
    return TYPES + "\n".join(lines) + f"\n{UNDEFINED}#line 1\n"


def _types(kinds: tuple[str, ...]) -> Iterator[str]:
    for kind, n in itertools.product(kinds, WIDTHS):
        if n:
            yield f"typedef {kind} {kind}{n} __attribute__((ext_vector_type({n})));"
        yield f"#define as_{kind}{n}(x) __builtin_astype((x), {kind}{n})"


def _functions(name: str, reals: tuple[str, ...]) -> Iterator[str]:
    """Return the declarations of one function for all types."""
    kinds = (*INTEGERS, *reals)
    if name == "barrier":
        yield "void MEETING barrier(cl_mem_fence_flags);"
    elif name == "prefetch":
        for kind, n in itertools.product(kinds, WIDTHS):
            yield f"void ANY prefetch(const __global {kind}{n} *, size_t);"
    elif name == "abs":
        for kind, n in itertools.product(INTEGERS, WIDTHS):
            yield f"u{kind.removeprefix('u')}{n} CONSTANT abs({kind}{n});"
    elif name in OF_ITEMS:
        yield f"size_t CONSTANT {name}(uint);"
    elif name in TESTS:
        for kind, n in itertools.product(reals, WIDTHS):
            answer = "int" if kind == "float" or not n else "long"
            yield f"{answer}{n} CONSTANT {name}({kind}{n});"
    elif found := BY_NAME.match(name):
        yield from _moves_or_conversions(found, kinds)
    else:
        groups = ((OF_REALS, reals), (OF_INTEGERS, INTEGERS), (OF_ALL, kinds))
        counts, kinds = next(group for group in groups if name in group[0])
        for kind, n in itertools.product(kinds, WIDTHS):
            others = counts[name] - 1
            yield f"{kind}{n} CONSTANT {name}({', '.join([kind + n] * (1 + others))});"
            if n and name in ALSO_OF_SCALARS:
                yield f"{kind}{n} CONSTANT {name}({', '.join([kind + n] + [kind] * others)});"


def _moves_or_conversions(found: re.Match[str], kinds: tuple[str, ...]) -> Iterator[str]:
    """Return the declarations of vload, vstore or convert functions of all types and widths."""
    move, width, result, n = found.groups()
    if result:
        if result in kinds and n in WIDTHS:
            yield from (f"{result}{n} CONSTANT {found[0]}({kind}{n});" for kind in kinds)
        return
    # The name contains no width if a define of the program appends it.
    widths = [width] if width else WIDTHS[1:]
    for kind, n, space in itertools.product(kinds, widths, ("global", "local", "private")):
        if move == "vstore":
            yield f"void ANY vstore{n}({kind}{n}, size_t, __{space} {kind} *);"
        else:
            yield f"{kind}{n} READING vload{n}(size_t, const __{space} {kind} *);"
