"""Writes docs/benchmarks.md: the figures, the goals, the machine and the method."""

from __future__ import annotations

import datetime as dt
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.digits import GOAL as DIGITS_GOAL
from benchmarks.documents import report
from benchmarks.documents.figures import Figures
from benchmarks.documents.operations import section
from benchmarks.documents.sampled import NAMED, introduction
from benchmarks.documents.tables import limits, markdown
from benchmarks.measuring.contest import Outcome
from benchmarks.problems.lines import Line, problems_of
from benchmarks.problems.samples import is_least_held, least_text
from benchmarks.roofline import Roofline

__all__ = ["NAME", "page", "write"]

NAME = "benchmarks.md"
PICTURES = ("benchmarks_speed_ups", "benchmarks_roofline")
STEP = "the whole step"  # a part of benchmarks.alexnet
# Goals of selection: least ratio of a good choice, share of good choices, share of best time.
NEAR, OF_LAYERS, OF_TIME = 0.9, 0.9, 0.95
# A scratchpad is listed if it exceeds SPARE_FACTOR times the peer's plus SPARE_BYTES.
SPARE_BYTES, SPARE_FACTOR = 1 << 20, 1.1

HOW = """\
Each problem is computed by dnncore and by three peers: oneDNN 3.2, the newest oneDNN on PyPI and
torch. Each peer is in a process of its own, with the same cores, {threads} threads and the same
values. Each side selects the formats that a problem leaves open, and packs weights before the
measurement. Some sides have several contestants: torch's two orders of images, oneDNN's inner
product and its matrix product, or runs with and without reorders. One pass finds the fastest
contestant of dnncore and the fastest of all peers. Another pass measures these two. {processes}

The samples of the two sides alternate, with pauses of 20 ms, because the threads of OpenMP stay
active for a while after their work. If a process uses more processor time than that while it waits,
the row is wrong. A time is the median of 9 samples. The newest oneDNN computes on a SYCL device: a
call costs about 10 us more than one of oneDNN 3.2.

Every result is compared with torch's float64, or with dnncore's reference where torch lacks the
operation. Just before the last sample, the inputs change and the outputs are overwritten with NaN.
The results of that sample are compared with float64 again. If a result is wrong, no time is listed.
If a peer is wrong, its other contestants and the other peers count, and a note below the table
names the error. An error is the norm of the difference from float64, divided by the norm of the
result. "Errors" lists the geometric means of dnncore's errors and of the peer's, the number of
problems where dnncore's error is larger, and the worst of them.

**The ratio is the peer's time divided by dnncore's time.** Above 1, dnncore is faster. Repeated
runs of one problem differ by about 5 %. A goal such as ">= 1.03" is the least geometric mean of the
ratios of all problems in a row. "each >= 0.9" is the least ratio of each problem. "all but 2 >=
0.9" is the least ratio of all problems but two.

GF/s are billions of operations per second. The operations of all taps are counted, although taps in
the padding need no computation. So a point may lie above the roofline. A point whose data stay in
the last-level cache may also lie above it, because the roofline contains the rate of main memory.

`python -m benchmarks.compare PROBLEM` measures a row again. PROBLEM is the row's text without the
name after `n`. Add `--reorders` for a line that counts reorders.
"""
PROCESSES = {
    True: "Each row comes from the one of three new processes that has the median ratio.",
    False: "Each time comes from one process.",
}


def write(figures: Figures, folder: Path, origin: str = "") -> Path:
    """Write the document and its pictures. Returns the path of the document."""
    _draw(figures, folder / "pictures")
    path = folder / NAME
    path.write_text(page(figures, origin), encoding="utf-8")
    return path


def page(figures: Figures, origin: str = "") -> str:
    """The text of the document. origin: its paragraph about the ledger."""
    parts = [
        "# Benchmarks",
        _machine(figures),
        HOW.format(threads=figures.threads, processes=PROCESSES[figures.full]),
        origin,
        "## Goals",
        introduction(figures.samples, "cpu", full=figures.full),
        _goals(figures),
        "## Named lists",
        NAMED,
        _rows(figures.lists, figures),
        *(f"![{name.replace('_', ' ')}](pictures/{name}.png)" for name in PICTURES),
        *_operations(figures),
        "## Selection and scratchpads",
        _selection(figures.selection),
        _scratchpads(figures),
        "## Creation and calls",
        limits(figures.programs["overheads"]),
        "## Every problem",
        *(_details(title, outcomes) for title, outcomes in _every_line(figures)),
    ]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def _operations(figures: Figures) -> list[str]:
    """The section of normalizations, copies, cells and attention."""
    return ["## Every operation", *section(figures.operations)] if figures.operations else []


