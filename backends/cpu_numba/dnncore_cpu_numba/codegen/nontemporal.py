"""Non-temporal stores, which bypass the caches, for results too large to remain in cache.

An ordinary store first reads the cache line that it writes. A non-temporal store does not, which
saves a third of the traffic of a copy. Readers must then read the result from memory.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types

from dnncore_cpu_numba.codegen import vector_ir as vir
from dnncore_cpu_numba.codegen.isa import BEST
from dnncore_cpu_numba.codegen.pointers import emitted, load_f32, store_f32
from dnncore_cpu_numba.codegen.task import device, exact

STREAM_BYTES = 32 << 20
"""Least bytes of all tensors of a call for which results use non-temporal stores.

Measured for one and for two inputs, with a last-level cache of 32 MB: such stores are twice as slow
if the next call finds the tensors in the cache, and 1.3 times as fast otherwise."""
LINE = 64  # bytes of a cache line
SHORTEST_ROW = 4 * LINE  # least bytes of a row that shares lines, so that most of it is streamed
LONG_ROW = 4096  # least bytes of such a row if each element of a shared line costs a branch
ROWS_AHEAD = 4  # prefetch distance in rows, of lines that rows share
_LANES = vir.vector_of(LINE // 4)


def mark_streamed(builder: ir.IRBuilder, store: ir.Instruction, align: int = LINE) -> None:
    """Make an LLVM store non-temporal. It must write a whole vector that is aligned to `align`.

    With AVX-512, LLVM narrows integers while it stores them, and such stores are not non-temporal.
    An empty instruction keeps the value in a register.
    """
    store.align = align
    store.set_metadata("nontemporal", builder.module.add_metadata([ir.IntType(32)(1)]))
    kind = store.operands[0].type
    size = vir.bytes_of(kind.element)
    if "avx512f" in BEST.x86 and size < 4 and 16 <= size * kind.count < LINE:
        builder.position_before(store)
        function = ir.FunctionType(kind, [kind])
        store.operands[0] = builder.asm(function, "", "=v,0", [store.operands[0]], False)
        builder.position_at_end(store.parent)


def suits_rows(nbytes: int, size: int) -> bool:
    """Return whether stores of contiguous rows of this size may be non-temporal.

    size: bytes of an element. Before AVX-512, masks of small elements cost a branch per lane.
    The kernel must store the elements of shared lines in the ordinary way, and prefetch the lines.
    """
    has_masks = size >= 4 or "avx512f" in BEST.x86
    return nbytes % LINE == 0 or nbytes >= (SHORTEST_ROW if has_masks else LONG_ROW)


def prefetch_shared_lines(
    builder: ir.IRBuilder, y: vir.Value, step: vir.Value, nbytes: vir.Value
) -> None:
    """Emit prefetches of the lines that a later row shares with the rows before and after it.

    y: a pointer to the present row. step: bytes from row to row. nbytes: bytes of a row.
    All stores wait for an ordinary store whose line is not in the cache. Measured: with these
    prefetches, copies of rows of 416 bytes take half the time.
    """
    begin = vir.at(builder, y, builder.mul(step, vir.I64(ROWS_AHEAD)))
    for place in (begin, vir.at(builder, begin, nbytes)):
        within = builder.and_(builder.ptrtoint(place, vir.I64), vir.I64(LINE - 1))
        with builder.if_then(builder.icmp_signed("!=", within, vir.I64(0))):
            vir.prefetch(builder, place, write=True)


@device
def stream(x, y, length):
    """Copy float32 with non-temporal stores. length: a multiple of 16; y: a multiple of 64.

    The driver's next atomic operation makes the stores visible to other threads.
    """
    for i in range(0, 4 * length, LINE):
        _stream_line(x + i, y + i)


@exact
def before_lines(y, size, length):
    """Return the number of elements of `size` bytes at y before the first whole cache line.

    Returns `length` if y is not a multiple of `size`, because no element begins a line then.
    """
    if y % size != 0:
        return length
    return min(length, -y % LINE // size)


def elements_before_lines(
    builder: ir.IRBuilder, y: vir.Value, size: int, length: vir.Value
) -> vir.Value:
    """Emit `before_lines`. y: a pointer."""
    past = builder.and_(builder.neg(builder.ptrtoint(y, vir.I64)), vir.I64(LINE - 1))
    head = builder.udiv(past, vir.I64(size))
    no_line = builder.icmp_signed("!=", builder.urem(past, vir.I64(size)), vir.I64(0))
    longer = builder.icmp_signed(">", head, length)
    return builder.select(builder.or_(no_line, longer), length, head)


@device
def stream_row(x, y, length):
    """Copy any number of float32, with non-temporal stores for whole cache lines."""
    head = before_lines(y, 4, length)
    body = (length - head) & -(LINE // 4)
    for i in range(head):
        store_f32(y, i, load_f32(x, i))
    stream(x + 4 * head, y + 4 * head, body)
    for i in range(head + body, length):
        store_f32(y, i, load_f32(x, i))


@exact
def scaled(x, shift, factor, rest):
    """Return (x - shift) * factor - rest in this order, as shift may be much larger than rest."""
    return (x - shift) * factor - rest


@device
def stream_scaled(x, shift, factor, rest, y, length):
    """Store `scaled` of any number of float32, with non-temporal stores for whole lines of y."""
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
    """Prefetch a range of addresses. They may be invalid."""
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
