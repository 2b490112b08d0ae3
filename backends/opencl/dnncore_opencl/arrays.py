"""Arrays of pyopencl as inputs and results of one-line functions."""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dnncore.backend import DescriptorError, DeviceArrays, Event, Memory, MemoryDesc
from dnncore_opencl.devices.discovery import pyopencl
from dnncore_opencl.runtime.engine import OpenCLEngine
from dnncore_opencl.runtime.stream import OpenCLStream

KEPT = 8  # most queues per thread; most engines of contexts that no program opened


class _Queue(NamedTuple):
    """A caller's queue (None for arrays without a queue) and its stream."""

    native: Any
    engine: OpenCLEngine
    stream: OpenCLStream


class _Queues(threading.local):
    """A thread's queues by key, least recently used first."""

    def __init__(self) -> None:
        self.of: OrderedDict[object, _Queue] = OrderedDict()


class PyOpenCLArrays(DeviceArrays):
    """`pyopencl.array.Array`. Work is queued on the array's own queue."""

    name = "a pyopencl array"
    from_numpy = "pyopencl.array.to_device(queue, array)"
    to_numpy = "array.get()"

    def __init__(self) -> None:
        self._queues = _Queues()
        self._engines: OrderedDict[OpenCLEngine, None] = OrderedDict()

    def engine(self, array: Any) -> OpenCLEngine:
        """Return the engine of the array's context; create one for a context without an engine."""
        queue = array.queue
        found = self._queues.of.get(id(queue))
        if found is not None and queue is not None and not found.engine.is_lost:
            return found.engine
        context = array.context
        device = context.devices[0] if queue is None else queue.device
        engine = OpenCLEngine.of_context(context, device)
        if engine is None or engine.is_lost:
            engine = OpenCLEngine.from_native(context, device)
        _keep(self._engines, engine, None)
        return engine

    def stream(self, arrays: Sequence[Any], engine: Any) -> OpenCLStream:
        """Return the stream of the first array's queue, ordered after all events of the arrays."""
        if not isinstance(engine, OpenCLEngine):
            raise DescriptorError(
                f"{engine.name}: the arrays are in the memory of an OpenCL device; leave engine="
                " out, or convert them: array.get()"
            )
        native = next((array.queue for array in arrays if array.queue is not None), None)
        key = engine if native is None else id(native)
        found = self._queues.of.get(key)
        if found is None or found.engine is not engine:
            found = _Queue(native, engine, engine.stream(native=native))
        _keep(self._queues.of, key, found)
        is_ordered = native is not None and found.stream.order == "in"
        for array in arrays:
            for event in array.events:
                if not (is_ordered and array.queue is native and event.command_queue == native):
                    event.wait()
        return found.stream

    def memory(self, array: Any, engine: Any, desc: MemoryDesc | None = None) -> Memory:
        """Return a memory over the array's buffer."""
        array = _readable(array, engine)
        data = array.base_data
        found = self._queues.of.get(id(array.queue))
        if found is None or found.engine is not engine or array.queue is None:
            _check_context(array, engine)
        if (
            desc is not None
            and isinstance(data, pyopencl().Buffer)
            and array.strides == _row_major(array.shape, array.dtype.itemsize)
            and array.offset == 0
            and array.dtype == desc.dtype
        ):
            return Memory.over(desc, engine, data, desc.nbytes)
        return Memory.wrap(array, engine=engine)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], like: Any) -> Any:
        """Return a new array on the queue of `like` or, if it has no queue, in its context."""
        from pyopencl.array import empty

        place = like.context if like.queue is None else like.queue
        return empty(place, shape, dtype, allocator=like.allocator)

    def launched(self, arrays: Sequence[Any], result: Any, stream: Any, event: Event) -> None:
        """Make later users of the arrays wait for the command, unless the queue keeps the order."""
        queue = result.queue
        if queue is None or any(array.queue is not queue for array in arrays):
            event.wait()
        elif stream.order == "out":
            for array in (*arrays, result):
                array.add_event(event.native)  # type: ignore[attr-defined]


# 64-bit integers only decide between two values; rounding keeps those that are not 0.
_CONVERTED = {
    np.dtype(np.int16): np.float32,
    np.dtype(np.uint16): np.float32,
    np.dtype(np.uint32): np.float64,
    np.dtype(np.uint64): np.float64,
}


@functools.lru_cache(maxsize=1024)
def _row_major(shape: tuple[int, ...], width: int) -> tuple[int, ...]:
    """Return the strides of a row-major array, in bytes."""
    strides = []
    for size in reversed(shape):
        strides.append(width)
        width *= size
    return tuple(reversed(strides))


def _readable(array: Any, engine: Any) -> Any:
    """Return the array, with its numbers in a type that dnncore supports. Booleans become bytes.

    16-bit and unsigned integers are converted on the host, because no kernel reads them.
    """
    if array.dtype == np.bool_:
        return array.view(np.uint8)
    wide = _CONVERTED.get(array.dtype)
    if wide is None:
        return array
    from pyopencl.array import to_device

    queue = array.queue or engine.stream().native
    if array.flags.forc:
        values = array.get(queue)
    else:  # pyopencl copies only arrays without gaps to the host
        raw = np.empty(array.base_data.size, np.uint8)
        pyopencl().enqueue_copy(queue, raw, array.base_data, wait_for=array.events)
        values = np.ndarray(array.shape, array.dtype, raw, array.offset, array.strides)
    return to_device(queue, values.astype(wide))


def _check_context(array: Any, engine: Any) -> None:
    if array.context != engine.native.context:
        raise DescriptorError(
            f"{engine.name}: the array must be of this engine's context, {engine.native.context};"
            f" got one of {array.context}; leave engine= out, or copy it: array.get()"
        )


def _keep(of: OrderedDict[Any, Any], key: Any, value: Any) -> None:
    """Store a value as the most recently used one; drop the least recently used beyond `KEPT`."""
    of[key] = value
    of.move_to_end(key)
    while len(of) > KEPT:
        of.popitem(last=False)


KIND = PyOpenCLArrays()
