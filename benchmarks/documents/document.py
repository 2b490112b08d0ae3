"""Writes docs/benchmarks.md: the figures, the goals, the machine and the method."""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import platform
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dnncore as dnn
from benchmarks.digits import GOAL as DIGITS_GOAL
from benchmarks.documents import report
from benchmarks.documents.tables import limits, markdown
from benchmarks.measuring.contest import Outcome
from benchmarks.problems.lines import LINES
from benchmarks.roofline import Roofline

__all__ = ["Figures", "write"]

NAME = "benchmarks.md"
PACKAGES = ("numpy", "numba", "llvmlite", "torch")
# Goals of selection: least ratio of a good choice, share of good choices, share of best time.
NEAR, OF_LAYERS, OF_TIME = 0.9, 0.9, 0.95
# Permitted scratchpad beyond the peer's: bytes, and factor.
SPARE_BYTES, SPARE_FACTOR = 1 << 20, 1.1

HOW = """\
Each problem is computed by two sides, dnncore and a peer: oneDNN or torch. Both sides use the same
values, in one process on {threads} threads. Each side selects the formats that a problem leaves
open, and packs weights before the measurement. The result of each side is compared with the other
one. If a result is wrong, no time is listed. The samples of the two sides alternate, with pauses of
20 ms, because the threads of OpenMP stay active for a while after their work. A time is the median
of 9 samples.

Some sides have several contestants: torch's two orders of images, oneDNN's inner product and its
matrix product, or runs with and without reorders. One pass finds the fastest contestant of each
side, and another pass measures it. {processes}

**The ratio is the peer's time divided by dnncore's time.** Above 1, dnncore is faster. Repeated
runs of one problem differ by about 5 %. A goal such as ">= 1.03" is the least geometric mean of the
ratios of all problems in a row. "each >= 0.9" is the least ratio of each problem.

GF/s are billions of operations per second. The operations of all taps are counted, although taps in
the padding need no computation. So a point may lie above the roofline. A point whose data stay in
the last-level cache may also lie above it, because the roofline contains the rate of main memory.

`python -m benchmarks.compare --peer=PEER PROBLEM` measures a row again. PROBLEM is the row's text
without the name after `n`. Add `--reorders` for a line that counts reorders.
"""
PROCESSES = {
    True: "Each time is the median of three new processes.",
    False: "Each time comes from one process.",
}


@dataclass(frozen=True)
class Figures:
    """All measured figures.

    lines: the outcomes of each line, by its title.
    selection: comparisons of the selected implementation with dnncore's fastest.
    programs: results of the other benchmarks, by name.
    full: whether this was the full run.
    """

    lines: dict[str, list[Outcome]]
    selection: list[Outcome]
    programs: dict[str, Any]
    threads: int
    full: bool

    @property
    def outcomes(self) -> list[Outcome]:
        """The outcomes of all lines."""
        return [outcome for outcomes in self.lines.values() for outcome in outcomes]

    @property
    def wrong(self) -> list[Outcome]:
        """The outcomes with a wrong result."""
        programs = [self.programs["digits"]]
        return report.figures([*self.outcomes, *self.selection, *programs])["wrong"]


def write(figures: Figures, folder: Path) -> Path:
    """Write the document and its pictures. Returns the path of the document."""
    pictures = _draw(figures, folder / "pictures")
    parts = [
        "# Benchmarks",
        _machine(figures),
        HOW.format(threads=figures.threads, processes=PROCESSES[figures.full]),
        "## Goals",
        _goals(figures),
        *(f"![{path.stem.replace('_', ' ')}](pictures/{path.name})" for path in pictures),
        "## Selection and scratchpads",
        _selection(figures.selection),
        _scratchpads(figures),
        "## Creation and calls",
        limits(figures.programs["overheads"]),
        "## Every problem",
        *(_details(title, outcomes) for title, outcomes in figures.lines.items()),
    ]
    path = folder / NAME
    path.write_text("\n\n".join(part.strip() for part in parts) + "\n", encoding="utf-8")
    return path


