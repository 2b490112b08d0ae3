"""Writes docs/benchmarks_gpu.md: the figures of OpenCL devices and the goals."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.documents import report
from benchmarks.documents.tables import limits, markdown
from benchmarks.measuring.contest import Outcome
from benchmarks.problems.gpu_lines import GPU_LINES, PORTABLE_LINES
from benchmarks.problems.lines import Line, problems_of

__all__ = ["NAME", "Figures", "devices", "write"]

NAME = "benchmarks_gpu.md"
ACCURATE = 5e-7  # relative error; a smaller one may exceed the peer's

HOW = """\
Each problem is computed by two sides, dnncore and a peer. On a GPU, the peer is torch, whose
convolutions are cuDNN's. On a CPU, the peer is dnncore's CPU engine. Both sides use the same values
in one process. Each side selects the formats that a problem leaves open, and packs weights before
the measurement. dnncore enqueues at least 20 calls per sample without gaps, in an in-order queue
without profiling. torch's calls run in CUDA graphs. So the host delays neither side, unless a
kernel takes less time than its enqueueing. "Launches and starts" lists the cost of enqueueing.

torch computes float32 without TF32. cuDNN measures all of its algorithms and uses the fastest.
dnncore selects an algorithm without a measurement if the problem contains `--alg=auto`. torch is
measured with both of its orders of images, and the faster one counts. torch has no kernel for LRN.
It computes LRN with several other kernels.

A time is the median of 9 samples. The samples of the two sides alternate. Every result is compared
with float64. If a result is wrong, no time is listed. **The ratio is the peer's time divided by
dnncore's time.** Above 1, dnncore is faster. A goal such as ">= 1.4" is the least geometric mean of
the ratios of all problems in a row. "each >= 0.75" is the least ratio of each problem. "errors no
larger" requires that dnncore's errors do not exceed the peer's.

An error is the norm of the difference from float64, divided by the norm of the result. The column
"error, peer's" has the geometric means of dnncore's errors and of the peer's. "Of a copy" is the
time of a copy by the device, divided by dnncore's time. The copy reads and writes as many bytes as
the operation must. A row stays on this page until its problem is measured again.
"""


@dataclass(frozen=True)
class Figures:
    """The lines and the newest outcomes of one device, by the texts of their problems."""

    lines: Sequence[Line]
    found: dict[str, Outcome]

    def of(self, line: Line) -> list[Outcome]:
        """The outcomes of a line, for all measured batch sizes."""
        texts = map(str, problems_of(line, full=True))
        return [self.found[text] for text in texts if text in self.found]

    @property
    def wrong(self) -> list[Outcome]:
        """The outcomes with a wrong result."""
        return [outcome for outcome in self.found.values() if "wrong" in outcome]

    def summary(self) -> str:
        """Text with one row for each line."""
        rows = [row for line in self.lines if (row := _goal_row(line, self.of(line)))]
        return "\n".join("  ".join(filter(None, row)).replace("**", "") for row in rows)


def devices(values: Sequence[Outcome]) -> dict[str, Figures]:
    """The figures of each device, GPUs first. `values` are outcomes, the newest last."""
    found: dict[str, dict[str, Outcome]] = {}
    for value in sorted(values, key=lambda value: value["cores"]):
        found.setdefault(value["device"], {})[value["problem"]] = value
    return {name: Figures(_lines(outcomes), outcomes) for name, outcomes in found.items()}


def _lines(outcomes: dict[str, Outcome]) -> Sequence[Line]:
    on_cores = any(outcome["cores"] for outcome in outcomes.values())
    return PORTABLE_LINES if on_cores else GPU_LINES


def write(every: Sequence[Figures], path: Path) -> Path:
    """Write the document. Returns its path."""
    parts = ["# Benchmarks on OpenCL devices", HOW]
    for figures in every:
        parts += _device(figures)
    path.write_text("\n\n".join(part.strip() for part in parts) + "\n", encoding="utf-8")
    return path


def _device(figures: Figures) -> Iterator[str]:
    outcomes = list(figures.found.values())
    newest = outcomes[-1]
    dates = sorted({outcome["date"] for outcome in outcomes})
    yield f"## {newest['device']}"
    yield (
        f"Driver {newest['driver']}. `python -m benchmarks.gpu` measured these figures from"
        f" {dates[0]} to {dates[-1]} with {', '.join(newest['versions'])}."
    )
    yield _goals(figures)
    yield from _programs(figures.found)
    yield "### Every problem"
    yield from (_details(line, found) for line in figures.lines if (found := figures.of(line)))


# -- goals -----------------------------------------------------------------------------------------

HEAD = (
    "line", "goal", "geometric mean", "least", "error, peer's", "of a copy", "problems", "result",
)  # fmt: skip


def _goals(figures: Figures) -> str:
    rows = [row for line in figures.lines if (row := _goal_row(line, figures.of(line)))]
    return markdown(HEAD, rows)


def _goal_row(line: Line, outcomes: list[Outcome]) -> tuple[str, ...] | None:
    """Title, goals, figures and verdict. None if nothing was measured."""
    if not outcomes:
        return None
    found = report.figures(outcomes)
    rows = found["rows"]
    goals = list(_wanted(line, found))
    refused = any(outcome.get("refused") for outcome in outcomes)
    wanted_rows = len(problems_of(line, full=True))
    verdict = "**missed**"
    if all(held for _, held in goals) and not refused:
        verdict = "holds" if len(outcomes) == wanted_rows else "holds so far"
    if found["wrong"]:
        verdict = f"**{len(found['wrong'])} wrong**"
    count = f"{len(rows)} of {wanted_rows}"
    count += f", {len(found['left_out'])} left out" if found["left_out"] else ""
    ratios = [f"{found[name]:.2f}" if rows else "" for name in ("geomean", "min")]
    wanted = ", ".join(text for text, _ in goals)
    return (line.title, wanted, *ratios, _errors(rows), _shares(rows), count, verdict)


def _wanted(line: Line, found: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    """The goals of a line, and whether each holds."""
    rows = found["rows"]
    if line.goal is not None:
        yield f">= {line.goal:g}", (found["geomean"] or 0) >= line.goal
    if line.least is not None:
        yield f"each >= {line.least:g}", (found["min"] or 0) >= line.least
    if line.share is not None:
        shares = [row["share"] for row in rows]
        yield f"each >= {line.share:g} of a copy", min(shares, default=0) >= line.share
    if line.rate is not None:
        rates = [row["ours_gflops"] for row in rows]
        yield f"each >= {line.rate / 1e3:g} TF/s", min(rates, default=0) >= line.rate
    if line.accurate:
        yield "errors no larger", bool(rows) and _are_accurate(rows)


def _are_accurate(rows: list[Outcome]) -> bool:
    """Whether the mean error and each error above `ACCURATE` are at most the peer's."""
    ours, theirs = _mean_errors(rows)
    each = all(row["ours_error"] <= max(row["peer_error"], ACCURATE) for row in rows)
    return each and ours <= theirs


