"""The algorithms of `dnncore.algorithms` as stages: native functions over contiguous elements.

A stage is a native function of `STAGE_CALL`: y = f(x, operand, condition). y may be the same memory
as x or the operand. Stages of half types convert each element to f32 and back.
`elementwise/formulas.py` defines the functions of single elements.
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
    chosen,
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
from dnncore_cpu_numba.codegen.translation import Inlined
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
_CHUNK = 64  # elements computed before non-temporal stores; measured: 1.25 times as fast as 256
_HEAVY_CHUNK = 256  # the same for transcendental functions, which need longer loops (measured)
_AHEAD = 2048  # prefetch distance in elements
_CHUNK_BUFFER = _HEAVY_CHUNK // 2  # size in int64
_ZERO, _HALF, _ONE, _TWO = np.float32(0), np.float32(0.5), np.float32(1), np.float32(2)
_INFINITY = np.float32("inf")
_WORDS = 2.0**32

_HEAVY = {
    "elu", "exp", "gelu_erf", "gelu_tanh", "log", "logistic", "mish", "pow", "soft_relu", "swish",
    "tanh",
}  # fmt: skip
"""The algorithms whose functions or slopes are transcendental."""


WIDE = "f64"
"""The key in `TYPED` of stages that compute in float64."""
STEPS_OF_F64 = "f64 by f32"
"""The key in `TYPED` of stages of float64 that round each element to float32 and compute in it."""


Element = Callable[..., Any]
STREAMED: dict[Task, Task] = {}
"""Stage -> its variant with non-temporal stores.

The size and the address of y must be multiples of 64 bytes, and y must not be an input."""
SPLATS: dict[Task, Task] = {}
"""Stage of two tensors -> its variant whose operand is one value. `STREAMED` has its variants."""
TYPED: dict[tuple[Task, str], Task] = {}
"""(stage of f32, type) -> the stage for tensors of this type. `STREAMED` has its variants.

