"""Compares bf16, f16, integers and 4-bit weights with other libraries, and writes a page.

    python -m benchmarks.low_precision                       # docs/benchmarks_types.md
    python -m benchmarks.low_precision --line=int8 --threads=1
    python -m benchmarks.low_precision --engine=opencl:0     # docs/benchmarks_types_gpu.md
    python -m benchmarks.low_precision --engine=opencl:0 --build=1/8  # compile an eighth of it

If oneDNN, torch, cuDNN or cuBLAS supports the types of a group, the group is measured as by
`benchmarks.compare`. In other groups, dnncore computes each problem in its types and in f32. The
calls of the two alternate, and a time is the median of 9 samples. --line is a regular expression
for titles of groups. Groups that are not measured keep their figures in the ledger
`benchmarks/ledgers/low_precision.json`, or `low_precision_gpu.json`.
"""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from typing import Any

import click

import dnncore as dnn
from benchmarks.contestants.by_dnncore import chosen, kernels
from benchmarks.contestants.contestant import LeftOut, Terms
from benchmarks.documents import report
from benchmarks.documents.tables import markdown
from benchmarks.measuring.circumstances import circumstances
from benchmarks.measuring.contest import QUEUED, Outcome
from benchmarks.measuring.processes import Settings, measured
from benchmarks.measuring.sampling import in_turn
from benchmarks.problems.type_lines import (
    F32,
    REASONS,
    TypesLine,
    cpu_lines,
    gpu_lines,
    in_f32,
    variants,
)
from dnncore.problem import Problem
from dnncore.testing.running.shard import Shard

ROOT = Path(__file__).parents[1]


def ledger_of(engine: str) -> Path:
    """The ledger of the CPU or of a GPU."""
    name = "low_precision" if engine == "cpu" else "low_precision_gpu"
    return ROOT / "benchmarks" / "ledgers" / f"{name}.json"


def page_of(engine: str) -> Path:
    """The page of the CPU or of a GPU."""
    return ROOT / "docs" / f"benchmarks_types{'' if engine == 'cpu' else '_gpu'}.md"


# -- measuring -------------------------------------------------------------------------------------


def over_f32(problem: Problem, engine: str, threads: int) -> Outcome:
    """Measure dnncore in the problem's types and in f32."""
    before = dnn.get_num_threads()
    dnn.set_num_threads(threads)
    how: dict[str, Any] = {} if engine == "cpu" else {"pause": 0.0, "least": QUEUED}
    try:
        ours, theirs = (next(chosen(p, Terms(engine))) for p in (problem, in_f32(problem)))
        if ours.name.startswith("reference"):
            raise LeftOut("dnncore computes it by its reference alone")
        for own in (ours, theirs):
            own.refill(0)
        seconds = in_turn([ours.repeat, theirs.repeat], **how)
    except LeftOut as reason:
        return {"problem": str(problem), "left_out": str(reason)}
    finally:
        dnn.set_num_threads(before)
    return {
        "problem": str(problem), "impl": ours.name, "peer": "f32", "peer_impl": theirs.name,
        "ours_ms": 1e3 * seconds[0], "peer_ms": 1e3 * seconds[1], "ratio": seconds[1] / seconds[0],
    }  # fmt: skip


def outcomes(line: TypesLine, engine: str, threads: int) -> list[Outcome]:
    """Measure a line, and print each ratio."""
    if line.peers == F32:
        found = [over_f32(problem, engine, threads) for problem in line.problems]
        for row in found:
            click.echo(f"{row.get('ratio', float('nan')):5.2f}  {row['problem']}")
        return found
    settings = Settings(line.peers, Terms(engine), threads=threads)
    every = [variants(line, problem) for problem in line.problems]
    rows = measured(
        [problem for found in every for problem in found], settings,
        on_outcome=lambda row: click.echo(report.one_line(row)),
    )  # fmt: skip
    by_text = {row["problem"]: row for row in rows}
    return [best([by_text[str(problem)] for problem in found]) for found in every]


def best(rows: list[Outcome]) -> Outcome:
    """The fastest time of each side among variants of a problem.

    The problem of the result is the variant in which dnncore is fastest. If a row is wrong, the
    result is the first wrong row.
    """
    wrong = [row for row in rows if "wrong" in row]
    right = [row for row in rows if "ratio" in row]
    if wrong or not right:
        return (wrong or rows)[0]
    ours, theirs = (min(right, key=lambda row: row[side]) for side in ("ours_ms", "peer_ms"))
    peer = {name: theirs[name] for name in ("peer", "peer_impl", "peer_ms")}
    return ours | peer | {"ratio": theirs["peer_ms"] / ours["ours_ms"]}


KEPT = ("problem", "ratio", "ours_ms", "peer_ms", "impl", "peer", "peer_impl", "left_out", "wrong",
        "peer_wrong")  # fmt: skip


