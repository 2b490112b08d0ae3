"""An engine with one correct implementation and others that have one planted fault each.

`FAULTS` lists the check that must find each fault. The implementations compute relu with alpha.
Post-ops are chains of relus. The module is a plugin.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

import dnncore as dnn
from dnncore import backend

KIND = "faulty"


class FaultyEngine(backend.HostEngine):
    kind = KIND


# -- the correct one -------------------------------------------------------------------------------


def relu(values, alpha):
    if not alpha:  # 0 times minus infinity would be NaN
        return np.maximum(values, 0)
    with np.errstate(under="ignore"):
        return np.where(values > 0, values, np.float32(alpha) * values)


def compute(op, attr, values):
    for step in (op, *attr.post_ops):
        values = relu(values, step.alpha)
    return values


def store(dst, values):
    dst.desc.pack(values.astype(np.float32), dst.buffer)


def correct(op, attr, src, dst):
    store(dst, compute(op, attr, src.numpy()))


class Correct(backend.Implementation):
    """Relu with a chain of relus, computed by `function(op, attr, src, dst)`."""

    def __init__(self, name, function=correct):
        self.name = f"faulty:{name}"
        self.function = function

    def accept(self, op, attr, engine, hint):
        refused = self.refusal(op, attr)
        if refused:
            return refused
        op = op.resolve_any(dst=op.src)
        return backend.Accepted(op, partial(self.build, op, attr), efficiency=0.5)

    def refusal(self, op, attr):
        if op.algorithm != "relu":
            return backend.Refused("shape", f"computes relu; got {op.algorithm}")
        if any((p.kind, p.algorithm) != ("eltwise", "relu") for p in attr.post_ops):
            return backend.Refused("attribute", "post-ops must be relu")
        return None

    def build(self, op, attr):
        return backend.HostFunction(partial(self.function, op, attr))


# -- faults of the function ------------------------------------------------------------------------


def wrong_value(op, attr, src, dst):
    store(dst, compute(op, attr, src.numpy()) * 1.0001)


def wrong_at_odd_shapes(op, attr, src, dst):
    """Like a vector loop that omits the remainder."""
    values = compute(op, attr, src.numpy()).astype(np.float32)
    if op.src.dims[-1] % 4:
        values[..., op.src.dims[-1] // 4 * 4 :] = 0
    store(dst, values)


def past_the_end(op, attr, src, dst):
    correct(op, attr, src, dst)
    whole = dst.buffer.base
    end = dst.buffer.ctypes.data - whole.ctypes.data + dst.desc.nbytes
    whole[end] ^= 1


def dirty_padding(op, attr, src, dst):
    correct(op, attr, src, dst)
    if dst.desc.has_padding:
        dst.desc.view(dst.buffer)[(0, -1) + (0,) * (op.src.ndims - 2) + (-1,)] = 1.0


def ignored_post_op(op, attr, src, dst):
    store(dst, relu(src.numpy(), op.alpha))


def touched_input(op, attr, src, dst):
    correct(op, attr, src, dst)
    if src.address != dst.address:
        src.buffer[0] ^= 1


def nondeterministic(op, attr, src, dst):
    """Increases another element in each call. The error is within the bound."""
    values = compute(op, attr, src.numpy()).astype(np.float32)
    _calls.append(0)
    place = np.unravel_index(len(_calls) % max(1, values.size), values.shape)
    values[place] = np.nextafter(values[place], np.float32(np.inf))
    store(dst, values)


_calls: list[int] = []


def crash(op, attr, src, dst):
    os.abort()


def hang(op, attr, src, dst):
    time.sleep(3600)


_kept: list[Any] = []


def leaked_memory(op, attr, src, dst):
    correct(op, attr, src, dst)
    _kept.append(dst.numpy().copy())


def not_in_place(op, attr, src, dst):
    """Clears the output before it reads the input."""
    dst.buffer[: dst.desc.nbytes] = 0
    correct(op, attr, src, dst)


# -- other faults ----------------------------------------------------------------------------------


class DataRace(Correct):
    """All calls of a primitive share one temporary buffer."""

    def build(self, op, attr):
        shared = np.empty(op.src.dims, np.float32)

        def function(src, dst):
            shared[...] = compute(op, attr, src.numpy())
            time.sleep(5e-3)  # long enough for another thread to run, also on a busy machine
            store(dst, shared)

        return backend.HostFunction(function)


class Tunable(Correct):
    """Has two knobs. Not all combinations of their values are valid."""

    def accept(self, op, attr, engine, hint):
        refused = self.refusal(op, attr)
        return refused or self.accepted(op.resolve_any(dst=op.src), attr, chunk=1, order="rows")

    def accepted(self, op, attr, chunk, order):
        if chunk == 4 and order == "columns":
            return backend.Refused("attribute", f"columns have no chunks of {chunk}")
        return backend.Accepted(
            op,
            partial(self.tuned, op, attr, chunk, order),
            efficiency=self.efficiency(chunk),
            knobs=(
                backend.Knob("chunk", 1, range(1, 5), "elements at a time"),
                backend.Knob("order", "rows", ("rows", "columns"), "of the loops"),
            ),
            tune=lambda values: self.accepted(op, attr, **values),
        )

    def efficiency(self, chunk):
        return 0.5 / chunk

    def tuned(self, op, attr, chunk, order):
        return self.build(op, attr)


class WrongByKnob(Tunable):
    """Computes wrong results if the knobs select loops over columns or in chunks."""

    def tuned(self, op, attr, chunk, order):
        function = correct if (chunk, order) == (1, "rows") else wrong_value
        return backend.HostFunction(partial(function, op, attr))


class OtherDefaults(Tunable):
    """`tune` with default values returns another answer than `accept`."""

    def accept(self, op, attr, engine, hint):
        answer = super().accept(op, attr, engine, hint)
        return answer if isinstance(answer, backend.Refused) else replace(answer, efficiency=0.1)


class IgnoresPostOps(Correct):
    """Accepts every chain of post-ops and computes none."""

    def refusal(self, op, attr):
        return super().refusal(op, dnn.Attributes())


class SilentRefusal(Correct):
    def refusal(self, op, attr):
        return backend.Refused("shape", "not supported")


class UnknownKind(Correct):
    def refusal(self, op, attr):
        return backend.Refused("whim", f"dims {op.src.dims}")


class CompilesInAccept(Correct):
    def accept(self, op, attr, engine, hint):
        backend.cache_count("compiled")
        return super().accept(op, attr, engine, hint)


class AllocatesInAccept(Correct):
    def accept(self, op, attr, engine, hint):
        engine.allocate(64)
        return super().accept(op, attr, engine, hint)


class SlowAccept(Correct):
    def accept(self, op, attr, engine, hint):
        time.sleep(0.05)
        return super().accept(op, attr, engine, hint)


class MoodyAccept(Correct):
    """Each call of `accept` claims another efficiency."""

    def accept(self, op, attr, engine, hint):
        answer = super().accept(op, attr, engine, hint)
        _calls.append(0)
        if isinstance(answer, backend.Accepted):
            return backend.Accepted(answer.op, answer.build, efficiency=1 / len(_calls))
        return answer


class Slots(backend.Executable):
    """All calls use the arguments of the last `bind`."""

    def __init__(self, function):
        self.function = function

    def bind(self, memories, scratchpad):
        self.memories = memories

        def run(stream, wait_for=()):
            for event in wait_for:
                event.wait()
            self.function(*self.memories)
            return backend.COMPLETED

        return run


class SharedState(Correct):
    def build(self, op, attr):
        return Slots(partial(self.function, op, attr))


class DeafExecutable(backend.HostFunction):
    """Ignores the events in `wait_for`."""

    def bind(self, memories, scratchpad):
        run = super().bind(memories, scratchpad)
        return lambda stream, wait_for=(): run(stream, ())


class IgnoresEvents(Correct):
    def build(self, op, attr):
        return DeafExecutable(partial(self.function, op, attr))


class BrokenChain(backend.HostFunction):
    """A chain skips its last run."""

    @staticmethod
    def chain(runs):  # type: ignore[override]  # a static function is not a field for mypy
        def run(stream, wait_for=()):
            for chained in runs[:-1]:
                chained(stream, wait_for)
            return backend.COMPLETED

        return run


class BrokenSequence(Correct):
    def build(self, op, attr):
        return BrokenChain(partial(self.function, op, attr))


class DirtyScratchpad(Correct):
    """Assumes that a scratchpad contains zeros."""

    def accept(self, op, attr, engine, hint):
        answer = super().accept(op, attr, engine, hint)
        if isinstance(answer, backend.Refused):
            return answer
        return backend.Accepted(
            answer.op, answer.build, efficiency=0.5, scratchpad_bytes=4 * op.src.nelems
        )

    def build(self, op, attr):
        return AddsScratchpad(op, attr)


class AddsScratchpad(backend.Executable):
    def __init__(self, op, attr):
        self.op = op
        self.attr = attr

    def bind(self, memories, scratchpad):
        src, dst = memories

        def run(stream, wait_for=()):
            for event in wait_for:
                event.wait()
            size = 4 * self.op.src.nelems
            if self.attr.scratchpad == "library":
                scratchpad[:size] = 0
            sums = scratchpad[:size].view(np.float32).reshape(self.op.src.dims)
            store(dst, compute(self.op, self.attr, src.numpy()) + sums)
            return backend.COMPLETED

        return run


class KeepsPrimitives(Correct):
    def build(self, op, attr):
        _kept.append(super().build(op, attr))
        return _kept[-1]


class KeepsMemories(Correct):
    def build(self, op, attr):
        def function(src, dst):
            correct(op, attr, src, dst)
            _kept[:] = [src]

        return backend.HostFunction(function)


class Raises(Correct):
    def build(self, op, attr):
        def function(src, dst):
            raise IndexError("no such lane")

        return backend.HostFunction(function)


# -- the table -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """A faulty implementation, the check that must fail and the problem that shows it."""

    implementation: Callable[[str], backend.Implementation]
    check: str
    problem: str = "--eltwise --alg=relu --alpha=0.25 --tag=aBc8b 2x11x7"


def _function(function):
    return lambda name: Correct(name, function)


FAULTS = {
    "wrong_value": Fault(_function(wrong_value), "random"),
    "wrong_at_odd_shapes": Fault(_function(wrong_at_odd_shapes), "integers"),
    "past_the_end": Fault(_function(past_the_end), "guards"),
    "dirty_padding": Fault(_function(dirty_padding), "padding"),
    "ignored_post_op": Fault(IgnoresPostOps, "attributes"),
    "touched_input": Fault(_function(touched_input), "inputs"),
    "nondeterministic": Fault(_function(nondeterministic), "repeatable"),
    "leaked_memory": Fault(_function(leaked_memory), "memory"),
    "kept_memory": Fault(KeepsMemories, "memory"),
    "kept_primitive": Fault(KeepsPrimitives, "memory"),
    "not_in_place": Fault(_function(not_in_place), "in_place"),
    "data_race": Fault(DataRace, "threads"),
    "wrong_by_knob": Fault(WrongByKnob, "knobs"),
    "other_defaults": Fault(OtherDefaults, "knobs"),
    "silent_refusal": Fault(SilentRefusal, "refusals"),
    "unknown_kind": Fault(UnknownKind, "refusals"),
    "compiles_in_accept": Fault(CompilesInAccept, "accept"),
    "allocates_in_accept": Fault(AllocatesInAccept, "accept"),
    "slow_accept": Fault(SlowAccept, "accept"),
    "moody_accept": Fault(MoodyAccept, "accept"),
    "shared_state": Fault(SharedState, "bound"),
    "ignored_events": Fault(IgnoresEvents, "events"),
    "broken_sequence": Fault(BrokenSequence, "sequence"),
    "dirty_scratchpad": Fault(DirtyScratchpad, "scratchpad"),
    "raises": Fault(Raises, "integers"),
}

# Faults that end or block their process -> text in the report about the failure.
DEADLY = {"crash": "died of SIGABRT", "hang": "no reply within"}

TABLE = [
    Correct("correct"),
    Tunable("tunable"),
    Correct("crash", crash),
    Correct("hang", hang),
    *(fault.implementation(name) for name, fault in FAULTS.items()),
]


@backend.hookimpl
def dnncore_backends():
    """The engine "faulty" and all implementations above."""
    return backend.Backend(
        KIND,
        backend.API_VERSION,
        engines={KIND: f"{__name__}:FaultyEngine"},
        implementations={(KIND, backend.EltwiseForward): f"{__name__}:TABLE"},
    )
