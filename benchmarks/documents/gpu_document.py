"""Writes docs/benchmarks_gpu.md: the figures of OpenCL devices and the goals."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dnncore_opencl.runtime import tuning

from benchmarks.documents import report
from benchmarks.documents.sampled import NAMED, introduction
from benchmarks.documents.tables import limits, markdown
from benchmarks.measuring.contest import Outcome
from benchmarks.problems.gpu_lines import GPU_LINES, GPU_SAMPLE, PORTABLE_LINES
from benchmarks.problems.lines import Line, line_of, problems_of
from benchmarks.problems.samples import is_least_held, least_text, with_samples

__all__ = ["NAME", "Figures", "devices", "lines_for", "page", "write"]

NAME = "benchmarks_gpu.md"
TUNING = Path(tuning.__file__).parents[1] / "tuning"  # the tables of devices

HOW = """\
Each problem is computed by two sides, dnncore and a peer. On a GPU, the peer is torch, whose
convolutions are cuDNN's. On a CPU, the peer is dnncore's CPU engine. Both sides use the same values
in one process. Each side selects the formats that a problem leaves open, and packs weights before
the measurement. dnncore enqueues at least 20 calls per sample without gaps, in an in-order queue
without profiling. torch's calls run in CUDA graphs. So the host delays neither side, unless a
kernel takes less time than its enqueueing. "Launches and starts" lists the cost of enqueueing.

torch computes float32 without TF32. On tensor cores, dnncore computes a float32 product as three
products of TF32 numbers: each factor is the sum of two such numbers, and the product of the smaller
ones is left out. cuDNN measures all of its algorithms and uses the fastest. dnncore selects an
algorithm without a measurement if the problem contains `--alg=auto`. torch is measured with both of
its orders of images, and the faster one counts. torch has no kernel for LRN. It computes LRN with
several other kernels.

dnncore has tuning tables with parameters of kernels for single products.
`benchmarks/tune_opencl.py` searched them on layers of this page: {tables}. On other layers, dnncore
has no such entry. The columns "without table" have the time and the ratio with the parameters that
dnncore then uses. They are empty where the table changes nothing.

A time is the median of 9 samples. The samples of the two sides alternate. Every result is compared
with float64. Before the last sample the inputs change and the outputs are overwritten with NaN; the
results of the last sample are compared with float64 again. If a result is wrong, no time is listed.
If torch's result is wrong, torch is measured with another of its algorithms or orders of images,
and a note below the table names both. **The ratio is the peer's time divided by dnncore's time.**
Above 1, dnncore is faster. A goal such as ">= 1.4" is the least geometric mean of the ratios of all
problems in a row. "each >= 0.75" is the least ratio of each problem. "all but 2 >= 0.75" is the
least ratio of all problems but two.

An error is the norm of the difference from float64, divided by the norm of the result. "Errors no
larger" requires that the geometric mean of dnncore's errors is at most the peer's, and that no
problem has an error larger than the peer's, however small. The column "errors" has both means, the
number of problems where dnncore's error is larger, and the worst of them. "Of a copy" is the time
of a copy by the device, divided by dnncore's time. The copy reads and writes as many bytes as the
operation must. A row stays on this page until its problem is measured again. `python -m
benchmarks.gpu --lines='' --match=...` measures a row again.
"""


@dataclass(frozen=True)
class Figures:
    """One device's lines, and its newest outcomes by problem text."""

    lines: Sequence[Line]
    found: dict[str, Outcome]

    def of(self, line: Line) -> list[Outcome]:
        """The outcomes of a line, for all measured batch sizes."""
        texts = map(str, problems_of(line, full=True))
        return [self.found[text] for text in texts if text in self.found]

    @property
    def wrong(self) -> list[Outcome]:
        """The outcomes with a wrong result, except outcomes of former samples."""
        shown = {str(p) for line in self.lines for p in problems_of(line, full=True)}
        wrong = [outcome for outcome in self.found.values() if "wrong" in outcome]
        return [o for o in wrong if o["problem"] in shown or not o["problem"].startswith("--")]

    def summary(self) -> str:
        """Text with one row for each line."""
        rows = [_goal_row(line, self.of(line)) for line in self.lines]
        return "\n".join("  ".join(filter(None, row)).replace("**", "") for row in rows)


