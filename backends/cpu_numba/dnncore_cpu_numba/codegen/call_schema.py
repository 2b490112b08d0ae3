"""Schemas of native calls: the names, units and order of the numbers that native code receives.

All native functions take 64-bit integers. The arguments of a function, the parameters of a task and
the rows of a table are therefore blocks of 64-bit *slots*. A `Record` declares a block:

    MATRIX = Record(
        "matrix",
        ("address", "address"),
        ("row block", "bytes", "from row to row, and from vector to vector"),
        ("outer", Many("bytes", 10), "from index to index of the outer dims"),
    )

All uses refer to the declaration. Python packs values by name (`Record.pack`). LLVM IR is emitted
by name (`vector_ir.py`). Tasks read fields and call by name
(`call_typing.py`). A value, field or argument that is not declared raises `CallMismatch`, or
`BuildError` while a task is compiled.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np


class CallMismatch(TypeError):
    """A use of a record that does not match its declaration."""


# -- values of slots -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Arg:
    """The address of memory number `index`, in binding order, plus an offset in bytes."""

    index: int
    byte_offset: int = 0


@dataclass(frozen=True)
class Scratch:
    """An address inside the scratchpad."""

    byte_offset: int = 0


@dataclass(frozen=True, eq=False)
class Table:
    """The address of a constant array. The program keeps it alive. It must not be changed."""

    array: np.ndarray[Any, Any]


Param = int | Arg | Scratch | Table


# -- kinds of fields -------------------------------------------------------------------------------


UNITS = {
    "address": "of memory or of a native function; 0 where there is none",
    "bytes": "a size, an offset or a stride",
    "elements": "a size, an offset or a stride in elements of a tensor",
    "count": "a number of things",
    "index": "the number of one thing among several",
    "flag": "0 or 1",
    "bits": "of a mask",
    "float32": "its bits, in the low half of the slot",
}
"""The units of numbers in slots, and their meaning."""


@dataclass(frozen=True, eq=False)
class Pointer:
    """The kind of an address of one record or of several contiguous records."""

    record: Record


@dataclass(frozen=True, eq=False)
class Many:
    """Several values of one kind. Without a count: any number of values, at a record's end."""

    kind: str | Record
    count: int | None = None


Kind = str | Pointer | Many


@dataclass(frozen=True, eq=False)
class Field:
    """A field of a record. slot: the number of its first slot."""

    name: str
    kind: Kind | Record
    slot: int


class Record:
    """A block of slots with named fields.

    groups: (names separated by blanks, kind[, meaning]) of consecutive fields of one kind. The
    meaning is a comment.
    """

    def __init__(self, name: str, *groups: Any) -> None:
        self.name = name
        self.fields: dict[str, Field] = {}
        self._size: int | None = 0
        for names, kind, *_ in groups:
            for field in names.split():
                if field in self.fields:
                    raise CallMismatch(f"{name} has two fields {field!r}")
                self.fields[field] = Field(field, kind, self.size)
                count = _slots(kind)
                self._size = None if count is None else self.size + count

    if TYPE_CHECKING:
        # Tasks use these methods. `call_typing.py` defines them.
        at: Callable[[Any], Any]
        call: Callable[..., Any]
        room: Callable[[], Any]

    @property
    def size(self) -> int:
        """The number of slots. Raises `CallMismatch` if it is not fixed."""
        if self._size is None:
            raise CallMismatch(f"{self.name} has no fixed size, since its last field has none")
        return self._size

    @property
    def nbytes(self) -> int:
        """The size in bytes. Raises `CallMismatch` if it is not fixed."""
        return 8 * self.size

    def field(self, name: str) -> Field:
        """Return the field with a name. Raises `CallMismatch` if there is none."""
        if name not in self.fields:
            raise CallMismatch(f"{self.name} has no {name!r}; it has {', '.join(self.fields)}")
        return self.fields[name]

    def check(self, names: Iterable[str]) -> None:
        """Raise `CallMismatch` unless the names are exactly the fields' names."""
        given = dict.fromkeys(names)
        if given.keys() != self.fields.keys():
            missing = [name for name in self.fields if name not in given]
            unknown = [name for name in given if name not in self.fields]
            raise CallMismatch(
                f"{self.name} has the fields {', '.join(self.fields)};"
                f" missing: {', '.join(missing) or 'none'}, unknown: {', '.join(unknown) or 'none'}"
            )

    def pack(self, values: Mapping[str, Any]) -> list[Param]:
        """Return the slots of these values by name. Raises `CallMismatch`."""
        self.check(values)
        return [slot for name in self.fields for slot in self.slots(name, values[name])]

    def slots(self, name: str, value: Any) -> list[Param]:
        """Return the slots of the value of one field. Raises `CallMismatch`."""
        try:
            return _packed(self.field(name).kind, value)
        except CallMismatch as error:
            raise CallMismatch(f"{self.name}: {name}: {error}") from None

    def table(self, rows: Iterable[Mapping[str, Any]]) -> np.ndarray[Any, Any]:
        """Return an array of records, one per row."""
        packed = [self.pack(row) for row in rows]
        return np.array(packed, np.int64).reshape(len(packed), self._size or -1)

    def columns(self, values: Mapping[str, Any]) -> np.ndarray[Any, Any]:
        """Return an array of records from one array of numbers per field."""
        self.check(values)
        return np.stack([values[name] for name in self.fields], axis=1)

    def __repr__(self) -> str:
        return f"<record {self.name}>"


def _slots(kind: Kind | Record) -> int | None:
    """Return the number of slots of a field, None if it is not fixed."""
    if not isinstance(kind, Many):
        return _slots_of_one(kind)
    if kind.count is not None:
        return kind.count * _slots_of_one(kind.kind)
    if isinstance(kind.kind, str):
        _slots_of_one(kind.kind)
    return None


def _slots_of_one(kind: str | Pointer | Record) -> int:
    match kind:
        case Record():
            return kind.size
        case str() if kind not in UNITS:
            raise CallMismatch(f"a unit is one of {', '.join(UNITS)}; got {kind!r}")
    return 1


def _packed(kind: Kind | Record, value: Any) -> list[Param]:
    match kind:
        case "float32" if isinstance(value, numbers.Real):
            return [int(np.float32(value).view(np.uint32))]
        case str() | Pointer() if kind != "float32" and isinstance(value, numbers.Integral):
            return [int(value)]
        case "address" if isinstance(value, Arg | Scratch | Table):
            return [value]
        case Pointer(record) if isinstance(value, Table):
            if record._size and value.array.size % record.size:
                shape = value.array.shape
                raise CallMismatch(f"{record.name} has {record.size} slots; got shape {shape}")
            return [value]
        case Record() if isinstance(value, Mapping):
            return kind.pack(value)
        case Many(each, count) if isinstance(value, Iterable):
            values = list(value)
            if count not in (None, len(values)):
                raise CallMismatch(f"expected {count} values; got {len(values)}")
            return [slot for x in values for slot in _packed(each, x)]
    raise CallMismatch(f"expected {_described(kind)}; got {value!r}")


def _described(kind: Kind | Record) -> str:
    match kind:
        case str():
            return kind
        case Pointer(record):
            return f"the address of {record.name}"
        case Many(each):
            return f"several, each {_described(each)}"
    return f"the fields of {kind.name}"