def _mean_errors(rows: list[Outcome]) -> list[float]:
    """Geometric means of our errors and of the peer's. An error of 0 counts as 1e-12."""
    names = ("ours_error", "peer_error")
    return [statistics.geometric_mean([row[name] or 1e-12 for row in rows]) for name in names]


def _errors(rows: list[Outcome]) -> str:
    return " ".join(f"{error:.1e}" for error in _mean_errors(rows)) if rows else ""


def _shares(rows: list[Outcome]) -> str:
    """Text with the least share of a copy and the geometric mean."""
    shares = [row["share"] for row in rows if row["share"]]
    return f"{min(shares):.2f}, mean {statistics.geometric_mean(shares):.2f}" if shares else ""


# -- the other benchmarks --------------------------------------------------------------------------


def _programs(found: dict[str, Outcome]) -> Iterator[str]:
    for name, title, text in (
        ("gpu_step", "AlexNet's training step", _step),
        ("gpu_costs", "Launches and starts", limits),
        ("gpu_smoke", "Small problems with correct and with wrong results", _smoke),
    ):
        outcome = found.get(name)
        if outcome and outcome["figures"]:
            yield f"### {title}\n\n{text(outcome['figures'])}"


def _step(figures: Outcome) -> str:
    if "wrong" in figures:
        return f"{figures['problem']}: {figures['wrong']}"
    parts = [(f"{name}: {figures['impls'][name]}", f"{time:.3f}")
             for name, time in figures["parts_ms"].items()]  # fmt: skip
    verdict = "holds" if figures["ratio"] >= figures["goal"] else "**missed**"
    return (
        f"{figures['problem']}: {figures['ours_ms']:.3f} ms; {figures['peer']}"
        f" {figures['peer_ms']:.3f} ms; ratio {figures['ratio']:.2f}, goal"
        f" {figures['goal']:g}: {verdict}.\n\n{markdown(('primitive alone', 'ms'), parts)}"
    )


def _smoke(found: dict[str, dict[str, list[str]]]) -> str:
    """A table of implementations of products: numbers of small problems, correct and wrong."""
    rows = [(name, *(str(len(texts)) for texts in problems.values()))
            for name, problems in sorted(found.items())]  # fmt: skip
    return markdown(("implementation", "correct", "wrong"), rows)


# -- every problem ---------------------------------------------------------------------------------


def _details(line: Line, outcomes: list[Outcome]) -> str:
    """All rows of a line, in a folded section."""
    found = report.figures(outcomes)
    head = (
        "problem", "dnncore", "ms", "rate", "error", "peer", "ms", "error", "ratio", "of a copy",
    )  # fmt: skip
    title = f"<details><summary>{line.title}</summary>"
    rest = [f"- `{report.one_line(outcome)}`" for outcome in (*found["wrong"], *found["left_out"])]
    rest += [
        f"- `{report.short(row['problem'])}`: {row['peer_wrong']}, and does not count"
        for row in found["rows"]
        if row.get("peer_wrong")
    ]
    table = markdown(head, map(_cells, found["rows"]))
    return "\n\n".join([title, table, *(["\n".join(rest)] if rest else []), "</details>"])


def _cells(row: Outcome) -> tuple[str, ...]:
    return (
        f"`{report.short(row['problem'])}`",
        row["impl"],
        f"{row['ours_ms']:.3f}",
        report.rate(row, "ours"),
        f"{row['ours_error']:.1e}",
        f"{row['peer']}: {row['peer_impl']}",
        f"{row['peer_ms']:.3f}",
        f"{row['peer_error']:.1e}",
        f"{row['ratio']:.2f}",
        f"{row['share']:.2f}" if row["share"] else "",
    )