def devices(values: Sequence[Outcome]) -> dict[str, Figures]:
    """The figures of each device, GPUs first. values: outcomes, the newest last."""
    found: dict[str, dict[str, Outcome]] = {}
    for value in sorted(values, key=lambda value: value["cores"]):
        known = found.setdefault(value["device"], {})
        known.pop(value["problem"], None)  # so that the newest is last
        known[value["problem"]] = value
    return {name: Figures(_lines(outcomes), outcomes) for name, outcomes in found.items()}


def lines_for(*, cores: bool) -> tuple[Line, ...]:
    """The lines of a device. cores: whether it runs on the cores of a CPU."""
    return PORTABLE_LINES if cores else (GPU_SAMPLE, *GPU_LINES)


def _lines(outcomes: dict[str, Outcome]) -> Sequence[Line]:
    """The recorded lines and samples. Without a record, the lines of the source."""
    cores = any(outcome["cores"] for outcome in outcomes.values())
    recorded = [line_of(record) for record in outcomes.get("lines", {}).get("lines", ())]
    records = outcomes.get("samples", {}).get("records", ())
    return with_samples(recorded or lines_for(cores=cores), records)


def write(every: Sequence[Figures], path: Path, origin: str = "") -> Path:
    """Write the document. Returns its path."""
    path.write_text(page(every, origin), encoding="utf-8")
    return path


def page(every: Sequence[Figures], origin: str = "") -> str:
    """The text of the document. origin: its paragraph about the ledger."""
    parts = ["# Benchmarks on OpenCL devices", HOW.format(tables=_tables()), origin]
    for figures in every:
        parts += _device(figures)
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def _tables() -> str:
    """The number of entries of each device's tuning tables."""
    counts = {
        path.stem: sum(map(len, tuning.read(path).values())) for path in TUNING.glob("*.json")
    }
    texts = [f"{count} entries for {name}" for name, count in sorted(counts.items())]
    return ", ".join(texts) or "no entries"


def _device(figures: Figures) -> Iterator[str]:
    outcomes = list(figures.found.values())
    newest = outcomes[-1]
    dates = sorted({outcome["date"] for outcome in outcomes})
    yield f"## {newest['device']}"
    yield (
        f"Driver {newest['driver']}. `python -m benchmarks.gpu` measured these figures from"
        f" {dates[0]} to {dates[-1]} with {', '.join(newest['versions'])}."
    )
    old = sum("verified" not in outcome for outcome in outcomes if "ratio" in outcome)
    if old:
        yield (
            f"{old} rows are older than the second comparison with float64 and the columns without"
            " the table."
        )
    lists = [line for line in figures.lines if not line.draw]
    if not newest["cores"]:
        samples = [line for line in figures.lines if line.draw]
        yield introduction(samples, "opencl:0", full=True)
        yield _goals(samples, figures)
        yield "### Named lists"
        yield NAMED
    yield _goals(lists, figures)
    yield from _programs(figures.found)
    yield "### Every problem"
    yield from (_details(line, found) for line in figures.lines if (found := figures.of(line)))


# -- goals -----------------------------------------------------------------------------------------

HEAD = (
    "line", "goal", "geometric mean", "least", "without table", "errors", "of a copy", "problems",
    "result",
)  # fmt: skip


def _goals(lines: Sequence[Line], figures: Figures) -> str:
    return markdown(HEAD, [_goal_row(line, figures.of(line)) for line in lines])


