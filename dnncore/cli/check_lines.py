"""What `dnncore check` tells people: a line for each row, below it what is wrong, and a summary.

    --eltwise 2x3x4 on cpu
      ok     cpu_numba:simd  integers  dst  exact
      WRONG  mine:eltwise    random    dst  error 0.21
          worst at [1, 2, 3]: got 2.5, expected 1.5, bound 3e-07
          off by 8.39e+06 ulp; 1 wrong (4.2%), only there
          again: dnncore check --engines=cpu --eltwise --impl=mine:eltwise 2x3x4
    2 implementations of 1 problem: 1 ok, 1 wrong

An implementation counts there as its worst row does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from dnncore.cli.lines import STYLES, counted, line, wrapped
from dnncore.cli.rows import Row

__all__ = ["BAD", "tell", "tell_summary"]

BAD = {"wrong", "failed"}
WORDS = {"wrong": "WRONG", "failed": "FAILED"}  # to be seen without colours, too
WORST_FIRST = ("failed", "wrong", "ok", "unchecked")
TOLD_FIRST = ("ok", "wrong", "failed", "unchecked")
NAMES = ("implementation", "fill", "output")
INDENT = 6


def tell(rows: Sequence[Row]) -> None:
    """Print the rows of a problem on an engine: each on one line, and what is wrong below it."""
    line((f"{rows[0]['problem']} on {rows[0]['engine']}", "bold"))
    widths = [max(len(row.get(name, "")) for row in rows) for name in ("status", *NAMES)]
    for _, group in groupby(rows, key=lambda row: row["implementation"]):
        told = list(group)
        for row in told:
            _tell_one(row, widths)
        if any(row["status"] in BAD for row in told):
            line(" " * INDENT, f"again: {told[0]['command']}")


def _tell_one(row: Row, widths: Sequence[int]) -> None:
    status = row["status"]
    if status == "refused":
        line("  ", ("not supported", STYLES["refused"]))
        for refusal in row["refusals"]:
            wrapped(refusal, INDENT)
        return
    texts = [WORDS.get(status, status), *(row.get(name, "") for name in NAMES)]
    word, *names = (text.ljust(width) for text, width in zip(texts, widths, strict=True))
    line("  ", (word, STYLES[status]), "  ", "  ".join(names), "  ", _measure(row))
    if status == "wrong":
        _tell_worst(row)
    elif row.get("reason"):
        wrapped(row["reason"], INDENT)


def _measure(row: Row) -> str:
    """How far off all is, norm-wise."""
    if "error" not in row:
        return ""
    if "worst" not in row:
        return "no elements"
    return "exact" if row["status"] == "ok" and not row["error"] else f"error {row['error']:.2g}"


def _tell_worst(row: Row) -> None:
    wrapped(
        f"worst at {row['worst']}: got {row['got']:.9g}, expected {row['expected']:.9g},"
        f" bound {row['bound']:.2g}",
        INDENT,
    )
    off = f"off by {row['ulp']:.3g} ulp; " if row["ulp"] else ""  # of NaN and inf there are none
    wrapped(f"{off}{row['wrong']} wrong ({row['share']:.1%}), {row['place']}", INDENT)


# -- all together ----------------------------------------------------------------------------------


def tell_summary(rows: Sequence[Row]) -> None:
    """Print how many implementations of how many problems are right, and what is not supported.

    The same implementation on two engines counts twice. Without rows nothing is printed.
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
    told = [(f"{counts[word]} {word}", STYLES[word]) for word in TOLD_FIRST if counts[word]]
    for engine, count in missing.items():
        text = f"{counted(count, 'problem')} not supported on {engine}"
        told.append((text, STYLES["refused"]))
    line((head, "bold"), *[piece for part in told for piece in (", ", part)][1:])
