"""Prints the page on operations: python -m dnncore.documents.operations > docs/operations.md."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from itertools import groupby

from dnncore import ops
from dnncore.attributes import ROUNDED
from dnncore.documents.docstrings import markdown
from dnncore.ops import Operation
from dnncore.ops.normalization import NormalizationForward
from dnncore.post_op import PostOp

__all__ = ["OPERATIONS", "page"]

INTRODUCTION = """# Operations

This page lists the fields and the tensors of all operations. `python -m
dnncore.documents.operations > docs/operations.md` writes it from the docstrings, which
`help(dnncore.MatMul)` shows, too. [algorithms.md](algorithms.md) has the formulas of eltwise,
binary and reduction, and [types.md](types.md) the data types.

Implementations get the tensors in the order in which "Arguments" lists them, without those that are
absent, and then the operands of post-ops. The workspace is no field of an operation:
`PrimitiveDesc.workspace_desc` is its descriptor.

"Masks of scales" and "Masks of zero points" list the tensors that may have them, and the possible
masks. If bit d of a mask is set, there is a value for each index of dim d. The mask 0 means one
value for the tensor. Only tensors of integers may have zero points. "Groups" lists the tensors in
which neighbouring elements along the last two dims may share a value; dims that are divided in
groups must be in the mask. An operation without one of these lines has no such attribute, and one
without "Dropout" has no dropout. "Stochastic rounding" lists the types of the first output to which
it may round.

## Post-ops
"""

TENSORS = re.compile(r"\b(?:src\d?|weights|dst)\b")
OPERATIONS: list[type[Operation]] = [
    value
    for name in ops.__all__
    if issubclass(value := getattr(ops, name), Operation) and value is not Operation
]


def page() -> Iterator[str]:
    """Yield the lines of the page."""
    yield INTRODUCTION
    yield from markdown(PostOp.__doc__)
    for module, operations in groupby(OPERATIONS, lambda operation: operation.__module__):
        yield from ("", f"## `{module}`", "")
        yield from markdown(sys.modules[module].__doc__)
        in_source = list(vars(sys.modules[module]))
        for operation in sorted(operations, key=lambda op: in_source.index(op.__name__)):
            yield from ("", f"### `{operation.__name__}`", "")
            yield from markdown(operation.__doc__)
            yield ""
            yield from markdown(_arguments(operation))
            yield ""
            yield from markdown("\n".join(f"- {line}" for line in _attributes(operation)))


def _arguments(operation: type[Operation]) -> str:
    rows = operation.ARGUMENTS
    if isinstance(rows, property):  # sum has any number of rows
        return "Arguments: `src0`, `src1`, ... in, `dst` out. In place: `dst` on `src0`."
    listed = ", ".join(f"`{row.name}` {row.direction}" for row in rows)
    pairs = ", ".join(f"`{output}` on `{source}`" for source, output in operation.IN_PLACE)
    given = ""
    if issubclass(operation, NormalizationForward):
        # The class has the table of an operation that computes the statistics.
        given = (
            " With `use_global_stats`, `mean` and `variance` are in, after the sources. Without it,"
            " they are out in training and absent in inference."
        )
    return f"Arguments: {listed}.{given}" + (f" In place: {pairs}." if pairs else "")


def _attributes(operation: type[Operation]) -> Iterator[str]:
    """Return the attributes that the tables of a class permit, with the docstrings of its masks."""
    for name, masks in (("scales", "scale_masks"), ("zero points", "zero_point_masks")):
        if masks in vars(operation):
            text = " ".join(str(getattr(operation, masks).__doc__).split())
            named = TENSORS.sub(r"`\g<0>`", text)
            yield f"Masks of {name}: {named}"
    if operation.GROUPED:
        yield f"Groups: {', '.join(f'`{tensor}`' for tensor in operation.GROUPED)}."
    if operation.HAS_DROPOUT:
        yield "Dropout: yes."
    output = _result(operation)
    types = {own for row in operation.TYPES for own in row.get(output, ())}
    yield f"Stochastic rounding: {', '.join(own for own in ROUNDED if own in types)}."


def _result(operation: type[Operation]) -> str:
    """Return the name of the first output."""
    rows = operation.ARGUMENTS
    if isinstance(rows, property):  # sum
        return "dst"
    return next(row.name for row in rows if row.direction == "out")


if __name__ == "__main__":
    print("\n".join(page()))
