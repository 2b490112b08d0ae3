"""Measures bf16, 8-bit integers and 4-bit weights on the CPU. Writes docs/benchmarks_types.md.

    python -m benchmarks.low_precision                       # everything, with one and two threads
    python -m benchmarks.low_precision --line=int8 --threads=1

Groups of problems beside oneDNN and, where it has the types, torch are measured as by
`benchmarks.compare`. Other groups compare a problem with the same problem in f32, both by dnncore:
their calls alternate, and a time is the median of 9 samples. --line is a regular expression of
titles. Lines that are not measured keep their figures in the ledger
`benchmarks/ledgers/low_precision.json`.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

import dnncore as dnn
from benchmarks.contestants.by_dnncore import chosen
from benchmarks.contestants.contestant import LeftOut, Terms
from benchmarks.corpus.sample import Choices, draw
from benchmarks.documents import report
from benchmarks.documents.tables import markdown
from benchmarks.measuring.circumstances import circumstances
from benchmarks.measuring.contest import Outcome
from benchmarks.measuring.processes import Settings, measured
from benchmarks.measuring.sampling import in_turn
from benchmarks.problems.problem_sets import distinct, read_set
from dnncore.problem import Problem, read

ROOT = Path(__file__).parents[1]
LEDGER = ROOT / "benchmarks" / "ledgers" / "low_precision.json"
PAGE = ROOT / "docs" / "benchmarks_types.md"
ONEDNN = ("onednn-3.2", "onednn-3.13")
F32 = ("f32",)
INT8 = "u8:s8:u8"
SCALES = "--attr-scales=src:common+wei:per_oc+dst:common"
OF_TYPES = re.compile(r"--(dt|sdt|ddt|attr-scales|attr-zero-points)=")


@dataclass(frozen=True)
class Line:
    """A group of problems. The goals are the least geometric mean and the least ratio.

    peers: the sides beside dnncore, or `F32` for dnncore with f32.
    """

    title: str
    goal: float | None
    least: float | None
    problems: Sequence[Problem]
    peers: tuple[str, ...]


def network(data_type: str, batch: int, direction: str = "FWD_I") -> list[Problem]:
    """The convolutions of ResNet-50."""
    options = {"dir": direction, "mb": str(batch), "dt": data_type}
    found = [p for p in read_set("resnet_50", options) if str(p).startswith("--conv")]
    return scaled(distinct(found))


def sample(seed: int, types: Sequence[str], directions: Sequence[str]) -> list[Problem]:
    """Twenty convolutions of the corpus with groups of any number, at batch 1 and 4."""
    choices = Choices(directions, (1, 4), types, match="^--conv")
    return scaled(draw(20, seed, choices).problems)


def scaled(problems: Sequence[Problem]) -> list[Problem]:
    """The problems; those of integers have scales of all tensors."""
    return [
        own for p in problems for own in (read(_with_scales(str(p))) if INT8 in str(p) else [p])
    ]


def _with_scales(text: str) -> str:
    driver, rest = text.split(" ", 1)
    return f"{driver} {SCALES} {rest}"


def in_f32(problem: Problem) -> Problem:
    """Return the problem in f32 without scales."""
    (found,) = read(" ".join(word for word in str(problem).split() if not OF_TYPES.match(word)))
    return found


def texts(*lines: str) -> list[Problem]:
    """The problems of texts."""
    return [problem for line in lines for problem in read(line)]


def lines(seed: int) -> list[Line]:
    """All groups. seed: of the samples."""
    gradients = ("FWD_I", "BWD_D", "BWD_W")
    memory = [p for p in read_set("memory_bound", {"dt": "bf16"}) if "_51MB" in p.name]
    weights = "--attr-scales=wei:3:f32:128x1 1x4096:4096x4096"
    return [
        *(Line(f"int8 convolution, ResNet-50, batch {n}", 1.0, 0.85, network(INT8, n), ONEDNN)
          for n in (1, 4)),
        Line("int8 convolution, sample of 20", 1.0, 0.85,
             sample(seed, (INT8,), ("FWD_I",)), ONEDNN),
        *(Line(f"bf16 convolution, ResNet-50, batch {n}", 1.0, 0.85, network("bf16", n),
               (*ONEDNN, "torch")) for n in (1, 4)),
        Line("bf16 convolution, sample of 20, all directions", 1.0, 0.85,
             sample(seed + 1, ("bf16",), gradients), (*ONEDNN, "torch")),
        Line("int8 matmul, BERT and LSTM", 1.0, None, scaled(read_set("matmul", {"dt": INT8})),
             ONEDNN),
        Line("bf16 matmul, BERT and LSTM", 1.0, None, read_set("matmul", {"dt": "bf16"}),
             (*ONEDNN, "torch")),
        Line("int8 convolution over f32, ResNet-50, batch 4", 2.5, None, network(INT8, 4), F32),
        Line("bf16 over f32, limited by memory, 51 MB", 1.6, None, memory, F32),
        Line("4-bit weights over f32, groups of 128, one row", 2.5, None,
             texts(f"--matmul --dt=f32:s4:f32 {weights}", f"--matmul --dt=bf16:u4:bf16 {weights}"),
             F32),
    ]  # fmt: skip


# -- measuring -------------------------------------------------------------------------------------


def over_f32(problem: Problem, threads: int) -> Outcome:
    """The times of dnncore in the problem's types and in f32."""
    before = dnn.get_num_threads()
    dnn.set_num_threads(threads)
    try:
        ours, theirs = (next(chosen(p, Terms())) for p in (problem, in_f32(problem)))
        if ours.name.startswith("reference"):
            raise LeftOut("dnncore computes it by its reference alone")
        for own in (ours, theirs):
            own.refill(0)
        seconds = in_turn([ours.repeat, theirs.repeat])
    except LeftOut as reason:
        return {"problem": str(problem), "left_out": str(reason)}
    finally:
        dnn.set_num_threads(before)
    return {
        "problem": str(problem), "impl": ours.name, "peer": "f32", "peer_impl": theirs.name,
        "ours_ms": 1e3 * seconds[0], "peer_ms": 1e3 * seconds[1], "ratio": seconds[1] / seconds[0],
    }  # fmt: skip


