"""Moves of blocks of float32 in vector registers, for tasks."""

# ruff: noqa: ARG001 - numba prescribes the parameters of intrinsics

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = ["WIDTH", "copy_vector", "copy_vector_ahead", "transpose_block"]

WIDTH = 16  # floats of a vector; LLVM splits it where registers are smaller

_VECTOR = ir.VectorType(ir.FloatType(), WIDTH)
_I64 = ir.IntType(64)


@intrinsic
def copy_vector(typingctx, source, target):
    """Copy `WIDTH` floats from one address to another."""

    def codegen(context, builder, signature, args):
        source, target = (_pointer(builder, address) for address in args)
        builder.store(builder.load(source, align=4), target, align=4)

    return types.void(types.int64, types.int64), codegen


@intrinsic
def copy_vector_ahead(typingctx, source, target, distance):
    """The same, and ask for what lies `distance` bytes behind the source, to be read soon."""

    def codegen(context, builder, signature, args):
        source, target = (_pointer(builder, address) for address in args[:2])
        builder.store(builder.load(source, align=4), target, align=4)
        ahead = _pointer(builder, builder.add(args[0], args[2]))
        flags = [ir.IntType(32)(flag) for flag in (0, 3, 1)]  # a read, of data, into every cache
        kinds = [ahead.type, *(flag.type for flag in flags)]
        prefetch = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(ir.VoidType(), kinds), "llvm.prefetch.p0"
        )
        builder.call(prefetch, [ahead, *flags])

    return types.void(*[types.int64] * 3), codegen


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
        for i, row in enumerate(_transposed(builder, rows)):
            place = builder.add(target, builder.mul(target_step, _I64(i)))
            builder.store(row, _pointer(builder, place), align=4)

    return types.void(*[types.int64] * 4), codegen


def _transposed(builder, rows):
    """Swap the off-diagonal halves of ever smaller squares."""
    half = WIDTH // 2
    while half:
        low = [lane if lane & half == 0 else lane - half + WIDTH for lane in range(WIDTH)]
        high = [lane + half if lane & half == 0 else lane + WIDTH for lane in range(WIDTH)]
        swapped = list(rows)
        for i in range(WIDTH):
            if i & half == 0:
                swapped[i] = _shuffle(builder, rows[i], rows[i + half], low)
                swapped[i + half] = _shuffle(builder, rows[i], rows[i + half], high)
        rows = swapped
        half //= 2
    return rows


def _shuffle(builder, x, y, order):
    return builder.shuffle_vector(x, y, ir.Constant(ir.VectorType(ir.IntType(32), WIDTH), order))


def _pointer(builder, address):
    return builder.inttoptr(address, _VECTOR.as_pointer())