def _every_line(figures: Figures) -> Iterator[tuple[str, list[Outcome]]]:
    """Titles and outcomes of all lines."""
    yield from figures.lines.items()
    found = figures.operations
    if found:
        yield from ((line.title, rows) for line in found.lines if (rows := found.of(line)))


def _machine(figures: Figures) -> str:
    roofline = Roofline(**figures.programs["roofline"])
    machine = figures.machine
    command = "make bench-full" if figures.full else "make bench"
    date = dt.date.fromisoformat(machine["date"])
    listed = "\n".join(f"- {version}" for version in machine["versions"])
    return (
        f"`{command}` wrote this page on {date:%d %B %Y} on {machine['system']} with:\n\n"
        f"{listed}\n\n"
        f"Machine: {machine['device']}, {figures.threads} threads. Measured peaks:"
        f" {roofline.flops / 1e9:.0f} GF/s for multiply-adds in registers and"
        f" {roofline.bandwidth / 1e9:.0f} GB/s for reading memory."
    )


# -- goals -----------------------------------------------------------------------------------------


HEAD = ("line", "goal", "geometric mean", "least", "errors", "problems", "result")


def _rows(lines: Sequence[Line], figures: Figures) -> str:
    """A table with a row for each line."""
    return markdown(HEAD, [_goal_row(line, figures) for line in lines])


def _goals(figures: Figures) -> str:
    """A table with a row for each sample and each program."""
    rows = [_goal_row(line, figures) for line in figures.samples]
    rows.append(_alexnet_row(figures.programs["alexnet"]))
    digits = figures.programs["digits"].get("ratio")
    rows.append(
        _program_row(
            "An epoch of the digits, compared with torch's eager mode", DIGITS_GOAL, digits
        )
    )
    return markdown(HEAD, rows)


def _goal_row(line: Line, figures: Figures) -> tuple[str, ...]:
    """Title, goals, figures and verdict. A goal holds only if all problems are measured."""
    outcomes = figures.lines.get(line.title, [])
    wanted_rows = len(problems_of(line, full=figures.full)) or line.draw
    found = report.figures(outcomes)
    wanted, held = [], []
    if line.goal is not None:
        wanted.append(f">= {line.goal:g}")
        held.append((found["geomean"] or 0) >= line.goal)
    if line.least is not None:
        wanted.append(least_text(line))
        held.append(is_least_held(line, outcomes))
    if line.draw:
        held.append(not any(outcome.get("refused") for outcome in outcomes))
    so_far = "holds" if len(outcomes) == wanted_rows else "holds so far"
    mark = (so_far if all(held) else "**missed**") if held else ""
    if found["wrong"]:
        mark = f"**{len(found['wrong'])} wrong**"
    if not outcomes:
        mark = "not measured"
    count = report.counts(found, wanted_rows)
    ratios = (_ratio(found["geomean"]), _ratio(found["min"]))
    errors = report.errors(found["rows"])
    return (line.title, ", ".join(wanted), *ratios, errors, count, mark)


def _alexnet_row(sides: Any) -> tuple[str, ...]:
    """The row of the training step, with the largest error of dnncore and of the fastest peer."""
    ours, step = sides["cpu"], sides["cpu"].get(STEP, {})
    peers = {name: side for name, side in sides.items() if name not in ("cpu", "absent")}
    right = [side for side in peers.values() if STEP in side]
    best = min(right, key=lambda side: side[STEP]["seconds"], default={"errors": {}})
    errors = [max(side["errors"].values(), default=0.0) for side in (ours, best)]
    title = "AlexNet's training step, compared with oneDNN and torch"
    row = _program_row(title, step.get("goal") or 0.0, step.get("ratio"))
    return (*row[:4], f"largest {errors[0]:.1e}, {errors[1]:.1e}", *row[5:])


def _program_row(title: str, goal: float, ratio: float | None) -> tuple[str, ...]:
    mark = "holds" if ratio and ratio >= goal else "**missed**" if ratio else "**wrong**"
    return (title, f">= {goal:g}", _ratio(ratio), _ratio(ratio), "", "1", mark)


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


