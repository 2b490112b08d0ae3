"""Random data types of an operation, and random attributes that depend on its types.

The first of the values of each choice is the simplest: f32, and no attribute.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Protocol, TypeVar, get_args

from dnncore.attributes import ROUNDED, Accumulation
from dnncore.ops import Operation
from dnncore.ops.sources import Sources
from dnncore.ops.types import Row
from dnncore.problem.tensors import joined
from dnncore.quantization import Dropout, Quantization, Scales, ZeroPoints
from dnncore.rnn_quantization import RNNDataQparams, RNNWeightsQparams, count_of_scales
from dnncore.tensors.datatypes import data_type
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["Choose", "direction_of", "input_names", "input_types", "quantization", "typed",
           "types_of", "with_types"]  # fmt: skip

T = TypeVar("T")

MOST_TENSORS = 4
"""The number of types that are drawn for each problem. It is the same for operations with fewer
tensors, so that the choices after them do not change."""

GROUPS = (1, 2, 3, 4, 8, 16, 32)
ACCUMULATION = ("strict",) * 5 + get_args(Accumulation)[1:]
DROPOUT = (
    *[None] * 12, Dropout(), Dropout("s32"), Dropout(has_offset=True), Dropout(has_mask=False),
)  # fmt: skip


class Choose(Protocol):
    """A source of choices."""

    def __call__(self, values: Sequence[T], /) -> T:
        """Return one of the values."""


# -- types -----------------------------------------------------------------------------------------


def types_of(op: Operation) -> dict[str, str]:
    """Return the types of the tensors that the table of types restricts, by name."""
    known = {name for row in op.type_rows for name in row}
    return {row.name: desc.data_type for row, desc in op.tensors() if row.name in known}


def input_names(op: Operation) -> list[str]:
    """Return the inputs that tables of types name, except biases."""
    known = {name for row in op.TYPES for name in row} - {"bias"}
    return [a.name for a, _ in op.tensors() if a.direction == "in" and a.name in known]


def input_types(op: Operation) -> str:
    """Return the types of these inputs as text: u8:s8, or one type if all are equal."""
    types = types_of(op)
    return joined(types[name] for name in input_names(op))


def direction_of(op: Operation) -> str:
    """Return the direction in words: forward training, backward data."""
    name = type(op).__name__
    if "Backward" not in name:
        return str(getattr(op, "prop_kind", "forward")).replace("_", " ")
    words = re.findall("[A-Z]+[a-z]*", name.partition("Backward")[2])
    return " ".join(["backward", *words]).lower()


def with_types(op: Operation, types: Mapping[str, str]) -> Operation:
    """Return the operation with tensors of these types.

    Raises `DataTypeError` if no row permits them.
    """
    own = {f.name for f in fields(op)}
    changed: dict[str, Any] = {
        name: getattr(op, name).with_data_type(word) for name, word in types.items() if name in own
    }
    if isinstance(op, Sources):
        changed["srcs"] = tuple(
            desc.with_data_type(types.get(f"src{i}", desc.data_type))
            for i, desc in enumerate(op.srcs)
        )
    return replace(op, **changed)


def typed(choose: Choose, op: Operation, only: Collection[str] = ()) -> Operation:
    """Return the operation with types of one row of its table; more than a third have only f32.

    op: an operation with f32. only: the types that tensors may have; () permits all.
    """
    rows = [row for row in map(_restriction(only), op.type_rows) if all(row.values())]
    plain: Row = dict.fromkeys(types_of(op), ("f32",))
    row = choose([*[plain] * (2 * len(rows) // 3 + 1), *rows])
    seeds = [choose(range(60)) for _ in range(MOST_TENSORS)]
    names = [name for name in types_of(op) if name in row]
    return with_types(
        op, {name: row[name][seeds[i % MOST_TENSORS] % len(row[name])]
             for i, name in enumerate(names)}
    )  # fmt: skip


def _restriction(only: Collection[str]) -> Any:
    def restricted(row: Row) -> Row:
        return {
            name: tuple(own for own in words if not only or own in only)
            for name, words in row.items()
        }

    return restricted


# -- attributes ------------------------------------------------------------------------------------


def quantization(choose: Choose, op: Operation) -> dict[str, Any]:
    """Return fields of `Attributes`. They may break rules; then `Attributes.check` refuses them.

    Operations on integers have more scales and zero points than others.
    """
    is_whole = any(data_type(own).bits <= 8 for own in types_of(op).values())
    drawn: dict[str, Any] = {}
    for name, kind, masks in (
        ("scales", Scales, op.scale_masks),
        ("zero_points", ZeroPoints, op.zero_point_masks),
    ):
        found: dict[str, Quantization] = {}
        for tensor, allowed in masks.items():
            values = _values(choose, kind, getattr(op, tensor), allowed, tensor in op.GROUPED)
            is_drawn = choose((False, True) if is_whole else (*[False] * 7, True))
            if is_drawn and (kind is Scales or not _is_float(op, tensor)):
                found[tensor] = values
        drawn[name] = found
    dropout, rounding = choose(DROPOUT), choose(("environment",) * 3 + ("stochastic",))
    drawn["dropout"] = dropout if op.HAS_DROPOUT else None
    drawn["rounding"] = rounding if op.result.data_type in ROUNDED else "environment"
    drawn["accumulation"] = choose(ACCUMULATION)
    return drawn | (_qparams(choose, op) if getattr(op, "is_integer", False) else {})


def _qparams(choose: Choose, op: Any) -> dict[str, Any]:
    """Return the numbers of recurrent cells of integers."""
    drawn: dict[str, Any] = {
        "rnn_data_qparams": RNNDataQparams(choose((1.0, 100.0, 64.0)), choose((0.0, 100.0, 3.5)))
    }
    for name, mask in (("rnn_weights_qparams", 24), ("rnn_weights_projection_qparams", 8)):
        scales, own = (choose((1.0, 2000.0)), choose((500.0, 3000.0))), choose((0, mask))
        if mask == 24 or op.weights_projection is not None:
            count = count_of_scales(op, name, own)
            drawn[name] = RNNWeightsQparams([scales[i % 2] for i in range(count)], own)
    return drawn


def _is_float(op: Operation, tensor: str) -> bool:
    return data_type(getattr(op, tensor).data_type).is_float


def _values(
    choose: Choose, kind: type[Quantization], desc: MemoryDesc, masks: Sequence[int], grouped: bool
) -> Quantization:
    """Return scales or zero points of a tensor, with groups if it can have them."""
    mask = choose(masks)
    word = choose((*kind.TYPES[:1] * 3, *kind.TYPES))
    sizes = [choose(GROUPS), choose(GROUPS)]
    has_groups = choose((False, True))
    if not grouped or not has_groups or desc.ndims < 2:
        return kind(mask, (), word)
    dims = range(desc.ndims - 2, desc.ndims)
    groups = tuple(
        size if mask >> dim & 1 and desc.dims[dim] % size == 0 else 1
        for dim, size in zip(dims, sizes, strict=True)
    )
    return kind(mask, groups, word)
