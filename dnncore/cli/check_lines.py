"""Text output of `dnncore check`: a line for each row, details of errors, and a summary.

    --eltwise 2x3x4 on cpu
      ok     cpu_numba:simd  integers  dst  exact
      WRONG  mine:eltwise    random    dst  error 0.21
          worst at [1, 2, 3]: got 2.5, expected 1.5, bound 3e-07
          off by 1, 3.33e+06 times the bound; 1 wrong (4.2%), only there
          again: dnncore check --engines=cpu --eltwise --impl=mine:eltwise 2x3x4
    2 implementations of 1 problem: 1 ok, 1 wrong

The summary counts each implementation with the status of its worst row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from dnncore.cli.lines import STYLES, counted, line, wrapped
from dnncore.cli.rows import Row

if TYPE_CHECKING:
    from dnncore.comparison.compare import Comparison

__all__ = ["BAD", "comparison_row", "print_rows", "print_summary"]

BAD = {"wrong", "failed"}
WORDS = {"wrong": "WRONG", "failed": "FAILED"}  # visible without colours
WORST_FIRST = ("failed", "wrong", "ok", "unchecked")
SUMMARY_ORDER = ("ok", "wrong", "failed", "unchecked")
NAMES = ("implementation", "fill", "output")
NUMBERS = (
    "got", "expected", "bound", "of_bound", "distance", "misplaced", "wrong", "share", "place",
    "lost", "error_factor",
)  # fmt: skip
INDENT = 6


def comparison_row(found: Comparison) -> Row:
    """The keys of a row about a comparison."""
    row: Row = {"status": "ok" if found.ok else "wrong", "error": found.error}
    if found.index is None:
        return row
    return row | {"worst": list(found.index)} | {name: getattr(found, name) for name in NUMBERS}


def print_rows(rows: Sequence[Row]) -> None:
    """Print the rows of a problem on an engine: one line each, with details of errors below."""
    line((f"{rows[0]['problem']} on {rows[0]['engine']}", "bold"))
    widths = [max(len(row.get(name, "")) for row in rows) for name in ("status", *NAMES)]
    for _, group in groupby(rows, key=lambda row: row["implementation"]):
        same = list(group)
        for row in same:
            _print_row(row, widths)
        if any(row["status"] in BAD for row in same):
            line(" " * INDENT, f"again: {same[0]['command']}")


def _print_row(row: Row, widths: Sequence[int]) -> None:
    status = row["status"]
    if status == "refused":
        line("  ", ("not supported", STYLES["refused"]))
        for refusal in row["refusals"]:
            wrapped(refusal, INDENT)
        return
    texts = [WORDS.get(status, status), *(row.get(name, "") for name in NAMES)]
    word, *names = (text.ljust(width) for text, width in zip(texts, widths, strict=True))
    line("  ", (word, STYLES[status]), "  ", "  ".join(names), "  ", _measure(row))
    if row.get("wrong"):
        _print_worst(row)
    if row.get("lost"):
        wrapped(f"lost precision: {row['lost']}", INDENT)
    if row.get("reason"):
        wrapped(row["reason"], INDENT)


def _measure(row: Row) -> str:
    """The norm-wise error as text, its share of the bound, and the factor of the bound."""
    if "error" not in row:
        return ""
    if "worst" not in row:
        return "no elements"
    if row["status"] == "ok" and not row["error"]:
        return "exact"
    if row["misplaced"]:
        return f"NaN or inf differ in {row['misplaced']} place(s)"
    factor = row["error_factor"]
    claim = f", error factor {factor:.3g}" if factor != 1.0 else ""
    share = f", {row['of_bound']:.2g} of the bound" if row["status"] == "ok" else ""
    return f"error {row['error']:.2g}{share}{claim}"


def _print_worst(row: Row) -> None:
    bound = "" if row["misplaced"] else f", bound {row['bound']:.2g}"
    place = f"worst at {row['worst']}: got {row['got']:.9g}, expected {row['expected']:.9g}"
    wrapped(place + bound, INDENT)
    off = f"{row['distance']}; " if row["distance"] else ""
    wrapped(f"{off}{row['wrong']} wrong ({row['share']:.1%}), {row['place']}", INDENT)


# -- all together ----------------------------------------------------------------------------------


def print_summary(rows: Sequence[Row]) -> None:
    """Print the numbers of implementations and problems by status.

    An implementation on two engines counts twice. Without rows nothing is printed.
    """
    if not rows:
        return
    found: dict[tuple[str, ...], set[str]] = {}
    for row in rows:
        at = (row["problem"], row["engine"], row["implementation"])
        found.setdefault(at, set()).add(row["status"])
    counts = Counter(
        next(s for s in (*WORST_FIRST, "refused") if s in got) for got in found.values()
    )
    missing = Counter(row["engine"] for row in rows if row["status"] == "refused")
    tried = counts.total() - missing.total()
    problems = len({row["problem"] for row in rows})
    head = f"{counted(tried, 'implementation')} of {counted(problems, 'problem')}: "
    parts = [(f"{counts[word]} {word}", STYLES[word]) for word in SUMMARY_ORDER if counts[word]]
    for engine, count in missing.items():
        text = f"{counted(count, 'problem')} not supported on {engine}"
        parts.append((text, STYLES["refused"]))
    line((head, "bold"), *[piece for part in parts for piece in (", ", part)][1:])
