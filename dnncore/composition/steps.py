"""The steps of a composition, as `Composition.compose` records them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

import numpy as np

from dnncore.attributes import Attributes
from dnncore.backend import Refused
from dnncore.cache import primitives
from dnncore.engines.engine import Buffer, Engine
from dnncore.engines.memory import Memory
from dnncore.errors import DataTypeError, DescriptorError
from dnncore.ops import Operation
from dnncore.selection import ranking
from dnncore.selection.primitive_desc import PrimitiveDesc
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["ALIGNMENT", "CannotCompose", "Room", "Step", "Steps", "executable_of", "refusing"]

OpT = TypeVar("OpT", bound=Operation)
ALIGNMENT = 4096  # bytes; a multiple of every element's size


class CannotCompose(Exception):
    """A composition cannot compute the problem; `refused` is the answer of its `accept`."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.reason)
        self.refused = refused


@dataclass(frozen=True)
class Room:
    """A tensor in the scratchpad. start: its byte there. desc: as the steps describe it."""

    start: int
    desc: MemoryDesc


Tensor: TypeAlias = str | Room
"""An argument of a step: the name of an argument of the composed operation, or a room."""


@dataclass(frozen=True)
class Step:
    """A selected primitive and its arguments in binding order."""

    pd: PrimitiveDesc
    tensors: tuple[Tensor, ...]

    def memories(self, arguments: Mapping[str, Memory], scratchpad: Buffer | None) -> list[Memory]:
        """Return the arguments as this step describes them, on the buffers of the whole call."""
        rows = zip(self.tensors, self.pd.arguments, strict=True)
        return [_memory(tensor, desc, arguments, scratchpad) for tensor, (_, desc) in rows]


def _memory(
    tensor: Tensor, desc: MemoryDesc, arguments: Mapping[str, Memory], scratchpad: Buffer | None
) -> Memory:
    if isinstance(tensor, str):
        own = arguments[tensor]
        start = own.address if own.engine.is_host else None
        view = Memory.over(desc, own.engine, own.buffer, desc.nbytes, start)
        view.owner, view.is_read_only = own, own.is_read_only
        return view
    engine = next(iter(arguments.values())).engine
    buffer: Any = scratchpad
    if engine.is_host:
        whole = np.empty(0, np.uint8) if scratchpad is None else buffer
        buffer = whole[tensor.start : tensor.start + desc.nbytes]
    return Memory.over(desc, engine, buffer, desc.nbytes)


class Steps:
    """Records the steps of one problem. Each is a primitive of the best implementation.

    engine: the engine of the composed operation.
    impl, skip_impl: name patterns of implementations that may and that may not be selected.
    base: the bytes of the scratchpad before the first room. On engines whose buffers cannot be
        divided, the scratchpads of the steps are there, and rooms begin at an offset.
    """

    def __init__(self, engine: Engine, impl: str, skip_impl: str, base: int) -> None:
        self.engine = engine
        self.steps: list[Step] = []
        self._impl, self._skip_impl = impl, skip_impl
        self._top = base

    def room(self, desc: MemoryDesc) -> Room:
        """Reserve a tensor of the scratchpad. Use the descriptor of the result in steps."""
        start, self._top = self._top, self._top + -(-desc.nbytes // ALIGNMENT) * ALIGNMENT
        if not self.engine.is_host and desc.nelems:
            desc = desc.with_offset0(start // desc.itemsize)
        return Room(start, desc)

    def chosen(self, op: OpT, attr: Attributes) -> OpT:
        """Return the operation with the formats that its best implementation prefers.

        Raises `CannotCompose` if no implementation accepts it.
        """
        resolved: Any = self._selected(op, attr).op
        return resolved  # type: ignore[no-any-return]

    def add(self, op: Operation, attr: Attributes, **tensors: Tensor) -> None:
        """Append a step.

        op: the step's operation. Its formats must be concrete.
        tensors: a tensor for each of its arguments. An argument of `attr` that is not given is the
            argument of the composed operation with the same name.

        Raises `CannotCompose` if no implementation accepts the operation.
        """
        pd = self._selected(op, attr)
        names = [argument.name for argument, _ in pd.arguments]
        self.steps.append(Step(pd, tuple(tensors.get(name, name) for name in names)))

    def _selected(self, op: Operation, attr: Attributes) -> PrimitiveDesc:
        plain = replace(attr, scratchpad="library", scratchpad_limit=None)
        with refusing():
            plain.check(op)
        request = ranking.Request(
            op, self.engine, plain, impl=self._impl, skip_impl=self._skip_impl, host_fallback=False
        )
        selection = ranking.select(request)
        if not selection.candidates:
            rows = [row for row in selection.refusals if row.kind != "filter"]
            if not rows:
                raise CannotCompose(Refused("shape", f"nothing computes its step {op.KIND}"))
            reason = f"its step {op.KIND}: {rows[-1]}"
            raise CannotCompose(Refused(rows[-1].kind, reason))
        return PrimitiveDesc._at(request, selection, 0)

    @property
    def step_bytes(self) -> int:
        """The bytes of scratchpad that the steps need, which use it one after the other."""
        return max((step.pd.scratchpad_bytes for step in self.steps), default=0)

    @property
    def room_end(self) -> int:
        """The end of the last room."""
        return self._top


@contextmanager
def refusing() -> Iterator[None]:
    """In a `with` block, a refusal by the core refuses the composition."""
    try:
        yield
    except DataTypeError as error:
        raise CannotCompose(Refused("type", str(error))) from error
    except DescriptorError as error:
        raise CannotCompose(Refused("format", str(error))) from error


def executable_of(step: Step) -> Any:
    """Return the executable of a step from the primitive cache, or build it."""
    return primitives.get(step.pd.key, step.pd._build)
