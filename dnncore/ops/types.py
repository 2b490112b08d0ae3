"""The combinations of data types of each operation.

A row is one combination: for each tensor, its possible types. A row does not restrict tensors that
it does not name. An operation permits the types of its tensors if at least one row permits them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from dnncore.errors import DataTypeError
from dnncore.tensors.datatypes import DATA_TYPES

__all__ = ["F8_TYPES", "HALF_TYPES", "INTEGER_TYPES", "PACKED_TYPES", "Row", "Rows", "check_types",
           "gradient_rows", "mixed_rows", "one_type_rows", "product_rows",
           "row"]  # fmt: skip

Row: TypeAlias = Mapping[str, Sequence[str]]
"""Tensor -> its possible types."""

Rows: TypeAlias = Sequence[Row]

HALF_TYPES = ("f16", "bf16")
F8_TYPES = ("f8_e4m3", "f8_e5m2")
INTEGER_TYPES = ("s32", "s8", "u8")
PACKED_TYPES = ("s4", "u4")
STORED = ("u8", "s8", "s32", "f32", "f16", "bf16")
"""The types in which products of integers are stored."""


def row(**types: str) -> Row:
    """Return a row: a combination of types. The types of each tensor are separated by spaces."""
    return {name: tuple(text.split()) for name, text in types.items()}


def product_rows(*, decompressed: bool) -> Rows:
    """Return the rows of convolution, inner product and matmul.

    decompressed: whether weights may have fewer bits than src.
    """
    rows = [
        row(src="f32", weights="f32", bias="f32", dst="f32 u8 s8"),
        row(src="f16", weights="f16", bias="f16 f32", dst="f16 f32 u8 s8"),
        row(src="bf16", weights="bf16", bias="bf16 f32", dst="bf16 f32"),
        {"src": ("u8", "s8"), "weights": ("s8",), "bias": STORED, "dst": STORED},
        row(src="f64", weights="f64", bias="f64", dst="f64"),
    ]
    if decompressed:
        small = ("s8", "u8", *PACKED_TYPES, *F8_TYPES)
        rows += [
            {"src": (own,), "weights": small, "bias": wide, "dst": wide}
            for own, wide in (("f32", ("f32",)), ("f16", ("f16", "f32")), ("bf16", ("bf16", "f32")))
        ]
        rows.append({"src": ("u8", "s8"), "weights": ("u8", *PACKED_TYPES), "bias": STORED,
                     "dst": STORED})  # fmt: skip
    return tuple(rows)


def gradient_rows(inputs: Sequence[str], outputs: Sequence[str]) -> Rows:
    """Return the rows of gradients of products: one type for inputs; outputs may also be f32."""
    return tuple(
        dict.fromkeys(inputs, (own,)) | dict.fromkeys(outputs, wide)
        for own, wide in (
            ("f32", ("f32",)),
            ("f16", ("f16", "f32")),
            ("bf16", ("bf16", "f32")),
            ("f64", ("f64",)),
        )
    )


def one_type_rows(names: Sequence[str], types: Sequence[str]) -> Rows:
    """Return a row per type. All of these tensors have this type."""
    return tuple(dict.fromkeys(names, (own,)) for own in types)


def mixed_rows(names: Sequence[str], types: Sequence[str]) -> Rows:
    """Return one row, in which each tensor has any of these types."""
    return (dict.fromkeys(names, tuple(types)),)


def check_types(what: str, tensors: Mapping[str, str], rows: Rows) -> None:
    """Raise `DataTypeError` if no row permits the types of these tensors.

    The message names the first tensor whose type is not permitted together with the types of the
    tensors before it, and the types that are.
    """
    known = {own for row in rows for types in row.values() for own in types}
    seen: dict[str, str] = {}
    for name, own in tensors.items():
        allowed = {one for row in rows for one in row.get(name, (own,))}
        if own not in allowed:
            *others, last = sorted(allowed, key=list(DATA_TYPES).index)
            types = f"{', '.join(others)} or {last}" if others else last
            beside = "".join(f", {before} is {its}" for before, its in seen.items())
            beside = f", because{beside[1:]}" if seen else ""
            alone = own not in known or not seen
            together = {own} if alone else {own, *seen.values()}
            raise DataTypeError(
                f"{what}: {name} must be of type {types}{beside}; got {own}",
                f"data type {' with '.join(sorted(together))}",
            )
        left = [row for row in rows if own in row.get(name, (own,))]
        if len(left) < len(rows):
            seen[name] = own
        rows = left
