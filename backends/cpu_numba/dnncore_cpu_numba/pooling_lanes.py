"""What the loops of max pooling do to 16 lanes at once: neighbouring columns, or windows.

Of equal values the first is kept, and of NaN, which counts as larger than everything, too.
"""

# ruff: noqa: ARG001 - numba prescribes the parameters of intrinsics

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from dnncore_cpu_numba.vector_ir import loop

__all__ = [
    "ENTRY",
    "LANES",
    "give_bytes",
    "give_words",
    "pick",
    "pick_even",
    "pick_even_within_spans",
    "pick_some",
    "pick_within_spans",
    "take_lanes",
    "take_some_lanes",
]

LANES = 16
ENTRY = 4  # int64 of a tap in a table: address, tap, first window, behind the last window

_I32 = ir.IntType(32)
_F32S = ir.VectorType(ir.FloatType(), LANES)
_I32S = ir.VectorType(_I32, LANES)
_I8S = ir.VectorType(ir.IntType(8), LANES)
_I1S = ir.VectorType(ir.IntType(1), LANES)


def _at(builder, address, kind):
    return builder.inttoptr(address, kind.as_pointer())


def _load(builder, address, kind):
    return builder.load(_at(builder, address, kind), align=1)


def _load_masked(builder, address, kind, mask):
    """Load the lanes of the mask; the others are zero and not touched in memory."""
    suffix = "f32" if kind is _F32S else f"i{kind.element.width}"
    arguments = [kind.as_pointer(), _I32, _I1S, kind]
    load = cgutils.get_or_insert_function(
        builder.module,
        ir.FunctionType(kind, arguments),
        f"llvm.masked.load.v{LANES}{suffix}.p0",
    )
    none = ir.Constant(kind, None)
    return builder.call(load, [_at(builder, address, kind), _I32(1), mask, none])


def _store(builder, value, address):
    builder.store(value, _at(builder, address, value.type), align=1)


def _splat(builder, integer):
    """A number in all lanes."""
    number = builder.trunc(integer, _I32)
    one = builder.insert_element(ir.Constant(_I32S, ir.Undefined), number, _I32(0))
    return builder.shuffle_vector(one, one, ir.Constant(_I32S, [0] * LANES))


def _lanes(builder, low, high):
    """The mask of the lanes in [low, high)."""
    lanes = ir.Constant(_I32S, list(range(LANES)))
    above = builder.icmp_signed(">=", lanes, _splat(builder, low))
    return builder.and_(above, builder.icmp_signed("<", lanes, _splat(builder, high)))


def _taker(load, *, every):
    """The intrinsic that does `_take` for lanes [low, high); those below `fresh` are new.

    every: for all lanes, and all or none of them new.
    """

    @intrinsic
    def take(typingctx, values, best, taps, tap, low, fresh, high):
        def codegen(context, builder, signature, args):
            values, best, taps, tap, low, fresh, high = args
            value, old = load(builder, values, low, high), _load(builder, best, _F32S)
            larger = builder.fcmp_unordered(">", value, old)
            larger = builder.and_(larger, builder.fcmp_ordered("==", old, old))
            if every:
                new = builder.icmp_signed(">", fresh, low)
                larger = builder.select(new, ir.Constant(_I1S, [1] * LANES), larger)
            else:
                larger = builder.or_(larger, _lanes(builder, low, fresh))
                larger = builder.and_(larger, _lanes(builder, low, high))
            _store(builder, builder.select(larger, value, old), best)
            kept = _load(builder, taps, _I32S)
            _store(builder, builder.select(larger, _splat(builder, tap), kept), taps)

        return types.void(*[types.int64] * 7), codegen

    return take


def _load_all(builder, address, low, high):
    return _load(builder, address, _F32S)


def _load_some(builder, address, low, high):
    return _load_masked(builder, address, _F32S, _lanes(builder, low, high))


