"""Memories between guard bytes, which reveal wrong writes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np

from dnncore.engines.allocation import Allocation
from dnncore.engines.engine import Engine
from dnncore.engines.memory import Memory
from dnncore.engines.stream import Event, Stream
from dnncore.selection.primitive_desc import PrimitiveDesc
from dnncore.selection.reorder import reorder
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["Arguments", "Finding", "Guarded"]

Array = np.ndarray[Any, Any]

# The guard after every tensor is as large as the tensor, within limits. On hosts there is also a
# guard before the tensor.
LEAST_GUARD = 4096  # bytes
MOST_GUARD = 2**24  # bytes
SHIFT = 16  # bytes; tensors on hosts begin at this distance from an aligned address, as numpy's may
GARBAGE = 0xFF  # four such bytes are NaN in float32, which reveals wrong reads


@dataclass(frozen=True)
class Finding:
    """A byte that should not have been written; `check` names the check that reports it."""

    check: str
    message: str

    def __str__(self) -> str:
        return self.message


class Guarded:
    """A memory between guard bytes, with the values of `array` or with garbage.

    shift: on hosts, the distance of the tensor from an aligned address, in bytes.
    """

    def __init__(
        self, engine: Engine, desc: MemoryDesc, array: Array | None = None, shift: int = SHIFT
    ) -> None:
        self.engine = engine
        self.desc = desc
        guard = _guard(desc.nbytes)
        self.start = guard + shift if engine.is_host else 0
        self.before = np.full(self.start + desc.nbytes + guard, GARBAGE, np.uint8)
        if array is not None and desc.format_kind == "opaque":
            self.before[self.start : self.start + desc.nbytes] = _opaque(engine, desc, array)
        elif array is not None:
            desc.pack(np.asarray(array, desc.dtype), self.before[self.start :])
        allocation = Allocation(engine, self.before.size)
        self.buffer = allocation.buffer
        self.write(self.before)
        buffer = self.buffer[self.start :] if engine.is_host else self.buffer
        self.memory = Memory(desc, engine, buffer)
        self.memory.owner = allocation

    def write(self, data: Array) -> None:
        """Overwrite the whole buffer."""
        self.copy_in(self.engine.stream(), data).wait()

    def after(self) -> Array:
        """Return all present bytes of the buffer."""
        host = np.empty_like(self.before)
        self.copy_out(self.engine.stream(), host).wait()
        return host

    def copy_in(self, stream: Stream, data: Array, wait_for: Sequence[Event] = ()) -> Event:
        """Queue a copy of bytes to the whole buffer."""
        return self.engine.copy_in(stream, data, self.buffer, wait_for)

    def copy_out(self, stream: Stream, host: Array, wait_for: Sequence[Event] = ()) -> Event:
        """Queue a copy of the whole buffer."""
        return self.engine.copy_out(stream, self.buffer, host, wait_for)

    def values(self, data: Array) -> Array:
        """Return the values in a copy of the whole buffer."""
        return np.array(self.desc.unpack(data[self.start :]))

    def own_bytes(self) -> Array:
        """Return the present bytes of the tensor."""
        return self.after()[self.start : self.start + self.desc.nbytes]

    @property
    def is_opaque(self) -> bool:
        """Whether only the owner of the format knows the values, as for a private workspace."""
        return self.desc.format_kind == "opaque"

    @property
    def garbage(self) -> Array:
        """Return garbage as large as the buffer, as bytes."""
        return np.full_like(self.before, GARBAGE)

    def touched(self) -> str:
        """Describe the places where an input was written; "" if it was not."""
        return self._range(np.flatnonzero(self.after() != self.before))

    def result(self) -> tuple[Array, str, str]:
        """Return the values, and descriptions of bytes written outside the tensor and of non-zero
        padding.
        """
        after = self.after()
        if self.is_opaque:
            return np.empty(0), self._range(self._outside(after)), ""
        values = self.values(after)
        wrong = after != self._packed(values, self.before)
        if not wrong.any() or np.array_equal(after, self.before):
            return values, "", ""
        # Bytes that packing does not change belong to neither an element nor padding.
        owned = self._packed(values, np.zeros_like(after))
        owned = owned == self._packed(values, np.full_like(after, GARBAGE))
        outside, padding = (np.flatnonzero(wrong & where) for where in (~owned, owned))
        return values, self._range(outside), self._range(padding)

    def _outside(self, after: Array) -> Array:
        """Describe the changed bytes outside the tensor."""
        places = np.flatnonzero(after != self.before)
        return places[(places < self.start) | (places >= self.start + self.desc.nbytes)]

    def _packed(self, values: Array, background: Array) -> Array:
        packed = background.copy()
        self.desc.pack(values, packed[self.start :])
        return packed

    def _range(self, places: Array) -> str:
        if not places.size:
            return ""
        first, last = places[[0, -1]] - self.start
        count = "1 byte" if places.size == 1 else f"{places.size} bytes"
        return (
            f"{count} changed, from byte {first} to byte {last}; its own are bytes 0 to"
            f" {self.desc.nbytes - 1}"
        )


def _guard(nbytes: int) -> int:
    """The size of a guard in bytes, a multiple of the alignment of all engines' buffers."""
    return math.ceil(min(max(nbytes, LEAST_GUARD), MOST_GUARD) / LEAST_GUARD) * LEAST_GUARD


