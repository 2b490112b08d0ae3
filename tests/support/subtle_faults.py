"""An engine with the implementations of the reference, each with one planted fault.

Results on new memories do not reveal these faults. `FAULTS` lists for each fault the check that
must find it, and a problem. The module is a plugin.
"""

from __future__ import annotations

import ctypes
import os
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
from dnncore_reference import convolution, eltwise, matmul, pooling

from dnncore import backend

KIND = "subtle"
RELU = "--eltwise --alg=relu --alpha=0.25 --tag=aBc8b 2x11x7"
MATMUL = "--matmul 3x40:40x5"
MAXIMA = "--pool --alg=max mb1ic1ih5oh2kh3sh2ph0"
GRADIENT = "--conv --dir=BWD_D mb1ic3ih5oc4oh5kh3ph1"


class SubtleEngine(backend.HostEngine):
    kind = KIND
    num_threads = 4


class Right(backend.Implementation):
    """Computes as the reference does. `memories` are the arguments in order."""

    kind = KIND
    data_types: tuple[str, ...] = ("f32", "f16", "bf16")

    def __init__(self, name, definition):
        self.name = f"{self.kind}:{name}"
        self.definition = definition

    def accept(self, op, attr, engine, hint):
        answer = self.definition.accept(op, attr, engine, hint)
        if isinstance(answer, backend.Refused):
            return answer
        right = answer.build().function
        return replace(answer, build=partial(self.build, answer.op, attr, engine, right))

    def build(self, op, attr, engine, right):
        def function(*memories):
            with np.errstate(all="ignore"):
                self.run(op, attr, engine, right, *memories)

        return backend.HostFunction(function)

    def run(self, op, attr, engine, right, *memories):
        right(*memories)


def backend_of(module, engine, operations):
    """The backend of a module: one engine, and a table for each operation with its name."""
    kind = engine.kind
    return backend.Backend(
        kind,
        backend.API_VERSION,
        engines={kind: f"{module}:{engine.__name__}"},
        implementations={(kind, op): f"{module}:{op.__name__}" for op in operations},
    )


def output(op, memories, name=""):
    """The memory of the result, or of another argument."""
    names = [argument.name for argument, _ in op.tensors(op.workspace_desc())]
    return memories[names.index(name or op.result_name)]


def scale(memory, factor):
    memory.desc.pack((memory.numpy() * factor).astype(memory.desc.dtype), memory.buffer)


def with_inputs(right, memories, change):
    """Compute with changed inputs, then restore them."""
    *inputs, dst = memories
    before = [memory.buffer.copy() for memory in inputs]
    for memory in inputs:
        memory.desc.pack(change(memory.numpy()), memory.buffer)
    right(*inputs, dst)
    for memory, old in zip(inputs, before, strict=True):
        memory.buffer[:] = old


# -- faults of a call ------------------------------------------------------------------------------


class OneThread(Right):
    """The loop stops early with one certain number of threads."""

    threads = 1

    def run(self, op, attr, engine, right, *memories):
        right(*memories)
        if engine.num_threads == self.threads:
            scale(output(op, memories), 0)


class UserScratchpad(Right):
    """Needs no scratchpad, but computes wrong results with scratchpad="user"."""

    def run(self, op, attr, engine, right, *memories):
        right(*memories)
        if attr.scratchpad == "user":
            scale(output(op, memories), 2)


class SecondCall(Right):
    """Does not claim to be deterministic. The second call of a primitive gives a wrong result."""

    def accept(self, op, attr, engine, hint):
        answer = super().accept(op, attr, engine, hint)
        return replace(answer, deterministic=False)

    def build(self, op, attr, engine, right):
        calls = []

        def function(*memories):
            right(*memories)
            calls.append(0)
            if len(calls) > 2:  # the checks of values make two calls
                scale(output(op, memories), 1.5)

        return backend.HostFunction(function)


class StaleInput(Right):
    """Each call uses a copy of the input of the first call."""

    def build(self, op, attr, engine, right):
        return Packing(right)


class Packing(backend.Executable):
    def __init__(self, right):
        self.right = right

    def bind(self, memories, scratchpad):
        packed = []

        def run(stream, wait_for=()):
            for event in wait_for:
                event.wait()
            now = memories[0].buffer.copy()
            packed.append(now)
            memories[0].buffer[:] = packed[0]
            self.right(*memories)
            memories[0].buffer[:] = now
            return backend.COMPLETED

        return run


