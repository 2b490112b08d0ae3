"""Memory in tasks: loads and stores through 64-bit integer addresses, and their decorator.

Each access takes one or a few LLVM instructions. Indices count elements. Bounds are not checked, so
that LLVM can vectorise loops. Integers are widened to 64 bits on load and truncated on store.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from llvmlite import ir
from numba import types

from dnncore_cpu_numba.codegen.call_schema import CallMismatch
from dnncore_cpu_numba.codegen.numbers_ir import Number, cast, number, truth
from dnncore_cpu_numba.codegen.type_conversion import (
    STORED,
    as_f32,
    from_f32,
    pair_as_f32,
    pair_from_f32,
)
from dnncore_cpu_numba.codegen.vector_ir import F32, I8, I16, I32, I64, bytes_of

_F64 = ir.DoubleType()


class Emitted:
    """A function that tasks can call. emit: a function (builder, *values) that emits LLVM IR.

    It receives numbers and constants of Python, and returns a number or None.
    """

    def __init__(self, emit):
        self.emit = emit
        self.__doc__ = emit.__doc__

    if TYPE_CHECKING:
        # Tasks call it, Python does not.
        __call__: Callable[..., Any]


def emitted(result, *parameters):
    """Decorate a function (builder, *values) that emits LLVM IR. Tasks can call the result.

    result, parameters: numba's types, to which arguments are converted.
    """

    def decorate(emit):
        @functools.wraps(emit)
        def converted(builder, *args):
            given = zip(args, parameters, strict=True)
            value = emit(builder, *(cast(builder, each, kind).value for each, kind in given))
            return None if result is types.void else Number(value, result)

        return Emitted(converted)

    return decorate


def _pointer(builder, address, index, element):
    return builder.gep(builder.inttoptr(address, element.as_pointer()), [index])


def _loader(numba_type, element):
    """Return a function (address, index) that loads an element."""

    @emitted(numba_type, types.int64, types.int64)
    def load(builder, address, index):
        value = builder.load(_pointer(builder, address, index, element), align=bytes_of(element))
        return builder.sext(value, I64) if element in (I8, I16, I32) else value

    return load


def _storer(numba_type, element):
    """Return a function (address, index, value) that stores an element."""

    @emitted(types.void, types.int64, types.int64, numba_type)
    def store(builder, address, index, value):
        value = builder.trunc(value, element) if element in (I8, I16, I32) else value
        builder.store(value, _pointer(builder, address, index, element), align=bytes_of(element))

    return store


def _bitcast(source, target, element):
    """Return a function that returns the bits of a value as another type."""
    return emitted(target, source)(lambda builder, value: builder.bitcast(value, element))


load_f32 = _loader(types.float32, F32)
load_f64 = _loader(types.float64, _F64)
load_i64 = _loader(types.int64, I64)
load_i32 = _loader(types.int64, I32)
load_s16 = _loader(types.int64, I16)
load_s8 = _loader(types.int64, I8)


def _loader_as_f32(data_type):
    """Return a function (address, index) that loads an element of a data type as float32."""
    element = STORED[data_type]

    @emitted(types.float32, types.int64, types.int64)
    def load(builder, address, index):
        value = builder.load(_pointer(builder, address, index, element), align=bytes_of(element))
        return as_f32(builder, value, data_type)

    return load


LOADS_AS_F32 = {kind: load_f32 if kind == "f32" else _loader_as_f32(kind) for kind in STORED}
"""The functions (address, index) that load an element of a data type as float32."""


def _storer_from_f32(data_type):
    """Return a function (address, index, value) that stores a float32 as a data type."""
    element = STORED[data_type]

    @emitted(types.void, types.int64, types.int64, types.float32)
    def store(builder, address, index, value):
        value = from_f32(builder, value, data_type)
        builder.store(value, _pointer(builder, address, index, element), align=bytes_of(element))

    return store


store_f32 = _storer(types.float32, F32)
store_f64 = _storer(types.float64, _F64)
STORES_FROM_F32 = {kind: store_f32 if kind == "f32" else _storer_from_f32(kind) for kind in STORED}
"""The functions (address, index, value) that store a float32 as an element of a data type."""


def _loader_of_pairs(half):
    """Return a function (address, index) that loads one bf16 of pair number `index` as float32.

    half: 0 for the lower one, 1 for the upper one.
    """

    @emitted(types.float32, types.int64, types.int64)
    def load(builder, address, index):
        pair = builder.load(_pointer(builder, address, index, I32), align=2)
        return pair_as_f32(builder, pair)[half]

    return load


load_low_bf16, load_high_bf16 = (_loader_of_pairs(half) for half in range(2))


@emitted(types.void, types.int64, types.int64, types.float32, types.float32)
def store_pair_bf16(builder, address, index, low, high):
    """Convert two float32 to bf16 and store them as pair number `index`."""
    pair = pair_from_f32(builder, low, high)
    builder.store(pair, _pointer(builder, address, index, I32), align=2)


store_i64 = _storer(types.int64, I64)
store_i32 = _storer(types.int64, I32)
store_i16 = _storer(types.int64, I16)
store_i8 = _storer(types.int64, I8)

# -- streams that do not overlap -------------------------------------------------------------------

_STREAMS = 16  # most streams that a loop writes
_INPUTS = -1  # the stream of all memory that a loop only reads


def _mark(builder, instruction, stream):
    """State that an access overlaps no access of another stream of its function."""
    module = builder.module
    domain = module.add_metadata(["dnncore streams"])
    scopes = {n: module.add_metadata([f"stream {n}", domain]) for n in range(_INPUTS, _STREAMS)}
    others = [scope for n, scope in scopes.items() if n != stream]
    instruction.set_metadata("alias.scope", module.add_metadata([scopes[stream]]))
    instruction.set_metadata("noalias", module.add_metadata(others))
    return instruction


@emitted(types.float32, types.int64, types.int64)
def load_input(builder, address, index):
    """Load a float32 from memory that the function does not write.

    With `load_stream` and `store_stream`, LLVM vectorises loops with many addresses.
    """
    return _mark(builder, builder.load(_pointer(builder, address, index, F32), align=4), _INPUTS)


def _check_stream(stream):
    if type(stream) is not int or not 0 <= stream < _STREAMS:
        raise CallMismatch(f"a stream is a constant below {_STREAMS}; got {stream}")


@Emitted
def load_stream(builder, stream, address, index):
    """Load a float32. stream: a constant; other streams of the function do not overlap."""
    _check_stream(stream)
    place, at = (cast(builder, each, types.int64).value for each in (address, index))
    load = builder.load(_pointer(builder, place, at, F32), align=4)
    return Number(_mark(builder, load, stream), types.float32)


@Emitted
def store_stream(builder, stream, address, index, value):
    """Store a float32. stream: as in `load_stream`."""
    _check_stream(stream)
    place, at = (cast(builder, each, types.int64).value for each in (address, index))
    x = cast(builder, value, types.float32).value
    _mark(builder, builder.store(x, _pointer(builder, place, at, F32), align=4), stream)


f32_to_bits = _bitcast(types.float32, types.int32, I32)
bits_to_f32 = _bitcast(types.int32, types.float32, F32)
f64_to_bits = _bitcast(types.float64, types.int64, I64)
bits_to_f64 = _bitcast(types.int64, types.float64, _F64)


@Emitted
def chosen(builder, condition, yes, no):
    """Return `yes` where the condition, a number, is not 0, else `no`: without a branch."""
    first = number(yes)
    others = cast(builder, no, first.kind).value
    is_set = truth(builder, number(condition)).value
    return Number(builder.select(is_set, first.value, others), first.kind)


@emitted(types.int64, types.int64)
def address(builder, value):  # noqa: ARG001 - all emitters have it
    """Return the address of a record, or of numbers in a field, as an int64."""
    return value


def room(builder, slots):
    """Emit an allocation of slots on the stack and return its address.

    The memory is valid until the task returns.
    """
    with builder.goto_entry_block():
        place = builder.alloca(ir.ArrayType(I64, slots))
    place.align = 64
    return builder.ptrtoint(place, I64)


@Emitted
def stack(builder, count):
    """Return the address of `count` int64 on the stack. The count must be a constant.

    The memory is valid until the task returns.
    """
    if type(count) is not int:
        raise CallMismatch("the size of memory on the stack is a constant")
    return Number(room(builder, count), types.int64)
