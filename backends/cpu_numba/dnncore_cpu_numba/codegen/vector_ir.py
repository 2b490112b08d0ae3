"""Emitters of LLVM IR that kernels share: loops, addresses, vectors, fields of records, calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from llvmlite import ir

from dnncore_cpu_numba.codegen.call_schema import Record

I8, I16, I32, I64 = (ir.IntType(width) for width in (8, 16, 32, 64))
F32 = ir.FloatType()
POINTER = ir.PointerType()
Value: TypeAlias = Any  # of LLVM IR; llvmlite has no types
Builder: TypeAlias = ir.IRBuilder


class Values(dict[str, Value]):
    """The values of a record's fields by name."""

    def __init__(self, record: Record, values: Sequence[Value]) -> None:
        super().__init__(zip(record.fields, values, strict=True))
        self.record = record

    def __missing__(self, name: str) -> Value:
        """Raise `CallMismatch`."""
        return self.record.field(name)


def function_text(symbol: str, arguments: Record, emit: Callable[[Builder, Values], None]) -> str:
    """Return the assembly of a module with one void function. Its arguments are a record's slots.

    emit: appends the body. It receives the arguments by name.
    """
    module = ir.Module(symbol)
    kind = ir.FunctionType(ir.VoidType(), [I64] * arguments.size)
    function = ir.Function(module, kind, symbol)
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    emit(builder, Values(arguments, function.args))
    builder.ret_void()
    return str(module)


def loop(
    builder: Builder,
    count: Value,
    values: Sequence[Value],
    body: Callable[[Value, Sequence[Value]], Sequence[Value]],
) -> list[Value]:
    """Emit `for index in range(count): values = body(index, values)`. Returns the last values."""
    before = builder.block
    turn, done = builder.append_basic_block("turn"), builder.append_basic_block("done")
    builder.cbranch(builder.icmp_signed(">", count, I64(0)), turn, done)
    builder.position_at_end(turn)
    entering = [I64(0), *values]
    inside = [builder.phi(value.type) for value in entering]
    after = [builder.add(inside[0], I64(1)), *body(inside[0], inside[1:])]
    last = builder.block
    builder.cbranch(builder.icmp_signed("<", after[0], count), turn, done)
    builder.position_at_end(done)
    results = [builder.phi(value.type) for value in values]
    join(inside, (before, entering), (last, after))
    join(results, (before, values), (last, after[1:]))
    return results


def join(phis: Sequence[Value], *ways: tuple[ir.Block, Sequence[Value]]) -> None:
    """Add incoming values to phi nodes. ways: (block, values) of each predecessor."""
    for block, values in ways:
        for phi, value in zip(phis, values, strict=True):
            phi.add_incoming(value, block)


def address(builder: Builder, integer: Value) -> Value:
    """Convert an int64 to a pointer."""
    return builder.inttoptr(integer, POINTER)


def at(builder: Builder, pointer: Value, nbytes: Value | int) -> Value:
    """Return pointer + nbytes."""
    if isinstance(nbytes, int):
        nbytes = I64(nbytes)
    return builder.gep(pointer, [nbytes], source_etype=I8)


