"""The base of the plans of normalizations: dims of statistics, and memory in the scratchpad."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dnncore.backend import GroupNormalization, LayerNormalization, MemoryDesc, Normalization
from dnncore_cpu_numba.codegen.nontemporal import LINE
from dnncore_cpu_numba.elementwise.chains import chain_steps
from dnncore_cpu_numba.runtime.program import Scratch, Step, Table
from dnncore_cpu_numba.runtime.tensor import Tensor

Tensors = Mapping[str, Tensor]
ZERO = np.zeros(LINE, np.uint8)


class Places:
    """The dims of statistics and vectors, to be broadcast to src's dims."""

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
        self.is_channel = self.sets == self.vector

    def per_channel(self, desc: MemoryDesc) -> MemoryDesc:
        """Return the descriptor of scale or shift."""
        strides = [0] * len(self.vector)
        strides[self.channel] = desc.strides[0]
        return MemoryDesc(self.vector, desc.data_type, strides=tuple(strides), offset0=desc.offset0)


class Plan:
    """Rooms in the scratchpad."""

    def __init__(self, op: Any) -> None:
        self.op = op
        self.places = Places(op)
        self.nbytes = 0
        self.count = 1
        for n in self.places.sets:
            self.count *= n

    def _room(self, nbytes: int) -> Scratch:
        room = Scratch(self.nbytes)
        self.nbytes += -(-nbytes // LINE) * LINE
        return room

    def _statistic(self) -> Tensor:
        return Tensor(self._room(4 * self.count), MemoryDesc(self.places.sets, "f32"))

    def _copied(self, room: Tensor, given: Tensor) -> list[Step]:
        """Return the steps that copy an argument to a statistic in the scratchpad."""
        dims = given.desc.dims
        return chain_steps(dims, [room.seen_as(MemoryDesc(dims, "f32")), given], [])

    def _kept(self, given: Tensor, room: Tensor) -> list[Step]:
        dims = given.desc.dims
        return chain_steps(dims, [given, room.seen_as(MemoryDesc(dims, "f32"))], [])


def vector(places: Places, tensor: Tensor) -> Tensor:
    """Return scale or shift with the rank of src, to be broadcast."""
    return tensor.seen_as(places.per_channel(tensor.desc))


def zeros(tensors: Sequence[Tensor]) -> list[Step]:
    """Return the steps that set all elements of tensors to 0."""
    steps: list[Step] = []
    for one in tensors:
        zero = Tensor(Table(ZERO), MemoryDesc((1,) * one.desc.ndims, "f32"))
        steps += chain_steps(one.desc.dims, [one, zero], [])
    return steps
