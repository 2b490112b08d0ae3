"""The algorithms of `dnncore.algorithms` as stages: native functions over contiguous float32.

A stage is a native function of `STAGE_CALL`: y = f(x, operand, condition), where y may be one of
the others. Stages of half types convert each element on the way. In the tables below a function
takes one element of each. They say what NaN does: a comparison with it is false.
"""

# ruff: noqa: ARG001, ARG005 - stages of a kind have the same parameters

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dnncore_cpu_numba.codegen import vecmath
from dnncore_cpu_numba.codegen.call_schema import Pointer, Record
from dnncore_cpu_numba.codegen.nontemporal import prefetch, stream
from dnncore_cpu_numba.codegen.pointers import (
    LOADS_AS_F32,
    STORES_FROM_F32,
    load_f32,
    load_high_bf16,
    load_low_bf16,
    stack,
    store_pair_bf16,
)
from dnncore_cpu_numba.codegen.task import Task, device, exact, native_function
from dnncore_cpu_numba.codegen.type_conversion import HALVES, STORED
from dnncore_cpu_numba.codegen.vector_ir import bytes_of

STAGE = Record(
    "stage",
    ("function", "address", "a `STAGE_CALL`"),
    ("alpha beta", "float32"),
    ("operand condition", "index", "of tensors; -1 for none"),
    ("streamed", "address", "the function's twin that streams its results"),
)
STAGE_CALL = Record(
    "stage function",
    ("stage", Pointer(STAGE)),
    ("x operand condition y", "address", "of contiguous float32"),
    ("length", "elements"),
)
_CHUNK = 64  # elements that a stage computes before it streams them: 1.25 times as quick as 256,
_HEAVY_CHUNK = 256  # except where arithmetic counts, which wants long loops (measured)
_AHEAD = 2048  # elements from what is computed to what is prefetched
_CHUNK_BUFFER = _HEAVY_CHUNK // 2  # int64
_ZERO, _HALF, _ONE, _TWO = np.float32(0), np.float32(0.5), np.float32(1), np.float32(2)
_INFINITY = np.float32("inf")

_HEAVY = {
    "elu", "exp", "gelu_erf", "gelu_tanh", "log", "logistic", "mish", "pow", "soft_relu", "swish",
    "tanh",
}  # fmt: skip
"""The algorithms of transcendental functions, as those of their slopes."""


@exact
def _unit(x, alpha, beta):
    return vecmath.clipped(alpha * x + beta, _ZERO, _ONE)


@exact
def _root(x):
    """x**0.5 as IEEE 754 has it, which differs from the square root at -0 and -infinity."""
    return abs(vecmath.sqrt(_INFINITY if x == -_INFINITY else x))


@exact
def _softplus(x, alpha):
    """log(1 + e**(alpha * x)) / alpha; alpha * x may be infinite."""
    z = alpha * x
    return (x if z > _ZERO else _ZERO) + vecmath.softplus(-z if z > _ZERO else z) / alpha


@exact
def _hardswish_slope(x, alpha, beta):
    line = alpha * x + beta
    slope = _TWO * alpha * x + beta if line > _ZERO else _ZERO
    return _ONE if line >= _ONE else slope


@exact
def _hardsigmoid_slope(x, alpha, beta):
    line = alpha * x + beta
    return alpha if (line > _ZERO) & (line < _ONE) else _ZERO


@exact
def _inside(x, low, high):
    return _ONE if (low < x) & (x < high) else _ZERO


def _inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    inlined: Callable[..., Any] = exact(getattr(function, "py_func", function))
    return inlined


Element = Callable[..., Any]
STREAMED: dict[Task, Task] = {}
"""The twin of each stage that writes whole cache lines past the caches: a multiple of 64 bytes, to
a multiple of 64 bytes, where no input is."""
TYPED: dict[tuple[Task, str], Task] = {}
"""Stages whose tensors are all of a half type, by the stage of f32 and the type. They have twins,
too, and read no condition."""


def _run(element_of: Callable[[Any], Element], data_type: str) -> Callable[..., None]:
    """The loop y[i] = element(first + i, ...) for `count` elements of a type."""
    each, put = exact(element_of(LOADS_AS_F32[data_type])), STORES_FROM_F32[data_type]

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


