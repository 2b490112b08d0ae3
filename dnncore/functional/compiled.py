"""Compiled calls: a primitive for inputs of one signature, and memories over its inputs."""

from __future__ import annotations

import ctypes
import functools
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from dnncore.attributes import Attributes
from dnncore.engines.array_kinds import DeviceArrays
from dnncore.engines.arrays import ByteView
from dnncore.engines.engine import Engine
from dnncore.engines.memory import Memory
from dnncore.engines.stream import Event, Stream
from dnncore.errors import DescriptorError
from dnncore.functional.conditions import condition
from dnncore.functional.operands import Array, truth
from dnncore.ops import Operation, Reorder
from dnncore.ops.operation import widened
from dnncore.ops.types import HALF_TYPES
from dnncore.post_op import PostOp
from dnncore.selection.primitive_desc import PrimitiveDesc, primitive_descs
from dnncore.selection.reorder import reorder
from dnncore.tensors.datatypes import rounded
from dnncore.tensors.memory_desc import MemoryDesc
from dnncore.tensors.strides import Dims

__all__ = ["CompiledCall", "Plan", "first_of_device"]

MOST_NUMBERS = 64  # on a device, per compiled call
ALIGNMENT = 128  # bytes; results are aligned to two cache lines


@dataclass(frozen=True)
class Plan:
    """The computation of a function for inputs of given shapes and types.

    shape: the shape of the returned array; by default the dims of dst.
    more: the shapes of further results by the operation's names. If there are any, the function
        returns a tuple: dst, then these in order.
    names: the names of the operation's arguments that differ from the function's names.
    prepared: functions that convert input arrays before each launch, by the function's names.
    """

    op: Operation
    shape: Dims | None = None
    post_ops: tuple[PostOp, ...] = ()
    more: Mapping[str, Dims] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    prepared: Mapping[str, Callable[[Array], Array]] = field(default_factory=dict)


class _Streams(threading.local):
    """A stream per engine and thread. They are kept because a stream owns its scratchpad."""

    def __init__(self) -> None:
        self.of: dict[Engine, Stream] = {}

    def open(self, engine: Engine) -> Stream:
        """Return the thread's stream of an engine."""
        stream = self.of.get(engine)
        if stream is None:
            stream = self.of[engine] = engine.stream()
        return stream


_streams = _Streams()


class _Output(NamedTuple):
    """A result. place: that of its argument. narrow: the type to which it is rounded, or None."""

    place: int
    desc: MemoryDesc
    nbytes: int
    shape: Dims
    narrow: Any


