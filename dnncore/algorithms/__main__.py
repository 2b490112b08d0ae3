"""Prints the page on algorithms: python -m dnncore.algorithms > docs/algorithms.md."""

from __future__ import annotations

from collections.abc import Iterator

from dnncore.algorithms.binary import BINARY
from dnncore.algorithms.eltwise import ELTWISE
from dnncore.algorithms.reduction import REDUCTION

INTRODUCTION = """# Algorithms

This page lists the formulas of eltwise, binary and reduction algorithms, in the syntax of Python.
`python -m dnncore.algorithms > docs/algorithms.md` writes it from the records in
`dnncore/algorithms/`. Tests compare the formulas with the reference.
"""

ABOUT_ELTWISE = """
## Eltwise

For each element s of src, dst = f(s). The parameters are alpha and beta. f(NaN) is NaN. The
gradient is diff_src = diff_dst * f'(s). The column "f' of d" has f' as a formula of d = f(s). If it
has one, the algorithm NAME_use_dst_for_bwd exists, too. Its gradient reads dst instead of src.
"""

ABOUT_BINARY = """
## Binary

The operands src0 and src1 are broadcast. The result of a comparison is 1 or 0. The result of `max`
and `min` is NaN if src0 or src1 is NaN. The condition src2 of `select` has the type s8.
"""

ABOUT_REDUCTION = """
## Reduction

In each formula, s stands for all elements along the reduced dims, and count is their number. If one
of them is NaN, the result is NaN. The norms have the parameters p, at least 1, and eps.
"""


def page() -> Iterator[str]:
    """Yield the lines of the page."""
    yield INTRODUCTION.rstrip()
    yield ABOUT_ELTWISE
    titles = ("Name", "f(s)", "f'(s)", "f' of d", "Rule")
    yield from _table(
        titles,
        (
            (name, record.formula, record.slope, record.slope_of_dst, _rule(record.rule))
            for name, record in ELTWISE.items()
        ),
    )
    yield ABOUT_BINARY
    yield from _table(("Name", "dst"), ((name, a.formula) for name, a in BINARY.items()))
    yield ABOUT_REDUCTION
    yield from _table(("Name", "dst"), ((name, a.formula) for name, a in REDUCTION.items()))


def _rule(rule: tuple[str, object] | None) -> str:
    return rule[0].partition(",")[0] if rule else ""


def _table(titles: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    """Yield the lines of a table whose cells are code."""
    yield f"| {' | '.join(titles)} |"
    yield "|" + "---|" * len(titles)
    for row in rows:
        yield f"| {' | '.join(f'`{cell}`' if cell else '' for cell in row)} |"


if __name__ == "__main__":
    print("\n".join(page()))