class IgnoresBeta(Right):
    """Ignores the second parameter of a post-op."""

    def accept(self, op, attr, engine, hint):
        steps = tuple(replace(s, beta=0.0) if s.algorithm == "linear" else s for s in attr.post_ops)
        return super().accept(op, replace(attr, post_ops=steps), engine, hint)


class ReadsDst(Right):
    """Reads dst and multiplies it by zero, although dst must not be read."""

    def run(self, op, attr, engine, right, *memories):
        dst = output(op, memories)
        old = dst.numpy().copy()
        right(*memories)
        dst.desc.pack(dst.numpy() + 0 * old, dst.buffer)


class WrongWorkspace(Right):
    """dst is right. The indices of the maxima are off by one."""

    def run(self, op, attr, engine, right, *memories):
        right(*memories)
        if op.workspace_desc() is None:
            return
        workspace = output(op, memories, "workspace")
        workspace.desc.pack(workspace.numpy() + np.uint8(1), workspace.buffer)


class WrongFactor(Right):
    """Computes a gradient without one of its factors."""

    def run(self, op, attr, engine, right, *memories):
        right(*memories)
        scale(output(op, memories), 0.5)


class ReducedPrecision(Right):
    """Rounds its inputs to bfloat16 without permission. Small integers stay exact."""

    def run(self, op, attr, engine, right, *memories):
        with_inputs(right, memories, lambda x: x.astype(ml_dtypes.bfloat16).astype(x.dtype))


class Product(Right):
    """A product of two matrices, without post-ops."""

    def accept(self, op, attr, engine, hint):
        if attr.post_ops or not isinstance(op, backend.MatMul):
            return backend.Refused("attribute", f"matmul without post_ops; got {op.KIND}")
        return super().accept(op, attr, engine, hint)


class SumsInHalf(Product):
    """Accumulates in the type of the inputs."""

    def run(self, op, attr, engine, right, *memories):
        src, weights, dst = memories
        total = np.zeros(dst.desc.dims, src.desc.dtype)
        for k in range(src.desc.dims[1]):
            total += src.numpy()[:, k : k + 1] * weights.numpy()[k]
        dst.desc.pack(total.astype(dst.desc.dtype), dst.buffer)


class RoundsTwice(Right):
    """Rounds the result to dst's type before the post-ops, and again after them."""

    def build(self, op, attr, engine, right):
        def run(*memories):
            plain(*memories)
            dst = memories[-1]
            x = dst.numpy().astype(np.float32)
            for step in attr.post_ops:
                x = step.alpha * x + step.beta
            dst.desc.pack(x.astype(dst.desc.dtype), dst.buffer)

        plain = self.definition.accept(op, backend.Attributes(), engine, None).build().function
        return backend.HostFunction(run)


class CutsOff(Product):
    """Rounds towards zero."""

    def run(self, op, attr, engine, right, *memories):
        *inputs, dst = memories
        exact = inputs[0].numpy().astype(np.float64) @ inputs[1].numpy().astype(np.float64)
        nearest = exact.astype(dst.desc.dtype)
        cut = np.where(np.abs(nearest) > np.abs(exact), np.nextafter(nearest, 0 * nearest), nearest)
        dst.desc.pack(cut.astype(dst.desc.dtype), dst.buffer)


class LosesSmallNumbers(Right):
    """Replaces subnormal numbers of f16 by 0."""

    def run(self, op, attr, engine, right, *memories):
        right(*memories)
        dst = output(op, memories)
        values = dst.numpy()
        if dst.desc.data_type == "f16":
            dst.desc.pack(np.where(np.abs(values) < 2.0**-14, 0, values), dst.buffer)


class DirtyCorner(Right):
    """The last element of the padding is not zero."""

    def run(self, op, attr, engine, right, *memories):
        right(*memories)
        dst = output(op, memories)
        if dst.desc.has_padding:
            dst.buffer[: dst.desc.nbytes].view(np.float32)[-1] = 1e-30


class ElsewhereEvent(backend.Event):
    def __init__(self, thread):
        self.thread = thread

    def wait(self, timeout=None):
        self.thread.join(timeout)

    @property
    def done(self):
        return not self.thread.is_alive()