class CompiledCall:
    """A compiled primitive for inputs of one signature. Threads may share it."""

    def __init__(self, engine: Engine, plan: Plan, names: Sequence[str]) -> None:
        op = plan.op
        half = op.result.data_type in HALF_TYPES and not _has_own(op, engine, plan.post_ops)
        attr = Attributes(post_ops=plan.post_ops) if plan.post_ops else None
        pd = PrimitiveDesc(op.with_each(widened) if half else op, engine, attr)
        self.engine = engine
        self.primitive = pd.primitive()
        shape = op.result.dims if plan.shape is None else plan.shape
        shapes = {op.result_name: shape, **plan.more}
        outputs = {}
        argument_of = {plan.names.get(name, name): name for name in names}
        self._numbers: dict[object, Memory] = {}
        self.inputs = []
        self.places = [None] * len(pd.arguments)
        for place, (argument, desc) in enumerate(pd.arguments):
            if argument.direction == "out":
                own = getattr(op, argument.name, desc)
                narrow = own.dtype if own.data_type != desc.data_type else None
                shape = shapes[argument.name]
                outputs[argument.name] = _Output(place, desc, desc.nbytes, shape, narrow)
            else:
                name = argument_of[argument.name]
                prepared = plan.prepared.get(name)
                row = (place, names.index(name), desc, desc.nbytes, desc.dtype, prepared)
                self.inputs.append(row)
        self.outputs = [outputs[name] for name in shapes]
        self.is_rounded = any(out.narrow is not None for out in self.outputs)

    def _keep(self, key: object, memory: Memory) -> None:
        """Keep a number on the device for later calls."""
        if len(self._numbers) >= MOST_NUMBERS:
            self._numbers.clear()
        self._numbers[key] = memory

    def __call__(self, arrays: Sequence[Array]) -> list[Array]:
        """Run on arrays in the order of the signature; return new arrays."""
        results = self._on_host(arrays) if self.engine.is_host else self._on_device(arrays)
        if not self.is_rounded:
            return results
        with np.errstate(over="ignore"):
            return [
                array if out.narrow is None else array.astype(out.narrow)
                for array, out in zip(results, self.outputs, strict=True)
            ]

    def _on_host(self, arrays: Sequence[Array]) -> list[Array]:
        """Run on memories over the arrays and over new arrays."""
        engine = self.engine
        stream = _streams.open(engine)
        memories: list[Any] = self.places[:]
        for place, index, desc, nbytes, dtype, prepared in self.inputs:
            array = arrays[index]
            if prepared is None and array.dtype == dtype and array.flags.carray and nbytes:
                data = np.ndarray((nbytes,), np.uint8, array)
            else:
                data = _bytes(_ready(array, dtype, prepared), nbytes)
            memories[place] = Memory.over(desc, engine, data, nbytes, _address(data))
        results = []
        for place, desc, nbytes, shape, _ in self.outputs:
            raw = np.empty(nbytes + ALIGNMENT, np.uint8)
            address = _address(raw)
            offset = -address % ALIGNMENT
            buffer = raw[offset : offset + max(nbytes, 1)]
            memories[place] = Memory.over(desc, engine, buffer, nbytes, address + offset)
            results.append(np.ndarray(shape, desc.dtype, raw, offset))
        self.primitive.launch(stream, memories)
        stream.wait()
        return results

    def _on_device(self, arrays: Sequence[Array]) -> list[Array]:
        """Run on memories with copies of the arrays; return copies of the results."""
        stream = _streams.open(self.engine)
        memories: list[Any] = self.places[:]
        for place, index, desc, nbytes, dtype, prepared in self.inputs:
            memory = memories[place] = Memory(desc, self.engine)
            if nbytes:
                array = _ready(arrays[index], dtype, prepared)
                data = array.reshape(-1).view(np.uint8)
                self.engine.copy_in(stream, data, memory.buffer)
        for out in self.outputs:
            memories[out.place] = Memory(out.desc, self.engine)
        self.primitive.launch(stream, memories)
        return [memories[out.place].numpy(stream).reshape(out.shape) for out in self.outputs]

    def on_arrays(self, arrays: Sequence[Any], kind: DeviceArrays) -> list[Any]:
        """Run on memories over arrays of the engine; return new arrays."""
        engine = self.engine
        given = [array for array in arrays if not isinstance(array, np.ndarray)]
        like = given[0]
        stream = kind.stream(given, engine)
        memories: list[Any] = self.places[:]
        for place, index, desc, nbytes, dtype, prepared in self.inputs:
            array = arrays[index]
            if isinstance(array, np.ndarray):
                is_number = not array.ndim and prepared is None
                key = (place, array.tobytes()) if is_number else None
                memory = self._numbers.get(key)
                if memory is None:
                    memory = Memory(desc, engine)
                    if nbytes:
                        data = _ready(array, dtype, prepared).reshape(-1).view(np.uint8)
                        copied = engine.copy_in(stream, data, memory.buffer)
                        if key is not None:
                            copied.wait()  # another stream may use the memory next
                            self._keep(key, memory)
            else:
                memory = kind.memory(array, engine, desc)
                if prepared is truth:
                    memory = condition(memory, stream)
                elif prepared is not None:
                    _check_prepared(array, desc)
                memory = _on_engine(memory, desc, stream)
            memories[place] = memory
        if stream.order == "out":
            stream.wait()  # for copies and reorders, and the commands that the arrays wait for
        results = [
            kind.empty(out.shape, out.narrow or out.desc.dtype, like) for out in self.outputs
        ]
        rows = []
        for result, out in zip(results, self.outputs, strict=True):
            own = kind.memory(result, engine, out.desc if out.narrow is None else None)
            memories[out.place] = own if out.narrow is None else Memory(out.desc, engine)
            rows.append((result, own, out))
        done = self.primitive.launch(stream, memories)
        for result, own, out in rows:
            event = done
            if out.narrow is not None:
                event = _narrowed(memories[out.place], own, stream, event)
            kind.launched(given, result, stream, event)
        return results