def _goal_row(line: Line, outcomes: list[Outcome]) -> tuple[str, ...]:
    """Title, goals, figures and verdict. A goal holds only if all problems are measured."""
    found = report.figures(outcomes)
    rows = found["rows"]
    goals = list(_wanted(line, found))
    refused = any(outcome.get("refused") for outcome in outcomes)
    wanted_rows = len(problems_of(line, full=True)) or line.draw
    verdict = "**missed**"
    if all(held for _, held in goals) and not refused:
        verdict = "holds" if len(outcomes) == wanted_rows else "holds so far"
    if found["wrong"]:
        verdict = f"**{len(found['wrong'])} wrong**"
    if not outcomes:
        verdict = "not measured"
    count = report.counts(found, wanted_rows)
    ratios = [f"{found[name]:.2f}" if rows else "" for name in ("geomean", "min")]
    wanted = ", ".join(text for text, _ in goals)
    figures = (*ratios, _untuned(rows), report.errors(rows), _shares(rows))
    return (line.title, wanted, *figures, count, verdict)


def _wanted(line: Line, found: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    """The goals of a line as text, and for each whether it holds."""
    rows = found["rows"]
    if line.goal is not None:
        yield f">= {line.goal:g}", (found["geomean"] or 0) >= line.goal
    if line.least is not None:
        yield least_text(line), is_least_held(line, rows)
    if line.share is not None:
        shares = [row["share"] for row in rows]
        yield f"each >= {line.share:g} of a copy", min(shares, default=0) >= line.share
    if line.rate is not None:
        rates = [row["ours_gflops"] for row in rows]
        yield f"each >= {line.rate / 1e3:g} TF/s", min(rates, default=0) >= line.rate
    if line.accurate:
        ours, theirs = report.mean_errors(rows) if rows else (1.0, 0.0)
        yield "errors no larger", ours <= theirs and not report.larger_errors(rows)


def _untuned(rows: list[Outcome]) -> str:
    """The geometric mean of the ratios without the tuning table; "" if it changes no kernel."""
    if not any("untuned_ratio" in row for row in rows):
        return ""
    ratios = [row.get("untuned_ratio", row["ratio"]) for row in rows]
    return f"{statistics.geometric_mean(ratios):.2f}"


def _shares(rows: list[Outcome]) -> str:
    """Text with the least and the mean share of a copy's bandwidth."""
    shares = [row["share"] for row in rows if row["share"]]
    return f"{min(shares):.2f}, mean {statistics.geometric_mean(shares):.2f}" if shares else ""


# -- the other benchmarks --------------------------------------------------------------------------


def _programs(found: dict[str, Outcome]) -> Iterator[str]:
    absent = []
    for name, title, text in (
        ("gpu_step", "AlexNet's training step", _step),
        ("gpu_costs", "Launches and starts", limits),
        ("gpu_smoke", "Small problems with correct and with wrong results", _smoke),
    ):
        outcome = found.get(name)
        if outcome is None:
            absent.append(title)
            continue
        figures = outcome["figures"]
        shown = text(figures) if figures else outcome.get("wrong", "There are no figures.")
        yield f"### {title}\n\n{shown}"
    if absent:
        yield f"Not measured: {'; '.join(absent)}."


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
    """A table: for each implementation of products, how many small problems are right or wrong."""
    rows = [(name, *(str(len(texts)) for texts in problems.values()))
            for name, problems in sorted(found.items())]  # fmt: skip
    return markdown(("implementation", "correct", "wrong"), rows)


# -- every problem ---------------------------------------------------------------------------------


def _details(line: Line, outcomes: list[Outcome]) -> str:
    """All rows of a line, in a folded section."""
    found = report.figures(outcomes)
    head = (
        "problem", "dnncore", "ms", "rate", "error", "peer", "ms", "error", "ratio",
        "ms without table", "ratio without table", "of a copy",
    )  # fmt: skip
    title = f"<details><summary>{line.title}</summary>"
    rest = [f"- `{report.one_line(outcome)}`" for outcome in (*found["wrong"], *found["left_out"])]
    rest += [f"- `{report.short(row['problem'])}`: {note}"
             for row in found["rows"] for note in report.notes(row)]  # fmt: skip
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
        f"{row['untuned_ms']:.3f}" if "untuned_ms" in row else "",
        f"{row['untuned_ratio']:.2f}" if "untuned_ms" in row else "",
        f"{row['share']:.2f}" if row["share"] else "",
    )
