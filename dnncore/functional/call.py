"""One call: makes memories of arrays, runs the operation and returns an array."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.ma import MaskedArray  # numpy would import it at a call, beside which a process may fork

from dnncore.attributes import Attributes, PostOp
from dnncore.engines.engine import Engine, aligned_bytes
from dnncore.engines.memory import Memory
from dnncore.engines.stream import Stream
from dnncore.errors import DescriptorError
from dnncore.interrupts import pass_on
from dnncore.ops import Operation
from dnncore.ops.operation import widened
from dnncore.ops.types import HALF_TYPES
from dnncore.selection.plugins import engine as open_engine
from dnncore.selection.primitive_desc import PrimitiveDesc, primitive_descs
from dnncore.tensors.datatypes import from_numpy_dtype, numpy_dtype
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = [
    "Array", "EngineLike", "Values",
    "arrays", "check_rank", "desc", "descs", "opened", "result_desc", "run", "truth",
]  # fmt: skip

Array = np.ndarray[Any, Any]
Values = Any
"""Input of `arrays`: an array of any library in host memory, a number or a nested list."""
EngineLike = Engine | str | None
"""An engine, its name, or None for `dnncore.engine()`."""

_HALVES = tuple(map(numpy_dtype, HALF_TYPES))


class _Streams(threading.local):
    """A stream per engine and thread. They are kept because a stream owns its scratchpad."""

    def __init__(self) -> None:
        self.of: dict[Engine, Stream] = {}


_streams = _Streams()


def arrays(function: str, **values: Values) -> dict[str, Array]:
    """Convert each value to a row-major array. A row-major array is returned itself.

    A bias of None is left out. All arrays get one type: float16 or bfloat16 if one array has this
    type and the others fit into it, else float32. A bias is never rounded. Python's numbers are
    rounded to float32. Raises `DescriptorError` for arrays of a type whose values float32 does not
    hold exactly, with the names of the function and the argument.
    """
    if "bias" in values and values["bias"] is None:
        del values["bias"]
    found = {n: _as_numpy(f"{function}: {n}", value, np.float32) for n, value in values.items()}
    own = _common_type(
        [a.dtype for n, a in found.items() if n != "bias" and not _is_untyped(values[n])]
    )
    types = dict.fromkeys(found, own)
    if "bias" in found and found["bias"].dtype != own:
        types["bias"] = np.dtype(np.float32)
    return {n: _converted(f"{function}: {n}", array, types[n]) for n, array in found.items()}


def truth(what: str, values: Values) -> Array:
    """An array, true where a real number is not 0. Raises `DescriptorError` for other types."""
    array = _as_numpy(what, values, np.float64)
    if not any(np.can_cast(array.dtype, wide, "safe") for wide in (np.float64, np.longdouble)):
        raise DescriptorError(f"{what} must be booleans or real numbers; got {array.dtype}")
    nonzero: Array = array != 0
    return nonzero


def _common_type(dtypes: Sequence[Any]) -> Any:
    """The half type of one of them if all others fit into it, else float32."""
    halves = [dtype for dtype in dtypes if dtype in _HALVES]
    fit = halves and all(np.can_cast(dtype, halves[0], "safe") for dtype in dtypes)
    return halves[0] if fit else np.dtype(np.float32)


def _converted(what: str, array: Array, own: Any) -> Array:
    if not np.can_cast(array.dtype, np.float32, "safe"):
        raise DescriptorError(
            f"{what} must be of a type whose values float32 holds exactly, since the computation"
            f" uses float32; got {array.dtype}; convert it with astype(numpy.float32)"
        )
    return np.asarray(array, own, order="C")


def _is_untyped(values: Values) -> bool:
    """Whether these are numbers of Python, which have no numpy type."""
    return isinstance(values, int | float | list | tuple) and not isinstance(values, np.generic)


def _as_numpy(what: str, values: Values, own: Any) -> Array:
    """The values as an array, without a copy if possible. Python's numbers get the type `own`."""
    try:
        if hasattr(values, "__dlpack__") and not hasattr(values, "__array__"):
            return np.from_dlpack(values)
        if isinstance(values, MaskedArray):
            raise TypeError("its mask would be dropped; replace masked elements with filled(value)")
        array = np.asarray(values)
        if array.dtype == object:
            raise TypeError("these are objects of Python, not numbers")
        if _is_untyped(values):
            if array.dtype.kind in "USMmc":
                raise TypeError(f"these are of type {array.dtype}, not real numbers")
            return array.astype(own)
    except Exception as error:  # arrays of other libraries may raise any exception
        pass_on(error)
        raise DescriptorError(
            f"{what} must be an array in host memory or nested lists of numbers;"
            f" got {type(values).__name__}: {error}"
        ) from error
    return array


def check_rank(function: str, name: str, array: Array, shape: str, *ranks: int) -> None:
    """Raise `DescriptorError` unless the array has one of these ranks. `shape` describes them."""
    if array.ndim not in ranks:
        raise DescriptorError(f"{function}: {name} must be {shape}; got {array.shape}")


def desc(array: Array) -> MemoryDesc:
    """The row-major descriptor of an array. A single number has dims (1,)."""
    return MemoryDesc(array.shape or (1,), from_numpy_dtype(array.dtype))


def result_desc(dims: Sequence[int], array: Array) -> MemoryDesc:
    """The row-major descriptor of a result with the type of the array."""
    return MemoryDesc(tuple(dims) or (1,), from_numpy_dtype(array.dtype))


def descs(tensors: Mapping[str, Array]) -> dict[str, Any]:
    """The descriptor of each array."""
    return {name: desc(array) for name, array in tensors.items()}


def opened(engine: EngineLike) -> Engine:
    """The engine, opened if given by name. Raises the errors of `dnncore.engine`."""
    return engine if isinstance(engine, Engine) else open_engine(engine)


def run(
    op: Operation,
    tensors: Mapping[str, Array],
    engine: EngineLike,
    post_ops: Sequence[PostOp] = (),
) -> Array:
    """Compute `op` with the best implementation on the engine. Returns dst as a new array.

    Primitive descriptors and primitives come from the core's caches, so a second call with the same
    shapes compiles nothing. Raises the errors of `PrimitiveDesc` and `Primitive.execute`.

    If the engine has only the reference or the host fallback for half types, the operation is
    computed with float32 tensors and the result is rounded. Half types are also summed in float32.
    """
    engine = opened(engine)
    if op.result.data_type in HALF_TYPES and not _has_own(op, engine, post_ops):
        wide = {n: a if a.dtype == np.int8 else a.astype(np.float32) for n, a in tensors.items()}
        with np.errstate(over="ignore"):
            return run(op.with_each(widened), wide, engine, post_ops).astype(op.result.dtype)
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


def _has_own(op: Operation, engine: Engine, post_ops: Sequence[PostOp]) -> bool:
    """Whether the engine has an implementation other than the reference and host fallbacks."""
    best = next(primitive_descs(op, engine, Attributes(post_ops=tuple(post_ops))), None)
    return best is not None and not best.is_reference and not best.is_host_fallback


def _memory(array: Array, desc: MemoryDesc, stream: Stream) -> Memory:
    """A memory with the values of the array. A host engine shares a writable array's storage."""
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
    """A memory for the result. On a host engine the returned array keeps its buffer."""
    buffer = aligned_bytes(engine.name, desc.nbytes) if engine.is_host else None
    return Memory(desc, engine, buffer)
