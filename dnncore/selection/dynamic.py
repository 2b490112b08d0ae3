"""Dynamic primitives: dims and strides are known only when the primitive is executed.

oneDNN marks such dims in a descriptor. Here descriptors are always complete: an operation is made
from the descriptors of the memories that are passed.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from dnncore.attributes import Attributes
from dnncore.cache import MemoryCache
from dnncore.engines.engine import Engine
from dnncore.engines.memory import Memory, no_memory
from dnncore.engines.stream import Event, Stream
from dnncore.engines.threads import get_num_threads
from dnncore.errors import DescriptorError
from dnncore.execution.primitive import Primitive
from dnncore.ops import Operation
from dnncore.selection.plugins import engine as open_engine
from dnncore.selection.primitive_desc import PrimitiveDesc
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["DynamicPrimitive"]

CAPACITY = 64  # primitives
UNKNOWN = "*"


class DynamicPrimitive:
    """A primitive whose dims, strides and types follow from the memories of each execution.

    make: a class of operations, such as `MatMul`, or a function that returns an operation. It is
        called with the descriptors of the memories by name, such as `make(src=..., weights=...,
        dst=...)`. `functools.partial` fixes other fields.
    engine: an engine, by default `dnncore.engine()`.
    attr: the attributes, or a function that returns them for an operation.
    dims: the known dims by tensor, such as `{"src": (None, 64)}`; None is any size. Other memories
        are refused. Tensors that are not named may have any dims.
    capacity: the number of primitives to keep, one per combination of descriptors. The primitive
        that was used least recently is dropped first.
    wishes: further keyword arguments of `PrimitiveDesc`, such as `impl` or `src_engine`.

    The first execution with new descriptors selects and builds a primitive, as `PrimitiveDesc` and
    `primitive` do. So it takes longer than the next ones. Threads may share a dynamic primitive.

    >>> import numpy as np
    >>> import dnncore as dnn
    >>> product = dnn.DynamicPrimitive(dnn.MatMul, dnn.engine("cpu"), dims={"weights": (4, 2)})
    >>> weights = dnn.Memory.from_numpy(np.ones((4, 2), np.float32))
    >>> for rows in (1, 3):
    ...     src = dnn.Memory.from_numpy(np.ones((rows, 4), np.float32))
    ...     dst = dnn.Memory(dnn.MemoryDesc((rows, 2)))
    ...     product.execute(src.engine.stream(), src=src, weights=weights, dst=dst).wait()
    ...     print(dst.numpy().tolist())
    [[4.0, 4.0]]
    [[4.0, 4.0], [4.0, 4.0], [4.0, 4.0]]

    Raises `DescriptorError` for invalid arguments. The errors of an operation and of its primitive
    descriptor appear when the primitive is executed.
    """

    def __init__(
        self,
        make: Callable[..., Operation],
        engine: Engine | None = None,
        attr: Attributes | Callable[[Operation], Attributes] | None = None,
        *,
        dims: Mapping[str, Sequence[int | None]] | None = None,
        capacity: int = CAPACITY,
        **wishes: Any,
    ) -> None:
        self.engine = open_engine() if engine is None else engine
        self._make = make
        self._attr = attr
        self._wishes = wishes
        self._needed, self._known = _tensors(make)
        if dims is not None and not isinstance(dims, Mapping):
            _fail(
                f"dims must be a mapping from names of tensors to sizes; got {type(dims).__name__}"
            )
        self._dims = {name: self._pattern(name, sizes) for name, sizes in (dims or {}).items()}
        if type(capacity) is not int or capacity < 1:
            _fail(f"capacity must be an integer of at least 1; got {capacity!r}")
        self._primitives: MemoryCache[Primitive] = MemoryCache(capacity)

    def __repr__(self) -> str:
        return f"<dynamic primitive of {_name(self._make)} on {self.engine.name}>"

    def __len__(self) -> int:
        """Return the number of primitives that are kept."""
        return len(self._primitives)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arguments of the constructor; a copy builds its own primitives."""
        parts = (self._make, self.engine, self._attr, self._dims, self._primitives.capacity)
        return _made_again, (*parts, self._wishes)

    def execute(
        self, stream: Stream, *, wait_for: Sequence[Event] = (), **arguments: Memory
    ) -> Event:
        """Launch as `Primitive.execute` does, with the primitive for these memories."""
        primitive = self.primitive(**arguments)
        return primitive.execute(stream, wait_for=wait_for, **arguments)

    def primitive(self, **arguments: Memory | MemoryDesc) -> Primitive:
        """Return the primitive for these memories or descriptors.

        It can be bound, or asked for the size of its scratchpad.
        """
        descs = {}
        for name in self._known:
            value = arguments.get(name)
            if value is not None:
                descs[name] = self._checked(name, value)
            elif name in self._needed:
                _fail(f"argument {name} is missing; it takes {', '.join(self._known)}")
        key = (*descs.items(), get_num_threads())
        return self._primitives.get(key, lambda: self._built(descs))

    def _built(self, descs: dict[str, MemoryDesc]) -> Primitive:
        op = self._make(**descs)
        if not isinstance(op, Operation):
            _fail(f"make must return an operation; got {type(op).__name__}")
        attr = self._attr(op) if callable(self._attr) else self._attr
        return PrimitiveDesc(op, self.engine, attr, **self._wishes).primitive()

    def _checked(self, name: str, value: object) -> MemoryDesc:
        desc = value.desc if isinstance(value, Memory) else value
        if not isinstance(desc, MemoryDesc):
            _fail(no_memory(name, value))
        pattern = self._dims.get(name)
        if pattern is not None and not _fits(desc.dims, pattern):
            _fail(f"{name} must have the dims {_written(pattern)}; got {_written(desc.dims)}")
        return desc

    def _pattern(self, name: str, sizes: Sequence[int | None]) -> tuple[int | None, ...]:
        if name not in self._known:
            _fail(f"dims are of tensors that make takes: {', '.join(self._known)}; got {name!r}")
        try:
            pattern = tuple(None if n is None else operator.index(n) for n in sizes)
        except TypeError:
            pattern = (-1,)
        if any(n is not None and n < 0 for n in pattern):
            _fail(f"dims of {name} must be sizes, or None where unknown; got {sizes!r}")
        return pattern