# -- selection, scratchpads ------------------------------------------------------------------------


def _selection(outcomes: list[Outcome]) -> str:
    """A table of selections with their times. A single candidate counts as the fastest."""
    if not outcomes:
        return "Not measured."
    ratios = [outcome.get("ratio", 1.0) for outcome in outcomes]
    near = statistics.mean(ratio >= NEAR for ratio in ratios)
    rows = [outcome for outcome in outcomes if "ratio" in outcome]
    ours = sum(row["ours_ms"] for row in rows)
    best = sum(min(row["ours_ms"], row["peer_ms"]) for row in rows)
    far = [f"- {report.label(row)}: {row['impl']} {row['ours_ms']:.3f} ms, {row['peer_impl']}"
           f" {row['peer_ms']:.3f} ms" for row in rows if row["ratio"] < NEAR]  # fmt: skip
    text = (
        f"Without tuning, the selected implementation is within 10 % of dnncore's fastest on"
        f" {near:.0%} of {len(ratios)} layers, forward and backward (goal: {OF_LAYERS:.0%}). With"
        f" the fastest implementation of each layer, all layers together would take"
        f" {best / ours:.1%} of the time (goal: {OF_TIME:.0%})."
    )
    heading = "Layers with a larger difference, with the selected and the fastest implementation:"
    return "\n".join([text, *(["", heading, "", *far] if far else [])])


def _scratchpads(figures: Figures) -> str:
    """Direct convolutions whose scratchpad is larger than the peer's, if both are known."""
    rows = [row for row in figures.outcomes if row["problem"].startswith("--conv")]
    direct = [row for row in rows if "--alg=" not in row["problem"]]
    known = [row for row in direct if row.get("peer_scratchpad") is not None]
    beyond = [row for row in known if row["ours_scratchpad"]
              > SPARE_FACTOR * row["peer_scratchpad"] + SPARE_BYTES]  # fmt: skip
    text = (
        f"{len(beyond)} of {len(known)} direct convolutions need a scratchpad that exceeds"
        " oneDNN's by more than 1 MB and 10 %"
    )
    lines = [f"- {report.label(row)}: {row['impl']} {row['ours_scratchpad'] / 1e6:.1f} MB, oneDNN"
             f" {row['peer_scratchpad'] / 1e6:.1f} MB" for row in beyond]  # fmt: skip
    return "\n".join([text + (":" if beyond else "."), "", *lines])


# -- every problem ---------------------------------------------------------------------------------


def _details(title: str, outcomes: list[Outcome]) -> str:
    """All rows of a line, in a folded section."""
    found = report.figures(outcomes)
    head = (
        "problem", "dnncore", "ms", "rate", "error", "peer", "ms", "rate", "error", "ratio",
    )  # fmt: skip
    parts = [f"<details><summary>{title}</summary>", markdown(head, map(_cells, found["rows"]))]
    rest = [f"- `{report.one_line(outcome)}`" for outcome in (*found["wrong"], *found["left_out"])]
    rest += [f"- `{report.short(row['problem'])}`: {note}"
             for row in found["rows"] for note in report.notes(row)]  # fmt: skip
    return "\n\n".join([*parts, *(["\n".join(rest)] if rest else []), "</details>"])


def _cells(row: Outcome) -> tuple[str, ...]:
    sides = [
        (name, f"{row[f'{side}_ms']:.3f}", report.rate(row, side), f"{row[f'{side}_error']:.1e}")
        for side, name in (("ours", row["impl"]), ("peer", f"{row['peer']}: {row['peer_impl']}"))
    ]
    return (f"`{report.short(row['problem'])}`", *sides[0], *sides[1], f"{row['ratio']:.2f}")


def _draw(figures: Figures, folder: Path) -> None:
    """Draw two pictures: a bar for each line, and all problems with the roofline."""
    from benchmarks.documents.plots import roofs, speed_ups  # needs matplotlib

    folder.mkdir(parents=True, exist_ok=True)
    bars = [
        {"problem": title, "ratio": found["geomean"], "least": found["min"]}
        for title, outcomes in figures.lines.items()
        if (found := report.figures(outcomes))["rows"]
    ]
    paths = [folder / f"{name}.png" for name in PICTURES]
    speed_ups(bars, paths[0], "Geometric means, and the least ratio of each")
    rows = report.figures(figures.outcomes)["rows"]
    roofs(rows, paths[1], Roofline(**figures.programs["roofline"]))
