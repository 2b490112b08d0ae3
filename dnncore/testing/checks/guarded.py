"""Memories between guard bytes, which reveal wrong writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dnncore.engines.engine import Engine
from dnncore.engines.memory import Memory
from dnncore.engines.stream import Event, Stream
from dnncore.selection.primitive_desc import PrimitiveDesc
from dnncore.selection.reorder import reorder
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["Arguments", "Finding", "Guarded"]

Array = np.ndarray[Any, Any]

GUARD = 4096  # bytes after every tensor, on hosts also before it, that must not change
HOST_GUARD = GUARD + 16  # tensors on hosts begin off the allocation's alignment, as numpy's may
GARBAGE = 0xFF  # four such bytes are NaN in float32, which reveals wrong reads


@dataclass(frozen=True)
class Finding:
    """A byte that should not have been written; `check` names the check that reports it."""

    check: str
    message: str


class Guarded:
    """A memory between guard bytes, with the values of `array` or with garbage."""

    def __init__(self, engine: Engine, desc: MemoryDesc, array: Array | None = None) -> None:
        self.engine = engine
        self.desc = desc
        self.start = HOST_GUARD if engine.is_host else 0
        self.before = np.full(self.start + desc.nbytes + GUARD, GARBAGE, np.uint8)
        if array is not None and desc.format_kind == "opaque":
            self.before[self.start : self.start + desc.nbytes] = _reordered(engine, desc, array)
        elif array is not None:
            desc.pack(np.asarray(array, desc.dtype), self.before[self.start :])
        self.buffer = engine.allocate(self.before.size)
        self.write(self.before)
        buffer = self.buffer[self.start :] if engine.is_host else self.buffer
        self.memory = Memory(desc, engine, buffer)

    def write(self, data: Array) -> None:
        """Overwrite the whole buffer."""
        self.engine.copy_in(self.engine.stream(), data, self.buffer).wait()

    def after(self) -> Array:
        """Return all present bytes."""
        host = np.empty_like(self.before)
        self.engine.copy_out(self.engine.stream(), self.buffer, host).wait()
        return host

    def touched(self) -> str:
        """Describe where an input was written; "" if it was not."""
        return self._range(np.flatnonzero(self.after() != self.before))

    def result(self) -> tuple[Array, str, str]:
        """Return the values, and descriptions of bytes written outside the tensor and of non-zero
        padding.
        """
        after = self.after()
        values = np.array(self.desc.unpack(after[self.start :]))
        wrong = after != self._packed(values, self.before)
        if not wrong.any() or np.array_equal(after, self.before):
            return values, "", ""
        # Bytes that packing does not change belong to no element and no padding.
        owned = self._packed(values, np.zeros_like(after))
        owned = owned == self._packed(values, np.full_like(after, GARBAGE))
        outside, padding = (np.flatnonzero(wrong & where) for where in (~owned, owned))
        return values, self._range(outside), self._range(padding)

    def _packed(self, values: Array, background: Array) -> Array:
        packed = background.copy()
        self.desc.pack(values, packed[self.start :])
        return packed

    def _range(self, places: Array) -> str:
        if not places.size:
            return ""
        first, last = places[[0, -1]] - self.start
        return f"{places.size} bytes, from {first} to {last} where it has {self.desc.nbytes}"


def _reordered(engine: Engine, desc: MemoryDesc, array: Array) -> Array:
    """Return the bytes of an opaque format. Only the reorder of its owner can make them."""
    memory = reorder(Memory.from_numpy(np.array(array, desc.dtype)), desc, engine)
    host = np.empty(desc.nbytes, np.uint8)
    engine.copy_out(engine.stream(), memory.buffer, host).wait()
    return host


class Arguments:
    """Guarded memories for all arguments of a primitive descriptor, with a user's scratchpad.

    inputs: arrays by argument name, also for outputs with old values. Other outputs begin as
        garbage.
    in_place: an input and the output that share one memory.
    """

    def __init__(
        self,
        pd: PrimitiveDesc,
        inputs: Mapping[str, Array],
        in_place: tuple[str, str] | None = None,
    ) -> None:
        self.boxes = {a.name: Guarded(pd.engine, d, inputs.get(a.name)) for a, d in pd.arguments}
        if pd.scratchpad_desc is not None:
            self.boxes["scratchpad"] = Guarded(pd.engine, pd.scratchpad_desc)
        self._read = {a.name for a, _ in pd.arguments if a.direction == "in"}
        if in_place:
            self.boxes[in_place[1]] = self.boxes[in_place[0]]
            self._read.discard(in_place[0])

    @property
    def memories(self) -> dict[str, Any]:
        """The arguments of `Primitive.execute`."""
        return {name: box.memory for name, box in self.boxes.items()}

    def outcome(self) -> tuple[dict[str, Array], list[Finding]]:
        """Return the outputs' values by name, and the wrongly written bytes."""
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
            if name != "scratchpad":
                outputs[name] = values
            if outside:
                yield Finding(
                    "guards", f"{name}: bytes outside of the tensor were written: {outside}"
                )
            if padding:
                yield Finding("padding", f"{name}: padding is not zero: {padding}")

    # -- values at other times --------------------------------------------------------------------

    def spoil(self) -> None:
        """Overwrite all inputs with garbage, until `restore`."""
        for box in self.boxes.values():
            box.write(np.full_like(box.before, GARBAGE))

    def restore(self) -> None:
        """Give all memories their former values."""
        for box in self.boxes.values():
            box.write(box.before)

    def exchange(self, other: Arguments) -> None:
        """Exchange the values that `restore` writes with those of `other`."""
        for name, box in self.boxes.items():
            twin = other.boxes[name]
            box.before, twin.before = twin.before, box.before

    def touch(self, stream: Stream, event: Event) -> None:
        """Copy an output by another stream, after `event`."""
        box = next(box for name, box in self.boxes.items() if name not in self._read)
        host = np.empty_like(box.before)
        box.engine.copy_out(stream, box.buffer, host, [event]).wait()
