"""Tensors of 4-bit elements: copied to bytes in the scratchpad, with the same strides, and back.

All other code uses one byte per element. A layout of 4-bit elements starts at the beginning or in
the middle of a byte. Writing preserves the other half of shared bytes, and the gaps of a layout.
"""

from __future__ import annotations

from dataclasses import dataclass

from dnncore_cpu_numba.codegen.call_schema import Record
from dnncore_cpu_numba.codegen.nontemporal import LINE
from dnncore_cpu_numba.codegen.pointers import load_s8, store_i8
from dnncore_cpu_numba.codegen.task import Task, task
from dnncore_cpu_numba.runtime.program import Scratch, Step
from dnncore_cpu_numba.runtime.tensor import Tensor

UNPACKED = {"s4": "s8", "u4": "u8"}  # the one-byte types that hold the same values
_GRAIN = 4096  # least bytes of a thread's part
NIBBLES = Record(
    "nibbles", ("packed bytes", "address"), ("signed", "flag", "of the elements")
)  # fmt: skip


@task(NIBBLES)
def _unpack(params, begin, end):
    """Unpack the two elements of each of the packed bytes [begin, end)."""
    packed, target = params.packed, params.bytes
    if params.signed:
        for i in range(begin, end):
            pair = load_s8(packed, i)
            store_i8(target, 2 * i, ((pair & 15) ^ 8) - 8)
            store_i8(target, 2 * i + 1, pair >> 4)
    else:
        for i in range(begin, end):
            pair = load_s8(packed, i)
            store_i8(target, 2 * i, pair & 15)
            store_i8(target, 2 * i + 1, (pair >> 4) & 15)


@task(NIBBLES)
def _pack(params, begin, end):
    """Pack the bytes [begin, end), each from two elements."""
    packed, source = params.packed, params.bytes
    for i in range(begin, end):
        low, high = load_s8(source, 2 * i), load_s8(source, 2 * i + 1)
        store_i8(packed, i, (low & 15) | (high << 4))


@dataclass(frozen=True)
class Nibbles:
    """A tensor of 4-bit elements, and its copy at offset `place` of the scratchpad."""

    packed: Tensor
    place: int

    @property
    def nbytes(self) -> int:
        """The size of the copy in bytes, a multiple of a cache line."""
        return -(-2 * self.packed.desc.nbytes // LINE) * LINE

    @property
    def bytes(self) -> Tensor:
        """The copy, with one element per byte."""
        desc = self.packed.desc
        return Tensor(Scratch(self.place + desc.offset0), desc.with_offset0(0))

    def read(self) -> list[Step]:
        """Return the steps that unpack the tensor into the copy."""
        return [self._step(_unpack)]

    def write(self) -> list[Step]:
        """Return the steps that pack the copy into the tensor."""
        return [self._step(_pack)]

    @property
    def keeps_others(self) -> bool:
        """Whether the tensor must be unpacked first, to preserve gaps and shared bytes."""
        desc = self.packed.desc
        return desc.has_neighbours or desc.nbytes * 2 != desc.with_data_type("s8").nbytes

    def _step(self, function: Task) -> Step:
        values = {
            "packed": self.packed.address, "bytes": Scratch(self.place),
            "signed": self.packed.desc.data_type == "s4",
        }  # fmt: skip
        return Step(function, values, self.packed.desc.nbytes, grain=_GRAIN)