def outcomes(line: Line, threads: int) -> list[Outcome]:
    """Measure a line, and print each ratio."""
    if line.peers == F32:
        found = [over_f32(problem, threads) for problem in line.problems]
        for row in found:
            click.echo(f"{row.get('ratio', float('nan')):5.2f}  {row['problem']}")
        return found
    settings = Settings(line.peers, threads=threads)
    return measured(
        line.problems, settings, on_outcome=lambda row: click.echo(report.one_line(row))
    )


KEPT = ("problem", "ratio", "ours_ms", "peer_ms", "impl", "peer", "peer_impl", "left_out", "wrong",
        "peer_wrong")  # fmt: skip


# -- the page --------------------------------------------------------------------------------------


def page(record: dict[str, Any]) -> str:
    """The page of a ledger's record."""
    with_threads = sorted(record["lines"].items())
    parts = [HEAD.format(**record["machine"])]
    summary = []
    for key, line in with_threads:
        ratios = [row["ratio"] for row in line["rows"] if "ratio" in row]
        mean = f"{statistics.geometric_mean(ratios):.2f}" if ratios else "-"
        least = f"{min(ratios):.2f}" if ratios else "-"
        goals = [f">= {line['goal']}"] if line["goal"] else []
        goals += [f"each >= {line['least']}"] if line["least"] else []
        left = len(line["rows"]) - len(ratios)
        count = f"{len(ratios)}" + (f", {left} left out" if left else "")
        summary.append([key, count, mean, least, ", ".join(goals), line["date"]])
    head = ("group", "problems", "mean ratio", "least", "goal", "measured")
    parts.append(markdown(head, summary))
    for key, line in with_threads:
        rows = [
            [f"`{row['problem']}`", row["impl"], f"{row['ours_ms']:.3f}",
             f"{row['peer']}: {row['peer_impl']}", f"{row['peer_ms']:.3f}", f"{row['ratio']:.2f}"]
            if "ratio" in row else
            [f"`{row['problem']}`", "", "", str(row.get("left_out") or row.get("wrong")), "", ""]
            for row in line["rows"]
        ]  # fmt: skip
        names = ("problem", "dnncore", "ms", "beside", "ms", "ratio")
        command = f"python -m benchmarks.low_precision '--line={line['title']}$'"
        command += f" --threads={line['threads']} --seed={line['seed']}"
        parts.append(f"## {key}\n\nMeasured by\n`{command}`.\n\n{markdown(names, rows)}")
    return "\n\n".join(part.strip() for part in parts) + "\n"


HEAD = """# Benchmarks of types

`python -m benchmarks.low_precision` wrote this page from `benchmarks/ledgers/low_precision.json`,
on {system} with {versions}.

Machine: {device}.

**The ratio is the other side's time divided by dnncore's time.** Above 1, dnncore is faster. Groups
"over f32" compare dnncore with dnncore in f32. All others compare with the fastest of two versions
of oneDNN and, for bf16, torch, each in a process of its own; their results are compared with
float64. Integers are u8 with weights of s8, a scale per output channel and a scale of src and dst.
A row of one problem is measured again by `python -m benchmarks.compare PROBLEM`.
"""


@click.command(help=__doc__)
@click.option("--line", "pattern", default="", help="Only groups whose title matches this.")
@click.option("--threads", default="1,2", show_default=True, help="Numbers, with commas.")
@click.option("--seed", default=1, show_default=True, help="The seed of the samples.")
@click.option("--write/--no-write", default=True, help="Write the ledger and the page.")
def main(pattern: str, threads: str, seed: int, write: bool) -> None:
    """Measure and write."""
    found = json.loads(LEDGER.read_text()) if LEDGER.exists() else {"lines": {}}
    now = circumstances("cpu")
    versions = ", ".join(now["versions"])
    found["machine"] = {"system": now["system"], "versions": versions, "device": now["device"]}
    for line in lines(seed):
        if not re.search(pattern, line.title):
            continue
        for count in map(int, threads.split(",")):
            click.echo(f"{line.title}, {count} threads")
            rows = [
                {name: row[name] for name in KEPT if name in row} for row in outcomes(line, count)
            ]
            ratios = [row["ratio"] for row in rows if "ratio" in row]
            if ratios:
                mean = statistics.geometric_mean(ratios)
                click.echo(f"mean {mean:.2f}, least {min(ratios):.2f} of {len(ratios)}")
            found["lines"][f"{line.title}, {count} thread{'s'[: count - 1]}"] = {
                "title": line.title, "threads": count, "seed": seed, "goal": line.goal,
                "least": line.least, "date": now["date"], "rows": rows,
            }  # fmt: skip
            if write:
                LEDGER.write_text(json.dumps(found, indent=1) + "\n")
                PAGE.write_text(page(found))


if __name__ == "__main__":
    main()
