"""Checks that the pages in docs/ are those that the ledgers give.

    python -m benchmarks.documents.check

Each page depends on one ledger alone. Each line of a ledger has a digest of itself and of the line
before. A page states the number of lines and the last digest. So the check finds a figure, a goal
or a header that was changed by hand in a page or in a ledger. It also finds lines that were
removed, added, moved or cut.

Ratios and rates must follow from the times. A ledger only grows: in a clone with git, each
committed state must begin with the state before. So the check finds a line that was changed after
its commit, even if all digests were computed again. Each row contains the digest of its sources. A
commit since the former rows must have these sources. Rows of the same sources must agree.

The check cannot find a changed history of the repository, a figure that was changed before its
first commit, or a false claim of progress after a change of the sources. It does not check
pictures. `python -m benchmarks.remeasure` measures random rows again.
"""

from __future__ import annotations

import difflib
import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from benchmarks.documents import document, gpu_document, history
from benchmarks.documents.figures import Figures
from benchmarks.documents.sampled import source
from benchmarks.measuring.ledger import ChangedRow, Ledger
from dnncore.problem import read

__all__ = ["changes"]

ROOT = Path(__file__).parents[2]
SHOWN = 10  # lines of a page's differences


def cpu_page(ledger: Path) -> str:
    """The text of docs/benchmarks.md."""
    return document.page(Figures.load(ledger), source(Ledger(ledger)))


def gpu_page(ledger: Path) -> str:
    """The text of docs/benchmarks_gpu.md."""
    known = Ledger(ledger)
    return gpu_document.page(list(gpu_document.devices(known.values()).values()), source(known))


PAGES: dict[str, tuple[str, Callable[[Path], str]]] = {
    "cpu.jsonl": (document.NAME, cpu_page),
    "gpu.jsonl": (gpu_document.NAME, gpu_page),
}  # ledger -> page, and the function that makes its text

AGREEMENT = 1.25  # largest factor between two medians of one problem on one machine
AGREEMENT_OF_CORES = 2.0  # the same on the cores of a CPU, where other programs disturb
EXACT = ("goal", "least")  # figures that are not measured, and must be equal
VARYING = ("took",)
CIRCUMSTANCES = ("device", "driver", "versions", "sources")


def changes(ledgers: Path, docs: Path) -> Iterator[str]:
    """Descriptions of changed lines in ledgers, and of lines in pages that differ from ledgers."""
    unknown = {path.name for path in ledgers.glob("*.jsonl")} - PAGES.keys()
    yield from (f"{name}: expected only {', '.join(PAGES)}" for name in sorted(unknown))
    for ledger, (name, page) in PAGES.items():
        if not (docs / name).exists():
            yield f"{name}: the page does not exist"
            continue
        text = (docs / name).read_text(encoding="utf-8")
        if (ledgers / ledger).exists():
            yield from _differences(ledgers / ledger, page, name, text)
        else:
            yield f"{name}: expected benchmarks/ledgers/{ledger}; got a page without a ledger"


def _differences(ledger: Path, page: Callable[[Path], str], name: str, text: str) -> Iterator[str]:
    try:
        expected = page(ledger)
    except ChangedRow as error:
        yield str(error)
        return
    known = Ledger(ledger)
    if known.cut:
        yield f"{ledger}: the last line is incomplete: {known.cut[:60]!r}"
    for row in known.values():
        yield from _inconsistent(ledger, _outcome(row))
    rows = _rows(ledger)
    yield from _contradictory(ledger, rows)
    yield from history.of_other_sources(ledger, [_outcome(value) for _, value in rows])
    yield from history.rewritten(ledger)
    pair = text.split("\n"), expected.split("\n")
    lines = list(difflib.unified_diff(*pair, name, ledger.name, n=0, lineterm=""))
    yield from lines[:SHOWN]
    if len(lines) > SHOWN:
        yield f"{name}: {len(lines) - SHOWN} more lines"