def _even(load):
    """Elements 0, 2, ... of twice as many; none before the first or behind the last is read."""
    number = ir.IntType(64)
    even = [*range(0, LANES, 2), *range(LANES + 1, 2 * LANES, 2)]

    def load_even(builder, address, low, high):
        low, shift = builder.add(low, low), number(LANES - 1)
        high = builder.sub(builder.add(high, high), number(1))
        lower = load(builder, address, low, high)
        address = builder.add(address, number(4 * (LANES - 1)))
        upper = load(builder, address, builder.sub(low, shift), builder.sub(high, shift))
        return builder.shuffle_vector(lower, upper, ir.Constant(_I32S, even))

    return load_even


take_lanes, take_some_lanes = _taker(_load_all, every=True), _taker(_load_some, every=False)


def _picker(load, *, spans=False):
    """The intrinsic that goes through a table's taps and keeps the best values and their taps.

    spans: a tap is there for its windows only, of which the first lane is number `start`, and there
    are `some`; best and taps tell what to begin with. Else all are there for the first `start`
    lanes, or all lanes, and the first tap is what to begin with.
    """

    @intrinsic
    def pick(typingctx, table, count, shift, best, taps, start, some):
        number = ir.IntType(64)

        def codegen(context, builder, signature, args):
            table, count, shift, best, taps, start, some = args

            def entry(i):
                at = builder.add(table, builder.mul(i, number(8 * ENTRY)))
                place = builder.inttoptr(at, number.as_pointer())
                fields = [
                    builder.load(builder.gep(place, [number(k)])) for k in range(4 if spans else 2)
                ]
                return builder.add(fields[0], shift), *fields[1:]

            def better(i, kept):
                old, old_tap = kept
                address, tap, *span = entry(i)
                low, high = number(0), start
                if spans:
                    low, high = (builder.sub(window, start) for window in span)
                    fits = builder.icmp_signed("<", high, some)
                    high = builder.select(fits, high, some)
                value = load(builder, address, low, high)
                larger = builder.fcmp_unordered(">", value, old)
                larger = builder.and_(larger, builder.fcmp_ordered("==", old, old))
                if spans:
                    larger = builder.and_(larger, _lanes(builder, low, high))
                return [
                    builder.select(larger, value, old),
                    builder.select(larger, _splat(builder, tap), old_tap),
                ]

            if spans:
                begin, kept = 0, [_load(builder, best, _F32S), _load(builder, taps, _I32S)]
            else:
                address, tap = entry(number(0))
                begin = 1
                kept = [load(builder, address, number(0), start), _splat(builder, tap)]
            rest = builder.sub(count, number(begin))
            kept = loop(
                builder, rest, kept, lambda i, kept: better(builder.add(i, number(begin)), kept)
            )
            _store(builder, kept[0], best)
            _store(builder, kept[1], taps)

        return types.void(*[types.int64] * 7), codegen

    return pick


pick, pick_some, pick_even = _picker(_load_all), _picker(_load_some), _picker(_even(_load_all))
pick_within_spans = _picker(_load_some, spans=True)
pick_even_within_spans = _picker(_even(_load_some), spans=True)


def _giver(kind):
    """The intrinsic that adds up to 16 gradients to the cells that are the winners."""

    @intrinsic
    def give(typingctx, gradients, winners, cells, tap, count):
        def codegen(context, builder, signature, args):
            gradients, winners, cells, tap, count = args
            mask = _lanes(builder, ir.IntType(64)(0), count)
            winner = _load_masked(builder, winners, kind, mask)
            winner = winner if kind is _I32S else builder.zext(winner, _I32S)
            wins = builder.icmp_signed("==", winner, _splat(builder, tap))
            wins = builder.and_(wins, mask)
            cell = _load_masked(builder, cells, _F32S, wins)
            cell = builder.fadd(cell, _load_masked(builder, gradients, _F32S, wins))
            arguments = [_F32S, _F32S.as_pointer(), _I32, _I1S]
            store = cgutils.get_or_insert_function(
                builder.module,
                ir.FunctionType(ir.VoidType(), arguments),
                f"llvm.masked.store.v{LANES}f32.p0",
            )
            builder.call(store, [cell, _at(builder, cells, _F32S), _I32(1), wins])

        return types.void(*[types.int64] * 5), codegen

    return give


give_bytes, give_words = _giver(_I8S), _giver(_I32S)
