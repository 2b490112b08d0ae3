"""The tensor cores' family with its instructions in plain OpenCL C, run in a separate process."""

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
    """The family as for a device with four multiprocessors, without NVIDIA's instructions."""

    parts_wanted = 0
    tile = TILE

    @classmethod
    def of(cls, engine: Any) -> Plain:
        return cls(4, (cls.tile,), cls.parts_wanted, "mma_plain")

    @classmethod
    def refusal(cls, engine: Any) -> Refused | None:
        return None


class Wide(Plain):
    """Tiles that four warps multiply together."""

    tile = MmaTile(64, 128, 64, 128, wide=True)


class WideInFlight(Plain):
    """Two groups of four warps; multiplications of two stages overlap."""

    tile = MmaTile(128, 64, 64, 64, stages=4, wide=True)


class InParts(Plain):
    """Split K into two parts wherever K has enough stages."""

    parts_wanted = 2


LIMIT, TRIES = 60, 3  # seconds for one answer; number of processes that are asked


class Helper:
    """A process that computes. Compilers may run endlessly on kernels with so many barriers."""

    def __init__(self) -> None:
        self.pool: Any = None

    def ask(self, *question: Any) -> dict[str, np.ndarray]:
        """Return the answer of `computed_here` in the process, or in a new one after a timeout."""
        for _ in range(TRIES):
            self.pool = self.pool or multiprocessing.get_context("spawn").Pool(1)
            try:
                asked = self.pool.apply_async(computed_here, question)
                answer: dict[str, np.ndarray] = asked.get(LIMIT)
            except multiprocessing.TimeoutError:
                self.stop()
            else:
                return answer
        pytest.fail(f"no answer in {TRIES} times {LIMIT} s")

    def stop(self) -> None:
        """Terminate the process."""
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
    return results(implementation, op, arrays, attr)[op.result_name]


def results(
    implementation: Any,
    op: dnn.Operation,
    arrays: dict[str, np.ndarray],
    attr: dnn.Attributes | None = None,
) -> dict[str, np.ndarray]:
    """All outputs, by name."""
    return HELPER.ask(implementation, op, arrays, attr)


def computed_here(
    implementation: Any,
    op: dnn.Operation,
    arrays: dict[str, np.ndarray],
    attr: dnn.Attributes | None,
) -> dict[str, np.ndarray]:
    """All outputs, computed in this process."""
    engine = dnn.engine("opencl")
    attr = attr or dnn.Attributes()
    accepted = implementation.accept(op, attr, engine, None)
    assert not isinstance(accepted, Refused), accepted
    memories, found = [], {}
    for argument, desc in [*accepted.op.tensors(accepted.workspace), *attr.arguments(accepted.op)]:
        if argument.direction == "in":
            memories.append(dnn.Memory.from_numpy(arrays[argument.name], desc, engine))
        else:
            nothing = arrays.get("old", np.zeros(desc.dims)).astype(desc.dtype)
            memories.append(dnn.Memory.from_numpy(nothing, desc, engine))
            found[argument.name] = memories[-1]
    stream = engine.stream()
    scratchpad = engine.allocate(accepted.scratchpad_bytes)
    accepted.build().bind(memories, scratchpad)(stream)
    stream.wait()
    return {name: memory.numpy() for name, memory in found.items()}
