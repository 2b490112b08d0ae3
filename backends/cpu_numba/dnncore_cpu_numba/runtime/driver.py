"""The driver: the one native loop that runs programs, step after step, over a pool of threads.

A program begins with `HEADER` int64, the number of its rows and the address of the pool's state. A
row is `ROW` int64: the address of a task, the distance in bytes from the row to the task's block of
parameters, the number of work items, and the number of parts that the items are cut into. A step of
one part runs in the calling thread. The parts of others are claimed by the caller and by whichever
of the pool's threads are awake, so that the caller never waits for a thread to wake up, only for
parts that are being computed.

The pool's state is a block of int64 in shared memory. The *ticket* holds a number of the step that
is being run (its epoch), its parts, and the next one to claim, in one word: to claim a part is one
atomic addition, which tells at once whether there was one left and of which step.
"""

# ruff: noqa: ARG001 - numba prescribes the parameters of intrinsics

from __future__ import annotations

import platform

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from dnncore_cpu_numba.codegen.pointers import call, load_i64, store_i64
from dnncore_cpu_numba.codegen.task import device, task

__all__ = ["HEADER", "MAX_PARTS", "ROW", "STATE", "run_program", "wait_for_work"]

HEADER = 2  # int64 before the rows
ROW = 4  # int64 of one row
MAX_PARTS = 1 << 14  # of a step; a ticket has 16 bits for the claims, which may be more
STATE = 24  # int64 of a pool's state: three cache lines
_BUSY, _TICKET, _STEP, _DONE = 0, 8, 9, 16  # slots; those written by many have a line of their own
_I64 = ir.IntType(64)


@task(arity=1)
def run_program(program):
    """Run a program. While another caller has the pool, parts run one after the other here."""
    state = load_i64(program, 1)
    for i in range(load_i64(program, 0)):
        row = program + 8 * (HEADER + ROW * i)
        parts = load_i64(row, 3)
        if parts == 1:
            call(load_i64(row, 0), (row + load_i64(row, 1), 0, load_i64(row, 2)))
        elif _compare_and_swap(state, _BUSY, 0, 1):
            _share(state, row, parts)
            _atomic_store(state, _BUSY, 0)
        else:
            for part in range(parts):
                _run_part(row, part, parts)


@task(arity=2)
def wait_for_work(state, patience):
    """Help with every step that is published; return after `patience` looks without one."""
    epoch, looks = -1, 0
    while looks < patience:
        if _atomic_load(state, _TICKET) >> 32 != epoch:
            epoch = _help(state)
            looks = 0
        _pause()
        looks += 1


@device
def _share(state, row, parts):
    """Publish a step, take part in it, and wait until all of it is done."""
    store_i64(state, _STEP, row)
    _atomic_store(state, _DONE, 0)
    epoch = ((_atomic_load(state, _TICKET) >> 32) + 1) & 0x3FFFFFFF
    _atomic_store(state, _TICKET, epoch << 32 | parts << 16)
    _help(state)
    while _atomic_load(state, _DONE) < parts:
        _pause()


@device
def _help(state):
    """Compute parts while there are any; returns the epoch of the step that had none left."""
    while True:
        ticket = _atomic_load(state, _TICKET)
        if ticket & 0xFFFF < ticket >> 16 & 0xFFFF:
            ticket = _atomic_add(state, _TICKET, 1)
        part, parts = ticket & 0xFFFF, ticket >> 16 & 0xFFFF
        if part >= parts:
            return ticket >> 32
        # The claimed step cannot end, and so its row stays where it is, before this part is done.
        _run_part(load_i64(state, _STEP), part, parts)
        _atomic_add(state, _DONE, 1)


@device
def _run_part(row, part, parts):
    items = load_i64(row, 2)
    bounds = items * part // parts, items * (part + 1) // parts
    call(load_i64(row, 0), (row + load_i64(row, 1), bounds[0], bounds[1]))


# -- atomic operations -----------------------------------------------------------------------------


def _slot(builder, address, index):
    return builder.gep(builder.inttoptr(address, _I64.as_pointer()), [index])


@intrinsic
def _atomic_load(typingctx, address, index):
    def codegen(context, builder, signature, args):
        return builder.load_atomic(_slot(builder, *args), "acquire", 8)

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def _atomic_store(typingctx, address, index, value):
    def codegen(context, builder, signature, args):
        address, index, value = args
        builder.store_atomic(value, _slot(builder, address, index), "release", 8)

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def _atomic_add(typingctx, address, index, value):
    """Returns the sum's old value."""

    def codegen(context, builder, signature, args):
        address, index, value = args
        return builder.atomic_rmw("add", _slot(builder, address, index), value, "acq_rel")

    return types.int64(types.int64, types.int64, types.int64), codegen


@intrinsic
def _compare_and_swap(typingctx, address, index, old, new):
    """Replace `old` by `new`; returns whether `old` was there."""

    def codegen(context, builder, signature, args):
        address, index, old, new = args
        slot = _slot(builder, address, index)
        swapped = builder.cmpxchg(slot, old, new, "acq_rel", "acquire")
        return builder.extract_value(swapped, 1)

    return types.boolean(*[types.int64] * 4), codegen


@intrinsic
def _pause(typingctx):
    """Tell the processor that this is a waiting loop, where there is an instruction for it."""

    def codegen(context, builder, signature, args):
        if platform.machine() in ("x86_64", "AMD64"):
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.call(
                cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse2.pause"), []
            )

    return types.void(), codegen
