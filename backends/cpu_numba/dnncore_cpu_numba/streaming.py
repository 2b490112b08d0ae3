"""Stores that go past the caches, for results too large to be found there by whoever reads them.

An ordinary store first reads the cache line that it writes. A streamed one does not, which saves a
third of the traffic of a copy; but what is streamed has to be read from memory again.
"""

# ruff: noqa: ARG001 - numba prescribes the parameters of intrinsics

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dnncore_cpu_numba.task import device

__all__ = ["LINE", "STREAM_BYTES", "mark_streamed", "stream"]

STREAM_BYTES = 32 << 20
"""Of all tensors of a call together. Measured for one input and for two, last-level cache of 32 MB:
streaming is twice as slow where the next call finds the tensors there, and 1.3 times as fast where
it does not."""
LINE = 64  # bytes of a cache line
_LANES = ir.VectorType(ir.FloatType(), LINE // 4)


def mark_streamed(builder: ir.IRBuilder, store: ir.Instruction) -> None:
    """Make an LLVM store of a whole, aligned cache line a streamed one."""
    store.align = LINE
    store.set_metadata("nontemporal", builder.module.add_metadata([ir.IntType(32)(1)]))


@device
def stream(x, y, length):
    """Copy a multiple of 16 float32 to an address y that is a multiple of 64.

    The driver's next atomic operation makes them visible to other threads.
    """
    for i in range(0, 4 * length, LINE):
        _stream_line(x + i, y + i)


@intrinsic
def _stream_line(typingctx, x, y):
    def codegen(context, builder, signature, args):
        x, y = (builder.inttoptr(address, _LANES.as_pointer()) for address in args)
        mark_streamed(builder, builder.store(builder.load(x, align=4), y))

    return types.void(types.int64, types.int64), codegen
