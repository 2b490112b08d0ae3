"""Numbers in tasks: the arithmetic of Python and numpy as LLVM IR.

Integers have 64 bits, and wrap around only if they are unsigned. Quotients are rounded down, and
are 0 if the divisor is. A result of integers and floats is a float64, as in numpy.
"""

from __future__ import annotations

import ast
import functools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from dnncore_cpu_numba.codegen import vector_ir as vir
from dnncore_cpu_numba.codegen.call_schema import CallMismatch, Field, Record
from dnncore_cpu_numba.codegen.vector_ir import F32, I64, Builder, Value

F64 = ir.DoubleType()
BIT = ir.IntType(1)
_CONSTANTS = {
    bool: types.boolean, int: types.int64, float: types.float64, np.bool_: types.boolean,
    np.int32: types.int32, np.int64: types.int64, np.uint64: types.uint64,
    np.float32: types.float32, np.float64: types.float64,
}  # fmt: skip


@dataclass(frozen=True)
class Address:
    """The kind of the address of a record or, with a field, of the numbers in this field.

    In both cases the value is the address of the record.
    """

    record: Record
    field: Field | None = None

    def __str__(self) -> str:
        return f"address of {f'{self.field.name} of ' if self.field else ''}{self.record.name}"


class Number:
    """A number that is known when the task runs. kind: numba's type, or `Address`."""

    __slots__ = ("kind", "value")

    def __init__(self, value: Value, kind: Any) -> None:
        self.value = value
        self.kind = kind


def ir_type(kind: Any) -> Any:
    """Return LLVM's type of numbers of a kind."""
    if kind is types.boolean:
        return BIT
    if isinstance(kind, types.Float):
        return F32 if kind is types.float32 else F64
    return ir.IntType(getattr(kind, "bitwidth", 64))


def is_constant(value: Any) -> bool:
    """Whether a value of Python is a number."""
    return type(value) in _CONSTANTS


def number(value: Any) -> Number:
    """Return a number as it is, or a constant as a number. Raises `CallMismatch`."""
    if isinstance(value, Number):
        return value
    kind = _CONSTANTS.get(type(value))
    if kind is None:
        raise CallMismatch(f"expected a number; got {value!r}")
    plain = float(value) if isinstance(kind, types.Float) else int(value)
    return Number(ir.Constant(ir_type(kind), plain), kind)


def cast(builder: Builder, value: Any, kind: Any) -> Number:
    """Convert a number or a constant to another kind. Raises `CallMismatch`."""
    given = number(value)
    if given.kind == kind:
        return given
    if isinstance(given.kind, Address):
        place = I64(8 * given.kind.field.slot if given.kind.field else 0)
        whole = Number(builder.add(given.value, place, flags=("nsw",)), types.int64)
        return cast(builder, whole, kind)
    if isinstance(kind, Address):
        raise CallMismatch(f"expected {kind}; got {given.kind}")
    if kind is types.boolean:
        return truth(builder, given)
    return Number(_converted(builder, given, kind), kind)


def _converted(builder: Builder, given: Number, kind: Any) -> Value:
    source, target, value = given.kind, ir_type(kind), given.value
    signed = getattr(source, "signed", False)  # that of a boolean is not
    if isinstance(source, types.Float):
        if not isinstance(kind, types.Float):
            return (builder.fptosi if kind.signed else builder.fptoui)(value, target)
        return (builder.fpext if target == F64 else builder.fptrunc)(value, target)
    if isinstance(kind, types.Float):
        return (builder.sitofp if signed else builder.uitofp)(value, target)
    if value.type.width == target.width:
        return value
    if value.type.width > target.width:
        return builder.trunc(value, target)
    return (builder.sext if signed else builder.zext)(value, target)


def truth(builder: Builder, value: Number) -> Number:
    """Return whether a number is not 0."""
    if value.kind is types.boolean:
        return value
    zero = ir.Constant(value.value.type, 0)
    if isinstance(value.kind, types.Float):
        return Number(builder.fcmp_unordered("!=", value.value, zero), types.boolean)
    return Number(builder.icmp_unsigned("!=", value.value, zero), types.boolean)


def common(kinds: Sequence[Any]) -> Any:
    """Return the kind to which numbers of these kinds are converted where they meet."""
    return functools.reduce(_common, kinds)


def _common(one: Any, other: Any) -> Any:
    if one == other:
        return one
    if isinstance(one, types.Float) or isinstance(other, types.Float):
        return types.float64
    if types.uint64 in (one, other):
        raise CallMismatch(f"{one} and {other} have no common type")
    return types.int64


# -- operators -------------------------------------------------------------------------------------