def _opaque(engine: Engine, desc: MemoryDesc, array: Array) -> Array:
    """Return the bytes of an opaque format: `Guarded.own_bytes`, or the bytes of these values.

    Only the reorder of its owner can compute them.
    """
    if array.shape == (desc.nbytes,) and array.dtype == np.uint8:
        return array
    memory = reorder(Memory.from_numpy(np.array(array, desc.dtype)), desc, engine)
    host = np.empty(desc.nbytes, np.uint8)
    engine.copy_out(engine.stream(), memory.buffer, host).wait()
    return host


class Arguments:
    """Guarded memories for all arguments of a primitive descriptor, with a user's scratchpad.

    inputs: arrays by argument name, also for outputs with old values. Other outputs begin as
        garbage.
    in_place: two arguments that share one memory: an input and the output, or two inputs.
    shifts: the shifts of the arguments in order, repeated if there are fewer; see `Guarded`.
    """

    def __init__(
        self,
        pd: PrimitiveDesc,
        inputs: Mapping[str, Array],
        in_place: tuple[str, str] | None = None,
        shifts: Sequence[int] = (SHIFT,),
    ) -> None:
        self.boxes = {
            a.name: Guarded(pd.engine, desc, inputs.get(a.name), shift)
            for (a, desc), shift in zip(pd.arguments, cycle(shifts), strict=False)
        }
        if pd.scratchpad_desc is not None:
            self.boxes["scratchpad"] = Guarded(pd.engine, pd.scratchpad_desc)
        self._read = {a.name for a, _ in pd.arguments if a.direction == "in"}
        if in_place:
            self.boxes[in_place[1]] = self.boxes[in_place[0]]
            if in_place[1] not in self._read:
                self._read.discard(in_place[0])

    @property
    def memories(self) -> dict[str, Any]:
        """The arguments of `Primitive.execute`."""
        return {name: box.memory for name, box in self.boxes.items()}

    def outcome(self) -> tuple[dict[str, Array], list[Finding]]:
        """Return the outputs' values by name, except opaque ones, and the wrongly written bytes."""
        outputs: dict[str, Array] = {}
        return outputs, list(self._findings(outputs))

    def _findings(self, outputs: dict[str, Array]) -> Iterator[Finding]:
        for name, box in self.boxes.items():
            if name in self._read:
                touched = box.touched()
                if touched:
                    yield Finding("inputs", f"{name} was written to: {touched}")
                continue
            values, outside, padding = box.result()
            if name != "scratchpad" and not box.is_opaque:
                outputs[name] = values
            if outside:
                yield Finding(
                    "guards", f"{name}: bytes outside of the tensor were written: {outside}"
                )
            if padding:
                yield Finding("padding", f"{name}: padding is not zero: {padding}")

    # -- values at other times --------------------------------------------------------------------

    @property
    def outputs(self) -> dict[str, Guarded]:
        """The memories of the outputs whose values are known."""
        skipped = {*self._read, "scratchpad"}
        written = {name: box for name, box in self.boxes.items() if name not in skipped}
        return {name: box for name, box in written.items() if not box.is_opaque}

    def spoil(self) -> None:
        """Overwrite all inputs with garbage, until `restore`."""
        for box in self.boxes.values():
            box.write(box.garbage)

    def restore(self) -> None:
        """Give all memories their former values."""
        for box in self.boxes.values():
            box.write(box.before)

    def exchange(self, other: Arguments) -> None:
        """Exchange the values that `restore` writes with those of `other`."""
        for name, box in self.boxes.items():
            twin = other.boxes[name]
            box.before, twin.before = twin.before, box.before

    def fetch(self, stream: Stream, event: Event) -> dict[str, Array]:
        """Return the values of the outputs, copied by another stream after `event`."""
        hosts = {name: np.empty_like(box.before) for name, box in self.outputs.items()}
        copies = [box.copy_out(stream, hosts[name], [event]) for name, box in self.outputs.items()]
        for copy in copies:
            copy.wait()
        return {name: box.values(hosts[name]) for name, box in self.outputs.items()}
