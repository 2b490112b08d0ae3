"""Arrays of other libraries, which one-line functions accept and return."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

if TYPE_CHECKING:
    from dnncore.engines.engine import Engine
    from dnncore.engines.memory import Memory
    from dnncore.engines.stream import Event, Stream
    from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["ArrayKind", "DeviceArrays", "HostArrays"]

Array = np.ndarray[Any, Any]


class ArrayKind(ABC):
    """The arrays of one library. Backends list the kinds that they support in
    `Backend.array_kinds`.

    name: the name of one array in messages, such as "a torch tensor".
    from_numpy, to_numpy: Python text that converts an array, for messages.
    is_device: whether this is a kind of `DeviceArrays`. `isinstance` of an abstract class takes
        longer, and each call of a one-line function asks this several times.
    """

    is_device: ClassVar[bool] = False
    name: ClassVar[str]
    from_numpy: ClassVar[str]
    to_numpy: ClassVar[str]


class HostArrays(ArrayKind):
    """Arrays in host memory, which share their elements with numpy's arrays."""

    @abstractmethod
    def array(self, value: Any) -> Array:
        """Return a numpy array over the elements.

        It may raise any exception. Users see the message.
        """

    @abstractmethod
    def result(self, array: Array) -> Any:
        """Return an array of this kind over the elements of a new numpy array."""


class DeviceArrays(ArrayKind):
    """Arrays in the memory of a backend's engines. They have numpy's `shape` and `dtype`."""

    is_device: ClassVar[bool] = True

    @abstractmethod
    def engine(self, array: Any) -> Engine:
        """Return the engine with the array's memory. Raises `DescriptorError` if there is none."""

    @abstractmethod
    def stream(self, arrays: Sequence[Any], engine: Engine) -> Stream:
        """Return a stream of this thread whose commands run after the arrays have their values.

        Commands of the program that use the result run after the commands of this stream.
        """

    @abstractmethod
    def memory(self, array: Any, engine: Engine, desc: MemoryDesc | None = None) -> Memory:
        """Return a memory over the elements, in the array's layout. It keeps them alive.

        desc: a row-major descriptor of as many elements; if the array has this layout and type, the
            memory has this descriptor.

        Raises `DescriptorError` for an array of another engine, and for a layout or type that no
        descriptor can have.
        """

    def launched(self, arrays: Sequence[Any], result: Any, stream: Stream, event: Event) -> None:
        """Called after the launch that reads the arrays and writes the result."""

    @abstractmethod
    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], like: Any) -> Any:
        """Return a new row-major array on the same device as `like`."""
