"""Intrinsics for tasks that copy: one vector of f32, or one block of 16 x 16, in registers."""

# ruff: noqa: ARG001 - numba prescribes the parameters of intrinsics

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from dnncore_cpu_numba.copies.copy_kernel import SIDE, transposed

WIDTH = SIDE  # floats of a vector; LLVM splits it where registers are smaller

_VECTOR = ir.VectorType(ir.FloatType(), WIDTH)
_I64 = ir.IntType(64)


@intrinsic
def copy_vector(typingctx, source, target):
    """Copy `WIDTH` floats from one address to another."""

    def codegen(context, builder, signature, args):
        source, target = (_pointer(builder, address) for address in args)
        builder.store(builder.load(source, align=4), target, align=4)

    return types.void(types.int64, types.int64), codegen


def _copier_ahead(*, write):
    """Like `copy_vector`, with a prefetch of the cache line at a third address."""

    @intrinsic
    def copy_vector_ahead(typingctx, source, target, ahead):
        def codegen(context, builder, signature, args):
            source, target, ahead = (_pointer(builder, address) for address in args)
            builder.store(builder.load(source, align=4), target, align=4)
            flags = [ir.IntType(32)(flag) for flag in (int(write), 3, 1)]  # into all caches, data
            kinds = [ahead.type, *(flag.type for flag in flags)]
            prefetch = cgutils.get_or_insert_function(
                builder.module, ir.FunctionType(ir.VoidType(), kinds), "llvm.prefetch.p0"
            )
            builder.call(prefetch, [ahead, *flags])

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
        table = builder.inttoptr(places, _I64.as_pointer())
        rows = []
        for i in range(WIDTH):
            place = builder.load(builder.gep(table, [_I64(i)]))
            place = builder.add(source, builder.shl(place, _I64(2)))
            rows.append(builder.load(_pointer(builder, place), align=4))
        for i, row in enumerate(transposed(builder, rows)):
            place = builder.add(target, builder.mul(target_step, _I64(i)))
            builder.store(row, _pointer(builder, place), align=4)

    return types.void(*[types.int64] * 4), codegen


def _pointer(builder, address):
    return builder.inttoptr(address, _VECTOR.as_pointer())
