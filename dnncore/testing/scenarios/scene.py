"""The state of a scenario: its engines, streams, tensors and replayed sequences."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from random import Random
from typing import Any, TypeVar

import numpy as np

from dnncore.attributes import Attributes
from dnncore.engines.engine import Engine
from dnncore.engines.memory import Memory
from dnncore.engines.stream import Event, Order, Stream
from dnncore.errors import DescriptorError
from dnncore.execution.sequence import Sequence as Replayed
from dnncore.ops import Operation
from dnncore.selection.primitive_desc import PrimitiveDesc
from dnncore.tensors.memory_desc import MemoryDesc
from dnncore.testing.problems.random_problems import MOVES, moved
from dnncore.testing.scenarios.model import Arena, Tensor, places

__all__ = ["Call", "Recorded", "Scene", "Unsupported", "Wrong", "opened"]

Array = np.ndarray[Any, Any]
T = TypeVar("T")

DIMS = ((2, 9, 4, 4), (1, 17, 5, 5), (3, 8, 6, 6), (2, 16, 3, 3), (1, 3, 7, 7), (2, 4, 16, 16))
MOST_COMMANDS = 8  # commands that use a buffer before something waits for them
FORMATS = ("abcd", "acdb", "bacd", "dcba", "aBcd8b", "aBcd16b", "ABcd4a8b", "ABcd4b4a2b")
TYPES = ("f32",) * 8 + ("f16", "bf16", "s8", "u8", "s32")
LEAST, MOST = -4, 4  # integers that all types represent, except that u8 has none below 0
VIEWS = 0.15  # the share of inputs that are views of other tensors, if views exist
LAG = 0.03  # seconds in which the model computes a few steps
GARBAGE = 0xFF  # NaN in f32, which shows wrong reads


class Unsupported(Exception):
    """No implementation computes what a step has chosen."""


class Wrong(Exception):
    """The result of a scenario differs from its model."""


@dataclass(frozen=True)
class Call:
    """An execution: an operation, its attributes, and tensors by the names of its arguments.

    outputs: the names of the written tensors, the operation's result first.
    constants: inputs that no step changes, as values.
    """

    op: Operation
    attr: Attributes
    tensors: dict[str, Tensor]
    outputs: tuple[str, ...]
    constants: dict[str, Array]
    name: str


@dataclass(frozen=True)
class Recorded:
    """A sequence and its calls."""

    replayed: Replayed
    calls: list[Call]
    engine: Engine


def opened(rng: Random, engine: Engine) -> Stream:
    """Open a new stream of any kind. Some are slow, so that a missing wait is detected."""
    order: Order = "in" if engine.is_host else rng.choice(("in", "out"))
    is_profiling = rng.random() < 0.3
    try:
        stream = engine.stream(order, profiling=is_profiling)
    except DescriptorError:  # an engine need not support every kind
        stream = engine.stream()
    if stream.lag is not None and rng.random() < 0.5:
        stream.lag = LAG
    return stream


class Scene:
    """The state that the steps of a scenario share.

    seed: determines the dims and the first streams.
    impl: a pattern of the implementations that most calls use, if they accept; "" means all except
        the reference.
    dims: the dims of most tensors, (N, C, H, H).
    log: a line for each step.
    made: references to all memories of tensors.
    """

    def __init__(self, engines: Sequence[Engine], seed: int, impl: str = "") -> None:
        rng = Random(f"{seed}")  # noqa: S311 - reproducible
        self.engines = engines
        self.dims = rng.choice(DIMS)
        self.impl = impl
        self.streams = [engine.stream() for engine in engines]
        self.streams += [opened(rng, engine) for engine in engines]
        self.tensors: list[Tensor] = []
        self.recorded: list[Recorded] = []
        self.log: list[str] = []
        self.made: list[weakref.ref[Memory]] = []

    # -- choices -----------------------------------------------------------------------------------

    def prefers(self, pd: PrimitiveDesc) -> bool:
        """Whether most calls use this implementation, if there are several."""
        if self.impl:
            return fnmatchcase(pd.impl_name, self.impl)
        return not pd.is_reference

    def stream(self, rng: Random, *engines: Engine) -> Stream:
        """Return a stream of one of these engines."""
        return rng.choice([s for s in self.streams if s.engine in engines])

    def input(
        self, rng: Random, engine: Engine, dims: tuple[int, ...], types: Sequence[str]
    ) -> Tensor:
        """Return a tensor of the scene, or a view of one; a new tensor if none has these
        properties.
        """
        if rng.random() < VIEWS:
            view = self.view(rng, engine, dims, types)
            if view:
                return view
        found = [
            t
            for t in self.tensors
            if t.arena.engine is engine and t.desc.dims == dims and t.desc.data_type in types
        ]
        return rng.choice(found) if found else self.new(rng, engine, dims, rng.choice(types))

    def output(
        self, rng: Random, engine: Engine, like: MemoryDesc, inputs: Iterable[Tensor]
    ) -> Tensor:
        """Return a tensor that may be written while the inputs are read; often a new tensor."""
        found = [
            t
            for t in self.tensors
            if t.arena.engine is engine
            and (t.desc.dims, t.desc.data_type) == (like.dims, like.data_type)
            and not t.desc.has_repeats
            and t.is_apart_from(inputs)
        ]
        if found and rng.random() < 0.7:
            return rng.choice(found)
        return self.new(rng, engine, like.dims, like.data_type)

    def tag(self, rng: Random, dims: tuple[int, ...]) -> str | None:
        """Return a format tag; None, which is row-major, unless there are four dims."""
        return rng.choice(FORMATS) if len(dims) == len(FORMATS[0]) else None

    def layout(self, rng: Random, dims: tuple[int, ...], data_type: str) -> MemoryDesc:
        """Return a descriptor with any order, blocks, gaps and offset."""

        def choose(values: Sequence[T]) -> T:
            return rng.choice(values)

        return moved(choose, MemoryDesc(dims, data_type, self.tag(rng, dims)), choose(MOVES))

    # -- tensors -----------------------------------------------------------------------------------

    def new(
        self,
        rng: Random,
        engine: Engine,
        dims: tuple[int, ...],
        data_type: str,
        desc: MemoryDesc | None = None,
    ) -> Tensor:
        """Return a new tensor with values, in a separate buffer or in one with other tensors.

        desc: by default, any layout.
        """
        values = self.values(rng, dims, data_type)
        way = "placed" if desc else rng.choice(("array", "format", "part", "beside", "beside"))
        if way == "array":
            tensor = self.adopt(Memory.from_numpy(values, None, engine))
        elif way == "format":
            desc = MemoryDesc(dims, data_type, self.tag(rng, dims))
            tensor = self.adopt(Memory.from_numpy(values, desc, engine))
        else:
            if way == "part":
                tensor = self.part(rng, engine, dims, data_type)
            elif desc:
                tensor = self.placed(rng, engine, desc)
            else:
                desc = self.layout(rng, dims, data_type)
                tensor = self.beside(rng, engine, desc) or self.placed(rng, engine, desc)
            self.write(tensor, values, "rw")
        self.note(f"{tensor.name} = new {tensor.desc} on {engine.name} ({way})")
        return tensor

    def placed(self, rng: Random, engine: Engine, desc: MemoryDesc) -> Tensor:
        """Return a tensor in a new buffer, which may have room for other tensors."""
        room = rng.choice((0, 64, 4096, 16384))
        whole = Memory(MemoryDesc((max(1, desc.nbytes + room),), "u8"), engine)
        right = np.full(whole.nbytes, GARBAGE, np.uint8)
        engine.copy_in(engine.stream(), right, whole.buffer).wait()
        arena = Arena(engine, whole.buffer, right, whole, desc.nbytes)
        return self.add(Tensor(Memory(desc, engine, whole.buffer), arena))

    def beside(self, rng: Random, engine: Engine, desc: MemoryDesc) -> Tensor | None:
        """Return a tensor in the buffer of another tensor; None if no buffer has room."""
        for tensor in rng.sample(self.tensors, len(self.tensors)):
            arena = tensor.arena
            first = -(-arena.used // desc.itemsize) + desc.offset0
            moved_desc = desc.with_offset0(first)
            if arena.engine is engine and moved_desc.nbytes <= arena.right.size:
                arena.used = moved_desc.nbytes
                return self.add(Tensor(Memory(moved_desc, engine, arena.buffer), arena))
        return None

    def view(
        self, rng: Random, engine: Engine, dims: tuple[int, ...], types: Sequence[str]
    ) -> Tensor | None:
        """Return a tensor of the first elements of another tensor, with other dims or strides; None
        if there is no such tensor.
        """
        order = rng.sample(range(len(dims)), len(dims))
        for tensor in rng.sample(self.tensors, len(self.tensors)):
            desc = tensor.desc
            is_dense = desc.is_plain and desc.nbytes == (desc.offset0 + desc.nelems) * desc.itemsize
            if tensor.arena.engine is not engine or not is_dense or desc.data_type not in types:
                continue
            if desc.nelems >= math.prod(dims):
                tag = "".join("abcdefghijkl"[dim] for dim in order)
                other = MemoryDesc(dims, desc.data_type, tag).with_offset0(desc.offset0)
                view = self.add(Tensor(Memory(other, engine, tensor.arena.buffer), tensor.arena))
                self.note(f"{view.name} = {view.desc}, a view of {tensor.name}")
                return view
        return None

    def part(self, rng: Random, engine: Engine, dims: tuple[int, ...], data_type: str) -> Tensor:
        """Return one of two parts of a tensor of twice the size. The other part is added to the
        scene.
        """
        dim = rng.randrange(len(dims))
        double = tuple(2 * n if i == dim else n for i, n in enumerate(dims))
        desc = MemoryDesc(double, data_type, self.tag(rng, dims))
        if dims[dim] % math.prod(size for place, size in desc.inner_blocks if place == dim):
            desc = MemoryDesc(double, data_type, None)
        both = self.placed(rng, engine, desc)
        self.tensors.remove(both)
        self.write(both, self.values(rng, double, data_type), "w")
        parts = []
        for i in (0, 1):
            offsets = tuple(i * dims[dim] if k == dim else 0 for k in range(len(dims)))
            part = self.add(Tensor(both.memory.submemory(dims, offsets), both.arena))
            cut = tuple(slice(start, start + n) for start, n in zip(offsets, dims, strict=True))
            if not np.array_equal(places(part.desc, dims), places(both.desc, double)[cut]):
                raise Wrong(f"{part.desc} is not the part of {both.desc} at {offsets}")
            parts.append(part)
        return rng.choice(parts)

    def adopt(self, memory: Memory) -> Tensor:
        """Return a tensor of a memory with its own buffer. Its present bytes are the expected
        bytes.
        """
        right = np.empty(memory.nbytes, np.uint8)
        memory.engine.copy_out(memory.engine.stream(), memory.buffer, right).wait()
        return self.add(
            Tensor(memory, Arena(memory.engine, memory.buffer, right, memory, right.size))
        )

    def add(self, tensor: Tensor) -> Tensor:
        """Add a tensor. Its name is unique."""
        tensor.name = f"t{len(self.made)}"
        self.made.append(weakref.ref(tensor.memory))
        self.tensors.append(tensor)
        tensor.arena.descs.add(tensor.desc)
        return tensor

    def write(self, tensor: Tensor, values: Array, mode: Any) -> None:
        """Write values from the host."""
        tensor.arena.settle()
        with tensor.memory.map(mode=mode) as buffer:
            tensor.desc.pack(values, buffer)
        tensor.store(values)

    def values(self, rng: Random, dims: tuple[int, ...], data_type: str) -> Array:
        """Return random integers."""
        least = 0 if data_type == "u8" else LEAST
        numbers = np.random.default_rng(rng.getrandbits(32)).integers(least, MOST + 1, dims)
        return numbers.astype(MemoryDesc((1,), data_type).dtype)

    # -- order of commands -------------------------------------------------------------------------

    def waits(
        self, rng: Random, stream: Stream, inputs: Iterable[Tensor], outputs: Iterable[Tensor]
    ) -> list[Event]:
        """Return events for which a command on this stream must wait.

        In some cases, the host waits for them. Commands of the same in-order stream need no event.
        """
        commands = [c for t in inputs for c in t.arena.commands(written=False)]
        commands += [c for t in outputs for c in t.arena.commands(written=True)]
        events = []
        for other, event in commands:
            if other is stream and stream.order == "in":
                continue
            way = rng.randrange(6)
            if way == 0:
                event.wait()
            elif way == 1:
                other.wait()
            else:
                events.append(event)
        return events

    def launched(
        self, stream: Stream, event: Event, inputs: Iterable[Tensor], outputs: Iterable[Tensor]
    ) -> None:
        """Record a command that may still be running."""
        for tensors, kept in ((inputs, "reads"), (outputs, "writes")):
            for tensor in tensors:
                commands = getattr(tensor.arena, kept)
                commands.append((stream, event))
                if len(commands) > MOST_COMMANDS:
                    tensor.arena.settle()

    # -- judgement ---------------------------------------------------------------------------------

    def check(self, arena: Arena) -> None:
        """Compare all bytes of a buffer with the model. Raises `Wrong`."""
        differ = arena.wrong()
        if not differ.any():
            return
        names = []
        for tensor in self.tensors:
            if tensor.arena is arena:
                count = int((differ & tensor.owned()).sum())
                names += [f"{count} bytes of {tensor.name} {tensor.desc}"] if count else []
                differ &= ~tensor.owned()
        outside = np.flatnonzero(differ)
        if outside.size:
            names.append(f"{outside.size} bytes of no present tensor, the first is {outside[0]}")
        raise Wrong(f"wrong on {arena.engine.name}: {'; '.join(names)}")

    def note(self, text: str) -> None:
        """Add a line to the log."""
        self.log.append(text)

    def check_all(self) -> None:
        """Compare the buffers of all tensors."""
        for tensor in self.tensors:
            self.check(tensor.arena)

    def check_freed(self) -> None:
        """Drop all objects of the scenario, and check that its memories are freed."""
        for stream in self.streams:
            stream.wait()
        self.streams, self.tensors, self.recorded = [], [], []
        gc.collect()
        left = [f"t{i}" for i, memory in enumerate(self.made) if memory() is not None]
        if left:
            raise Wrong(f"still in memory although nothing uses them: {', '.join(left)}")
