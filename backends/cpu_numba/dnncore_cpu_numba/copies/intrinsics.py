"""Intrinsics for tasks that copy: one vector of f32, or one block of 16 x 16, in registers."""

from __future__ import annotations

from numba import types

from dnncore_cpu_numba.codegen import vector_ir as vir
from dnncore_cpu_numba.codegen.pointers import emitted
from dnncore_cpu_numba.codegen.vector_ir import I64
from dnncore_cpu_numba.copies.copy_kernel import SIDE, transposed

WIDTH = SIDE  # floats of a vector; LLVM splits it for smaller registers

_VECTOR = vir.vector_of(WIDTH)


@emitted(types.void, *[types.int64] * 2)
def copy_vector(builder, source, target):
    """Copy `WIDTH` floats from one address to another."""
    source, target = (vir.address(builder, address) for address in (source, target))
    vir.store(builder, vir.load(builder, source, _VECTOR, None), target, None)


def _copy_ahead(*, write):
    """Return a function like `copy_vector` that also prefetches a cache line at an address."""

    @emitted(types.void, *[types.int64] * 3)
    def copy(builder, source, target, ahead):
        source, target, ahead = (vir.address(builder, x) for x in (source, target, ahead))
        vir.store(builder, vir.load(builder, source, _VECTOR, None), target, None)
        vir.prefetch(builder, ahead, write=write)

    return copy


copy_and_fetch, copy_and_claim = _copy_ahead(write=False), _copy_ahead(write=True)


@emitted(types.void, *[types.int64] * 4)
def transpose_block(builder, source, places, target, target_step):
    """Store the transpose of a block of `WIDTH` rows of `WIDTH` floats.

    places: the address of a table of places of the source's rows, in elements. target_step: bytes
    from row to row of the target.
    """
    table, rows = vir.address(builder, places), []
    for i in range(WIDTH):
        place = builder.load(vir.at(builder, table, 8 * i), typ=I64)
        place = vir.address(builder, builder.add(source, builder.shl(place, I64(2))))
        rows.append(vir.load(builder, place, _VECTOR, None))
    for i, row in enumerate(transposed(builder, rows)):
        place = builder.add(target, builder.mul(target_step, I64(i)))
        vir.store(builder, row, vir.address(builder, place), None)
