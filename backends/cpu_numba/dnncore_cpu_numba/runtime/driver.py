"""The driver: the one native loop that runs programs, step after step, over a pool of threads.

A program is a `PROGRAM`, and the tasks' parameters behind it. A step of one part runs in the
calling thread. The parts of others are claimed by the caller and by whichever of the pool's threads
are awake, so that the caller never waits for a thread to wake up, only for parts that are being
computed.

A program of many steps returns to its caller now and then, so that Python can run signal handlers,
such as that of Ctrl-C. The clock for this is the counter of x86, which takes a few nanoseconds to
read; programs of one step do not read it. Other processors count steps, 64 at a time.

The pool's `STATE` lies in shared memory. The *ticket* holds a number of the step that is being run
(its epoch), its parts, and the next one to claim, in one word: to claim a part is one atomic
addition. Its result contains the number of the part and of its step.
"""

from __future__ import annotations

import platform

from llvmlite.ir import VoidType
from numba import types

from dnncore_cpu_numba.codegen.call_schema import Many, Pointer, Record
from dnncore_cpu_numba.codegen.pointers import address, emitted
from dnncore_cpu_numba.codegen.task import TASK, device, native_function
from dnncore_cpu_numba.codegen.vector_ir import I64, intrinsic

X86 = ("x86_64", "AMD64")
SLICE = 1 << 26  # ticks after which a program returns: 13 to 67 ms on x86, at 5 to 1 GHz

MAX_PARTS = 1 << 14  # of a step; a ticket has 16 bits for the claims, which may be more

ROW = Record(
    "row of a program",
    ("task", "address"),
    ("distance", "bytes", "from the row to the task's parameters"),
    ("items parts", "count", "of work, and the parts that they are cut into"),
)
STATE = Record(  # what many write has a cache line of its own
    "state of the pool",
    ("busy", Many("count", 8), "1 while a caller has the pool"),
    ("ticket", Many("count", 1)),
    ("step", Pointer(ROW), "that is being run"),
    ("padding", Many("count", 6)),
    ("done", Many("count", 8), "parts of the step"),
)
PROGRAM = Record("program", ("count", "count"), ("pool", Pointer(STATE)), ("rows", Many(ROW)))


@native_function(Record("run_program", ("program", Pointer(PROGRAM))), result=types.int64)
def run_program(program):
    """Run a program. Return 0 at its end; after a while, the row to go on with."""
    return _run_rows(program, 0)


@native_function(
    Record("continue_program", ("program", Pointer(PROGRAM)), ("first", "index")),
    result=types.int64,
)
def continue_program(program, first):
    """Run a program from a row on; otherwise as `run_program`."""
    return _run_rows(program, first)


@device
def _run_rows(program, first):
    """Run rows. While another caller has the pool, parts run one after the other here."""
    state, count = program.pool, program.count
    start = _clock(first) if count > 1 else 0
    for i in range(first, count):
        row = program.rows[i]
        parts = row.parts
        if parts == 1:
            TASK.call(row.task, params=_params(row), begin=0, end=row.items)
        elif _compare_and_swap(state.busy, 0, 1):
            _share(state, row, parts)
            _atomic_store(state.busy, 0)
        else:
            for part in range(parts):
                _run_part(row, part, parts)
        if i + 1 < count and _clock(i) - start > SLICE:
            return i + 1
    return 0


@native_function(Record("wait_for_work", ("state", Pointer(STATE)), ("patience", "count")))
def wait_for_work(state, patience):
    """Compute parts of published steps. Return after `patience` checks without a new step."""
    epoch, looks = -1, 0
    while looks < patience:
        if _atomic_load(state.ticket) >> 32 != epoch:
            epoch = _help(state)
            looks = 0
        _pause()
        looks += 1


@device
def _share(state, row, parts):
    """Publish a step, compute parts of it, and wait until all parts are done."""
    state.step = row
    _atomic_store(state.done, 0)
    epoch = ((_atomic_load(state.ticket) >> 32) + 1) & 0x3FFFFFFF
    _atomic_store(state.ticket, epoch << 32 | parts << 16)
    _help(state)
    while _atomic_load(state.done) < parts:
        _pause()


@device
def _help(state):
    """Claim and compute parts until none is left; returns the epoch of the last step."""
    while True:
        ticket = _atomic_load(state.ticket)
        if ticket & 0xFFFF < ticket >> 16 & 0xFFFF:
            ticket = _atomic_add(state.ticket, 1)
        part, parts = ticket & 0xFFFF, ticket >> 16 & 0xFFFF
        if part >= parts:
            return ticket >> 32
        # The claimed step cannot end, and so its row stays where it is, before this part is done.
        _run_part(state.step, part, parts)
        _atomic_add(state.done, 1)


@device
def _run_part(row, part, parts):
    items = row.items
    bounds = items * part // parts, items * (part + 1) // parts
    TASK.call(row.task, params=_params(row), begin=bounds[0], end=bounds[1])


@device
def _params(row):
    return address(row) + row.distance


# -- atomic operations -----------------------------------------------------------------------------


def _pointer(builder, address):
    return builder.inttoptr(address, I64.as_pointer())


@emitted(types.int64, types.int64)
def _atomic_load(builder, address):
    return builder.load_atomic(_pointer(builder, address), "acquire", 8)


@emitted(types.void, types.int64, types.int64)
def _atomic_store(builder, address, value):
    builder.store_atomic(value, _pointer(builder, address), "release", 8)


@emitted(types.int64, types.int64, types.int64)
def _atomic_add(builder, address, value):
    """Add to a number; returns its old value."""
    return builder.atomic_rmw("add", _pointer(builder, address), value, "acq_rel")


@emitted(types.boolean, types.int64, types.int64, types.int64)
def _compare_and_swap(builder, address, old, new):
    """Replace `old` by `new`; returns whether the value was `old`."""
    swapped = builder.cmpxchg(_pointer(builder, address), old, new, "acq_rel", "acquire")
    return builder.extract_value(swapped, 1)


# -- time ------------------------------------------------------------------------------------------


@emitted(types.int64, types.int64)
def _clock(builder, row):
    """The counter of x86. Elsewhere programs cannot read one: as if each row took 2^20 ticks."""
    if platform.machine() in X86:
        return intrinsic(builder, "llvm.readcyclecounter", I64, [])
    return builder.shl(row, I64(20))


@emitted(types.void)
def _pause(builder):
    """The instruction that marks a waiting loop, if the processor has one."""
    if platform.machine() in X86:
        intrinsic(builder, "llvm.x86.sse2.pause", VoidType(), [])