def _inconsistent(ledger: Path, row: Any) -> Iterator[str]:
    """Descriptions of ratios and rates that do not follow from a row's times and problem."""
    if not isinstance(row, dict) or not row.get("ours_ms") or "ratio" not in row:
        return
    (problem,) = read(row["problem"])
    derived = {"ratio": row["peer_ms"] / row["ours_ms"] if row["peer_ms"] else None}
    for side in ("ours", "peer"):
        if milliseconds := row[f"{side}_ms"]:
            derived[f"{side}_gflops"] = problem.op.flops / milliseconds / 1e6
            derived[f"{side}_gbps"] = problem.op.bytes / milliseconds / 1e6
    for name, expected in derived.items():
        found = row[name]
        if found and expected and not math.isclose(found, expected, rel_tol=1e-6):
            yield (
                f"{ledger}: {name} of {row['problem']} must be {expected:.6g}, by its times; got"
                f" {found:.6g}"
            )


def _rows(ledger: Path) -> list[tuple[str, Any]]:
    """The keys and values of all lines of a ledger."""
    lines = ledger.read_text().splitlines()[: Ledger(ledger).count]
    return [(key, value) for key, value, _ in map(json.loads, lines)]


def _outcome(value: Any) -> Any:
    """The row of a problem or program. In the CPU's ledger, the row is a part of the value."""
    if isinstance(value, dict) and "programs" in value:
        return {"problem": "the programs", "figures": value["programs"], **value["machine"]}
    return value.get("outcome", value) if isinstance(value, dict) else value


def _contradictory(ledger: Path, rows: list[tuple[str, Any]]) -> Iterator[str]:
    """Descriptions of rows that contradict an earlier row with the same key.

    Their problems differ, or their figures differ by more than repeated measurements do. A key
    contains the text of the kernels and the circumstances. So a later row with the same key cannot
    be faster because of new code. The same applies to rows of equal sources and circumstances.
    """
    first: dict[Any, dict[str, float]] = {}
    problems: dict[str, str] = {}
    for key, value in rows:
        row = _outcome(value)
        if not isinstance(row, dict):
            continue
        problem = problems.setdefault(key, str(row.get("problem")))
        if problem != str(row.get("problem")):
            yield f"{ledger}: {row['problem']} has the key of {problem}; each problem has its own"
        if row.get("wrong"):
            continue
        for what, found, most in _repeated(key, value, row):
            before = first.setdefault(what, found)
            for name in before.keys() & found.keys():
                low, high = sorted((before[name], found[name]))
                agreement = 1.0 if name.rpartition(".")[2] in EXACT else most
                if high > agreement * low:
                    yield (
                        f"{ledger}: {row['problem']} was measured twice under the same"
                        f" circumstances, with {name} {before[name]} and {found[name]}; they may"
                        f" differ by {agreement:g} times"
                    )


def _repeated(key: str, value: Any, row: Any) -> Iterator[tuple[Any, dict[str, float], float]]:
    """The key of repeated measurements, the figures that must agree, and their largest factor."""
    figures = dict(_figures(row))
    yield key, figures, AGREEMENT
    if "sources" in row:
        most = AGREEMENT_OF_CORES if row.get("cores") else AGREEMENT
        problem = value.get("line"), row["problem"]
        same = (*problem, *(str(row.get(name)) for name in CIRCUMSTANCES))
        ours = {name: figure for name, figure in figures.items() if name.startswith("ours_")}
        yield same, ours, most
        yield (*same, row.get("peer")), figures, most


def _figures(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """The numbers in a row, each with its path of names."""
    if isinstance(value, dict | list):
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        for part, inner in parts:
            if part not in VARYING:
                yield from _figures(inner, f"{name}.{part}" if name else str(part))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, abs(value)


@click.command(help=__doc__)
@click.option("--ledgers", default=ROOT / "benchmarks" / "ledgers", type=Path,
              help="The folder of the ledgers.")  # fmt: skip
@click.option("--docs", default=ROOT / "docs", type=Path, help="The folder of the pages.")
def main(ledgers: Path, docs: Path) -> None:
    """Check and print."""
    found = list(changes(ledgers, docs))
    for text in found:
        click.echo(text)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