# -- the page --------------------------------------------------------------------------------------


def page(record: dict[str, Any]) -> str:
    """The text of the page for a ledger's record."""
    with_threads = sorted(record["lines"].items())
    of_gpu = "engine" in record["machine"]
    parts = [(GPU_HEAD if of_gpu else HEAD).format(**record["machine"])]
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
        command += f" --engine={record['machine']['engine']}" if of_gpu else ""
        command += "" if of_gpu else f" --threads={line['threads']}"
        command += f" --seed={line['seed']}"
        reason = f"\n\n{why_missed(line)}" if why_missed(line) else ""
        parts.append(f"## {key}\n\nMeasured by\n`{command}`.{reason}\n\n{markdown(names, rows)}")
    return "\n\n".join(part.strip() for part in parts) + "\n"


def why_missed(line: dict[str, Any]) -> str:
    """Why a group misses its goals; "" if it meets them or no reason is known."""
    ratios = [row["ratio"] for row in line["rows"] if "ratio" in row]
    mean = statistics.geometric_mean(ratios) if ratios else 0.0
    if mean >= (line["goal"] or 0) and min(ratios, default=0.0) >= (line["least"] or 0):
        return ""
    return next((text for name, text in REASONS.items() if re.search(name, line["title"])), "")


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


GPU_HEAD = """# Benchmarks of types on a GPU

`python -m benchmarks.low_precision --engine={engine}` wrote this page from
`benchmarks/ledgers/low_precision_gpu.json`, on {system} with {versions}.

Device: {device}, driver {driver}.

**The ratio is the other side's time divided by dnncore's time.** Above 1, dnncore is faster. Groups
"over f32" compare dnncore with dnncore in f32, and "portable" ones its kernels for any GPU. All
others compare with torch in CUDA graphs: cuDNN for convolutions, cuBLAS for products. f32 is
computed without TF32. Results are compared with float64. Convolutions in groups are measured with
row-major and with channels-last images, and products of s8 with both orders of weights; the fastest
of each side counts. "hold_out" are layers of no network. A row of one problem is measured again by
`python -m benchmarks.compare --engine={engine} --peer=cudnn,torch-cuda PROBLEM`.
"""


def build(lines: list[TypesLine], engine: str, shard: Shard) -> None:
    """Compile the kernels of a part of the problems. A later measurement finds them on disk."""
    every = [own for line in lines for problem in line.problems for own in variants(line, problem)]
    every += [in_f32(p) for line in lines if line.peers == F32 for p in line.problems]
    for problem in shard.of(every, str):
        kernels(problem, engine)


@click.command(help=__doc__)
@click.option("--line", "pattern", default="", help="Only groups whose title matches this.")
@click.option("--engine", default="cpu", show_default=True, help="The CPU, or a GPU.")
@click.option("--build", "part", default="", help="Compile this part, i/n, and measure nothing.")
@click.option("--threads", default="1,2", show_default=True, help="Numbers, with commas; no GPU.")
@click.option("--seed", default=1, show_default=True, help="The seed of the samples.")
@click.option("--write/--no-write", default=True, help="Write the ledger and the page.")
def main(pattern: str, engine: str, part: str, threads: str, seed: int, write: bool) -> None:
    """Measure and write."""
    lines = cpu_lines(seed) if engine == "cpu" else gpu_lines(seed)
    lines = [line for line in lines if re.search(pattern, line.title)]
    if part:
        build(lines, engine, Shard.read(part))
        return
    ledger = ledger_of(engine)
    found = json.loads(ledger.read_text()) if ledger.exists() else {"lines": {}}
    now = circumstances(engine)
    versions = ", ".join(now["versions"])
    found["machine"] = {"system": now["system"], "versions": versions, "device": now["device"]}
    if engine != "cpu":
        found["machine"] |= {"engine": engine, "driver": now["driver"]}
    for line in lines:
        for count in map(int, threads.split(",") if engine == "cpu" else "1"):
            key = f"{line.title}, {count} thread{'s'[: count - 1]}"
            key = key if engine == "cpu" else line.title
            click.echo(key)
            rows = [
                {name: row[name] for name in KEPT if name in row}
                for row in outcomes(line, engine, count)
            ]
            ratios = [row["ratio"] for row in rows if "ratio" in row]
            if ratios:
                mean = statistics.geometric_mean(ratios)
                click.echo(f"mean {mean:.2f}, least {min(ratios):.2f} of {len(ratios)}")
            found["lines"][key] = {
                "title": line.title, "threads": count, "seed": seed, "goal": line.goal,
                "least": line.least, "date": now["date"], "rows": rows,
            }  # fmt: skip
            if write:
                ledger.write_text(json.dumps(found, indent=1) + "\n")
                page_of(engine).write_text(page(found))


if __name__ == "__main__":
    main()