def _stage(
    name: str, element_of: Callable[[Any], Element], *, zipped: bool, data_type: str = "f32"
) -> Task:
    """The stage y[i] = element(i, x, operand, condition, alpha, beta).

    element_of: makes the element function, given a function that loads. zipped: it reads the
    operand.
    """
    size = bytes_of(STORED[data_type])
    run = _run_of_pairs(element_of) if data_type == "bf16" else _run(element_of, data_type)
    kind, _, algorithm = name.partition("_")
    heavy = kind in ("eltwise", "slope") and algorithm in _HEAVY
    longest = _HEAVY_CHUNK if heavy or data_type != "f32" else _CHUNK

    def stage(stage, x, operand, condition, y, length):
        alpha, beta = stage.alpha, stage.beta
        if x == y:  # LLVM has to know, or it makes a scalar loop
            run(y, operand, condition, y, 0, length, alpha, beta)
        elif zipped and operand == y:
            run(x, y, condition, y, 0, length, alpha, beta)
        else:
            run(x, operand, condition, y, 0, length, alpha, beta)

    def streamed(stage, x, operand, condition, y, length):
        alpha, beta = stage.alpha, stage.beta
        chunk = stack(_CHUNK_BUFFER)
        for start in range(0, length, longest):
            count = min(longest, length - start)
            prefetch(x + size * (start + _AHEAD), size * longest)
            if zipped:
                prefetch(operand + size * (start + _AHEAD), size * longest)
            run(x, operand, condition, chunk, start, count, alpha, beta)
            stream(chunk, y + size * start, count * size // 4)

    suffix = "" if data_type == "f32" else f"_{data_type}"
    stage.__name__, streamed.__name__ = f"{name}{suffix}", f"{name}{suffix}_streamed"
    made = native_function(STAGE_CALL)(stage)
    STREAMED[made] = native_function(STAGE_CALL)(streamed)
    return made


def _stages(name: str, element_of: Callable[[Any], Element], *, zipped: bool) -> Task:
    """The stage of f32; those of half types are in `TYPED`."""
    made = _stage(name, element_of, zipped=zipped)
    for kind in HALVES:
        TYPED[made, kind] = _stage(name, element_of, zipped=zipped, data_type=kind)
    return made


def _map(name: str, function: Callable[..., Any]) -> Task:
    """The stage y = function(x, alpha, beta)."""
    f = _inlined(function)

    def element_of(load: Any) -> Element:
        return lambda i, x, operand, condition, alpha, beta: f(load(x, i), alpha, beta)

    return _stages(name, element_of, zipped=False)


def _gradient(name: str, function: Callable[..., Any]) -> Task:
    """The stage y = function(x, alpha, beta) * operand."""
    f = _inlined(function)

    def element_of(load: Any) -> Element:
        def element(i, x, operand, condition, alpha, beta):
            return f(load(x, i), alpha, beta) * load(operand, i)

        return element

    return _stages(name, element_of, zipped=True)


def _zip(name: str, function: Callable[..., Any]) -> Task:
    """The stage y = function(x, operand, alpha, beta)."""
    f = _inlined(function)

    def element_of(load: Any) -> Element:
        def element(i, x, operand, condition, alpha, beta):
            return f(load(x, i), load(operand, i), alpha, beta)

        return element

    return _stages(name, element_of, zipped=True)


def _selected(i, x, operand, condition, alpha, beta):
    yes, no = load_f32(x, i), load_f32(operand, i)  # both in any case, so that it is vector code
    return yes if load_f32(condition, i) != _ZERO else no


def _tasks(
    make: Callable[..., Task], kind: str, functions: Mapping[str, Callable[..., Any]]
) -> dict[str, Task]:
    return {name: make(f"{kind}_{name}", function) for name, function in functions.items()}


ELTWISE = _tasks(_map, "eltwise", {
    "abs": lambda x, alpha, beta: abs(x),
    "clip": vecmath.clipped,
    "clip_v2": vecmath.clipped,
    "elu": lambda x, alpha, beta: x if x > _ZERO else alpha * vecmath.expm1(x),
    "exp": lambda x, alpha, beta: vecmath.exp(x),
    "gelu_erf": lambda x, alpha, beta: vecmath.gelu_erf(x),
    "gelu_tanh": lambda x, alpha, beta: vecmath.gelu_tanh(x),
    "hardsigmoid": _unit,
    "hardswish": lambda x, alpha, beta: x * _unit(x, alpha, beta),
    "linear": lambda x, alpha, beta: alpha * x + beta,
    "log": lambda x, alpha, beta: vecmath.log(x),
    "logistic": lambda x, alpha, beta: vecmath.logistic(x),
    "mish": lambda x, alpha, beta: vecmath.mish(x),
    "pow": vecmath.power,
    "relu": lambda x, alpha, beta: x if x > _ZERO else alpha * x,
    "relu_0": lambda x, alpha, beta: _ZERO if x <= _ZERO else x,  # alpha * -inf would be NaN
    "round": lambda x, alpha, beta: np.rint(x),
    "soft_relu": lambda x, alpha, beta: _softplus(x, alpha),
    "sqrt": lambda x, alpha, beta: vecmath.sqrt(x),
    "square": lambda x, alpha, beta: x * x,
    "swish": lambda x, alpha, beta: vecmath.swish(x, alpha),
    "tanh": lambda x, alpha, beta: vecmath.tanh(x),
})  # fmt: skip

SLOPES = _tasks(_gradient, "slope", {
    "abs": lambda x, alpha, beta: _ONE if x > _ZERO else (-_ONE if x < _ZERO else x),
    "clip": lambda x, alpha, beta: _ONE if (alpha < x) & (x <= beta) else _ZERO,
    "clip_v2": _inside,
    "elu": lambda x, alpha, beta: _ONE if x > _ZERO else alpha * vecmath.exp(x),
    "exp": lambda x, alpha, beta: vecmath.exp(x),
    "gelu_erf": lambda x, alpha, beta: vecmath.gelu_erf_slope(x),
    "gelu_tanh": lambda x, alpha, beta: vecmath.gelu_tanh_slope(x),
    "hardsigmoid": _hardsigmoid_slope,
    "hardswish": _hardswish_slope,
    "linear": lambda x, alpha, beta: alpha,
    "log": lambda x, alpha, beta: _ONE / x,
    "logistic": lambda x, alpha, beta: vecmath.logistic_slope(x),
    "mish": lambda x, alpha, beta: vecmath.mish_slope(x),
    "pow": lambda x, alpha, beta: (
        vecmath.power(x, alpha * beta, beta - _ONE) if beta != _ZERO else _ZERO
    ),
    "relu": lambda x, alpha, beta: _ONE if x > _ZERO else alpha,
    "soft_relu": lambda x, alpha, beta: vecmath.logistic(alpha * x),
    "sqrt": lambda x, alpha, beta: _HALF / vecmath.sqrt(x),
    "square": lambda x, alpha, beta: _TWO * x,
    "swish": lambda x, alpha, beta: vecmath.swish_slope(x, alpha),
    "tanh": lambda x, alpha, beta: vecmath.tanh_slope(x),
})  # fmt: skip

_POWERS = {  # alpha * x**beta, a product in float64, so that nothing overflows on the way
    -1.0: lambda x, alpha, beta: alpha / x,
    -0.5: lambda x, alpha, beta: alpha / _root(x),
    0.0: lambda x, alpha, beta: alpha,
    0.5: lambda x, alpha, beta: alpha * _root(x),
    1.0: lambda x, alpha, beta: alpha * x,
    2.0: lambda x, alpha, beta: np.float32(np.float64(alpha) * (np.float64(x) * np.float64(x))),
}
POWERS = {beta: _map(f"power_{i}", f) for i, (beta, f) in enumerate(_POWERS.items())}
POWER_GRADIENTS = {
    beta: _gradient(f"power_gradient_{i}", f) for i, (beta, f) in enumerate(_POWERS.items())
}
"""The stages of pow for the usual beta: far quicker than the general one."""

SLOPES_OF_DST = _tasks(_gradient, "slope_of_dst", {
    "clip_v2": _inside,
    "elu": lambda y, alpha, beta: _ONE if y > _ZERO else y + alpha,
    "exp": lambda y, alpha, beta: y,
    "logistic": lambda y, alpha, beta: y * (_ONE - y),
    "relu": lambda y, alpha, beta: _ONE if y > _ZERO else alpha,
    "sqrt": lambda y, alpha, beta: _HALF / y,
    "tanh": lambda y, alpha, beta: (_ONE - y) * (_ONE + y),
})  # fmt: skip

BINARY = _tasks(_zip, "binary", {
    "add": lambda x, y, alpha, beta: x + y,
    "sub": lambda x, y, alpha, beta: x - y,
    "mul": lambda x, y, alpha, beta: x * y,
    "div": lambda x, y, alpha, beta: x / y,
    "max": lambda x, y, alpha, beta: y if (y > x) | (y != y) else x,
    "min": lambda x, y, alpha, beta: y if (y < x) | (y != y) else x,
    "ge": lambda x, y, alpha, beta: _ONE if x >= y else _ZERO,
    "gt": lambda x, y, alpha, beta: _ONE if x > y else _ZERO,
    "le": lambda x, y, alpha, beta: _ONE if x <= y else _ZERO,
    "lt": lambda x, y, alpha, beta: _ONE if x < y else _ZERO,
    "eq": lambda x, y, alpha, beta: _ONE if x == y else _ZERO,
    "ne": lambda x, y, alpha, beta: _ONE if x != y else _ZERO,
})  # fmt: skip

ADD_SCALED = _zip("add_scaled", lambda x, y, alpha, beta: beta * x + alpha * y)
PRELU = _zip("prelu", lambda x, y, alpha, beta: x if x > _ZERO else y * x)
SELECT = _stage("select", lambda _load: _selected, zipped=True)

COSTS = {
    table[name]: 3.0 if name == "pow" else 0.5 for table in (ELTWISE, SLOPES) for name in _HEAVY
}
