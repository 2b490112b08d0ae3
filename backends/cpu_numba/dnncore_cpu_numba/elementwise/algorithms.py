"""The algorithms of `dnncore.algorithms` as stages: native functions over contiguous float32.

A stage is a native function of `STAGE_CALL`: y = f(x, operand, condition), where y may be one of
the others. Stages of half types convert each element on the way. `elementwise/formulas.py` has the
functions of one element.
"""

# ruff: noqa: ARG001, ARG005 - stages of a kind have the same parameters

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dnncore_cpu_numba.codegen import precise_math, vecmath
from dnncore_cpu_numba.codegen.call_schema import Pointer, Record
from dnncore_cpu_numba.codegen.nontemporal import prefetch, stream
from dnncore_cpu_numba.codegen.pointers import (
    LOADS_AS_F32,
    STORES_FROM_F32,
    bits_to_f32,
    bits_to_f64,
    f32_to_bits,
    load_f64,
    load_high_bf16,
    load_i32,
    load_low_bf16,
    stack,
    store_f64,
    store_pair_bf16,
)
from dnncore_cpu_numba.codegen.task import Task, device, exact, native_function
from dnncore_cpu_numba.codegen.type_conversion import HALVES, STORED
from dnncore_cpu_numba.codegen.vector_ir import bytes_of
from dnncore_cpu_numba.elementwise import formulas

STAGE = Record(
    "stage",
    ("function", "address", "a `STAGE_CALL`"),
    ("alpha beta", "float32"),
    ("wide_alpha wide_beta", "bits", "of the same as float64"),
    ("operand condition", "index", "of tensors; -1 for none"),
    ("streamed", "address", "the function's twin that streams its results"),
    ("factor", "index", "of the tensor that scales the operand; -1 for none"),
    ("multiply", "address", "the `STAGE_CALL` that does so"),
)
STAGE_CALL = Record(
    "stage function",
    ("stage", Pointer(STAGE)),
    ("x operand condition y", "address", "of contiguous float32, or what its type is"),
    ("length", "elements"),
)
_CHUNK = 64  # elements that a stage computes before it streams them: 1.25 times as quick as 256,
_HEAVY_CHUNK = 256  # except where arithmetic counts, which wants long loops (measured)
_AHEAD = 2048  # elements from what is computed to what is prefetched
_CHUNK_BUFFER = _HEAVY_CHUNK // 2  # int64
_ZERO, _HALF, _ONE, _TWO = np.float32(0), np.float32(0.5), np.float32(1), np.float32(2)
_INFINITY = np.float32("inf")
_WORDS = 2.0**32

_HEAVY = {
    "elu", "exp", "gelu_erf", "gelu_tanh", "log", "logistic", "mish", "pow", "soft_relu", "swish",
    "tanh",
}  # fmt: skip
"""The algorithms of transcendental functions, as those of their slopes."""


WIDE = "f64"
"""The type of `TYPED` of stages that compute in float64."""
STEPS_OF_F64 = "f64 by f32"
"""That of stages of float64 that round each element to float32 and compute with it."""


Element = Callable[..., Any]
STREAMED: dict[Task, Task] = {}
"""The twin of each stage that writes whole cache lines past the caches: a multiple of 64 bytes, to
a multiple of 64 bytes, where no input is."""
SPLATS: dict[Task, Task] = {}
"""The twin of each stage of two tensors whose operand is one value. They have twins, too."""
TYPED: dict[tuple[Task, str], Task] = {}
"""Stages whose tensors are all of another type, by the stage of f32 and the type. They have twins,
too. Those of half types read no condition."""


@device
def _parameters(stage):
    return stage.alpha, stage.beta


@device
def _wide_parameters(stage):
    return bits_to_f64(stage.wide_alpha), bits_to_f64(stage.wide_beta)


def _access(data_type: str) -> tuple[Any, Any]:
    """The functions that load and store an element of a type of stages."""
    if data_type == WIDE:
        return load_f64, store_f64
    name = "f64" if data_type == STEPS_OF_F64 else data_type
    return LOADS_AS_F32[name], STORES_FROM_F32[name]


def _run(element_of: Callable[[Any], Element], data_type: str) -> Callable[..., None]:
    """The loop y[i] = element(first + i, ...) for `count` elements of a type."""
    load, put = _access(data_type)
    each = exact(element_of(load))

    def run(x, operand, condition, y, first, count, alpha, beta):
        for i in range(count):
            put(y, i, each(first + i, x, operand, condition, alpha, beta))

    loop: Callable[..., None] = device(run)
    return loop


