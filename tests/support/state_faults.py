"""An engine with implementations of the reference. Each has one fault of state or of timing.

The first execution of a problem does not reveal these faults. `FAULTS` lists for each fault the
check that must find it, and a problem. The module is a plugin.
"""

from __future__ import annotations

import ctypes
import gc
import os
import random
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from dnncore_reference import eltwise, lrn, matmul, pooling, reduction, softmax
from subtle_faults import OneThread, Right, backend_of, output, scale

from dnncore import backend

KIND = "stateful"
RELU = "--eltwise --alg=relu --alpha=0.25 2x11x7"
MATMUL = "--matmul 9x40:40x7"
SOFTMAX = "--softmax --dtag=abx 5x7"
LRN = "--lrn --alg=ACROSS mb2_ic9ih3_ls3"
LARGEST = "--reduction --alg=max 2x300:2x1"
MAXIMA = "--pool --alg=max mb2ic3ih5oh2kh3sh2ph0"


class StatefulEngine(backend.HostEngine):
    kind = KIND
    num_threads = 2


class Sound(Right):
    kind = KIND


class Run(backend.Executable):
    """An executable that calls function(scratchpad, *memories)."""

    def __init__(self, function):
        self.function = function

    def bind(self, memories, scratchpad):
        def run(stream, wait_for=()):
            for event in wait_for:
                event.wait()
            if stream.lag:
                time.sleep(stream.lag)
            self.function(scratchpad, *memories)
            return backend.COMPLETED

        return run


# -- other problems and calls between two calls ----------------------------------------------------


class AnswersLast(Sound):
    """Builds the problem of the last call of `accept`."""

    def accept(self, op, attr, engine, hint):
        answer = super().accept(op, attr, engine, hint)
        if isinstance(answer, backend.Accepted):
            self.last = answer.build
            return replace(answer, build=self.build_last)
        return answer

    def build_last(self):
        return self.last()


class RunsLast(Sound):
    """Executes the problem that was built last."""

    def build(self, op, attr, engine, right):
        self.last = right

        def function(*memories):
            with np.errstate(all="ignore"), suppress(ValueError):
                self.last(*memories)

        return backend.HostFunction(function)


class KeyedByDims(Sound):
    """Caches executables with keys that lack the parameters."""

    def accept(self, op, attr, engine, hint):
        answer = super().accept(op, attr, engine, hint)
        if isinstance(answer, backend.Accepted):
            key = type(self), op.KIND, self.key(op, attr)
            return replace(answer, build=lambda: self.kept.setdefault(key, answer.build()))
        return answer

    def key(self, op, attr):
        return op.src.dims, attr.post_ops

    kept: dict[Any, Any] = {}  # noqa: RUF012 - the fault


class KeyedByTensors(KeyedByDims):
    """Caches executables with keys that lack the padding."""

    def key(self, op, attr):
        return op.algorithm, op.src, op.dst, op.kernel, op.strides, op.dilations, attr


class FillsScratchpadOnce(Sound):
    """Writes a constant into the scratchpad in `bind`, and reads it in each call."""

    def accept(self, op, attr, engine, hint):
        answer = super().accept(op, attr, engine, hint)
        return replace(answer, scratchpad_bytes=64)

    def build(self, op, attr, engine, right):
        return BindsConstants(right)


class BindsConstants(Run):
    def bind(self, memories, scratchpad):
        constant = scratchpad[:8].view(np.float64)
        constant[0] = 1.0

        def function(_, *memories):
            with np.errstate(all="ignore"):
                self.function(*memories)
                if constant[0] != 1.0:
                    scale(memories[-1], 0)

        return Run(function).bind(memories, scratchpad)


class Reverses(backend.HostFunction):
    @staticmethod
    def chain(runs):  # type: ignore[override]  # a static function is not a field for mypy
        def run(stream, wait_for=()):
            return [one(stream, wait_for) for one in reversed(runs)][-1]

        return run


