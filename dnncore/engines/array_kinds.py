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
    """One library's arrays. Backends give the kinds that they know in `Backend.array_kinds`.

    name: of one array, for messages, as "a torch tensor".
    from_numpy, to_numpy: how a program converts one, for messages.
    """

    name: ClassVar[str]
    from_numpy: ClassVar[str]
    to_numpy: ClassVar[str]


class HostArrays(ArrayKind):
    """Arrays in host memory, which share their elements with numpy's arrays."""

    @abstractmethod
    def array(self, value: Any) -> Array:
        """A numpy array over the elements. May raise any exception, whose message users see."""

    @abstractmethod
    def result(self, array: Array) -> Any:
        """An array of this kind over the elements of a new numpy array."""


class DeviceArrays(ArrayKind):
    """Arrays in the memory of a backend's engines. They have numpy's `shape` and `dtype`."""

    @abstractmethod
    def engine(self, array: Any) -> Engine:
        """The engine with the array's memory. Raises `DescriptorError` if there is none."""

    @abstractmethod
    def stream(self, arrays: Sequence[Any], engine: Engine) -> Stream:
        """A stream of this thread, behind whose commands the arrays have their values.

        Commands of the program that use the result come behind the commands of this stream.
        """

    @abstractmethod
    def memory(self, array: Any, engine: Engine, desc: MemoryDesc | None = None) -> Memory:
        """A memory over the elements, in the array's layout. It keeps them alive.

        desc: a row-major descriptor of as many elements; if the array has this layout and type, the
            memory has this descriptor.

        Raises `DescriptorError` for an array of another engine, or whose layout or type no
        descriptor has.
        """

    def launched(self, arrays: Sequence[Any], result: Any, stream: Stream, event: Event) -> None:
        """Called after the launch that reads the arrays and writes the result."""

    @abstractmethod
    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], like: Any) -> Any:
        """A new row-major array where `like` is."""