def _narrowed(wide: Memory, result: Memory, stream: Stream, event: Event) -> Event:
    """Round a result to the type of its array."""
    desc = wide.desc.with_data_type(result.desc.data_type)
    dst = Memory(desc, result.engine, result.buffer)
    reorder = PrimitiveDesc(Reorder(src=wide.desc, dst=desc), result.engine).primitive()
    return reorder.execute(stream, src=wide, dst=dst, wait_for=[event])


def _check_prepared(array: Any, desc: MemoryDesc) -> None:
    """Refuse an array of a device if a numpy function would have to broadcast it."""
    if math.prod(array.shape) != desc.nelems:
        raise DescriptorError(
            f"on a device, src0 must have the result's shape; got {array.shape}; broadcast it"
        )


def _on_engine(memory: Memory, desc: MemoryDesc, stream: Stream) -> Memory:
    """Return the elements of a memory in the layout and type of a row-major descriptor."""
    if memory.desc is desc:
        return memory
    memory = reorder(memory, MemoryDesc(memory.desc.dims, desc.data_type), stream=stream)
    part = Memory(desc, memory.engine, memory.buffer)
    part.owner = memory.owner
    return part


def first_of_device(arrays: Sequence[Any]) -> Any:
    """Return the first array of a device."""
    return next(array for array in arrays if not isinstance(array, np.ndarray))


def _has_own(op: Operation, engine: Engine, post_ops: Sequence[PostOp]) -> bool:
    """Whether the engine has an implementation besides the reference and host fallbacks."""
    best = next(primitive_descs(op, engine, Attributes(post_ops=tuple(post_ops))), None)
    return best is not None and not best.is_reference and not best.is_host_fallback


def _ready(array: Array, dtype: Any, prepared: Callable[[Array], Array] | None) -> Array:
    """Return the array in the memory's type and row-major order: the array itself if possible."""
    if prepared is not None:
        array = prepared(array)
    elif array.dtype == np.float64 and not array.ndim:
        return _number(array.tobytes(), dtype)
    if array.dtype != dtype or not array.flags.c_contiguous:
        array = np.ascontiguousarray(array if array.dtype == dtype else rounded(array, dtype))
    return array


@functools.lru_cache(maxsize=1024)
def _number(data: bytes, dtype: Any) -> Array:
    """Return a float64 in another type. The bytes distinguish 0.0 and -0.0."""
    return rounded(np.frombuffer(data, np.float64), dtype)


def _bytes(array: Array, nbytes: int) -> Array:
    """Return the bytes of a row-major array as a writable array. Launches only read it.

    Backends get writable buffers, because another kernel would be compiled for read-only ones.
    """
    if not nbytes:
        return np.empty(1, np.uint8)
    if array.flags.writeable:
        return np.ndarray((nbytes,), np.uint8, array)
    return np.asarray(ByteView(array.ctypes.data, nbytes, array))


def _address(data: Array) -> int:
    """Return the address of the first byte. `data.ctypes` takes four times as long."""
    return ctypes.addressof(ctypes.c_char.from_buffer(data))  # type: ignore[arg-type]  # numpy 2.1 declares no buffer