def _tensors(make: Any) -> tuple[frozenset[str], tuple[str, ...]]:
    """Return the tensors that `make` must get, and all that it may get."""
    if not callable(make) or isinstance(make, Operation):
        _fail(
            "make must be a class of operations or a function that returns one;"
            f" got {type(make).__name__}"
        )
    kind = getattr(make, "func", make)
    rows = getattr(kind, "ARGUMENTS", None) if isinstance(kind, type) else None
    tensors = {row.name for row in rows} if isinstance(rows, tuple) else None
    parameters = {
        name: parameter.default is parameter.empty
        for name, parameter in inspect.signature(make).parameters.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }
    if tensors is not None:
        others = [name for name, needed in parameters.items() if needed and name not in tensors]
        if others:
            _fail(
                f"make must need descriptors only; {_name(make)} also needs {', '.join(others)};"
                " fix them with functools.partial"
            )
        parameters = {name: needed for name, needed in parameters.items() if name in tensors}
    return frozenset(name for name, needed in parameters.items() if needed), tuple(parameters)


def _fits(dims: tuple[int, ...], pattern: tuple[int | None, ...]) -> bool:
    same = len(dims) == len(pattern)
    return same and all(n in (None, size) for size, n in zip(dims, pattern, strict=True))


def _written(dims: Sequence[int | None]) -> str:
    sizes = [UNKNOWN if n is None else str(n) for n in dims]
    return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"


def _name(make: Any) -> str:
    kind = getattr(make, "func", make)
    return getattr(kind, "__name__", type(kind).__name__)


def _made_again(
    make: Any, engine: Engine, attr: Any, dims: Any, capacity: int, wishes: dict[str, Any]
) -> DynamicPrimitive:
    return DynamicPrimitive(make, engine, attr, dims=dims, capacity=capacity, **wishes)


def _fail(text: str) -> NoReturn:
    raise DescriptorError(f"dynamic primitive: {text}")
