"""The pages of docs/ state invented figures rightly, and a changed figure is noticed."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.corpus.sample import Sample
from benchmarks.documents import check, report
from benchmarks.documents.figures import Figures
from benchmarks.documents.sampled import source
from benchmarks.measuring.ledger import ChangedRow, Ledger
from benchmarks.problems.lines import LINES, SAMPLE
from dnncore.problem import read

document = pytest.importorskip("benchmarks.documents.document")
pytest.importorskip("benchmarks.documents.plots", exc_type=ImportError)

ROOT = Path(__file__).parents[2]
TINY = "--eltwise --dir=FWD_I 2x16x8x8"
CONVOLUTION = "--conv --dir=FWD_I mb2ic16ih8oc32kh3ph1"
STEP = "the whole step"
PROGRAMS = {
    "roofline": {"flops": 5e11, "bandwidth": 5e10},
    "alexnet": {
        "onednn-3.2": {STEP: {"seconds": 0.4}, "errors": {"lrn": 1e-6}, "wrong": ""},
        "onednn-3.13": {"errors": {"lrn": 1.0}, "wrong": "lrn differs from float64 by 1"},
        "cpu": {STEP: {"goal": 1.1, "ratio": 1.2}, "errors": {"lrn": 2e-7}, "wrong": ""},
        "absent": {},
    },
    "digits": {"problem": "an epoch", "ratio": 1.2},
    "overheads": [["a call", 3.0, 2.0, "us"], ["an import", 0.1, None, "s"]],
}
SOURCES = {"cores": True, "sources": "01234567" * 8}
VERSION = "oneDNN 3.2.0 (wheel of 2023-07-08; threads: GNU OpenMP)"
MACHINE = {**SOURCES, "device": "a CPU", "system": "Linux", "date": "2026-01-02",
           "versions": [VERSION]}  # fmt: skip


def measured(text, ratio, **more):
    """A row. For convolutions, our scratchpad has 3 MB and the peer's has 1 MB."""
    row = {"problem": text, "impl": "ours", "peer": "a", "peer_impl": "theirs", "ratio": ratio,
           "ours_ms": 1.0, "peer_ms": ratio, "error": 2e-7}  # fmt: skip
    op = read(text)[0].op
    for who, size in (("ours", 3_000_000), ("peer", 1_000_000)):
        milliseconds = row[f"{who}_ms"]
        row |= {f"{who}_gflops": op.flops / milliseconds / 1e6, f"{who}_scratchpad": size,
                f"{who}_gbps": op.bytes / milliseconds / 1e6}  # fmt: skip
    return row | {"ours_error": 1e-7, "peer_error": 2e-7} | SOURCES | more


def invented():
    """Figures where every second line misses its goal."""
    outcomes = {
        line.title: [measured(text, (line.goal or 1) + better) for text in (TINY, CONVOLUTION)]
        for line, better in zip(LINES, [0.1, -0.5] * len(LINES), strict=False)
    }
    outcomes[LINES[0].title].append({"problem": "--matmul 4x4:4x4", "left_out": "too hard"})
    outcomes[LINES[2].title].append({"problem": "--matmul 4x4:4x4", "wrong": "by far"})
    row = measured("--matmul 8x8:8x8", 2.0, ours_error=4e-9, peer_error=1e-9,
                   peer_wrong="torch differs", absent="onednn-3.13: not installed")  # fmt: skip
    outcomes[LINES[3].title].append(row)
    selection = [measured(TINY, 0.5), measured(CONVOLUTION, 1)]
    lists = [replace(line, sample=sample_of(outcomes[line.title])) for line in LINES]
    return Figures(outcomes, selection, PROGRAMS, 2, True, MACHINE, goals=(SAMPLE, *lists))


def sample_of(outcomes):
    texts = [outcome["problem"] for outcome in outcomes]
    return Sample.of({"problems": texts, "skipped": {}, "networks": 0})


def test_the_page_lists_goals_that_hold_and_goals_that_are_missed(tmp_path):
    figures = invented()
    text = document.write(figures, tmp_path).read_text()
    goals = {line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("|")}
    errors = "1.0e-07, 2.0e-07; larger in 0 of 2"
    assert goals[LINES[0].title].endswith(
        f"| 1.13 | 1.13 | {errors} | 2 of 3, 1 left out | holds |"
    )
    assert goals[LINES[1].title].endswith(f"| 0.50 | 0.50 | {errors} | 2 of 2 | **missed** |")
    assert goals[LINES[2].title].endswith("**1 wrong** |")
    assert "within 10 % of dnncore's fastest on 50% of 2 layers" in text
    assert "all layers together would take 75.0% of the time" in text
    assert re.search(rf"^{len(LINES)} of \d+ direct convolutions need a scratchpad", text, re.M)
    assert [outcome["wrong"] for outcome in figures.wrong] == ["by far"]
    for name in ("benchmarks_speed_ups.png", "benchmarks_roofline.png"):
        assert f"(pictures/{name})" in text
        assert (tmp_path / "pictures" / name).exists()


def test_the_page_has_versions_small_errors_and_peers_that_do_not_count():
    text = document.page(invented())
    assert "02 January 2026 on Linux" in text
    assert f"- {VERSION}\n" in text
    row = next(line for line in text.splitlines() if f"| {LINES[3].title} |" in line)
    assert "larger in 1 of 3, at most 4.0e-09 against 1.0e-09" in row
    assert "torch differs, and does not count" in text
    assert "without onednn-3.13: not installed" in text


