"""One call: values become memories, the operation runs, its result becomes an array."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dnncore.attributes import Attributes, PostOp
from dnncore.engine import Engine
from dnncore.errors import DescriptorError
from dnncore.memory import Memory
from dnncore.memory_desc import MemoryDesc
from dnncore.ops import Operation
from dnncore.plugins import engine as open_engine
from dnncore.primitive_desc import PrimitiveDesc
from dnncore.stream import Stream

__all__ = [
    "Array", "EngineLike", "Values",
    "arrays", "check_rank", "desc", "descs", "opened", "run", "truth",
]  # fmt: skip

Array = np.ndarray[Any, Any]
Values = Any
"""Whatever `arrays` takes: arrays of any library in host memory, numbers, nested lists."""
EngineLike = Engine | str | None
"""An engine, its name, or None for `dnncore.engine()`."""


class _Streams(threading.local):
    """A stream per engine, kept since it owns the scratchpad; a thread's own, as streams are."""

    def __init__(self) -> None:
        self.of: dict[Engine, Stream] = {}


_streams = _Streams()


def arrays(function: str, **values: Values) -> dict[str, Array]:
    """Each value as a row-major float32 array, itself if it is one; a bias of None is left out.

    Raises `DescriptorError` for a value that has no exact float32, told by the function's and the
    argument's name.
    """
    if "bias" in values and values["bias"] is None:
        del values["bias"]
    return {name: _array(f"{function}: {name}", value) for name, value in values.items()}


def truth(what: str, values: Values) -> Array:
    """Where the values, real numbers of any type, are not 0; `DescriptorError` for others."""
    array = _as_numpy(what, values, np.float64)
    if not any(np.can_cast(array.dtype, wide, "safe") for wide in (np.float64, np.longdouble)):
        raise DescriptorError(f"{what} must be booleans or real numbers; got {array.dtype}")
    nonzero: Array = array != 0
    return nonzero


def _array(what: str, values: Values) -> Array:
    array = _as_numpy(what, values, np.float32)
    if not np.can_cast(array.dtype, np.float32, "safe"):
        raise DescriptorError(
            f"{what} must be of a type whose values float32 holds exactly, since that is what is"
            f" computed in; got {array.dtype}; convert it with astype(numpy.float32)"
        )
    return np.asarray(array, np.float32, order="C")


def _as_numpy(what: str, values: Values, own: Any) -> Array:
    """The values, without copying where they are an array's; Python's numbers become type `own`."""
    try:
        if hasattr(values, "__dlpack__") and not hasattr(values, "__array__"):
            return np.from_dlpack(values)
        if isinstance(values, np.ma.MaskedArray):
            raise TypeError("its mask would be dropped; replace what is masked with filled(value)")
        array = np.asarray(values)
        if array.dtype == object:
            raise TypeError("these are objects of Python, not numbers")
        if isinstance(values, int | float | list | tuple) and not isinstance(values, np.generic):
            if array.dtype.kind in "USMmc":
                raise TypeError(f"these are of type {array.dtype}, not real numbers")
            return array.astype(own)
    except Exception as error:  # other libraries raise what they like
        raise DescriptorError(
            f"{what} must be an array in host memory or nested lists of numbers;"
            f" got {type(values).__name__}: {error}"
        ) from error
    return array


def check_rank(function: str, name: str, array: Array, shape: str, *ranks: int) -> None:
    """Raise `DescriptorError` unless the array has one of these ranks; `shape` says it in words."""
    if array.ndim not in ranks:
        raise DescriptorError(f"{function}: {name} must be {shape}; got {array.shape}")


def desc(array: Array) -> MemoryDesc:
    """The row-major descriptor of an array; a single number has dims (1,)."""
    return MemoryDesc(array.shape or (1,), "s8" if array.dtype == np.int8 else "f32")


def descs(tensors: Mapping[str, Array]) -> dict[str, Any]:
    """The descriptor of each array."""
    return {name: desc(array) for name, array in tensors.items()}


def opened(engine: EngineLike) -> Engine:
    """The engine that is meant; raises what `dnncore.engine` raises."""
    return engine if isinstance(engine, Engine) else open_engine(engine)


def run(
    op: Operation,
    tensors: Mapping[str, Array],
    engine: EngineLike,
    post_ops: Sequence[PostOp] = (),
) -> Array:
    """Compute `op` by the best implementation on the engine and return its dst, a new array.

    Primitive descriptors and primitives come from the core's caches, so that a second call with the
    same shapes compiles nothing. Raises what `PrimitiveDesc` and `Primitive.execute` raise.
    """
    engine = opened(engine)
    stream = _streams.of.get(engine)
    if stream is None:
        stream = _streams.of[engine] = engine.stream()
    attr = Attributes(post_ops=tuple(post_ops)) if post_ops else None
    pd = PrimitiveDesc(op, engine, attr)
    given: dict[str, Any] = {
        name: _memory(array, pd.descs[name], stream) for name, array in tensors.items()
    }
    dst = _result_memory(op.result, engine)
    pd.primitive().execute(stream, **given, dst=dst)
    return dst.numpy(stream)


def _memory(array: Array, desc: MemoryDesc, stream: Stream) -> Memory:
    """A memory with the array's values; on a host engine it is the array's own, if writable."""
    engine = stream.engine
    data = array.reshape(-1).view(np.uint8)
    if engine.is_host:
        shared = data if data.flags.writeable and data.size else data.copy()
        return Memory(desc, engine, shared)
    memory = Memory(desc, engine)
    if data.size:
        engine.copy_in(stream, data, memory.buffer)
    return memory


def _result_memory(desc: MemoryDesc, engine: Engine) -> Memory:
    """A memory for the result, which on a host engine lives on in the array that is returned."""
    buffer = open_engine("cpu").allocate(desc.nbytes) if engine.is_host else None
    return Memory(desc, engine, buffer)
