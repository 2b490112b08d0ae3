"""Outcomes as a table, as lines of text and as JSON."""

from __future__ import annotations

import functools
import json
import re
import statistics
from typing import Any

from rich.box import SIMPLE
from rich.console import Group
from rich.table import Table
from rich.text import Text

from benchmarks.contestants.contestant import is_arithmetic
from benchmarks.measuring.contest import Outcome
from dnncore.errors import DescriptorError
from dnncore.problem import read

__all__ = [
    "counts", "errors", "figures", "json_text", "label", "larger_errors", "mean_errors", "notes",
    "one_line", "rate", "short", "table",
]  # fmt: skip


def figures(outcomes: list[Outcome]) -> dict[str, Any]:
    """The rows, their geometric mean ratio and least ratio, and the outcomes without a ratio."""
    rows = [outcome for outcome in outcomes if "ratio" in outcome]
    ratios = [row["ratio"] for row in rows]
    return {
        "geomean": statistics.geometric_mean(ratios) if ratios else None,
        "min": min(ratios, default=None),
        "rows": rows,
        "left_out": [outcome for outcome in outcomes if "left_out" in outcome],
        "wrong": [outcome for outcome in outcomes if "wrong" in outcome],
    }


def counts(found: dict[str, Any], wanted: int) -> str:
    """Text: how many wanted problems have rows, are wrong, left out or not measured."""
    numbers = [len(found[name]) for name in ("rows", "wrong", "left_out")]
    words = zip(("wrong", "left out", "not measured"), (*numbers[1:], wanted - sum(numbers)),
                strict=True)  # fmt: skip
    return ", ".join([f"{numbers[0]} of {wanted}", *(f"{n} {word}" for word, n in words if n)])


def json_text(found: dict[str, Any]) -> str:
    """Figures as a JSON text."""
    return json.dumps(found, indent=1)


def rate(row: Outcome, side: str) -> str:
    """GF/s or GB/s of one side, `ours` or `peer`."""
    unit = "gflops" if is_arithmetic(row["problem"]) else "gbps"
    return f"{row[f'{side}_{unit}']:.0f} {'GF/s' if unit == 'gflops' else 'GB/s'}"


def mean_errors(rows: list[Outcome]) -> list[float]:
    """Geometric means of our errors and of the peer's. An error of 0 counts as 1e-12."""
    names = ("ours_error", "peer_error")
    return [statistics.geometric_mean([row[name] or 1e-12 for row in rows]) for name in names]


def larger_errors(rows: list[Outcome]) -> list[Outcome]:
    """The rows where our error is larger than the peer's."""
    return [row for row in rows if row["ours_error"] > row["peer_error"]]


def errors(rows: list[Outcome]) -> str:
    """Text: the mean errors of both sides, and how often and by how much ours is larger."""
    if not rows:
        return ""
    ours, theirs = mean_errors(rows)
    larger = larger_errors(rows)
    text = f"{ours:.1e}, {theirs:.1e}; larger in {len(larger)} of {len(rows)}"
    pairs = [(row["ours_error"], row["peer_error"]) for row in larger]
    if not pairs:
        return text
    worst = max(pairs, key=lambda pair: pair[0] / max(pair[1], 1e-12))
    return f"{text}, at most {worst[0]:.1e} against {worst[1]:.1e}"


def notes(row: Outcome) -> list[str]:
    """Return notes on a row: a peer with wrong results, and absent peers."""
    texts = [f"{row['peer_wrong']}, and does not count"] if row.get("peer_wrong") else []
    return [*texts, *([f"without {row['absent']}"] if row.get("absent") else [])]


def label(row: Outcome) -> str:
    """A short name of a row: the name of its shape, the batch size and the direction."""
    text = str(row["problem"])
    name = re.search(r'n"([^"]*)"', text)
    direction = re.search(r"--dir=(\w+)", text)
    batch = re.search(r"mb\d+", text)
    if name is None:
        return short(text)
    rest = [batch[0] if batch else "", direction[1] if direction else ""]
    return " ".join([name[1].partition("*")[0], *filter(None, rest)])


@functools.cache
def short(text: str) -> str:
    """The text of a problem without default strides, dilations and paddings.

    Widths that are equal to heights are left out, too.
    """
    shape, quote, name = text.partition('n"')
    brief = re.sub(r"_iw\w*$", "", shape)
    brief = re.sub(r"(sh1|dh0|ph0)(?=\D|$)", "", brief)
    brief = re.sub(r"ih(\d+)iw\1(?=\D|$)", r"ih\1", brief) + quote + name
    return brief if _same(brief, text) else text


def _same(brief: str, text: str) -> bool:
    try:
        return read(brief) == read(text)
    except DescriptorError:
        return False


def one_line(outcome: Outcome) -> str:
    """The outcome of one problem as a line of text."""
    if "left_out" in outcome:
        reason = " ".join(outcome["left_out"].split())
        return f"left out  {outcome['problem']}: {reason}"
    if "wrong" in outcome:
        return f"WRONG  {outcome['problem']}: {outcome['wrong']}"
    times = f"{outcome['ours_ms']:.3f} ms, {outcome['peer_ms']:.3f}"
    rates = f"{rate(outcome, 'ours')}, {rate(outcome, 'peer')}"
    share = f"{outcome['share']:.2f} of a copy  " if outcome.get("share") else ""
    error = f"{outcome['error']:.0e}  " if outcome["error"] else ""
    words = f"{share}{error}{outcome['impl']}  {short(outcome['problem'])}"
    return f"{outcome['ratio']:.2f}  {times}  {rates}  {words}"


def table(found: dict[str, Any]) -> Group:
    """A table of all rows, and below it a line for each outcome without a ratio."""
    grid = Table(box=SIMPLE, padding=(0, 1, 0, 0))
    grid.add_column("problem", overflow="fold")
    for title in ("ours", "peer"):
        grid.add_column(title, overflow="fold")
        for figure in ("ms", "", "scratchpad"):
            grid.add_column(figure, justify="right")
    for title in ("ratio", "error", "peer's error"):
        grid.add_column(title, justify="right")
    for row in found["rows"]:
        grid.add_row(Text(short(row["problem"])), *_cells(row))
    if found["rows"]:
        grid.add_section()
        means = f"{found['geomean']:.3f}", f"{found['min']:.3f}"
        grid.add_row("geometric mean; least", *[""] * 8, f"{means[0]}; {means[1]}", "", "")
    rest = []
    if any(len(row.get("ratios", ())) > 1 for row in found["rows"]):
        rest.append(Text("A row of several processes is that of the one with the median ratio."))
    rest += [Text(one_line(outcome)) for outcome in (*found["left_out"], *found["wrong"])]
    rest += [
        Text(f"{short(row['problem'])}: {note}") for row in found["rows"] for note in notes(row)
    ]
    return Group(grid, *rest)


def _cells(row: Outcome) -> list[Any]:
    cells: list[Any] = []
    for side, name in (("ours", row["impl"]), ("peer", f"{row['peer']}: {row['peer_impl']}")):
        size = _size(row[f"{side}_scratchpad"])
        cells += [Text(name), f"{row[f'{side}_ms']:.3f}", rate(row, side), size]
    return [*cells, f"{row['ratio']:.2f}", *(f"{row[n]:.1e}" for n in ("ours_error", "peer_error"))]


def _size(nbytes: int | None) -> str:
    if nbytes is None:
        return "?"
    return f"{nbytes / 1024:.0f} KB" if nbytes else "-"