def _quotient_and_rest(builder: Builder, x: Value, y: Value) -> tuple[Value, Value]:
    """Return the quotient, rounded down, and the rest; 0 if they do not exist."""
    before = builder.block
    zero = builder.icmp_signed("==", y, I64(0))
    lowest = builder.icmp_signed("==", x, I64(-(2**63)))
    overflow = builder.and_(lowest, builder.icmp_signed("==", y, I64(-1)))
    with builder.if_then(builder.not_(builder.or_(zero, overflow)), likely=True):
        quotient, rest = builder.sdiv(x, y), builder.srem(x, y)
        below = builder.icmp_signed("<", builder.xor(y, rest), I64(0))
        below = builder.and_(builder.icmp_signed("!=", rest, I64(0)), below)
        quotient = builder.select(below, builder.sub(quotient, I64(1)), quotient)
        rest = builder.select(below, builder.add(rest, y), rest)
        inside = builder.block
    results = builder.phi(I64), builder.phi(I64)
    vir.join(results, (before, (I64(0), I64(0))), (inside, (quotient, rest)))
    return results


def _of_integers(operator_: type[ast.operator], unsigned: bool) -> Callable[..., Value] | None:
    flags = () if unsigned else ("nsw",)
    if not unsigned and operator_ is ast.FloorDiv:
        return lambda b, x, y: _quotient_and_rest(b, x, y)[0]
    if not unsigned and operator_ is ast.Mod:
        return lambda b, x, y: _quotient_and_rest(b, x, y)[1]
    return {
        ast.Add: lambda b, x, y: b.add(x, y, flags=flags),
        ast.Sub: lambda b, x, y: b.sub(x, y, flags=flags),
        ast.Mult: lambda b, x, y: b.mul(x, y, flags=flags),
        ast.LShift: lambda b, x, y: b.shl(x, y),
        ast.RShift: lambda b, x, y: b.lshr(x, y) if unsigned else b.ashr(x, y),
    }.get(operator_) or _OF_BITS.get(operator_)


_OF_BITS: dict[type[ast.operator], Callable[..., Value]] = {
    ast.BitAnd: lambda b, x, y: b.and_(x, y),
    ast.BitOr: lambda b, x, y: b.or_(x, y),
    ast.BitXor: lambda b, x, y: b.xor(x, y),
}
_OF_FLOATS: dict[type[ast.operator], Callable[..., Value]] = {
    ast.Add: lambda b, x, y: b.fadd(x, y),
    ast.Sub: lambda b, x, y: b.fsub(x, y),
    ast.Mult: lambda b, x, y: b.fmul(x, y),
    ast.Div: lambda b, x, y: b.fdiv(x, y),
}
_OF_PYTHON: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
    ast.LShift: operator.lshift, ast.RShift: operator.rshift, ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_, ast.BitXor: operator.xor,
}  # fmt: skip


def binary(builder: Builder, operator_: type[ast.operator], x: Any, y: Any) -> Any:
    """Return the result of an operator. Raises `CallMismatch` if there is none for the kinds."""
    if {type(x), type(y)} <= {int, float}:
        return _OF_PYTHON[operator_](x, y)
    x, y = number(x), number(y)
    kind = common([x.kind, y.kind])
    if isinstance(kind, types.Float) or operator_ is ast.Div:
        kind = kind if isinstance(kind, types.Float) else types.float64
        emit = _OF_FLOATS.get(operator_)
    elif kind is types.boolean and operator_ in _OF_BITS:
        emit = _OF_BITS[operator_]
    else:
        kind = types.uint64 if kind is types.uint64 else types.int64
        emit = _of_integers(operator_, kind is types.uint64)
    if emit is None:
        raise CallMismatch(f"{x.kind} and {y.kind} have no {operator_.__name__}")
    return Number(emit(builder, *(cast(builder, each, kind).value for each in (x, y))), kind)


def unary(builder: Builder, operator_: type[ast.unaryop], value: Any) -> Any:
    """Return the result of an operator. Raises `CallMismatch` if there is none."""
    if operator_ is ast.Not:
        if is_constant(value):
            return not value
        return Number(builder.not_(truth(builder, value).value), types.boolean)
    if operator_ is ast.USub and type(value) in (int, float, np.float32, np.float64):
        return -value
    given = number(value)
    if operator_ is ast.USub and isinstance(given.kind, types.Float):
        return Number(builder.fneg(given.value), given.kind)
    whole = cast(builder, given, types.int64)
    emit = {ast.USub: builder.neg, ast.Invert: builder.not_}.get(operator_)
    if emit is None:
        raise CallMismatch(f"{given.kind} has no {operator_.__name__}")
    return Number(emit(whole.value), types.int64)


_SIGNS = {
    ast.Eq: ("==", operator.eq), ast.NotEq: ("!=", operator.ne), ast.Lt: ("<", operator.lt),
    ast.LtE: ("<=", operator.le), ast.Gt: (">", operator.gt), ast.GtE: (">=", operator.ge),
}  # fmt: skip