def multiple(builder: Builder, pointer: Value, stride: Value, count: int) -> Value:
    """Return pointer + count * stride, as 0, 1 or 2 strides after a multiple of three.

    x86 addressing modes can add 1 or 2 strides.
    """
    if count >= 3:
        pointer = at(builder, pointer, builder.mul(stride, I64(count // 3 * 3)))
    match count % 3:
        case 0:
            return pointer
        case 1:
            return at(builder, pointer, stride)
        case _:
            return at(builder, pointer, builder.shl(stride, I64(1)))


def vector_of(lanes: int) -> ir.VectorType:
    """Return the type of a vector of float32."""
    return ir.VectorType(F32, lanes)


def constant(kind: Any, value: float) -> Value:
    """Return a constant: a scalar, or a vector with equal lanes."""
    is_vector = isinstance(kind, ir.VectorType)
    return ir.Constant(kind, [value] * kind.count if is_vector else value)


def kind_of(value: Value, element: Any) -> Any:
    """Return the type of a value with another element type, a vector or a scalar."""
    vector = isinstance(value.type, ir.VectorType)
    return ir.VectorType(element, value.type.count) if vector else element


def repeat(builder: Builder, scalar: Value, vector: ir.VectorType) -> Value:
    """Return a vector of copies of a scalar."""
    undefined = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(undefined, scalar, I32(0))
    order = ir.Constant(ir.VectorType(I32, vector.count), None)
    return builder.shuffle_vector(first, undefined, order)


def shuffled(builder: Builder, value: Value, order: Sequence[int]) -> Value:
    """Shuffle: lane n of the result is lane order[n] of `value`."""
    if list(order) == list(range(value.type.count)):
        return value
    mask = ir.Constant(ir.VectorType(I32, len(order)), list(order))
    return builder.shuffle_vector(value, ir.Constant(value.type, ir.Undefined), mask)


def combined_lanes(
    builder: Builder, vectors: Sequence[Value], both: Callable[[Value, Value], Value]
) -> Value:
    """Return the scalar that combines all lanes of 1, 2, 4, ... vectors, in pairs of halves."""
    values = list(vectors)
    while len(values) > 1:
        half = len(values) // 2
        values = [both(*pair) for pair in zip(values[:half], values[half:], strict=True)]
    (value,) = values
    while value.type.count > 1:
        half = value.type.count // 2
        orders = [range(half), range(half, 2 * half)]
        value = both(*(shuffled(builder, value, order) for order in orders))
    return builder.extract_element(value, I32(0))


def spread(lanes: int, size: int, number: int) -> list[int]:
    """Return the order for `shuffled` that repeats lane `number` of each run of `size` lanes."""
    return [lane // size * size + number for lane in range(lanes)]


def permuted(builder: Builder, value: Value, order: Value, widest: int) -> Value:
    """Return the lanes of a vector of 32-bit elements in an order that is known at run time.

    order: int32 per lane; only its low bits count. widest: lanes of the widest vector that the
    processor has.
    """
    lanes = value.type.count
    names = {8: ("avx2.permps", F32), 16: ("avx512.permvar.sf.512", F32)}
    if lanes in names and widest >= 8:
        name, element = names[lanes]
        bits = builder.bitcast(value, ir.VectorType(element, lanes))
        result = intrinsic(builder, f"llvm.x86.{name}", bits.type, [bits, order])
        return builder.bitcast(result, value.type)
    result = ir.Constant(value.type, ir.Undefined)
    for lane in range(lanes):
        place = builder.and_(builder.extract_element(order, I32(lane)), I32(lanes - 1))
        result = builder.insert_element(result, builder.extract_element(value, place), I32(lane))
    return result


def first_lanes(builder: Builder, count: Value, lanes: int) -> Value:
    """Return a mask of the first `count` lanes. count: an int64 value."""
    integers = ir.VectorType(I32, lanes)
    numbers = ir.Constant(integers, list(range(lanes)))
    limit = repeat(builder, builder.trunc(count, I32), integers)
    return builder.icmp_signed("<", numbers, limit)


def room(builder: Builder, vector: ir.VectorType, count: int) -> Value:
    """Return a pointer to memory on the stack for `count` vectors."""
    with builder.goto_entry_block():
        place = builder.alloca(vector, count)
        place.align = 4 * vector.count
        return builder.inttoptr(builder.ptrtoint(place, I64), POINTER)


def entry(builder: Builder, pointer: Value, record: Record, index: Value) -> Value:
    """Return a pointer to record number `index` of contiguous records."""
    return at(builder, pointer, builder.mul(index, I64(record.nbytes)))


def field(builder: Builder, pointer: Value, record: Record, name: str, number: int = 0) -> Value:
    """Load a field of record number `number` at a pointer. Raises `CallMismatch`."""
    offset = 8 * record.field(name).slot + (record.nbytes * number if number else 0)
    return builder.load(at(builder, pointer, offset), typ=I64)


def fields(builder: Builder, pointer: Value, record: Record) -> Values:
    """Load all fields of a record. Each field must have one slot."""
    return Values(record, [field(builder, pointer, record, name) for name in record.fields])


def float_of(builder: Builder, slot: Value) -> Value:
    """Return the float32 in a slot."""
    return builder.bitcast(builder.trunc(slot, I32), F32)


def call(builder: Builder, function: Value, record: Record, **values: Value | float) -> None:
    """Call the function at an address with slots or constants. Raises `CallMismatch`."""
    record.check(values)
    slots = [
        value if isinstance(value, ir.Value) else I64(*record.slots(name, value))
        for name, value in ((name, values[name]) for name in record.fields)
    ]
    kind = ir.FunctionType(ir.VoidType(), [I64] * len(slots))
    builder.call(builder.inttoptr(function, kind.as_pointer()), slots)


def intrinsic(builder: Builder, name: str, result: Any, args: Sequence[Value]) -> Value:
    """Call an LLVM intrinsic. Its first use declares it."""
    kind = ir.FunctionType(result, [value.type for value in args])
    return builder.call(builder.module.declare_intrinsic(name, fnty=kind), args)


def lanewise(builder: Builder, name: str, *vectors: Value) -> Value:
    """Call an LLVM intrinsic whose arguments and result have the same type."""
    kind = vectors[0].type
    return intrinsic(builder, f"llvm.{name}.{suffix_of(kind)}", kind, vectors)


def multiply_add(builder: Builder, x: Value, y: Value, z: Value) -> Value:
    """Return x * y + z, fused if the processor can. llvm.fma would call a slow library if not."""
    return lanewise(builder, "fmuladd", x, y, z)


def bytes_of(element: Any) -> int:
    """Return the size of a stored element in bytes."""
    return int(element.intrinsic_name[1:]) // 8  # such as f32 or i8


def suffix_of(kind: Any) -> str:
    """Return the suffix of an intrinsic's name for a type, such as v16f32 or f32."""
    if isinstance(kind, ir.VectorType):
        return f"v{kind.count}{kind.element.intrinsic_name}"
    return str(kind.intrinsic_name)


def load(builder: Builder, pointer: Value, vector: ir.VectorType, mask: Value | None) -> Value:
    """Load a vector of any type. mask: the lanes to load; the others become zero."""
    align = bytes_of(vector.element)
    if mask is None:
        return builder.load(pointer, typ=vector, align=align)
    name = f"llvm.masked.load.{suffix_of(vector)}.p0"
    return intrinsic(builder, name, vector, [pointer, I32(align), mask, vector(None)])


def barrier(builder: Builder) -> None:
    """Make LLVM load values again after this point. Otherwise it would keep and spill them."""
    builder.asm(ir.FunctionType(ir.VoidType(), []), "", "~{memory}", [], side_effect=True)


def prefetch(builder: Builder, pointer: Value, *, write: bool = False) -> None:
    """Prefetch a cache line into all cache levels, for reading or for writing."""
    flags = [I32(int(write)), I32(3), I32(1)]
    intrinsic(builder, "llvm.prefetch.p0", ir.VoidType(), [pointer, *flags])


def store(builder: Builder, value: Value, pointer: Value, mask: Value | None) -> Value:
    """Store a vector of any type. mask: the lanes to store. Returns the store instruction."""
    align = bytes_of(value.type.element)
    if mask is None:
        return builder.store(value, pointer, align=align)
    name = f"llvm.masked.store.{suffix_of(value.type)}.p0"
    return intrinsic(builder, name, ir.VoidType(), [value, pointer, I32(align), mask])