def _run_of_pairs(element_of: Callable[[Any], Element]) -> Callable[..., None]:
    """The loop over bf16 in pairs, which takes fewer instructions. first: an even number."""
    low, high = exact(element_of(load_low_bf16)), exact(element_of(load_high_bf16))
    rest = _run(element_of, "bf16")

    def run(x, operand, condition, y, first, count, alpha, beta):
        start, pairs = first // 2, count // 2
        for i in range(pairs):
            a = low(start + i, x, operand, condition, alpha, beta)
            b = high(start + i, x, operand, condition, alpha, beta)
            store_pair_bf16(y, i, a, b)
        if count % 2:
            last = count - 1
            rest(x, operand, condition, y + 2 * last, first + last, 1, alpha, beta)

    loop: Callable[..., None] = device(run)
    return loop


@device
def _address_itself(address):
    return address


def _first_of(load: Any) -> Any:
    """The function that loads the first element at an address."""

    def first(address):
        return load(address, 0)

    return device(first)


def _stage(
    name: str, element_of: Callable[[Any], Element], *, zipped: bool, data_type: str = "f32",
    splat: bool = False,
) -> Task:  # fmt: skip
    """The stage y[i] = element(i, x, operand, condition, alpha, beta).

    element_of: makes the element function, given a function that loads. zipped: it reads the
    operand. splat: it takes the first value of the operand in place of the address.
    """
    of_f64 = data_type in (WIDE, STEPS_OF_F64)
    size = 8 if of_f64 else bytes_of(STORED[data_type])
    parameters = _wide_parameters if data_type == WIDE else _parameters
    run = _run_of_pairs(element_of) if data_type == "bf16" else _run(element_of, data_type)
    kind, _, algorithm = name.partition("_")
    heavy = kind in ("eltwise", "slope") and algorithm in _HEAVY
    longest = _HEAVY_CHUNK if heavy or data_type != "f32" else _CHUNK
    longest = _CHUNK if of_f64 else longest
    take = _first_of(_access(data_type)[0]) if splat else _address_itself

    def stage(stage, x, operand, condition, y, length):
        alpha, beta = parameters(stage)
        if x == y:  # LLVM has to know, or it makes a scalar loop
            run(y, take(operand), condition, y, 0, length, alpha, beta)
        elif zipped and operand == y:
            run(x, take(y), condition, y, 0, length, alpha, beta)
        else:
            run(x, take(operand), condition, y, 0, length, alpha, beta)

    def streamed(stage, x, operand, condition, y, length):
        alpha, beta = parameters(stage)
        chunk, given = stack(_CHUNK_BUFFER), take(operand)
        for start in range(0, length, longest):
            count = min(longest, length - start)
            prefetch(x + size * (start + _AHEAD), size * longest)
            if zipped:
                prefetch(operand + size * (start + _AHEAD), size * longest)
            run(x, given, condition, chunk, start, count, alpha, beta)
            stream(chunk, y + size * start, count * size // 4)

    suffix = "" if data_type == "f32" else f"_{data_type.replace(' ', '_')}"
    suffix += "_splat" * splat
    stage.__name__, streamed.__name__ = f"{name}{suffix}", f"{name}{suffix}_streamed"
    made = native_function(STAGE_CALL)(stage)
    STREAMED[made] = native_function(STAGE_CALL)(streamed)
    return made


def _stages(
    name: str, element_of: Callable[[Any], Element], wide: Callable[[Any], Element] | None = None,
    *, zipped: bool, splat: Callable[[Any], Element] | None = None,
) -> Task:  # fmt: skip
    """The stage of f32; those of other types are in `TYPED`.

    wide: makes the element function of float64; the same by default. splat: that of `SPLATS`.
    """
    made = _stage(name, element_of, zipped=zipped)
    for kind in (*HALVES, STEPS_OF_F64):
        TYPED[made, kind] = _stage(name, element_of, zipped=zipped, data_type=kind)
    TYPED[made, WIDE] = _stage(name, wide or element_of, zipped=zipped, data_type=WIDE)
    if splat is not None:
        for kind in ("f32", *HALVES):
            own = made if kind == "f32" else TYPED[made, kind]
            SPLATS[own] = _stage(name, splat, zipped=False, data_type=kind, splat=True)
    return made


def _map(name: str, *functions: Callable[..., Any]) -> Task:
    """The stage y = function(x, alpha, beta). functions: of float32 and of float64."""

    def elements(f: Any) -> Callable[[Any], Element]:
        return lambda load: lambda i, x, operand, condition, alpha, beta: f(load(x, i), alpha, beta)

    return _stages(name, *map(elements, _inlined(functions)), zipped=False)


def _gradient(name: str, *functions: Callable[..., Any]) -> Task:
    """The stage y = function(x, alpha, beta) * operand. functions: of float32 and of float64."""

    def elements(f: Any) -> Callable[[Any], Element]:
        return lambda load: (
            lambda i, x, operand, condition, alpha, beta: (
                f(load(x, i), alpha, beta) * load(operand, i)
            )
        )

    return _stages(name, *map(elements, _inlined(functions)), zipped=True)


def _zip(name: str, *functions: Callable[..., Any]) -> Task:
    """The stage y = function(x, operand, alpha, beta). functions: of float32 and of float64."""

    def elements(f: Any) -> Callable[[Any], Element]:
        return lambda load: (
            lambda i, x, operand, condition, alpha, beta: f(
                load(x, i), load(operand, i), alpha, beta
            )
        )

    def splat(f: Any) -> Callable[[Any], Element]:
        return lambda load: (
            lambda i, x, operand, condition, alpha, beta: f(load(x, i), operand, alpha, beta)
        )

    inlined = _inlined(functions)
    return _stages(name, *map(elements, inlined), zipped=True, splat=splat(inlined[0]))


def _inlined(functions: Sequence[Callable[..., Any]]) -> list[Callable[..., Any]]:
    """The functions, compiled by `exact` if they are of Python."""
    return [f if hasattr(f, "py_func") else exact(f) for f in functions]


def _tasks(
    make: Callable[..., Task], kind: str, table: Callable[[Any], Mapping[str, Any]]
) -> dict[str, Task]:
    """The stages of a table of functions. table: makes it, given `m`."""
    single, double = table(vecmath), table(precise_math)
    return {name: make(f"{kind}_{name}", f, double[name]) for name, f in single.items()}


def _selection_of(load: Any) -> Element:
    def element(i, x, operand, condition, alpha, beta):
        yes, no = load(x, i), load(operand, i)  # both in any case, so that it is vector code
        return yes if load(condition, i) != _ZERO else no

    return element


def _rounding_of(load: Any) -> Element:
    """Add random bits to those of a float32, and cut off as many: 2**alpha - 1 is their mask."""

    def element(i, x, operand, condition, alpha, beta):
        value = np.float32(load(x, i))
        bits, cut = f32_to_bits(value), np.int32((1 << np.int64(alpha)) - 1)
        noise = np.int32(load_i32(operand, i)) & cut
        moved = bits_to_f32(np.int32(np.int32(bits + noise) & ~cut))
        return moved if abs(value) < _INFINITY else value

    return element


def _keeping_of(load: Any) -> Element:
    """1 for each random number, in place of x, that is at least operand * 2**32, else 0."""

    def element(i, x, operand, condition, alpha, beta):
        number = np.float64(load_i32(x, i) & 0xFFFFFFFF)
        return _ZERO if number < np.floor(np.float64(load(operand, i)) * _WORDS) else _ONE

    return element


def _dropping_of(load: Any) -> Element:
    """x / (1 - condition), a product with a reciprocal of float32; 0 where the operand is 0."""

    def element(i, x, operand, condition, alpha, beta):
        factor = _ONE / (_ONE - np.float32(load(condition, i)))
        value = load(x, i) * factor
        return value if load(operand, i) != _ZERO else _ZERO

    return element


ELTWISE = _tasks(_map, "eltwise", formulas.eltwise)
SLOPES = _tasks(_gradient, "slope", formulas.slopes)
SLOPES_OF_DST = _tasks(_gradient, "slope_of_dst", formulas.slopes_of_dst)
BINARY = _tasks(_zip, "binary", formulas.binary)

_POWERS, _WIDE_POWERS = formulas.powers(vecmath), formulas.powers(precise_math)
POWERS = {
    beta: _map(f"power_{i}", _POWERS[beta], _WIDE_POWERS[beta]) for i, beta in enumerate(_POWERS)
}
POWER_GRADIENTS = {
    beta: _gradient(f"power_gradient_{i}", _POWERS[beta], _WIDE_POWERS[beta])
    for i, beta in enumerate(_POWERS)
}
"""The stages of pow for the usual beta: far quicker than the general one."""

ADD_SCALED = _zip("add_scaled", formulas.scaled_sum)
ADD_SHIFTED = _zip("add_shifted", formulas.shifted_sum)
PRELU = _zip("prelu", lambda x, y, alpha, beta: x if x > _ZERO else y * x)
DESCALE = _zip("descale", lambda x, y, alpha, beta: x * (_ONE / y))
ROUND_AT_RANDOM = _stages("round_at_random", _rounding_of, zipped=True)
DROP = _stages("drop", _dropping_of, zipped=True)
KEEP = _stages("keep", _keeping_of, zipped=True)
SELECT = _stages("select", _selection_of, zipped=True)

COSTS = {
    table[name]: 3.0 if name == "pow" else 0.5 for table in (ELTWISE, SLOPES) for name in _HEAVY
}
