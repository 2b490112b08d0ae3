"""Records in functions that numba compiles: access to fields by name, and calls by keyword.

`call_schema.py` defines records. In a task, the address of a record has a separate type:

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

# ruff: noqa: ARG001 - numba prescribes the parameters of typing and lowering functions

from __future__ import annotations

import inspect
import operator

from llvmlite import ir
from numba import types
from numba.core.datamodel import models, register_default
from numba.core.imputils import (
    lower_builtin,
    lower_cast,
    lower_constant,
    lower_getattr_generic,
    lower_setattr_generic,
)
from numba.core.typing.templates import (
    AbstractTemplate,
    AttributeTemplate,
    infer_getattr,
    infer_global,
    signature,
)
from numba.extending import typeof_impl

from dnncore_cpu_numba.codegen.call_schema import CallMismatch, Many, Pointer, Record
from dnncore_cpu_numba.codegen.pointers import room
from dnncore_cpu_numba.codegen.vector_ir import F32, I32, I64

_NSW = ("nsw",)


class Address(types.Type):
    """The type of the address of a record or, with a field, of the numbers in this field.

    In both cases the value is the address of the record.
    """

    def __init__(self, record, field=None):
        self.record, self.field = record, field
        super().__init__(name=f"address of {f'{field.name} of ' if field else ''}{record.name}")

    @property
    def key(self):
        """Types with equal keys are equal."""
        return self.record, self.field


class Declaration(types.Opaque):
    """The type of a record, which is a constant in functions that numba compiles."""

    def __init__(self, record):
        self.record = record
        super().__init__(name=f"record {record.name}")

    @property
    def key(self):
        """Types with equal keys are equal."""
        return self.record


register_default(Address)(lambda manager, typ: models.PrimitiveModel(manager, typ, I64))
register_default(Declaration)(models.OpaqueModel)


@typeof_impl.register(Record)
def _typeof_record(record, context):
    return Declaration(record)


@lower_constant(Declaration)
def _no_value(context, builder, typ, value):
    return context.get_dummy_value()


def numba_type(kind):
    """Return the numba type of a slot of this kind."""
    if isinstance(kind, Pointer):
        return Address(kind.record)
    return types.float32 if kind == "float32" else types.int64


# -- fields ----------------------------------------------------------------------------------------


@infer_getattr
class _Fields(AttributeTemplate):
    key = Address

    def generic_resolve(self, typ, name):
        if typ.field:
            return None
        field = typ.record.field(name)
        kind = field.kind.kind if isinstance(field.kind, Many) else field.kind
        if isinstance(kind, Record):
            return Address(kind)
        return Address(typ.record, field) if isinstance(field.kind, Many) else numba_type(kind)


@lower_getattr_generic(Address)
def _load_field(context, builder, typ, address, name):
    field = typ.record.field(name)
    if isinstance(field.kind, Record) or isinstance(getattr(field.kind, "kind", None), Record):
        return builder.add(address, I64(8 * field.slot), flags=_NSW)
    if isinstance(field.kind, Many):
        return address
    pointer, align = _pointer(builder, address, field)
    return builder.load(pointer, align=align)


@lower_setattr_generic(Address)
def _store_field(context, builder, sig, args, name):
    pointer, align = _pointer(builder, args[0], sig.args[0].record.field(name))
    builder.store(args[1], pointer, align=align)


def _pointer(builder, address, field):
    """Return the pointer to a field, and its alignment. A float32 is in the slot's low half."""
    kind, per_slot = (F32, 2) if field.kind == "float32" else (I64, 1)
    base = builder.inttoptr(address, kind.as_pointer())
    return builder.gep(base, [I64(per_slot * field.slot)]), 8 // per_slot


@infer_global(operator.getitem)
class _Items(AbstractTemplate):
    def generic(self, args, kws):
        base = args[0]
        if not isinstance(base, Address):
            return None
        return signature(types.int64 if base.field else base, base, types.int64)


@lower_builtin(operator.getitem, Address, types.int64)
def _item(context, builder, sig, args):
    address, index = args
    record, field = sig.args[0].key
    if field is None:
        step = builder.mul(index, I64(record.nbytes), flags=_NSW)
        return builder.add(address, step, flags=_NSW)
    index = builder.add(I64(field.slot), index, flags=_NSW)
    pointer = builder.gep(builder.inttoptr(address, I64.as_pointer()), [index])
    return builder.load(pointer, align=8)


@lower_cast(Address, types.int64)
def _as_integer(context, builder, fromty, toty, value):
    if fromty.field is None:
        return value
    return builder.add(value, I64(8 * fromty.field.slot), flags=_NSW)


# -- calls -----------------------------------------------------------------------------------------


@infer_getattr
class _Methods(AttributeTemplate):
    key = Declaration

    def generic_resolve(self, typ, name):
        template = {"at": _At, "room": _Room, "call": _Call}.get(name)
        return types.BoundFunction(template, typ) if template else None


class _At(AbstractTemplate):
    key = "record.at"

    def generic(self, args, kws):
        return signature(Address(self.this.record), types.int64, recvr=self.this)


@lower_builtin("record.at", Declaration, types.int64)
def _at(context, builder, sig, args):
    return args[1]


class _Room(AbstractTemplate):
    key = "record.room"

    def generic(self, args, kws):
        return signature(Address(self.this.record), recvr=self.this)


@lower_builtin("record.room", Declaration)
def _room(context, builder, sig, args):
    return room(builder, sig.args[0].record.size)


class _Call(AbstractTemplate):
    key = "record.call"

    def generic(self, args, kws):
        record = self.this.record
        if len(args) != 1:
            raise CallMismatch(f"{record.name} is called with (address, name=value, ...)")
        record.check(kws)
        given = [_argument(record, field, kws[name]) for name, field in record.fields.items()]
        parameters = [
            inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD)
            for name in ("_function", *record.fields)
        ]
        sig = signature(types.void, types.int64, *given, recvr=self.this)
        return sig.replace(pysig=inspect.Signature(parameters))


def _argument(record, field, given):
    """Return the type to which numba converts an argument."""
    wanted = numba_type(field.kind)
    if types.float32 in (given, wanted):
        fits = given == wanted
    elif isinstance(given, Address):
        fits = given.field or wanted in (given, types.int64)
    else:
        fits = isinstance(given, types.Integer | types.Boolean)
    if not fits:
        raise CallMismatch(f"{record.name}: {field.name} is {wanted}; got {given}")
    return wanted if wanted == types.float32 else types.int64


@lower_builtin("record.call", Declaration, types.int64, types.VarArg(types.Any))
def _call(context, builder, sig, args):
    _, function, *values = args
    slots = [
        builder.zext(builder.bitcast(value, I32), I64) if value.type == F32 else value
        for value in values
    ]
    kind = ir.FunctionType(ir.VoidType(), [I64] * len(slots))
    builder.call(builder.inttoptr(function, kind.as_pointer()), slots)
    return context.get_dummy_value()
