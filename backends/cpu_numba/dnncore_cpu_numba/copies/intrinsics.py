"""Intrinsics for tasks that copy: one vector of f32, or one block of 16 x 16, in registers."""

# ruff: noqa: ARG001 - numba prescribes the parameters of intrinsics

from __future__ import annotations

from numba import types
from numba.extending import intrinsic

from dnncore_cpu_numba.codegen import vector_ir as vir
from dnncore_cpu_numba.codegen.vector_ir import I64
from dnncore_cpu_numba.copies.copy_kernel import SIDE, transposed

WIDTH = SIDE  # floats of a vector; LLVM splits it where registers are smaller

_VECTOR = vir.vector_of(WIDTH)


@intrinsic
def copy_vector(typingctx, source, target):
    """Copy `WIDTH` floats from one address to another."""

    def codegen(context, builder, signature, args):
        source, target = (vir.address(builder, address) for address in args)
        vir.store(builder, vir.load(builder, source, _VECTOR, None), target, None)

    return types.void(types.int64, types.int64), codegen


def _copier_ahead(*, write):
    """Like `copy_vector`, with a prefetch of the cache line at a third address."""

    @intrinsic
    def copy_vector_ahead(typingctx, source, target, ahead):
        def codegen(context, builder, signature, args):
            source, target, ahead = (vir.address(builder, address) for address in args)
            vir.store(builder, vir.load(builder, source, _VECTOR, None), target, None)
            vir.prefetch(builder, ahead, write=write)

        return types.void(*[types.int64] * 3), codegen

    return copy_vector_ahead


copy_and_fetch = _copier_ahead(write=False)
copy_and_claim = _copier_ahead(write=True)


@intrinsic
def transpose_block(typingctx, source, places, target, target_step):
    """Copy the transpose of a block of `WIDTH` rows of `WIDTH` floats.

    places: the address of the places of the source's rows, in elements. target_step: bytes from row
    to row of the target.
    """

    def codegen(context, builder, signature, args):
        source, places, target, target_step = args
        table, rows = vir.address(builder, places), []
        for i in range(WIDTH):
            place = builder.load(vir.at(builder, table, 8 * i), typ=I64)
            place = builder.add(source, builder.shl(place, I64(2)))
            rows.append(vir.load(builder, vir.address(builder, place), _VECTOR, None))
        for i, row in enumerate(transposed(builder, rows)):
            place = builder.add(target, builder.mul(target_step, I64(i)))
            vir.store(builder, row, vir.address(builder, place), None)

    return types.void(*[types.int64] * 4), codegen
