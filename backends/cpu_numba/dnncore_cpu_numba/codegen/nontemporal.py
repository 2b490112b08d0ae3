"""Stores that go past the caches, for results so large that whoever reads them hardly finds them.

An ordinary store first reads the cache line that it writes. A streamed one does not, which saves a
third of the traffic of a copy; but what is streamed has to be read from memory again.
"""

# ruff: noqa: ARG001 - numba prescribes the parameters of intrinsics

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from dnncore_cpu_numba.codegen.pointers import load_f32, store_f32
from dnncore_cpu_numba.codegen.task import device, exact
from dnncore_cpu_numba.codegen.vector_ir import bytes_of, multiply_add, repeat

__all__ = [
    "LINE", "STREAM_BYTES", "mark_streamed", "prefetch", "scaled", "stream", "stream_row",
    "stream_scaled",
]  # fmt: skip

STREAM_BYTES = 32 << 20
"""From this size of all tensors of a call on, results bypass the caches.

Measured for one input and for two, with a last-level cache of 32 MB: such stores are twice as slow
if the next call finds the tensors in the cache, and 1.3 times as fast if it does not."""
LINE = 64  # bytes of a cache line
_LANES = ir.VectorType(ir.FloatType(), LINE // 4)


def mark_streamed(builder: ir.IRBuilder, store: ir.Instruction) -> None:
    """Make an LLVM store non-temporal. It must write a whole, aligned vector."""
    vector = store.operands[0].type
    store.align = bytes_of(vector.element) * vector.count
    store.set_metadata("nontemporal", builder.module.add_metadata([ir.IntType(32)(1)]))


@device
def stream(x, y, length):
    """Copy a multiple of 16 float32 to an address y that is a multiple of 64.

    The driver's next atomic operation makes them visible to other threads.
    """
    for i in range(0, 4 * length, LINE):
        _stream_line(x + i, y + i)


@device
def stream_row(x, y, length):
    """Copy any number of float32; the lines that lie in it whole are streamed."""
    head = min(length, -(y // 4) % (LINE // 4))
    body = (length - head) & -(LINE // 4)
    for i in range(head):
        store_f32(y, i, load_f32(x, i))
    stream(x + 4 * head, y + 4 * head, body)
    for i in range(head + body, length):
        store_f32(y, i, load_f32(x, i))


@exact
def scaled(x, shift, factor, rest):
    """(x - shift) * factor - rest, in this order: shift may be so large that it swallows rest."""
    return (x - shift) * factor - rest


@device
def stream_scaled(x, shift, factor, rest, y, length):
    """Store `scaled` of any number of float32; whole lines of y bypass the caches."""
    head = min(length, -(y // 4) % (LINE // 4))
    body = (length - head) & -(LINE // 4)
    for i in range(head):
        store_f32(y, i, scaled(load_f32(x, i), shift, factor, rest))
    for i in range(4 * head, 4 * (head + body), LINE):
        _stream_scaled_line(x + i, y + i, shift, factor, rest)
    for i in range(head + body, length):
        store_f32(y, i, scaled(load_f32(x, i), shift, factor, rest))


@device
def prefetch(address, nbytes):
    """Prefetch a range of memory, which need not exist."""
    for i in range(0, nbytes, LINE):
        _prefetch_line(address + i)


@intrinsic
def _stream_scaled_line(typingctx, x, y, shift, factor, rest):
    def codegen(context, builder, signature, args):
        x, y = (builder.inttoptr(address, _LANES.as_pointer()) for address in args[:2])
        shift, factor, rest = (repeat(builder, value, _LANES) for value in args[2:])
        less = builder.fsub(builder.load(x, align=4), shift)
        value = multiply_add(builder, less, factor, builder.fneg(rest))
        mark_streamed(builder, builder.store(value, y))

    return types.void(types.int64, types.int64, *[types.float32] * 3), codegen


@intrinsic
def _prefetch_line(typingctx, address):
    def codegen(context, builder, signature, args):
        pointer = builder.inttoptr(args[0], ir.IntType(8).as_pointer())
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [pointer, number(0), number(3), number(1)])

    return types.void(types.int64), codegen


@intrinsic
def _stream_line(typingctx, x, y):
    def codegen(context, builder, signature, args):
        x, y = (builder.inttoptr(address, _LANES.as_pointer()) for address in args)
        mark_streamed(builder, builder.store(builder.load(x, align=4), y))

    return types.void(types.int64, types.int64), codegen
