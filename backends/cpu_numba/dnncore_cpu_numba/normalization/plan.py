"""The base of the plans of normalizations: dims of statistics, and memory in the scratchpad."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dnncore.backend import GroupNormalization, LayerNormalization, MemoryDesc, Normalization
from dnncore_cpu_numba.codegen.nontemporal import LINE
from dnncore_cpu_numba.elementwise.chains import chain_steps
from dnncore_cpu_numba.elementwise.post_ops import binary
from dnncore_cpu_numba.rows import channels_tasks as tasks
from dnncore_cpu_numba.runtime.program import Scratch, Step, Table
from dnncore_cpu_numba.runtime.tensor import Tensor

Tensors = Mapping[str, Tensor]
ZERO = np.zeros(LINE, np.uint8)


class Places:
    """The dims of statistics, sums and vectors, to be broadcast to src's dims.

    summed: a set of group normalization has one sum per channel.
    """

    def __init__(self, op: Normalization) -> None:
        dims = op.source.dims
        self.sets = [1] * len(dims)
        self.channel = 1
        if isinstance(op, LayerNormalization):
            self.channel = len(dims) - 1
            self.sets = [*dims[:-1], 1]
        elif isinstance(op, GroupNormalization):
            self.sets[:2] = op.statistics_dims
        else:
            self.sets[1] = dims[1]
        self.vector = [1] * len(dims)
        self.vector[self.channel] = dims[self.channel]
        self.summed = [*self.sets]
        if isinstance(op, GroupNormalization):
            self.summed[1] = dims[1]

    def of_vector(self, vector: Tensor) -> Tensor:
        """Return dense scale or shift with the rank of src."""
        return vector.seen_as(MemoryDesc(self.vector, "f32"))


class Plan:
    """Rooms in the scratchpad, and the steps that copy small arguments to and from them."""

    def __init__(self, op: Any) -> None:
        self.op = op
        self.places = Places(op)
        self.nbytes = 0
        self.count = math.prod(self.places.sets)
        self.mean, self.variance, self.factor = (self.room(self.places.sets) for _ in range(3))
        descs = {name: getattr(op, name, None) for name in ("scale", "shift")}
        self.vectors = {
            name: self.room(desc.dims)
            for name, desc in descs.items()
            if desc is not None and (desc.data_type != "f32" or desc.strides != (1,))
        }

    def reserve(self, nbytes: int) -> Scratch:
        """Reserve memory in the scratchpad."""
        room = Scratch(self.nbytes)
        self.nbytes += -(-nbytes // LINE) * LINE
        return room

    def tensor(self, desc: MemoryDesc) -> Tensor:
        """Reserve a tensor."""
        return Tensor(self.reserve(desc.nbytes), desc)

    def room(self, dims: Sequence[int]) -> Tensor:
        """Reserve a row-major tensor of f32."""
        return self.tensor(MemoryDesc(dims, "f32"))

    def with_dense_vectors(self, named: Tensors) -> tuple[dict[str, Tensor], list[Step]]:
        """Return the arguments with scale and shift as dense f32, and the steps that copy them."""
        rooms = self.vectors.items()
        steps = [step for name, room in rooms for step in copied(room, named[name])]
        return {**named, **self.vectors}, steps

    def given_statistics(self, named: Tensors) -> Iterator[Step]:
        """Yield the steps that copy mean and variance, and compute the factor."""
        for name, room in (("mean", self.mean), ("variance", self.variance)):
            if name in named:
                given = named[name]
                yield from copied(room.seen_as(MemoryDesc(given.desc.dims, "f32")), given)
        yield self.factors()

    def factors(self) -> Step:
        """Return the step that computes 1 / sqrt(variance + epsilon)."""
        values = {
            "source": self.variance.address, "target": self.factor.address,
            "epsilon": self.op.epsilon,
        }  # fmt: skip
        return Step(tasks.factors, values, self.count, grain=1024)


def layouts_of_copies(desc: MemoryDesc) -> Iterator[MemoryDesc]:
    """Yield layouts of f32: in the order of a dense tensor, then row-major."""
    if desc.is_dense:
        yield desc.with_data_type("f32").with_offset0(0)
    yield MemoryDesc(desc.dims, "f32")


def copied(target: Tensor, source: Tensor) -> list[Step]:
    """Return the steps that copy a tensor to one of any layout and type."""
    return chain_steps(target.desc.dims, [target, source], [])


def passed(target: Tensor, named: Tensors) -> list[Step]:
    """Return the steps that write diff_dst, but 0 where the mask of a fused relu is 0."""
    diff = named["diff_dst"]
    if "workspace" not in named:
        return copied(target, diff)
    zero = Tensor(Table(ZERO), MemoryDesc((1,) * diff.desc.ndims, "f32"))
    tensors = [target, diff, zero, named["workspace"]]
    return chain_steps(diff.desc.dims, tensors, [binary("select", 2)])


def zeros(tensors: Sequence[Tensor]) -> list[Step]:
    """Return the steps that set all elements of tensors to 0."""
    steps: list[Step] = []
    for one in tensors:
        steps += copied(one, Tensor(Table(ZERO), MemoryDesc((1,) * one.desc.ndims, "f32")))
    return steps
