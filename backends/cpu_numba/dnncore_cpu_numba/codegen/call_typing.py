"""Records in tasks: access to fields by name, and calls by keyword.

`call_schema.py` defines records. In a task, the address of a record has a separate kind:

    p.row, p.row = x        the number in the slot; float32 if this is its unit
    p.table                 the address of another record, if the field is a `Pointer`
    p.outer, p.outer[i]     the address of several numbers, and one of them
    p[i]                    number i of contiguous records
    RECORD.at(address)      the record at an address
    RECORD.room()           memory for a record on the stack, valid until the task returns
    RECORD.call(function, name=value, ...)      calls the native function at an address

Where an int64 is required, the address of a record is converted. Each access takes one or a few
LLVM instructions, as in `pointers.py`. Unknown names raise `CallMismatch`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from llvmlite import ir
from numba import types

from dnncore_cpu_numba.codegen.call_schema import CallMismatch, Field, Many, Pointer, Record
from dnncore_cpu_numba.codegen.numbers_ir import Address, Number, cast, number
from dnncore_cpu_numba.codegen.pointers import Emitted, room
from dnncore_cpu_numba.codegen.vector_ir import F32, I32, I64, Builder, Value

_NSW = ("nsw",)


def kind_of(kind: Any) -> Any:
    """Return the kind of the number in a slot of this kind."""
    if isinstance(kind, Pointer):
        return Address(kind.record)
    return types.float32 if kind == "float32" else types.int64


# -- fields ----------------------------------------------------------------------------------------


def load_field(builder: Builder, address: Number, name: str) -> Number:
    """Return a field of a record. Raises `CallMismatch` if there is none."""
    field = _field(address.kind, name)
    kind = field.kind.kind if isinstance(field.kind, Many) else field.kind
    if isinstance(kind, Record):
        place = builder.add(address.value, I64(8 * field.slot), flags=_NSW)
        return Number(place, Address(kind))
    if isinstance(field.kind, Many):
        return Number(address.value, Address(address.kind.record, field))
    pointer, align = _pointer(builder, address.value, field)
    return Number(builder.load(pointer, align=align), kind_of(kind))


def store_field(builder: Builder, address: Number, name: str, value: Any) -> None:
    """Write a number to a field. Raises `CallMismatch` if there is none, or of another kind."""
    field = _field(address.kind, name)
    pointer, align = _pointer(builder, address.value, field)
    builder.store(cast(builder, value, kind_of(field.kind)).value, pointer, align=align)


def _field(kind: Any, name: str) -> Field:
    if not isinstance(kind, Address) or kind.field is not None:
        raise CallMismatch(f"Unknown attribute {name!r} of type {kind}")
    return kind.record.field(name)


def _pointer(builder: Builder, address: Value, field: Field) -> tuple[Value, int]:
    """Return the pointer to a field, and its alignment. A float32 is in the slot's low half."""
    kind, per_slot = (F32, 2) if field.kind == "float32" else (I64, 1)
    base = builder.inttoptr(address, kind.as_pointer())
    return builder.gep(base, [I64(per_slot * field.slot)]), 8 // per_slot


def item(builder: Builder, address: Number, place: Any) -> Number:
    """Return one of contiguous records, or one of the numbers of a field."""
    if not isinstance(address.kind, Address):
        raise CallMismatch(f"{address.kind} has no items")
    record, field = address.kind.record, address.kind.field
    index = cast(builder, place, types.int64).value
    if field is None:
        step = builder.mul(index, I64(record.nbytes), flags=_NSW)
        return Number(builder.add(address.value, step, flags=_NSW), address.kind)
    index = builder.add(I64(field.slot), index, flags=_NSW)
    pointer = builder.gep(builder.inttoptr(address.value, I64.as_pointer()), [index])
    return Number(builder.load(pointer, align=8), types.int64)


# -- methods of records ----------------------------------------------------------------------------


def method(record: Record, name: str) -> Emitted:
    """Return a method of a record in tasks. Raises `CallMismatch`."""
    if name not in _METHODS:
        raise CallMismatch(f"Unknown attribute {name!r} of type record {record.name}")

    def emit(builder: Builder, *args: Any, **kws: Any) -> Number | None:
        return _METHODS[name](record, builder, args, kws)

    return Emitted(emit)


def _at(record: Record, builder: Builder, args: Any, _kws: Any) -> Number:
    return Number(cast(builder, args[0], types.int64).value, Address(record))


def _room(record: Record, builder: Builder, _args: Any, _kws: Any) -> Number:
    return Number(room(builder, record.size), Address(record))


def _call(record: Record, builder: Builder, args: Any, kws: Mapping[str, Any]) -> None:
    if len(args) != 1:
        raise CallMismatch(f"{record.name} is called with (address, name=value, ...)")
    record.check(kws)
    slots = [_slot(builder, record, field, kws[name]) for name, field in record.fields.items()]
    kind = ir.FunctionType(ir.VoidType(), [I64] * len(slots))
    function = cast(builder, args[0], types.int64).value
    builder.call(builder.inttoptr(function, kind.as_pointer()), slots)


def _slot(builder: Builder, record: Record, field: Field, value: Any) -> Value:
    """Return an argument as the number in its slot."""
    wanted, given = kind_of(field.kind), number(value).kind
    if types.float32 in (given, wanted):
        fits = given == wanted
    elif isinstance(given, Address):
        fits = bool(given.field) or wanted in (given, types.int64)
    else:
        fits = isinstance(given, types.Integer | types.Boolean)
    if not fits:
        raise CallMismatch(f"{record.name}: {field.name} is {wanted}; got {given}")
    if wanted == types.float32:
        bits = builder.bitcast(number(value).value, I32)
        return builder.zext(bits, I64)
    return cast(builder, value, types.int64).value


_METHODS: dict[str, Callable[..., Number | None]] = {"at": _at, "room": _room, "call": _call}