class ReversesSequences(Sound):
    def build(self, op, attr, engine, right):
        return Reverses(super().build(op, attr, engine, right).function)


class Fingerprints(Sound):
    """Uses a copy of the weights, and updates it only if one of a few elements has changed."""

    def build(self, op, attr, engine, right):
        kept = {}

        def function(*memories):
            weights = memories[1]
            now = weights.buffer.copy()
            values = weights.numpy().reshape(-1)
            mark = values[:: max(1, values.size // 16)].tobytes()
            if kept.get(weights.address, (b"",))[0] != mark:
                kept[weights.address] = mark, now
            weights.buffer[: now.size] = kept[weights.address][1]
            right(*memories)
            weights.buffer[: now.size] = now

        return backend.HostFunction(function)


class WrongAt(Sound):
    """Computes a wrong result in call `number` of a primitive."""

    number = 0

    def build(self, op, attr, engine, right):
        calls = []

        def function(*memories):
            right(*memories)
            calls.append(0)
            if len(calls) == self.number:
                scale(memories[-1], 3)

        return backend.HostFunction(function)


class WrongAt30(WrongAt):
    number = 30


class WrongAt200(WrongAt):
    number = 200


class SevenThreads(OneThread):
    kind = KIND
    threads = 7


# -- values ----------------------------------------------------------------------------------------


class InOrderOfArrival(Sound):
    """Adds the partial sums of threads in the order in which the threads end."""

    pool = ThreadPoolExecutor(4)

    def accept(self, op, attr, engine, hint):
        if attr.post_ops or op.algorithm != "sum" or op.dst.nelems != op.src.dims[0]:
            return backend.Refused("shape", f"sums of rows; got {op.src.dims}")
        return super().accept(op, attr, engine, hint)

    def run(self, op, attr, engine, right, *memories):
        src, dst = memories
        rows = src.numpy().reshape(src.desc.dims[0], -1)
        total, lock = np.zeros(rows.shape[0], np.float32), threading.Lock()

        def add(part):
            with np.errstate(all="ignore"):
                sums = part.sum(axis=1, dtype=np.float32)
            with lock, np.errstate(all="ignore"):
                total[:] += sums

        list(self.pool.map(add, np.array_split(rows, 16, axis=1)))
        dst.desc.pack(total.reshape(dst.desc.dims), dst.buffer)


class BlankWindows(Sound):
    """The workspace is wrong for windows that contain no number above -inf."""

    def run(self, op, attr, engine, right, *memories):
        right(*memories)
        if op.workspace_desc() is None:
            return
        workspace, dst = output(op, memories, "workspace"), output(op, memories)
        marks = np.where(np.isneginf(dst.numpy()), 255, workspace.numpy())
        workspace.desc.pack(marks.astype(np.uint8), workspace.buffer)


class LosesFullNaN(Sound):
    """Converts a NaN with all bits set to 0.

    A conversion that rounds by adding to the bits has this fault.
    """

    def run(self, op, attr, engine, right, *memories):
        right(*memories)
        src, dst = memories
        dst.desc.pack(np.where(src.numpy().view(np.int32) == -1, 0, dst.numpy()), dst.buffer)


class BeginsWithZero(Sound):
    """Computes a maximum that starts with 0, so the result is never below 0."""

    def run(self, op, attr, engine, right, *memories):
        right(*memories)
        dst = output(op, memories)
        dst.desc.pack(np.maximum(dst.numpy(), 0), dst.buffer)


class Underflows(Sound):
    """Computes squares that underflow. numpy raises an error if the caller enabled such errors."""

    def build(self, op, attr, engine, right):
        def function(scratchpad, src, dst):
            np.square(src.numpy())
            right(src, dst)

        return Run(function)


class RestoresInputs(Sound):
    """Writes to its input, and restores the input before the end."""

    def run(self, op, attr, engine, right, *memories):
        src, dst = memories
        before = src.buffer.copy()
        src.desc.pack(np.abs(src.numpy()), src.buffer)
        time.sleep(1e-4)
        src.buffer[: before.size] = before
        right(src, dst)


# -- settings of the process -----------------------------------------------------------------------

_libm = ctypes.CDLL("libm.so.6") if sys.platform == "linux" else None


ENVIRONMENT = (ctypes.c_uint32 * 8)()  # the initial floating-point environment
if _libm is not None:
    _libm.fegetenv(ENVIRONMENT)


def flush_to_zero():
    """Set the bits FTZ and DAZ of x86's control register."""
    assert _libm is not None
    environment = (ctypes.c_uint32 * 8)()
    _libm.fegetenv(environment)
    environment[7] |= 0x8040
    _libm.fesetenv(environment)


def round_down():
    assert _libm is not None
    _libm.fesetround(0x400)


def _silence(*_):
    return None


CHANGES: dict[str, Callable[[], object]] = {
    "flushes_to_zero": flush_to_zero,
    "rounds_down": round_down,
    "seeds_numpy": lambda: np.random.seed(0),  # noqa: NPY002 - the fault
    "seeds_python": lambda: random.seed(0),
    "ignores_errors": lambda: np.seterr(all="ignore"),
    "ignores_warnings": lambda: warnings.filterwarnings("ignore", "no such"),
    "sets_variable": lambda: os.environ.update(SUBTLE="1"),
    "stops_collector": gc.disable,
    "handles_signals": lambda: signal.signal(signal.SIGUSR2, _silence),
    "extends_path": lambda: sys.path.append("/nowhere"),
    "hides_errors": lambda: setattr(sys, "unraisablehook", _silence),
}


def changing(change, moment):
    """A class of implementations that change the process's settings in build, bind or run."""

    class Changes(Sound):
        def build(self, op, attr, engine, right):
            executable = super().build(op, attr, engine, right)
            return executable if moment == "run" else Binds(executable.function)

        def run(self, op, attr, engine, right, *memories):
            right(*memories)
            if moment == "run":
                change()

    class Binds(backend.HostFunction):
        def bind(self, memories, scratchpad):
            change()
            return super().bind(memories, scratchpad)

    return Changes


class Warns(Right):
    """Does not suppress numpy's errors and warnings."""

    kind = KIND

    def build(self, op, attr, engine, right):
        def function(scratchpad, *memories):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                memories[0].numpy() * np.float32(np.inf)
            with np.errstate(all="ignore"):
                right(*memories)

        return Run(function)


class OpensFiles(Sound):
    def run(self, op, attr, engine, right, *memories):
        right(*memories)
        os.dup(0)


# -- events ----------------------------------------------------------------------------------------


class IgnoresFailures(Sound):
    """Runs even if an event that it waits for has failed."""

    def build(self, op, attr, engine, right):
        return WaitsQuietly(super().build(op, attr, engine, right).function)


class WaitsQuietly(backend.HostFunction):
    def bind(self, memories, scratchpad):
        run = super().bind(memories, scratchpad)

        def launch(stream, wait_for=()):
            for event in wait_for:
                with suppress(backend.ExecutionError):
                    event.wait()
            return run(stream)

        return launch


class HalfReady(Run):
    """Allocates a buffer at the first run. After a failure, it assumes that the buffer exists."""

    def __init__(self, function, engine):
        super().__init__(self.through_buffer)
        self.inner, self.engine = function, engine
        self.is_ready, self.buffer = False, None

    def through_buffer(self, scratchpad, *memories):
        if not self.is_ready:
            self.is_ready = True
            self.buffer = self.engine.allocate(memories[-1].nbytes)
        if self.buffer is not None:
            self.inner(*memories)


class BelievesInBuffers(Sound):
    """Computes nothing after an allocation has failed."""

    def build(self, op, attr, engine, right):
        return HalfReady(super().build(op, attr, engine, right).function, engine)


class FirstEvent(backend.HostFunction):
    def bind(self, memories, scratchpad):
        run = super().bind(memories, scratchpad)
        return lambda stream, wait_for=(): run(stream, wait_for[:1])


class WaitsForOne(Sound):
    """Waits only for the first event."""

    def build(self, op, attr, engine, right):
        return FirstEvent(super().build(op, attr, engine, right).function)


class Backwards(backend.HostFunction):
    def bind(self, memories, scratchpad):
        run = super().bind(memories, scratchpad)

        def launch(stream, wait_for=()):
            start = time.perf_counter()
            run(stream, wait_for)
            end = time.perf_counter()
            return backend.TimedEvent(end, start) if stream.profiling else backend.COMPLETED

        return launch


class SwapsTimes(Sound):
    """Events of a profiling stream have start and end times swapped."""

    def build(self, op, attr, engine, right):
        return Backwards(super().build(op, attr, engine, right).function)


# -- the table -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """A faulty implementation, the check that must fail and the problem that shows it."""

    implementation: Callable[[str, Any], backend.Implementation]
    check: str
    problem: str = RELU


FAULTS = {
    "answers_last": Fault(AnswersLast, "independent", SOFTMAX),
    "runs_last": Fault(RunsLast, "independent", SOFTMAX),
    "keyed_by_dims": Fault(KeyedByDims, "independent", RELU),
    "keyed_by_tensors": Fault(KeyedByTensors, "independent", MAXIMA),
    "loses_full_nan": Fault(LosesFullNaN, "special", RELU),
    "begins_with_zero": Fault(BeginsWithZero, "large", LARGEST),
    "underflows": Fault(Underflows, "surroundings", RELU),
    "fills_scratchpad_once": Fault(FillsScratchpadOnce, "streams", LRN),
    "reverses_sequences": Fault(ReversesSequences, "sequence"),
    "reverses_products": Fault(ReversesSequences, "sequence", MATMUL),
    "fingerprints": Fault(Fingerprints, "one_element", MATMUL),
    "wrong_at_30": Fault(WrongAt30, "many"),
    "wrong_at_200": Fault(WrongAt200, "many"),
    "seven_threads": Fault(SevenThreads, "engine_threads"),
    "in_order_of_arrival": Fault(
        InOrderOfArrival, "repeatable_under_load", "--reduction --alg=sum 31x4099:31x1"
    ),
    "blank_windows": Fault(BlankWindows, "slabs", MAXIMA),
    "restores_inputs": Fault(RestoresInputs, "steady_inputs"),
    "warns": Fault(Warns, "surroundings"),
    "opens_files": Fault(OpensFiles, "memory"),
    "ignores_failures": Fault(IgnoresFailures, "failures"),
    "believes_in_buffers": Fault(BelievesInBuffers, "allocations"),
    "waits_for_one": Fault(WaitsForOne, "several_events"),
    "swaps_times": Fault(SwapsTimes, "profiling"),
    **{
        name: Fault(changing(change, "run" if place % 2 else "bind"), "surroundings")
        for place, (name, change) in enumerate(CHANGES.items())
    },
}

OPERATIONS = {
    backend.EltwiseForward: eltwise.FORWARD,
    backend.MatMul: matmul.TABLE,
    backend.SoftmaxForward: softmax.FORWARD,
    backend.LRNForward: lrn.FORWARD,
    backend.PoolingForward: pooling.FORWARD,
    backend.Reduction: reduction.TABLE,
}
globals().update(
    {
        operation.__name__: [
            make(name, definition)
            for definition in definitions
            for name, make in {
                "right": Sound,
                **{name: fault.implementation for name, fault in FAULTS.items()},
            }.items()
        ]
        for operation, definitions in OPERATIONS.items()
    }
)


@backend.hookimpl
def dnncore_backends():
    """The engine "stateful" and all implementations above."""
    return backend_of(__name__, StatefulEngine, OPERATIONS)