def test_the_training_step_is_compared_with_right_peers():
    text = document.page(invented())
    row = next(line for line in text.splitlines() if "AlexNet's training step" in line)
    assert row.endswith("| >= 1.1 | 1.20 | 1.20 | largest 2.0e-07, 1.0e-06 | 1 | holds |")
    wrong = {**PROGRAMS, "alexnet": {"cpu": {"errors": {"lrn": 1.0}, "wrong": "lrn"}, "absent": {}}}
    text = document.page(replace(invented(), programs=wrong))
    assert "**wrong**" in next(line for line in text.splitlines() if "AlexNet's training" in line)


def test_lines_without_figures_are_not_measured():
    """Also the sample, although nothing was drawn."""
    lines = {title: rows[:1] for title, rows in invented().lines.items() if title != LINES[1].title}
    text = document.page(replace(invented(), lines=lines, selection=[]))
    rows = {line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("|")}
    assert rows[SAMPLE.title].endswith("|  |  |  | 0 of 40, 40 not measured | not measured |")
    assert ">= 1, all but 2 >= 0.85" in rows[SAMPLE.title]
    assert rows[LINES[0].title].endswith("| 1 of 3, 2 not measured | holds so far |")
    assert rows[LINES[1].title].endswith("|  |  |  | 0 of 2, 2 not measured | not measured |")
    assert "\n\nNot measured.\n\n" in text


def test_a_mean_of_errors_counts_exact_results():
    exact, small = ({"ours_error": error, "peer_error": error} for error in (0.0, 1e-6))
    assert report.mean_errors([exact, small]) == pytest.approx([1e-9, 1e-9])
    assert report.larger_errors([exact, small]) == []


# -- changed figures -------------------------------------------------------------------------------


@pytest.fixture
def pages(tmp_path, monkeypatch):
    """A folder with a ledger of invented figures, and its page."""
    monkeypatch.delitem(check.PAGES, "gpu.jsonl")
    ledgers, docs = tmp_path / "ledgers", tmp_path / "docs"
    docs.mkdir()
    invented().save(ledgers / "cpu.jsonl")
    document.write(invented(), docs, source(Ledger(ledgers / "cpu.jsonl")))
    return ledgers, docs


def test_a_ledger_has_all_figures(pages):
    assert Figures.load(pages[0] / "cpu.jsonl") == invented()
    assert not list(check.changes(*pages))


def test_a_later_run_counts(pages):
    """The former one stays in the ledger."""
    ledger = pages[0] / "cpu.jsonl"
    before = ledger.read_text()
    later = replace(invented(), threads=4, selection=[measured(TINY, 0.7)])
    later.save(ledger)
    assert ledger.read_text().startswith(before)
    assert Figures.load(ledger) == later
    document.write(later, pages[1], source(Ledger(ledger)))
    assert not list(check.changes(*pages))


def test_a_problem_twice_in_one_run_is_refused(pages):
    ledger = Ledger(pages[0] / "cpu.jsonl")
    ledger.put("another key", {"line": LINES[0].title, "outcome": measured(TINY, 9.0)})
    (found,) = check.changes(*pages)
    assert f"{LINES[0].title} has {TINY} twice in one run" in found


def test_a_figure_that_was_changed_in_the_page_is_noticed(pages):
    page = pages[1] / document.NAME
    text = page.read_text()
    for old, new in (("| 1.13 |", "| 1.93 |"), ("**missed**", "holds"), ("| 1.000 |", "| 0.500 |")):
        assert old in text
        page.write_text(text.replace(old, new, 1))
        assert any(new in line for line in check.changes(*pages))


@pytest.mark.parametrize(
    ("old", "new"),
    [('"ratio": 0.5', '"ratio": 1.5'), ('"ours_ms": 1.0', '"ours_ms": 0.5'),
     ('"date": "2026-01-02"', '"date": "2026-01-03"'), ('"ours_error": 1e-07', '"ours_error": 0')],
)  # fmt: skip
def test_a_row_that_was_changed_in_the_ledger_is_noticed(pages, old, new):
    ledger = pages[0] / "cpu.jsonl"
    text = ledger.read_text()
    assert old in text
    ledger.write_text(text.replace(old, new, 1))
    (found,) = check.changes(*pages)
    assert "its digest differs" in found
    assert "cpu.jsonl:" in found


def test_a_row_that_moved_to_another_key_is_noticed(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    ledger.put("a", {"problem": "a", "ratio": 1.0})
    _, value, digest = json.loads(path.read_text())
    path.write_text(json.dumps(["b", value, digest]) + "\n")
    with pytest.raises(ChangedRow, match=r"ledger\.jsonl:1: a must be as it was measured"):
        Ledger(path)


def test_a_page_has_the_goals_of_its_ledger(tmp_path):
    """Other goals in the source apply to the next run."""
    goals = tuple(replace(line, goal=0.875) for line in invented().goals)
    replace(invented(), goals=goals).save(tmp_path / "cpu.jsonl")
    text = document.page(Figures.load(tmp_path / "cpu.jsonl"))
    assert text.count("| >= 0.875") == len(goals)


@pytest.mark.parametrize("missing", ["run", "programs"])
def test_a_ledger_without_the_run_is_refused(pages, missing):
    ledger = pages[0] / "cpu.jsonl"
    values = [Ledger(ledger).get("run 0"), *Ledger(ledger).values()[1:3]]
    ledger.unlink()
    values[0] = values[0] | {"programs": {}} if missing == "programs" else values[1]
    rebuilt = Ledger(ledger)
    for key, value in zip(("run" if missing == "programs" else "other", "b", "c"), values,
                          strict=True):  # fmt: skip
        rebuilt.put(key, value)
    (found,) = check.changes(*pages)
    assert "expected the record of the run with alexnet, digits, overheads, roofline" in found


@pytest.mark.long
def test_the_pages_of_this_repository_are_those_of_its_ledgers():
    assert not list(check.changes(ROOT / "benchmarks" / "ledgers", ROOT / "docs"))
