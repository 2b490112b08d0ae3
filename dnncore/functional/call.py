"""One call: takes arrays of any kind, runs the operation and returns an array of this kind.

A function of this package is a plan: it makes the operation of its inputs' shapes and types and of
its options. What a plan gives is kept per signature, with the compiled primitive. So a later call
with the same signature selects nothing and makes no descriptor. It makes memories over its inputs
and over a new result, and launches.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dnncore.attributes import Attributes, PostOp
from dnncore.cache import MemoryCache
from dnncore.engines.engine import Engine
from dnncore.engines.memory import Memory
from dnncore.engines.stream import Stream
from dnncore.engines.threads import get_num_threads
from dnncore.environment import values as values_of
from dnncore.functional.operands import Array, Values, as_array, is_untyped, typed
from dnncore.ops import Operation
from dnncore.ops.operation import widened
from dnncore.ops.types import HALF_TYPES
from dnncore.selection.plugins import engine as open_engine
from dnncore.selection.plugins import registry
from dnncore.selection.primitive_desc import PrimitiveDesc, primitive_descs
from dnncore.tensors.strides import Dims

__all__ = ["EngineLike", "Plan", "call", "calls"]

EngineLike = Engine | str | None
"""An engine, its name, or None for `dnncore.engine()`."""

ALIGNMENT = 128  # bytes, of results: two cache lines
CAPACITY = 512  # signatures
NAMES = 64  # of engines


@dataclass(frozen=True)
class Plan:
    """What a function computes for inputs of given shapes and types.

    shape: of the returned array; by default the dims of dst. names: those of the operation's
    arguments, where they are not the names of the function's. prepared: functions of input arrays,
    by the function's names, that run before each launch.
    """

    op: Operation
    shape: Dims | None = None
    post_ops: tuple[PostOp, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    prepared: Mapping[str, Callable[[Array], Array]] = field(default_factory=dict)


Planner = Callable[..., Plan]
"""Makes a plan: planner(function, operands, *options)."""


class _Streams(threading.local):
    """A stream per engine and thread. They are kept because a stream owns its scratchpad."""

    def __init__(self) -> None:
        self.of: dict[Engine, Stream] = {}

    def open(self, engine: Engine) -> Stream:
        """The thread's stream of an engine."""
        stream = self.of.get(engine)
        if stream is None:
            stream = self.of[engine] = engine.stream()
        return stream


_streams = _Streams()

_variables = values_of(
    "DNNCORE_IMPL", "DNNCORE_SKIP_IMPL", "DNNCORE_PREFER", "DNNCORE_HOST_FALLBACK"
)


def call(
    planner: Planner, function: str, values: dict[str, Values], engine: EngineLike, *options: Any
) -> Any:
    """Return the result of a function as a new array of the inputs' kind.

    function: its name, for messages. values: its inputs by name; a bias of None is left out.
    options: of the planner. Raises `DescriptorError` for values and options that do not fit, and
    the errors of `dnncore.engine`, `PrimitiveDesc` and `Primitive.execute`.

    If the engine has only the reference or the host fallback for half types, the operation is
    computed with float32 tensors and the result is rounded. Half types are also summed in float32.
    """
    arrays: list[Array] = []
    signature: list[Any] = []
    for name, value in values.items():
        if type(value) is np.ndarray:
            arrays.append(value)
            signature += (value.shape, value.dtype)
        elif value is not None or name != "bias":
            own = np.float64 if name == "condition" else np.float32
            array = as_array(f"{function}: {name}", value, own)
            arrays.append(array)
            has_type = name == "condition" or not is_untyped(value)
            signature += (array.shape, array.dtype if has_type else None)
    engine = _opened(engine)
    exact = _exact(options)
    if exact is None:
        return _made(planner, function, values, signature, engine, options)(arrays)
    circumstances = (registry.generation, get_num_threads(), _variables())
    key = (planner, function, engine, exact, circumstances, *signature)
    make = functools.partial(_made, planner, function, values, signature, engine, options)
    return calls.get(key, make)(arrays)


def _opened(engine: EngineLike) -> Engine:
    """The engine, opened if given by name. Raises the errors of `dnncore.engine`."""
    if isinstance(engine, Engine):
        return engine
    if engine is not None and type(engine) is not str:
        return open_engine(engine)
    key = (engine, _default(), registry.generation)
    found = _engines.get(key)
    if found is None or found.is_lost:
        if len(_engines) >= NAMES:
            _engines.clear()
        found = _engines[key] = open_engine(engine)
    return found


_default = values_of("DNNCORE_ENGINE")
_engines: dict[object, Engine] = {}  # by name; `dnncore.engine` takes 2 us


