"""Prints the page on algorithms: python -m dnncore.algorithms > docs/algorithms.md."""

from __future__ import annotations

from collections.abc import Iterator

from dnncore.algorithms.binary import BINARY
from dnncore.algorithms.eltwise import ELTWISE
from dnncore.algorithms.reduction import REDUCTION

INTRODUCTION = """# Algorithms

The formulas of eltwise, binary and reduction, in Python's notation. `python -m dnncore.algorithms >
docs/algorithms.md` writes this page from the records in `dnncore/algorithms/`, and tests compare
the formulas with the reference.
"""

ABOUT_ELTWISE = """
## Eltwise

y = f(s), with the parameters alpha and beta. NaN gives NaN. The gradient is diff_dst * f'. An
algorithm with f' of d = f(s) also exists as NAME_use_dst_for_bwd, which computes its gradient from
dst.
"""

ABOUT_BINARY = """
## Binary

A comparison gives 1 or 0. `max` and `min` give NaN if one of the inputs is NaN.
"""

ABOUT_REDUCTION = """
## Reduction

The functions run over the elements s along the reduced dims. NaN gives NaN. p is at least 1.
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