def compare(builder: Builder, operator_: type[ast.cmpop], x: Any, y: Any) -> Any:
    """Return the result of a comparison, or of `in` for tuples. Raises `CallMismatch`."""
    if operator_ is ast.In and isinstance(y, tuple):
        equal = [number(compare(builder, ast.Eq, x, each)).value for each in y]
        return Number(functools.reduce(builder.or_, equal), types.boolean)
    if operator_ not in _SIGNS:
        raise CallMismatch(f"tasks cannot use {operator_.__name__}")
    sign, of_python = _SIGNS[operator_]
    if is_constant(x) and is_constant(y):
        return bool(of_python(x, y))
    x, y = number(x), number(y)
    return Number(_compared(builder, sign, x, y), types.boolean)


def _compared(builder: Builder, sign: str, x: Number, y: Number) -> Value:
    kind = common([x.kind, y.kind])
    if isinstance(kind, Address):
        kind = types.int64
    a, b = (cast(builder, each, kind).value for each in (x, y))
    if isinstance(kind, types.Float):  # NaN is only different from all
        return (builder.fcmp_unordered if sign == "!=" else builder.fcmp_ordered)(sign, a, b)
    return (builder.icmp_signed if getattr(kind, "signed", False) else builder.icmp_unsigned)(
        sign, a, b
    )


# -- functions -------------------------------------------------------------------------------------


def _extreme(sign: str, builder: Builder, *values: Any) -> Any:
    """Return the first value that no later one exceeds, as Python's `max` and `min`."""

    def step(x: Number, y: Number) -> Number:
        kind = common([x.kind, y.kind])
        kind = types.int64 if isinstance(kind, Address) else kind
        x, y = cast(builder, x, kind), cast(builder, y, kind)
        further = _compared(builder, sign, y, x)
        return Number(builder.select(further, y.value, x.value), kind)

    if all(map(is_constant, values)):
        return (max if sign == ">" else min)(values)
    return functools.reduce(step, map(number, values))


def _absolute(builder: Builder, value: Any) -> Any:
    given = number(value)
    if isinstance(given.kind, types.Float):
        return Number(vir.lanewise(builder, "fabs", given.value), given.kind)
    whole = cast(builder, given, types.int64).value
    negative = builder.icmp_signed("<", whole, I64(0))
    return Number(builder.select(negative, builder.neg(whole), whole), types.int64)


def _lanewise(name: str) -> Callable[..., Number]:
    """Return the emitter of an intrinsic of floats."""

    def emit(builder: Builder, *values: Any) -> Number:
        numbers = [number(value) for value in values]
        kind = common([each.kind for each in numbers])
        kind = kind if isinstance(kind, types.Float) else types.float64
        floats = [cast(builder, each, kind).value for each in numbers]
        return Number(vir.lanewise(builder, name, *floats), kind)

    return emit


def _of_library(name: str) -> Callable[..., Number]:
    """Return the emitter of a call of a function of float64 of the C library."""

    def emit(builder: Builder, value: Any) -> Number:
        declared = builder.module.globals.get(name)
        if declared is None:
            declared = ir.Function(builder.module, ir.FunctionType(F64, [F64]), name)
            declared.attributes.add("nounwind")
            declared.attributes.add("readonly")
        result = builder.call(declared, [cast(builder, value, types.float64).value])
        return Number(result, types.float64)

    return emit


def _is_nan(builder: Builder, value: Any) -> Number:
    x = number(value).value
    return Number(builder.fcmp_unordered("uno", x, x), types.boolean)


def _is_finite(builder: Builder, value: Any) -> Number:
    x = number(value).value
    rest = builder.fsub(x, x)
    return Number(builder.fcmp_ordered("ord", rest, rest), types.boolean)


def _conversion(function: Callable[[Any], Any], kind: Any) -> Callable[..., Any]:
    def emit(builder: Builder, value: Any) -> Any:
        return function(value) if is_constant(value) else cast(builder, value, kind)

    return emit


FUNCTIONS: dict[Any, Callable[..., Any]] = {
    min: functools.partial(_extreme, "<"),
    max: functools.partial(_extreme, ">"),
    abs: _absolute,
    np.sqrt: _lanewise("sqrt"), np.floor: _lanewise("floor"), np.rint: _lanewise("rint"),
    math.exp: _lanewise("exp"), math.log: _lanewise("log"), math.pow: _lanewise("pow"),
    math.isnan: _is_nan, math.isfinite: _is_finite,
    **{getattr(math, name): _of_library(name) for name in ("expm1", "log1p", "tanh", "erfc")},
    **{each: _conversion(each, _CONSTANTS[each]) for each in _CONSTANTS if each is not bool},
}  # fmt: skip
"""Function of Python -> its emitter (builder, *numbers or constants)."""
