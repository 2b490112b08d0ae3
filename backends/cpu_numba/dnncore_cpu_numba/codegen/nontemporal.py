"""Stores that go past the caches, for results so large that whoever reads them hardly finds them.

An ordinary store first reads the cache line that it writes. A streamed one does not, which saves a
third of the traffic of a copy; but what is streamed has to be read from memory again.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types

from dnncore_cpu_numba.codegen import vector_ir as vir
from dnncore_cpu_numba.codegen.pointers import emitted, load_f32, store_f32
from dnncore_cpu_numba.codegen.task import device, exact

STREAM_BYTES = 32 << 20
"""From this size of all tensors of a call on, results bypass the caches.

Measured for one input and for two, with a last-level cache of 32 MB: such stores are twice as slow
if the next call finds the tensors in the cache, and 1.3 times as fast if it does not."""
LINE = 64  # bytes of a cache line
_LANES = vir.vector_of(LINE // 4)


def mark_streamed(builder: ir.IRBuilder, store: ir.Instruction, align: int = LINE) -> None:
    """Make an LLVM store non-temporal. It must write a whole vector that is aligned to `align`."""
    store.align = align
    store.set_metadata("nontemporal", builder.module.add_metadata([ir.IntType(32)(1)]))


@device
def stream(x, y, length):
    """Copy a multiple of 16 float32 to an address y that is a multiple of 64.

    The driver's next atomic operation makes them visible to other threads.
    """
    for i in range(0, 4 * length, LINE):
        _stream_line(x + i, y + i)


@exact
def before_lines(y, size, length):
    """The number of elements of `size` bytes at y before the first whole cache line.

    It is all of them if y is not a multiple of `size`: then no element begins with a line.
    """
    if y % size != 0:
        return length
    return min(length, -y % LINE // size)


@device
def stream_row(x, y, length):
    """Copy any number of float32; the lines that lie in it whole are streamed."""
    head = before_lines(y, 4, length)
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
    head = before_lines(y, 4, length)
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


@emitted(types.void, *[types.int64] * 2, *[types.float32] * 3)
def _stream_scaled_line(builder, x, y, shift, factor, rest):
    x, y = (vir.address(builder, address) for address in (x, y))
    shift, factor, rest = (vir.repeat(builder, value, _LANES) for value in (shift, factor, rest))
    less = builder.fsub(vir.load(builder, x, _LANES, None), shift)
    value = vir.multiply_add(builder, less, factor, builder.fneg(rest))
    mark_streamed(builder, builder.store(value, y))


@emitted(types.void, types.int64)
def _prefetch_line(builder, address):
    vir.prefetch(builder, vir.address(builder, address))


@emitted(types.void, types.int64, types.int64)
def _stream_line(builder, x, y):
    x, y = (vir.address(builder, address) for address in (x, y))
    mark_streamed(builder, builder.store(vir.load(builder, x, _LANES, None), y))
