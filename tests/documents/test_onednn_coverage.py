"""docs/onednn_coverage.md names every operation and primitive, with the types of its table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import dnncore.ops
from dnncore.ops import Operation
from dnncore.tensors.datatypes import DATA_TYPES

PAGE = Path(__file__).parents[2] / "docs" / "onednn_coverage.md"
PRIMITIVES = (
    "reorder", "shuffle", "concat", "sum", "convolution", "deconvolution", "eltwise", "LRN",
    "batch normalization", "inner product", "rnn", "gemm", "binary", "matmul", "resampling",
    "pooling", "reduction", "PReLU", "softmax", "layer normalization", "group normalization",
    "zero_pad", "sdpa", "gated MLP", "sparse matmul", "grouped matmul", "graph API",
    "microkernels",
)  # fmt: skip
OPERATIONS = {
    name: value
    for name in dnncore.ops.__all__
    if isinstance(value := getattr(dnncore.ops, name), type) and issubclass(value, Operation)
}  # fmt: skip


def _tables() -> dict[str, list[list[str]]]:
    """Return the cells of the rows of each section."""
    found: dict[str, list[list[str]]] = {}
    title = ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            title = line[3:]
        elif line.startswith("| ") and not line.startswith("| oneDNN"):
            found.setdefault(title, []).append([cell.strip() for cell in line[2:-2].split(" | ")])
    return found


def _operations(cell: str) -> list[type[Operation]]:
    names = re.findall(r"`(\.*\w+)`", cell)
    stem = names[0].removesuffix("Forward")
    found = (name.replace("...", stem) for name in names)
    return [OPERATIONS[name] for name in found if name in OPERATIONS]


@pytest.mark.parametrize("row", _tables()["Primitives"], ids=lambda row: row[0])
def test_a_row_has_the_types_of_the_first_input(row):
    wanted = {
        data_type
        for operation in _operations(row[1])
        for types in operation.TYPES
        for data_type in types[next(iter(types))]
    }
    cell = re.split(r"\.|; no ", row[3])[0]
    assert {word for word in re.findall(r"\w+", cell) if word in DATA_TYPES} == wanted


def test_each_operation_and_each_primitive_has_a_row():
    tables = _tables()
    named = {op for row in tables["Primitives"] for op in _operations(row[1])}
    concrete = {op for op in OPERATIONS.values() if getattr(op, "ARGUMENTS", ())}
    assert concrete <= named
    first = " ".join(row[0] for name in ("Primitives", "Left out") for row in tables[name])
    assert [name for name in PRIMITIVES if name not in first] == []
    assert all(len(row) == 2 and row[1] for row in tables["Left out"])