class Elsewhere(backend.HostFunction):
    """Runs outside of the stream. Its events are correct."""

    def bind(self, memories, scratchpad):
        run = super().bind(memories, scratchpad)

        def launch(stream, wait_for=()):
            def work():
                with suppress(backend.ExecutionError):  # an event in wait_for may have failed
                    run(stream, wait_for)

            thread = threading.Thread(target=work)
            thread.start()
            return ElsewhereEvent(thread)

        return launch


class WrongStream(Right):
    def build(self, op, attr, engine, right):
        return Elsewhere(right)


LEAKED = 256  # bytes that each call leaks
_reserved = ctypes.CDLL(None).malloc
_reserved.restype = ctypes.c_void_p


class LeaksNativeMemory(Right):
    """Leaks memory that Python's allocator does not count."""

    def run(self, op, attr, engine, right, *memories):
        right(*memories)
        _reserved(LEAKED)


# -- faults of accept ------------------------------------------------------------------------------


class SetsVariables(Right):
    def accept(self, op, attr, engine, hint):
        os.environ["SUBTLE"] = str(time.perf_counter_ns())
        return super().accept(op, attr, engine, hint)


class DrawsNumbers(Right):
    def accept(self, op, attr, engine, hint):
        random.random()
        return super().accept(op, attr, engine, hint)


class SilencesNumpy(Right):
    def accept(self, op, attr, engine, hint):
        np.seterr(all="raise")
        return super().accept(op, attr, engine, hint)


class SetsThreads(Right):
    def accept(self, op, attr, engine, hint):
        engine.num_threads = 3
        return super().accept(op, attr, engine, hint)


# -- the table -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """A faulty implementation, the check that must fail and the problem that shows it."""

    implementation: Callable[[str, Any], backend.Implementation]
    check: str
    problem: str = RELU


FAULTS = {
    "one_thread": Fault(OneThread, "engine_threads"),
    "user_scratchpad": Fault(UserScratchpad, "scratchpad"),
    "second_call": Fault(SecondCall, "bound"),
    "stale_input": Fault(StaleInput, "bound"),
    "ignores_beta": Fault(IgnoresBeta, "attributes"),
    "reads_dst": Fault(ReadsDst, "integers"),
    "wrong_workspace": Fault(WrongWorkspace, "integers", MAXIMA),
    "wrong_factor": Fault(WrongFactor, "integers", GRADIENT),
    "reduced_precision": Fault(ReducedPrecision, "random", MATMUL),
    "sums_in_half": Fault(SumsInHalf, "random", "--matmul --dt=f16:f16:f32 3x600:600x5"),
    "rounds_twice": Fault(
        RoundsTwice, "random", "--matmul --dt=bf16 --attr-post-ops=linear:1:3 17x40:40x19"
    ),
    "cuts_off": Fault(CutsOff, "golden", "--matmul --dt=f16 3x4:4x5"),
    "loses_small_numbers": Fault(
        LosesSmallNumbers, "golden", "--eltwise --alg=square --dt=f16 2x11x7"
    ),
    "dirty_corner": Fault(DirtyCorner, "padding"),
    "wrong_stream": Fault(WrongStream, "events"),
    "leaks_native_memory": Fault(LeaksNativeMemory, "memory"),
    "sets_variables": Fault(SetsVariables, "accept"),
    "draws_numbers": Fault(DrawsNumbers, "accept"),
    "silences_numpy": Fault(SilencesNumpy, "accept"),
    "sets_threads": Fault(SetsThreads, "accept"),
}

OPERATIONS = {
    backend.EltwiseForward: eltwise.FORWARD,
    backend.MatMul: matmul.TABLE,
    backend.PoolingForward: pooling.FORWARD,
    backend.ConvolutionForward: convolution.FORWARD,
    backend.ConvolutionBackwardData: convolution.BACKWARD_DATA,
}
TABLES = {
    operation.__name__: [
        make(name, definition)
        for definition in definitions
        for name, make in (
            ("right", Right),
            *((n, fault.implementation) for n, fault in FAULTS.items()),
        )
    ]
    for operation, definitions in OPERATIONS.items()
}
globals().update(TABLES)


@backend.hookimpl
def dnncore_backends():
    """The engine "subtle" and all implementations above."""
    return backend_of(__name__, SubtleEngine, OPERATIONS)