def _exact(options: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """A key of options that differs for 1, 1.0 and True, and for 0.0 and -0.0.

    None for objects that may change or that hashes do not tell apart.
    """
    kinds = tuple(map(type, options))
    if _IMMUTABLE.issuperset(kinds):
        return kinds, options
    key: list[Any] = []
    for kind, option in zip(kinds, options, strict=True):
        part = _exact(option) if kind is tuple else option.hex() if kind is float else option
        if part is None and kind is tuple or kind not in _EXACT:
            return None
        key.append(part)
    return kinds, tuple(key)


_IMMUTABLE = frozenset((int, str, bool, type(None), PostOp))
_EXACT = _IMMUTABLE | {float, tuple}


class _Call:
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
        self.inputs = []
        self.places = [None] * len(pd.arguments)
        for place, (argument, desc) in enumerate(pd.arguments):
            if argument.name == "dst":
                self.result_place = place
            else:
                name = argument_of[argument.name]
                prepared = plan.prepared.get(name)
                row = (place, names.index(name), desc, desc.nbytes, desc.dtype, prepared)
                self.inputs.append(row)

    def __call__(self, arrays: Sequence[Array]) -> Array:
        """Run on arrays in the order of the signature; return a new array."""
        result = self._on_host(arrays) if self.engine.is_host else self._on_device(arrays)
        if self.narrow is not None:
            with np.errstate(over="ignore"):
                return result.astype(self.narrow)
        return result

    def _on_host(self, arrays: Sequence[Array]) -> Array:
        """Run on memories over the arrays, into a new array."""
        engine = self.engine
        stream = _streams.open(engine)
        memories: list[Any] = self.places[:]
        for place, index, desc, nbytes, dtype, prepared in self.inputs:
            array = _ready(arrays[index], dtype, prepared)
            data = _bytes(array, nbytes)
            start = _address(data)
            memories[place] = Memory.over(desc, engine, data, (start, start + nbytes))
        raw = np.empty(self.nbytes + ALIGNMENT, np.uint8)
        address = _address(raw)
        offset = -address % ALIGNMENT
        span = (address + offset, address + offset + self.nbytes)
        buffer = raw[offset : offset + max(self.nbytes, 1)]
        memories[self.result_place] = Memory.over(self.dst, engine, buffer, span)
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


calls: MemoryCache[_Call] = MemoryCache(CAPACITY)
"""Compiled calls by signature, the least recently used of which are dropped."""


def _made(
    planner: Planner,
    function: str,
    values: Mapping[str, Values],
    signature: Sequence[Any],
    engine: Engine,
    options: tuple[Any, ...],
) -> _Call:
    names = [name for name, value in values.items() if value is not None or name != "bias"]
    shapes = dict(zip(names, signature[::2], strict=True))
    types = dict(zip(names, signature[1::2], strict=True))
    plan = planner(function, typed(function, shapes, types), *options)
    return _Call(engine, plan, names)


def _has_own(op: Operation, engine: Engine, post_ops: Sequence[PostOp]) -> bool:
    """Whether the engine has an implementation other than the reference and host fallbacks."""
    best = next(primitive_descs(op, engine, Attributes(post_ops=tuple(post_ops))), None)
    return best is not None and not best.is_reference and not best.is_host_fallback


def _ready(array: Array, dtype: Any, prepared: Callable[[Array], Array] | None) -> Array:
    """The array in the memory's type and in row-major order: itself, if it has both."""
    if prepared is not None:
        array = prepared(array)
    if array.dtype != dtype or not array.flags.c_contiguous:
        array = np.asarray(array, dtype, order="C")
    return array


def _bytes(array: Array, nbytes: int) -> Array:
    """The bytes of a row-major array as a writable array, which launches only read.

    Backends get writable buffers, because a kernel would be compiled anew for read-only ones.
    """
    if not nbytes:
        return np.empty(1, np.uint8)
    if array.flags.writeable:
        return np.ndarray((nbytes,), np.uint8, array)
    return np.asarray(_Alias(array, nbytes))


class _Alias:
    """The elements of a read-only array, as a writable array of bytes."""

    __slots__ = ("__array_interface__", "array")

    def __init__(self, array: Array, nbytes: int) -> None:
        self.array = array
        place = (array.ctypes.data, False)
        shape = (nbytes,)
        self.__array_interface__ = {"shape": shape, "typestr": "|u1", "data": place, "version": 3}


def _address(data: Array) -> int:
    """The address of the first of at least one byte; `data.ctypes` takes four times as long."""
    return ctypes.addressof(ctypes.c_char.from_buffer(data))
