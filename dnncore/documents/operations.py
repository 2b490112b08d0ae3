"""Prints the page on operations: python -m dnncore.documents.operations > docs/operations.md."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import groupby

from dnncore import ops
from dnncore.attributes import PostOp
from dnncore.documents.docstrings import markdown
from dnncore.ops import Operation

__all__ = ["OPERATIONS", "page"]

INTRODUCTION = """# Operations

This page lists the fields and the tensors of all operations. `python -m
dnncore.documents.operations > docs/operations.md` writes it from the docstrings, which
`help(dnncore.MatMul)` shows, too. [algorithms.md](algorithms.md) has the formulas of eltwise,
binary and reduction, and [types.md](types.md) the data types.

Implementations get the tensors in the order in which "Arguments" lists them, without those that are
absent, and then the operands of post-ops.

## Post-ops
"""

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


def _arguments(operation: type[Operation]) -> str:
    rows = operation.ARGUMENTS
    if isinstance(rows, property):  # of sum, which has any number of them
        return "Arguments: `src0`, `src1`, ... in, `dst` out. In place: `dst` on `src0`."
    listed = ", ".join(f"`{row.name}` {row.direction}" for row in rows)
    pairs = ", ".join(f"`{output}` on `{source}`" for source, output in operation.IN_PLACE)
    return f"Arguments: {listed}." + (f" In place: {pairs}." if pairs else "")


if __name__ == "__main__":
    print("\n".join(page()))