def _machine(figures: Figures) -> str:
    roofline = Roofline(**figures.programs["roofline"])
    versions = [f"{name} {importlib.metadata.version(name)}" for name in PACKAGES]
    command = "make bench-full" if figures.full else "make bench"
    return (
        f"`{command}` wrote this page on {dt.date.today():%d %B %Y} with dnncore"
        f" {dnn.__version__}, oneDNN {_onednn_version()}, {', '.join(versions)} and Python"
        f" {platform.python_version()} on {platform.system()}.\n\n"
        f"Machine: {dnn.engine('cpu').device.name}, {figures.threads} threads. Measured peaks:"
        f" {roofline.flops / 1e9:.0f} GF/s for multiply-adds in registers and"
        f" {roofline.bandwidth / 1e9:.0f} GB/s for reading memory."
    )


def _onednn_version() -> str:
    from benchmarks.contestants.onednn_library import Library

    return Library().version


# -- goals -----------------------------------------------------------------------------------------


def _goals(figures: Figures) -> str:
    """A table with a row for each line and each program."""
    head = ("line", "goal", "geometric mean", "least", "problems", "result")
    rows = [_goal_row(line, figures.lines[line.title]) for line in LINES]
    step = figures.programs["alexnet"]["cpu"]["the whole step"]
    rows.append(
        _program_row("AlexNet's training step, compared with oneDNN", step["goal"], step["ratio"])
    )
    digits = figures.programs["digits"].get("ratio")
    rows.append(
        _program_row(
            "An epoch of the digits, compared with torch's eager mode", DIGITS_GOAL, digits
        )
    )
    return markdown(head, rows)


def _goal_row(line: Any, outcomes: list[Outcome]) -> tuple[str, ...]:
    found = report.figures(outcomes)
    bounds = [("", line.goal, found["geomean"]), ("each ", line.least, found["min"])]
    wanted = [f"{what}>= {bound:g}" for what, bound, _ in bounds if bound is not None]
    held = [(got or 0) >= bound for _, bound, got in bounds if bound is not None]
    mark = ("holds" if all(held) else "**missed**") if held else ""
    if found["wrong"]:
        mark = f"**{len(found['wrong'])} wrong**"
    count = str(len(found["rows"]))
    if found["left_out"]:
        count += f", {len(found['left_out'])} left out"
    ratios = (_ratio(found["geomean"]), _ratio(found["min"]))
    return (line.title, ", ".join(wanted), *ratios, count, mark)


def _program_row(title: str, goal: float, ratio: float | None) -> tuple[str, ...]:
    mark = "holds" if ratio and ratio >= goal else "**missed**" if ratio else "**wrong**"
    return (title, f">= {goal:g}", _ratio(ratio), _ratio(ratio), "1", mark)


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


# -- selection, scratchpads ------------------------------------------------------------------------


def _selection(outcomes: list[Outcome]) -> str:
    """Selections and their times. With one candidate, the selection is the fastest."""
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
    """Direct convolutions with a larger scratchpad than the peer's, if both sizes are known."""
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
    head = ("problem", "dnncore", "ms", "rate", "peer", "ms", "rate", "ratio")
    parts = [f"<details><summary>{title}</summary>", markdown(head, map(_cells, found["rows"]))]
    rest = [f"- `{report.one_line(outcome)}`" for outcome in (*found["wrong"], *found["left_out"])]
    return "\n\n".join([*parts, *(["\n".join(rest)] if rest else []), "</details>"])


def _cells(row: Outcome) -> tuple[str, ...]:
    sides = [
        (name, f"{row[f'{side}_ms']:.3f}", report.rate(row, side))
        for side, name in (("ours", row["impl"]), ("peer", f"{row['peer']}: {row['peer_impl']}"))
    ]
    return (f"`{report.short(row['problem'])}`", *sides[0], *sides[1], f"{row['ratio']:.2f}")


def _draw(figures: Figures, folder: Path) -> list[Path]:
    """Draw a bar for each line, and all problems below the roofline."""
    from benchmarks.documents.plots import roofs, speed_ups  # needs matplotlib

    folder.mkdir(parents=True, exist_ok=True)
    bars = [
        {"problem": title, "ratio": found["geomean"], "least": found["min"]}
        for title, outcomes in figures.lines.items()
        if (found := report.figures(outcomes))["rows"]
    ]
    paths = [folder / "benchmarks_speed_ups.png", folder / "benchmarks_roofline.png"]
    speed_ups(bars, paths[0], "Geometric means, and the least ratio of each")
    rows = report.figures(figures.outcomes)["rows"]
    roofs(rows, paths[1], Roofline(**figures.programs["roofline"]))
    return paths
