"""Compiled calls: a primitive for inputs of one signature, and memories over its inputs."""

from __future__ import annotations

import ctypes
import functools
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dnncore.attributes import Attributes, PostOp
from dnncore.engines.array_kinds import DeviceArrays
from dnncore.engines.arrays import ByteView
from dnncore.engines.engine import Engine
from dnncore.engines.memory import Memory
from dnncore.engines.stream import Stream
from dnncore.errors import DescriptorError
from dnncore.functional.conditions import condition
from dnncore.functional.operands import Array, truth
from dnncore.ops import Operation, Reorder
from dnncore.ops.operation import widened
from dnncore.ops.types import HALF_TYPES
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
    names: the names of the operation's arguments that differ from the function's names.
    prepared: functions that convert input arrays before each launch, by the function's names.
    """

    op: Operation
    shape: Dims | None = None
    post_ops: tuple[PostOp, ...] = ()
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


class CompiledCall:
    """A compiled primitive for inputs of one signature. Threads may share it."""

    def __init__(self, engine: Engine, plan: Plan, names: Sequence[str]) -> None:
        op = plan.op
        half = op.result.data_type in HALF_TYPES and not _has_own(op, engine, plan.post_ops)
        attr = Attributes(post_ops=plan.post_ops) if plan.post_ops else None
        pd = PrimitiveDesc(op.with_each(widened) if half else op, engine, attr)
        self.engine = engine
        self.primitive = pd.primitive()
        self.dst = pd.op.result
        self.nbytes = self.dst.nbytes
        self.shape = op.result.dims if plan.shape is None else plan.shape
        self.narrow = op.result.dtype if half else None
        argument_of = {plan.names.get(name, name): name for name in names}
        self._numbers: dict[object, Memory] = {}
        self.inputs = []
        self.places = [None] * len(pd.arguments)
        for place, (argument, desc) in enumerate(pd.arguments):
            if argument.name == op.result_name:
                self.result_place = place
            else:
                name = argument_of[argument.name]
                prepared = plan.prepared.get(name)
                row = (place, names.index(name), desc, desc.nbytes, desc.dtype, prepared)
                self.inputs.append(row)

    def _keep(self, key: object, memory: Memory) -> None:
        """Keep a number on the device for later calls."""
        if len(self._numbers) >= MOST_NUMBERS:
            self._numbers.clear()
        self._numbers[key] = memory

    def __call__(self, arrays: Sequence[Array]) -> Array:
        """Run on arrays in the order of the signature; return a new array."""
        result = self._on_host(arrays) if self.engine.is_host else self._on_device(arrays)
        if self.narrow is None:
            return result
        with np.errstate(over="ignore"):
            return result.astype(self.narrow)

    def _on_host(self, arrays: Sequence[Array]) -> Array:
        """Run on memories over the arrays and over a new array."""
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
        raw = np.empty(self.nbytes + ALIGNMENT, np.uint8)
        address = _address(raw)
        offset = -address % ALIGNMENT
        buffer = raw[offset : offset + max(self.nbytes, 1)]
        memories[self.result_place] = Memory.over(
            self.dst, engine, buffer, self.nbytes, address + offset
        )
        self.primitive.launch(stream, memories)
        stream.wait()
        return np.ndarray(self.shape, self.dst.dtype, raw, offset)

    def _on_device(self, arrays: Sequence[Array]) -> Array:
        """Run on memories with copies of the arrays; return a copy of the result."""
        stream = _streams.open(self.engine)
        memories: list[Any] = self.places[:]
        for place, index, desc, nbytes, dtype, prepared in self.inputs:
            memory = memories[place] = Memory(desc, self.engine)
            if nbytes:
                array = _ready(arrays[index], dtype, prepared)
                data = array.reshape(-1).view(np.uint8)
                self.engine.copy_in(stream, data, memory.buffer)
        dst = memories[self.result_place] = Memory(self.dst, self.engine)
        self.primitive.launch(stream, memories)
        return dst.numpy(stream).reshape(self.shape)

    def on_arrays(self, arrays: Sequence[Any], kind: DeviceArrays) -> Any:
        """Run on memories over arrays of the engine; return a new array."""
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
        result = kind.empty(self.shape, self.narrow or self.dst.dtype, like)
        dst = kind.memory(result, engine, self.dst if self.narrow is None else None)
        wide = dst if self.narrow is None else Memory(self.dst, engine)
        memories[self.result_place] = wide
        event = self.primitive.launch(stream, memories)
        if wide is not dst:
            dst = Memory(self.dst.with_data_type(dst.desc.data_type), engine, dst.buffer)
            op = Reorder(src=wide.desc, dst=dst.desc)
            event = (
                PrimitiveDesc(op, engine)
                .primitive()
                .execute(stream, src=wide, dst=dst, wait_for=[event])
            )
        kind.launched(given, result, stream, event)
        return result


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
