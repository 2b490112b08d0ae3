"""A launch of the program: copies of its inputs and outputs, as arrays.

The bytes of the inputs are copied before the launch, because outputs may replace them. The copies
are made in the launch's stream, after the events that the launch waits for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dnncore.crosschecking.hidden import Hidden, is_hidden, revealed
from dnncore.crosschecking.strays import Stray, beside_output, in_input, is_guarded
from dnncore.engines.memory import Memory
from dnncore.engines.stream import Event, Stream, wait_all
from dnncore.selection.primitive_desc import PrimitiveDesc

__all__ = ["Call", "Copies", "NotComparable"]

Array = np.ndarray[Any, Any]


class NotComparable(Exception):
    """A call cannot be repeated or compared. The text is the reason."""


@dataclass
class Call:
    """One launch.

    number: the number of the launch in the program, from 1.
    memories: by argument name.
    inputs: the values that the launch read, by argument name, with logical dims. They include the
        old values of the result if a post-op reads them.
    outputs: the values that the launch wrote, without those that only their owner can read.
    alias: the input and the output in one memory, or None.
    strays: bytes that the launch changed although it must not.
    is_ready: whether the inputs are known.
    """

    number: int
    pd: PrimitiveDesc
    memories: Mapping[str, Memory]
    inputs: dict[str, Array] = field(default_factory=dict)
    outputs: dict[str, Array] = field(default_factory=dict)
    alias: tuple[str, str] | None = None
    strays: list[Stray] = field(default_factory=list)
    is_ready: bool = False


class Copies:
    """Host buffers for the arguments of one primitive. The next call overwrites them.

    read, written: names of arguments.
    guarded: outputs whose buffers contain bytes that belong to no element.
    after: the bytes of outputs after the launch.
    """

    def __init__(self, pd: PrimitiveDesc) -> None:
        old = pd.op.result_name if pd.attr.reads_dst else None
        rows = [(argument.name, argument.direction) for argument, _ in pd.arguments]
        self.read = [name for name, way in rows if way == "in" or name == old]
        self.written = [name for name, way in rows if way == "out"]
        self.guarded = [name for name in self.written if is_guarded(pd.descs[name])]
        sizes = {name: desc.nbytes for name, desc in pd.descs.items()}
        copied = dict.fromkeys([*self.read, *self.guarded])
        self._before = {name: np.empty(sizes[name], np.uint8) for name in copied}
        self.after = {name: np.empty(sizes[name], np.uint8) for name in self.written}

    def take_inputs(
        self, call: Call, hidden: Hidden, stream: Stream, wait_for: Sequence[Event]
    ) -> None:
        """Fill `call.inputs`. Raises `NotComparable` for values that cannot be read."""
        self.take_before(call, stream, wait_for)
        for name in self.read:
            call.inputs[name] = self._value(call, name, self._before[name], hidden)
        call.is_ready = True

    def take_before(self, call: Call, stream: Stream, wait_for: Sequence[Event] = ()) -> None:
        """Copy the bytes of inputs and of guarded outputs."""
        for name, content in self._before.items():
            _copy(call.memories[name], content, stream, wait_for)
        call.alias = _alias(call)

    def take_outputs(self, call: Call, stream: Stream) -> None:
        """Fill `call.outputs` after the end of the launch."""
        for name in self.written:
            _copy(call.memories[name], self.after[name], stream, ())
            if not is_hidden(call.pd, name):
                call.outputs[name] = call.pd.descs[name].unpack(self.after[name])

    def take_strays(self, call: Call, stream: Stream) -> None:
        """Fill `call.strays` after `take_outputs`."""
        descs, before = call.pd.descs, self._before
        for name in self.read:
            if name not in self.after and name not in (call.alias or ()):
                content = np.empty_like(before[name])
                _copy(call.memories[name], content, stream, ())
                call.strays += in_input(name, descs[name], before[name], content)
        for name in self.guarded:
            call.strays += beside_output(name, descs[name], before[name], self.after[name])

    def bytes_of(self, name: str) -> Array | None:
        """Return the bytes of an argument, for an output after the launch; None if it is absent."""
        return self.after.get(name, self._before.get(name))

    @staticmethod
    def _value(call: Call, name: str, content: Array, hidden: Hidden) -> Array:
        if not is_hidden(call.pd, name):
            return call.pd.descs[name].unpack(content)
        memory = call.memories[name]
        value: Array | None = hidden.find(memory, content)
        if value is None:
            value = revealed(memory)
        if value is None:
            raise NotComparable(
                f"only {call.pd.impl_name} can read {name}, and the call that wrote it was not seen"
            )
        return value


def _copy(memory: Memory, host: Array, stream: Stream, wait_for: Sequence[Event]) -> None:
    """Copy a memory's bytes after the earlier commands of the stream."""
    if not host.size:
        return
    if memory.engine is not stream.engine:  # a reorder between two engines
        wait_all(wait_for)
        stream.wait()
        stream, wait_for = memory.engine.stream(), ()
    memory.engine.copy_out(stream, memory.buffer, host, wait_for).wait()


def _alias(call: Call) -> tuple[str, str] | None:
    """Return the pair of the operation's arguments that share a memory."""
    memories = call.memories
    for source, target in call.pd.op.IN_PLACE:
        if source in memories and target in memories:
            a, b = memories[source], memories[target]
            if a.buffer is b.buffer or (a.engine.is_host and a.address == b.address):
                return source, target
    return None
