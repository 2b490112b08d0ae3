"""The base of all operation descriptors: fields, table of arguments, hashing, replacement."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, ClassVar, Literal, NoReturn, Self, get_args

from dnncore.errors import DescriptorError
from dnncore.ops.types import HALF_TYPES, Rows, check_types
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["FORWARD", "Argument", "Operation", "PropKind", "reads", "widened", "writes"]

Direction = Literal["in", "out"]
PropKind = Literal["forward_training", "forward_inference"]
FORWARD = get_args(PropKind)


def widened(desc: MemoryDesc) -> MemoryDesc:
    """Return the descriptor in f32 if its type has 16 bits, else `desc` itself.

    Data of 16 bits is computed in f32.
    """
    return desc.with_data_type("f32") if desc.data_type in HALF_TYPES else desc


@dataclass(frozen=True)
class Argument:
    """One row of an operation's argument table; `name` is also the field that describes it."""

    name: str
    direction: Direction


def reads(*names: str) -> tuple[Argument, ...]:
    """Rows of arguments that the operation reads."""
    return tuple(Argument(name, "in") for name in names)


def writes(*names: str) -> tuple[Argument, ...]:
    """Rows of arguments that the operation writes."""
    return tuple(Argument(name, "out") for name in names)


@dataclass(frozen=True, eq=False)
class Operation:
    """Base of all operation descriptors: frozen, hashable, validated when created.

    KIND is the operation's name in messages. ARGUMENTS is the table of its tensors, in the order in
    which implementations are bound; a tensor whose field is None is absent. IN_PLACE lists the
    pairs (input, output) that may be the same memory. TYPES lists the combinations of data types,
    which `dnncore.ops.types` explains. GROUPED lists the tensors whose scales and zero points may
    have groups. MAY_DIFFER lists the fields in which a hint may differ from the gradient's
    forward operation.
    """

    KIND: ClassVar[str]
    ARGUMENTS: ClassVar[tuple[Argument, ...]]
    IN_PLACE: ClassVar[tuple[tuple[str, str], ...]] = ()
    TYPES: ClassVar[Rows] = ()
    GROUPED: ClassVar[tuple[str, ...]] = ()
    HAS_DROPOUT: ClassVar[bool] = False
    MAY_DIFFER: ClassVar[tuple[str, ...]] = ("prop_kind",)

    # -- tensors ------------------------------------------------------------------------------

    def tensors(self, workspace: MemoryDesc | None = None) -> list[tuple[Argument, MemoryDesc]]:
        """Return the tensors present, with their descriptors, in the table's order.

        workspace: the descriptor of the workspace, to include it in the list. An operation has no
            such field.
        """
        pairs = [(row, getattr(self, row.name, workspace)) for row in self.ARGUMENTS]
        return [(argument, desc) for argument, desc in pairs if desc is not None]

    @property
    def result(self) -> MemoryDesc:
        """The descriptor of the first output, to which post-ops apply."""
        return next(desc for argument, desc in self.tensors() if argument.direction == "out")

    @property
    def result_name(self) -> str:
        """The name of the first output, to which post-ops apply."""
        return next(a.name for a, _ in self.tensors() if a.direction == "out")

    def workspace_desc(self, hint: Any = None) -> MemoryDesc | None:
        """Return the workspace that this operation writes (forward) or reads (backward), or None.

        hint: the forward primitive descriptor of a backward operation.
        """
        return None

    @property
    def forward_op(self) -> Operation | None:
        """Return the forward_training operation of a gradient; None if this is not a gradient."""
        return None

    @property
    def saved(self) -> tuple[str, ...]:
        """Return the arguments of a gradient that are outputs of its forward operation."""
        present = [a.name for a, _ in self.tensors(self.workspace_desc()) if a.direction == "in"]
        return tuple(name for name in present if name in ("dst", "workspace"))

    def _as_forward(self, kind: Any, **tensors: MemoryDesc | None) -> Operation:
        """Return the operation `kind` with these tensors and the other fields of this operation."""
        names = {f.name for f in fields(kind)} & {f.name for f in fields(self)}
        kept = {name: getattr(self, name) for name in names - set(tensors)}
        operation: Operation = kind(prop_kind="forward_training", **kept, **tensors)
        return operation

    def check_hint(self, hint: Any) -> None:
        """Raise `DescriptorError` if a forward primitive descriptor cannot be the hint.

        A hint has the gradient's forward operation, dims and parameters. Types, formats and
        optional tensors may differ.
        """
        forward, given = self.forward_op, hint.op
        if forward is None:
            self._fail(f"hint must be None, because only gradients have a hint; got {hint!r}")
        if type(given) is not type(forward):
            self._fail(
                f"hint must be a primitive descriptor of {type(forward).__name__}; got one of"
                f" {type(given).__name__}"
            )
        for field in fields(forward):
            own, other = getattr(forward, field.name), getattr(given, field.name)
            if isinstance(own, MemoryDesc) or isinstance(other, MemoryDesc):
                if own is None or other is None:
                    continue
                own, other = own.dims, other.dims
            if own != other and field.name not in self.MAY_DIFFER:
                self._fail(
                    f"hint must have the gradient's {field.name}, {own!r}; got {other!r}; pass the"
                    " primitive descriptor whose results the gradient reads"
                )

    def with_descs(self, **descs: MemoryDesc) -> Self:
        """Return the operation with some tensors' formats replaced; dims and types must not change.

        The result is not validated, because implementations use this often to resolve the format
        `any`.
        """
        new = object.__new__(type(self))
        new.__dict__.update(self.__dict__)
        new.__dict__.pop("_key", None)
        new.__dict__.update(descs)
        return new

    def with_each(self, change: Callable[[MemoryDesc], MemoryDesc]) -> Self:
        """Return the operation with `change` applied to every descriptor. It is validated."""

        def changed(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(map(changed, value))
            return change(value) if isinstance(value, MemoryDesc) else value

        return replace(self, **{f.name: changed(getattr(self, f.name)) for f in fields(self)})

    def resolve_any(self, **formats: str | MemoryDesc) -> Self:
        """Return the operation with the format `any` of each named tensor replaced by a tag or the
        format of a descriptor.
        """
        descs: dict[str, MemoryDesc] = {}
        for name, wanted in formats.items():
            desc = getattr(self, name)
            if desc is not None and desc.is_any:
                by_tag = isinstance(wanted, str)
                descs[name] = desc.with_format(wanted) if by_tag else desc.like(wanted)
        return self.with_descs(**descs) if descs else self

    def place_of(self, name: str) -> MemoryDesc | None:
        """Return the part of the result that an input may be, as a descriptor of the result's
        buffer; None if there is none. In-place pairs are the whole result.
        """
        return None

    @property
    def type_rows(self) -> Rows:
        """The combinations of data types that this operation permits."""
        return self.TYPES

    @property
    def scale_masks(self) -> Mapping[str, Sequence[int]]:
        """The tensors that may have scales, and the possible masks of each.

        The docstring of an operation's own property is a line of docs/operations.md.
        """
        return {}

    @property
    def zero_point_masks(self) -> Mapping[str, Sequence[int]]:
        """The tensors that may have zero points, and the possible masks of each; documented as
        `scale_masks`.
        """
        return {}

    @property
    def data_type(self) -> str:
        """The type of the first input, which is the type of the operation's products."""
        return self.tensors()[0][1].data_type

    # -- cost ---------------------------------------------------------------------------------

    @property
    def flops(self) -> float:
        """Floating-point operations of the direct algorithm; one per output element by default."""
        return float(math.prod(self.result.dims))

    @property
    def bytes(self) -> float:
        """The least number of bytes to transfer: every argument once."""
        return float(sum(math.prod(desc.dims) * desc.itemsize for _, desc in self.tensors()))

    # -- identity -----------------------------------------------------------------------------

    @property
    def key(self) -> tuple[Any, ...]:
        """The operation's type and all its fields, as a hashable tuple."""
        key: tuple[Any, ...] | None = self.__dict__.get("_key")
        if key is None:
            key = (type(self), *(getattr(self, f.name) for f in fields(self)))
            key = (hash(key), *key)
            self.__dict__["_key"] = key
        return key

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the cached key, because hashes of texts differ from process to process."""
        return {name: value for name, value in self.__dict__.items() if name != "_key"}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Operation) and (self is other or self.key == other.key)

    def __hash__(self) -> int:
        return int(self.key[0])

    # -- validation, for the operations' own files ----------------------------------------------

    def _fail(self, text: str) -> NoReturn:
        raise DescriptorError(f"{self.KIND}: {text}")

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _check_descs(self, concrete: Iterable[str] = ()) -> None:
        """Check that each tensor's field is a MemoryDesc, and has a layout if in `concrete`."""
        for argument in self.ARGUMENTS:
            desc = getattr(self, argument.name, None)
            if desc is None and not self._is_required(argument.name):
                continue
            if not isinstance(desc, MemoryDesc):
                self._fail(f"{argument.name} must be a MemoryDesc; got {type(desc).__name__}")
            if desc.format_kind == "undef":
                self._fail(f"{argument.name} is an absent tensor; give it dims and a format")
            if argument.direction == "out" and desc.has_repeats:
                self._fail(f"{argument.name} must have a place for each element; got {desc!r}")
        for name in concrete:
            desc = getattr(self, name)
            if desc is not None and desc.is_any:
                self._fail(f"{name} must have a concrete format; got 'any'; give it a format tag")

    def _is_required(self, name: str) -> bool:
        field = self.__dataclass_fields__.get(name)
        return field is not None and field.default is MISSING

    def _check_dims(self, name: str, expected: tuple[int, ...], why: str) -> None:
        got = getattr(self, name).dims
        if got != expected:
            self._fail(f"{name} must be {expected} ({why}); got {got}")

    def _check_types(self) -> None:
        """Check that the operation permits the types of all tensors together."""
        types = {row.name: getattr(self, row.name, None) for row in self.ARGUMENTS}
        present = {name: desc.data_type for name, desc in types.items() if desc is not None}
        check_types(self.KIND, present, self.type_rows)

    def _check_keeps_workspace(self, hint: Any) -> None:
        if hint.workspace_desc is None:
            self._fail(
                "hint must be a primitive descriptor of prop_kind forward_training, which keeps the"
                f" workspace that the gradient reads; got {hint!r}"
            )

    def _check_axis(self, axis: Any, ndims: int) -> None:
        """Check the field `axis` and convert it from any integer type to int."""
        try:
            place = operator.index(axis)
        except TypeError:
            place = -1
        if not 0 <= place < ndims:
            self._fail(f"axis must be an integer from 0 to {ndims - 1}; got {axis!r}")
        self._set(axis=place)

    def _check_prop_kind(self, value: object) -> None:
        if not isinstance(value, str) or value not in FORWARD:
            self._fail(f"prop_kind must be one of {', '.join(FORWARD)}; got {value!r}")