Stages of half types read no condition."""


@device
def _parameters(stage):
    return stage.alpha, stage.beta


@device
def _wide_parameters(stage):
    return bits_to_f64(stage.wide_alpha), bits_to_f64(stage.wide_beta)


def _access(data_type: str) -> tuple[Any, Any]:
    """Return the functions that load and store an element for stages of a type."""
    if data_type == WIDE:
        return load_f64, store_f64
    name = "f64" if data_type == STEPS_OF_F64 else data_type
    return LOADS_AS_F32[name], STORES_FROM_F32[name]


def _run(element_of: Callable[[Any], Element], data_type: str) -> Callable[..., None]:
    """Return the loop y[i] = element(first + i, ...) over `count` elements of a type."""
    load, put = _access(data_type)
    each = exact(element_of(load))

    def run(x, operand, condition, y, first, count, alpha, beta):
        for i in range(count):
            put(y, i, each(first + i, x, operand, condition, alpha, beta))

    loop: Callable[..., None] = device(run)
    return loop


def _run_of_pairs(element_of: Callable[[Any], Element]) -> Callable[..., None]:
    """Return a loop over pairs of bf16, which needs fewer instructions. `first` must be even."""
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
    """Return a function that loads the first element at an address."""

    def first(address):
        return load(address, 0)

    return device(first)


def _stage(
    name: str, element_of: Callable[[Any], Element], *, zipped: bool, data_type: str = "f32",
    splat: bool = False,
) -> Task:  # fmt: skip
    """Return the stage y[i] = element(i, x, operand, condition, alpha, beta).

    element_of: returns the element function for a load function. zipped: the function reads the
    operand. splat: the function receives the operand's first value instead of its address.
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
        if x == y:  # separate loops, because LLVM does not vectorise a loop with unknown aliases
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
    """Return the stage of f32. Stages of other types are stored in `TYPED`.

    wide: like `element_of` for float64; by default the same. splat: like `element_of` for `SPLATS`.
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
    """Return the stage y = function(x, alpha, beta). functions: for float32 and for float64."""

    def elements(f: Any) -> Callable[[Any], Element]:
        return lambda load: lambda i, x, operand, condition, alpha, beta: f(load(x, i), alpha, beta)

    return _stages(name, *map(elements, _inlined(functions)), zipped=False)


def _gradient(name: str, *functions: Callable[..., Any]) -> Task:
    """Return the stage y = function(x, alpha, beta) * operand. functions: as in `_map`."""

    def elements(f: Any) -> Callable[[Any], Element]:
        return lambda load: (
            lambda i, x, operand, condition, alpha, beta: (
                f(load(x, i), alpha, beta) * load(operand, i)
            )
        )

    return _stages(name, *map(elements, _inlined(functions)), zipped=True)


def _zip(name: str, *functions: Callable[..., Any]) -> Task:
    """Return the stage y = function(x, operand, alpha, beta). functions: as in `_map`."""

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


def _inlined(functions: Sequence[Any]) -> list[Any]:
    """Return the functions. Python functions are compiled with `exact`."""
    return [f if isinstance(f, Inlined) else exact(f) for f in functions]


def _tasks(
    make: Callable[..., Task], kind: str, table: Callable[[Any], Mapping[str, Any]]
) -> dict[str, Task]:
    """Return the stages of a table of functions. table: returns the table for a module `m`."""
    single, double = table(vecmath), table(precise_math)
    return {name: make(f"{kind}_{name}", f, double[name]) for name, f in single.items()}


def _selection_of(load: Any) -> Element:
    def element(i, x, operand, condition, alpha, beta):
        return chosen(load(condition, i), load(x, i), load(operand, i))

    return element


def _rounding_of(load: Any) -> Element:
    """Round a float32 at random: add `alpha` random bits to its bits, then clear the lowest ones.

    The operand is the random numbers.
    """

    def element(i, x, operand, condition, alpha, beta):
        value = np.float32(load(x, i))
        bits, cut = f32_to_bits(value), np.int32((1 << np.int64(alpha)) - 1)
        noise = np.int32(load_i32(operand, i)) & cut
        moved = bits_to_f32(np.int32(np.int32(bits + noise) & ~cut))
        return moved if abs(value) < _INFINITY else value

    return element


def _keeping_of(load: Any) -> Element:
    """Return 1 if x, a random number, is at least operand * 2**32, else 0."""

    def element(i, x, operand, condition, alpha, beta):
        number = np.float64(load_i32(x, i) & 0xFFFFFFFF)
        return _ZERO if number < np.floor(np.float64(load(operand, i)) * _WORDS) else _ONE

    return element


def _dropping_of(load: Any) -> Element:
    """Return x / (1 - condition), or 0 if the operand is 0.

    The quotient is a product with the float32 reciprocal.
    """

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
"""The stages of pow for common beta. They are much faster than the general stage."""

ADD_SCALED = _zip("add_scaled", formulas.scaled_sum)
ADD_SHIFTED = _zip("add_shifted", formulas.shifted_sum)
PRELU = _zip("prelu", lambda x, y, alpha, beta: x if x > _ZERO else y * x)
PRELU_SLOPE = _zip("prelu_slope", lambda x, y, alpha, beta: _ONE if x > _ZERO else y)
PRELU_PRODUCT = _zip("prelu_product", lambda x, y, alpha, beta: _ZERO if x > _ZERO else x * y)
DESCALE = _zip("descale", lambda x, y, alpha, beta: x * (_ONE / y))
ROUND_AT_RANDOM = _stages("round_at_random", _rounding_of, zipped=True)
DROP = _stages("drop", _dropping_of, zipped=True)
KEEP = _stages("keep", _keeping_of, zipped=True)
SELECT = _stages("select", _selection_of, zipped=True)

COSTS = {
    table[name]: 3.0 if name == "pow" else 0.5 for table in (ELTWISE, SLOPES) for name in _HEAVY
}
