"""The family of tensor cores by instructions in plain OpenCL C, and its results in a helper."""

from __future__ import annotations

import multiprocessing
from typing import Any

import numpy as np
import pytest
from dnncore_opencl.gemm.mma.family import Mma
from dnncore_opencl.gemm.mma.launch import MmaTile

import dnncore as dnn
from dnncore.backend import Refused

TILE = MmaTile(64, 64, 32, 32)


class Plain(Mma):
    """The family on a device of four multiprocessors that lacks the instructions."""

    parts_wanted = 0
    tile = TILE

    @classmethod
    def of(cls, engine: Any) -> Plain:
        return cls(4, (cls.tile,), cls.parts_wanted, "mma_plain")

    @classmethod
    def refusal(cls, engine: Any) -> Refused | None:
        return None


class Wide(Plain):
    """With tiles that four warps multiply together."""

    tile = MmaTile(64, 128, 64, 128, wide=True)


class WideInFlight(Plain):
    """Two times four warps, and a stage that is multiplied while the next one is."""

    tile = MmaTile(128, 64, 64, 64, stages=4, wide=True)


class InParts(Plain):
    """With k cut into parts wherever there are stages enough."""

    parts_wanted = 2


LIMIT, TRIES = 60, 3  # seconds


class Helper:
    """A process that computes: compilers have been at kernels of so many barriers without end."""

    def __init__(self) -> None:
        self.pool: Any = None

    def ask(self, *question: Any) -> np.ndarray:
        """What `computed_here` returns, in another process if one does not answer in time."""
        for _ in range(TRIES):
            self.pool = self.pool or multiprocessing.get_context("spawn").Pool(1)
            try:
                answer: np.ndarray = self.pool.apply_async(computed_here, question).get(LIMIT)
            except multiprocessing.TimeoutError:
                self.stop()
            else:
                return answer
        pytest.fail(f"no answer in {TRIES} times {LIMIT} s")

    def stop(self) -> None:
        """End the process, whatever it is at."""
        if self.pool:
            self.pool.terminate()
        self.pool = None


HELPER = Helper()


def computed(
    implementation: Any,
    op: dnn.Operation,
    arrays: dict[str, np.ndarray],
    attr: dnn.Attributes | None = None,
) -> np.ndarray:
    """The operation's result."""
    return HELPER.ask(implementation, op, arrays, attr)


def computed_here(
    implementation: Any,
    op: dnn.Operation,
    arrays: dict[str, np.ndarray],
    attr: dnn.Attributes | None,
) -> np.ndarray:
    """The operation's result, computed in this process."""
    engine = dnn.engine("opencl")
    attr = attr or dnn.Attributes()
    accepted = implementation.accept(op, attr, engine, None)
    assert not isinstance(accepted, Refused), accepted
    memories, result = [], None
    for argument, desc in [*accepted.op.tensors(), *attr.arguments(accepted.op)]:
        if argument.direction == "in":
            memories.append(dnn.Memory.from_numpy(arrays[argument.name], desc, engine))
        else:
            nothing = arrays.get("old", np.zeros(desc.dims)).astype(desc.dtype)
            memories.append(result := dnn.Memory.from_numpy(nothing, desc, engine))
    stream = engine.stream()
    scratchpad = engine.allocate(accepted.scratchpad_bytes)
    accepted.build().bind(memories, scratchpad)(stream)
    stream.wait()
    assert result is not None
    return result.numpy()
