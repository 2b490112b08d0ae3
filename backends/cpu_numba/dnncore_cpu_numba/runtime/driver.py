"""The driver: the native loop that runs the steps of programs on a pool of threads.

A program in memory is a `PROGRAM` followed by the parameters of its tasks. A step of one part runs
in the calling thread. The parts of other steps are claimed by the caller and by the threads of the
pool that are awake. The caller therefore never waits for a thread to wake up. It only waits for
parts that are being computed.

A program of many steps returns to its caller at intervals, so that Python can run signal handlers,
such as the one for Ctrl-C. On x86 the interval is measured with the processor's cycle counter,
which takes a few nanoseconds to read. Programs of one step do not read it. On other processors a
program returns after 64 steps.

On x86, steps run with the usual control of floating-point arithmetic, whatever the caller's is:
subnormal numbers are kept, and results are rounded to nearest. Otherwise the parts of the caller
and those of other threads could differ, for instance after `torch.set_flush_denormal(True)`.

A thread of the pool waits much longer for the next step of a program that runs than for the next
program. Otherwise the threads would sleep while another one computes a long step alone, and would
miss the rest of the program.

The pool's `STATE` is shared by all threads. The *ticket* is one word with the number of the current
step (its epoch), the number of its parts, and the next part to claim. Claiming a part is one atomic
addition. Its result contains the part and the epoch.
"""

from __future__ import annotations

import platform

from llvmlite import ir
from llvmlite.ir import VoidType
from numba import types
from numba.core import cgutils

from dnncore_cpu_numba.codegen.call_schema import Many, Pointer, Record
from dnncore_cpu_numba.codegen.pointers import address, emitted
from dnncore_cpu_numba.codegen.task import TASK, device, native_function
from dnncore_cpu_numba.codegen.vector_ir import I32, I64, intrinsic

X86 = ("x86_64", "AMD64")
SLICE = 1 << 26  # ticks after which a program returns: 13 to 67 ms on x86, at 5 to 1 GHz

LONGER = 64  # times as many checks for the next step as for the next program: at least 16 ms
MAX_PARTS = 1 << 14  # most parts of a step; a ticket has 16 bits for claims, which may exceed parts

ROW = Record(
    "row of a program",
    ("task", "address"),
    ("distance", "bytes", "from the row to the task's parameters"),
    ("items parts", "count", "items of work, and parts into which they are divided"),
)
STATE = Record(  # fields that many threads write have separate cache lines
    "state of the pool",
    ("busy", Many("count", 8), "1 while a caller uses the pool"),
    ("ticket", Many("count", 1)),
    ("step", Pointer(ROW), "the current step"),
    ("padding", Many("count", 6)),
    ("done", Many("count", 8), "finished parts of the step"),
    ("running", Many("count", 8), "programs of several steps that run"),
)
PROGRAM = Record("program", ("count", "count"), ("pool", Pointer(STATE)), ("rows", Many(ROW)))


@native_function(Record("run_program", ("program", Pointer(PROGRAM))), result=types.int64)
def run_program(program):
    """Run a program. Return 0 at its end, or the row to continue with after `SLICE` ticks."""
    return _run_rows(program, 0)


@native_function(
    Record("continue_program", ("program", Pointer(PROGRAM)), ("first", "index")),
    result=types.int64,
)
def continue_program(program, first):
    """Run a program from a row on. Otherwise like `run_program`."""
    return _run_rows(program, first)


@device
def _run_rows(program, first):
    """Run rows. While another caller uses the pool, all parts run in this thread."""
    control = _usual_arithmetic()
    several = program.count > 1
    if several:
        _atomic_add(program.pool.running, 1)
    row = _rows_until_slice(program, first)
    if several:
        _atomic_add(program.pool.running, -1)
    _restore_arithmetic(control)
    return row


@device
def _rows_until_slice(program, first):
    """Run rows with the present control of arithmetic. Return as `continue_program` does."""
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
    """Compute parts of published steps. Return after `patience` checks without a new step.

    While a program of several steps runs, `LONGER` checks count as one.
    """
    _usual_arithmetic()
    epoch, looks = -1, 0
    while looks < patience * LONGER:
        if _atomic_load(state.ticket) >> 32 != epoch:
            epoch = _help(state)
            looks = 0
        _pause()
        looks += 1 if _atomic_load(state.running) else LONGER


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
    """Claim and compute parts until none is left. Return the epoch of the last step."""
    while True:
        ticket = _atomic_load(state.ticket)
        if ticket & 0xFFFF < ticket >> 16 & 0xFFFF:
            ticket = _atomic_add(state.ticket, 1)
        part, parts = ticket & 0xFFFF, ticket >> 16 & 0xFFFF
        if part >= parts:
            return ticket >> 32
        # The step cannot end before this part is done, so `state.step` remains valid.
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
    """Add to a number and return its old value."""
    return builder.atomic_rmw("add", _pointer(builder, address), value, "acq_rel")


@emitted(types.boolean, types.int64, types.int64, types.int64)
def _compare_and_swap(builder, address, old, new):
    """Replace `old` by `new`. Return whether the value was `old`."""
    swapped = builder.cmpxchg(_pointer(builder, address), old, new, "acq_rel", "acquire")
    return builder.extract_value(swapped, 1)


# -- control of floating-point arithmetic ----------------------------------------------------------

UNUSUAL = 0xE040
"""The bits of x86's MXCSR for flushed results, the direction of rounding, and flushed operands."""


@emitted(types.int64)
def _usual_arithmetic(builder):
    """Clear the bits `UNUSUAL` of this thread. Return the old control word; 0 on processors other
    than x86.
    """
    if platform.machine() not in X86:
        return I64(0)
    room = cgutils.alloca_once(builder, I32)
    _control(builder, "st", room)
    old = builder.load(room)
    unusual = builder.icmp_unsigned("!=", builder.and_(old, I32(UNUSUAL)), I32(0))
    with builder.if_then(unusual, likely=False):  # writing the word is slow
        builder.store(builder.and_(old, I32(~UNUSUAL)), room)
        _control(builder, "ld", room)
    return builder.zext(old, I64)


@emitted(types.void, types.int64)
def _restore_arithmetic(builder, control):
    """Write a control word that `_usual_arithmetic` returned, if it had one of the bits."""
    if platform.machine() not in X86:
        return
    unusual = builder.icmp_unsigned("!=", builder.and_(control, I64(UNUSUAL)), I64(0))
    with builder.if_then(unusual, likely=False):
        room = cgutils.alloca_once(builder, I32)
        builder.store(builder.trunc(control, I32), room)
        _control(builder, "ld", room)


def _control(builder, way, room):
    """Load ("ld") or store ("st") the control word from or to memory."""
    name = f"llvm.x86.sse.{way}mxcsr"
    intrinsic(builder, name, VoidType(), [builder.bitcast(room, ir.IntType(8).as_pointer())])


# -- time ------------------------------------------------------------------------------------------


@emitted(types.int64, types.int64)
def _clock(builder, row):
    """Return the cycle counter of x86. Elsewhere there is none, and a row counts 2^20 ticks."""
    if platform.machine() in X86:
        return intrinsic(builder, "llvm.readcyclecounter", I64, [])
    return builder.shl(row, I64(20))


@emitted(types.void)
def _pause(builder):
    """Execute the instruction for waiting loops, if the processor has one."""
    if platform.machine() in X86:
        intrinsic(builder, "llvm.x86.sse2.pause", VoidType(), [])
