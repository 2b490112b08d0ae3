"""The section of docs/benchmarks.md about the lines of `benchmarks.operations`."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.documents import report
from benchmarks.documents.tables import markdown
from benchmarks.measuring.contest import Outcome
from benchmarks.measuring.ledger import Ledger
from benchmarks.problems.lines import Line, line_of, problems_of

__all__ = ["Operations", "section"]

TEXT = """\
`python -m benchmarks.operations` measured these problems on {date} on {device} with {threads}
threads and {versions}. Their shapes were drawn for this run. "Of a copy" is the time of a copy,
divided by dnncore's time. The copy is dnncore's reorder of as many bytes as the operation must
move; batch normalization in training reads src twice, and so does its gradient with src and
diff_dst. "each >= 1.3 or 0.9 of a copy" requires one of both of each problem. Recurrent cells have
50 steps. torch keeps freed memory, so that its new tensors need no new pages. Its gradient of cells
is measured without the forward pass. oneDNN's is measured with weights that are packed in each
call, where it packs them.
"""
HEAD = ("line", "goal", "geometric mean", "least", "of a copy: least, mean", "errors", "problems",
        "result")  # fmt: skip


@dataclass(frozen=True)
class Operations:
    """A run of `benchmarks.operations`.

    number: the number of the run in its ledger.
    run: its record: goals, threads, machine.
    rows: titles of lines and outcomes, one for each problem of a line: the newest.
    """

    number: int
    run: dict[str, Any]
    rows: list[tuple[str, Outcome]]

    @classmethod
    def load(cls, path: Path) -> Operations | None:
        """The newest run in a ledger, or None."""
        found: tuple[int, dict[str, Any]] | None = None
        newest: dict[tuple[str, str], Outcome] | None = None
        for value in Ledger(path).values():
            if "goals" in value:
                newest = None if "programs" in value else {}
                if newest is not None:
                    found, rows = (found[0] + 1 if found else 0, value), newest
            elif newest is not None:
                newest[value["line"], value["outcome"]["problem"]] = value["outcome"]
        return found and cls(*found, [(line, row) for (line, _), row in rows.items()])

    @property
    def lines(self) -> list[Line]:
        """The lines with their goals and problems."""
        return [line_of(record) for record in self.run["goals"]]

    def of(self, line: Line) -> list[Outcome]:
        """The outcomes of a line."""
        return [outcome for title, outcome in self.rows if title == line.title]


def section(found: Operations) -> tuple[str, str]:
    """The text about a run, and its table of goals."""
    machine = found.run["machine"]
    text = TEXT.format(
        date=f"{dt.date.fromisoformat(machine['date']):%d %B %Y}",
        device=machine["device"],
        threads=found.run["threads"],
        versions=", ".join(machine["versions"]),
    )
    return text, markdown(HEAD, [_row(line, found.of(line)) for line in found.lines])


def _row(line: Line, outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    found = report.figures(list(outcomes))
    rows, wanted = found["rows"], len(problems_of(line, full=True))
    goals = list(_goals(line, found))
    verdict = "**missed**"
    if all(held for _, held in goals) and not any(o.get("refused") for o in outcomes):
        verdict = "holds" if len(outcomes) == wanted else "holds so far"
    if found["wrong"]:
        verdict = f"**{len(found['wrong'])} wrong**"
    if not outcomes:
        verdict = "not measured"
    ratios = [f"{found[name]:.2f}" if rows else "" for name in ("geomean", "min")]
    shares = [row["share"] for row in rows if row.get("share")]
    copy = f"{min(shares):.2f}, {sum(shares) / len(shares):.2f}" if shares else ""
    count = report.counts(found, wanted)
    texts = ", ".join(text for text, _ in goals)
    return (line.title, texts, *ratios, copy, report.errors(rows), count, verdict)


def _goals(line: Line, found: dict[str, Any]) -> list[tuple[str, bool]]:
    """The goals as text, and for each whether it holds."""
    rows, goals = found["rows"], []
    if line.goal is not None:
        goals.append((f">= {line.goal:g}", (found["geomean"] or 0) >= line.goal))
    if line.least is not None:
        other = f" or {line.share:g} of a copy" if line.share else ""
        held = all(_is_held(line, row) for row in rows) and bool(rows)
        goals.append((f"each >= {line.least:g}{other}", held))
    return goals


def _is_held(line: Line, row: Outcome) -> bool:
    share = row.get("share") or 0.0
    return row["ratio"] >= (line.least or 0.0) or bool(line.share and share >= line.share)
