"""Random samples as goals: rows below the least ratio, their new measurement, seeds, pages."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import dnncore as dnn
from benchmarks import gpu, suite
from benchmarks.documents import document, gpu_document
from benchmarks.documents.figures import Figures
from benchmarks.measuring.ledger import Ledger
from benchmarks.problems.gpu_lines import GPU_SAMPLE
from benchmarks.problems.lines import LINES, SAMPLE, problems_of, sample_of
from benchmarks.problems.samples import (
    command,
    drawn,
    fresh,
    is_least_held,
    least_text,
    measured_again,
    recorded,
    skipped_text,
    summary,
)

ROOT = Path(__file__).parents[2]


def record_of(line, seed, *, full=False):
    return {"seed": seed, **sample_of(replace(line, seed=seed), full=full).record()}


(LINE,) = recorded(SAMPLE, [record_of(SAMPLE, 7)])
TEXTS = [str(problem) for problem in problems_of(LINE, full=False)]
MEDIAN = {"ratios": [0.1, 0.1, 0.1]}


def row(text, ratio, **more):
    figures = {
        "problem": text, "ratio": ratio, "impl": "ours", "peer": "a", "peer_impl": "theirs",
        "ours_ms": 1.0, "peer_ms": ratio, "error": 1e-7, "ours_error": 1e-7, "peer_error": 2e-7,
        "share": None, "device": "a GPU", "driver": "1.0", "cores": False, "date": "2026-01-02",
        "versions": ["torch 2"],
    }  # fmt: skip
    for who in ("ours", "peer"):
        figures |= {f"{who}_gflops": 9.0, f"{who}_gbps": 3.0, f"{who}_scratchpad": 0}
    return figures | more


def rows(low, **more):
    """A row for each problem of the sample; the first ones have low ratios."""
    return [row(text, 0.5 if index < low else 1.5, **(more if index < low else {}))
            for index, text in enumerate(TEXTS)]  # fmt: skip


# -- the rule --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("low", "holds"), [(0, True), (1, True), (2, True), (3, False)])
def test_two_of_40_rows_may_be_low(low, holds):
    assert len(TEXTS) == 40
    assert is_least_held(LINE, rows(low, **MEDIAN)) == holds


@pytest.mark.parametrize("ratios", [{}, {"ratios": [0.5]}, {"ratios": [0.5, 0.5]}])
def test_a_low_row_counts_only_after_three_processes(ratios):
    assert not is_least_held(LINE, rows(1, **ratios))


def test_a_line_without_rows_does_not_hold():
    assert not is_least_held(LINE, [])
    assert not is_least_held(LINE, [{"problem": TEXTS[0], "left_out": "too hard"}])


def test_a_list_has_no_spared_rows():
    line = next(line for line in LINES if line.least)
    assert is_least_held(line, rows(0))
    assert not is_least_held(line, rows(1, **MEDIAN))
    assert least_text(line) == f"each >= {line.least:g}"
    assert least_text(LINE) == "all but 2 >= 0.85"


def test_low_rows_are_measured_again_and_the_others_are_not():
    asked = []

    def measure(problems):
        asked.extend(map(str, problems))
        return [row(str(problem), 0.9, ratios=[0.9, 0.8, 1.0]) for problem in problems]

    found = measured_again(LINE, rows(3), measure)
    assert asked == TEXTS[:3]
    assert [outcome["problem"] for outcome in found] == TEXTS
    assert [outcome["ratio"] for outcome in found[:4]] == [0.9, 0.9, 0.9, 1.5]
    assert is_least_held(LINE, found)


def test_medians_lists_and_rows_without_a_ratio_are_not_measured_again():
    def measure(problems):
        raise AssertionError(problems)

    for outcomes in (rows(2, **MEDIAN), rows(0), [{"problem": TEXTS[0], "wrong": "by far"}]):
        assert measured_again(LINE, outcomes, measure) == outcomes
    assert measured_again(LINES[0], rows(2), measure) == rows(2)


def test_a_row_that_is_wrong_in_a_new_process_is_wrong():
    found = measured_again(
        LINE, rows(1), lambda _problems: [{"problem": TEXTS[0], "wrong": "by far"}]
    )
    assert found[0] == {"problem": TEXTS[0], "wrong": "by far"}


# -- other samples ---------------------------------------------------------------------------------


def test_a_smaller_sample_spares_fewer_rows():
    assert drawn(SAMPLE, 40, 1, {}, "").spared == 2
    assert drawn(SAMPLE, 20, 1, {}, "").spared == 1
    assert drawn(SAMPLE, 10, 1, {}, "").spared == 0


def test_options_are_lists():
    options = {"dir": "FWD_I,BWD_W", "mb": "1,16", "dt": "f32,bf16"}
    line = drawn(SAMPLE, 20, 4, options, "squeezenet:conv")
    ops = [problem.op for problem in problems_of(line, full=False)]
    assert {op.dst_role.dims[0] for op in ops} == {1, 16}
    assert {op.result.data_type for op in ops} == {"f32", "bf16"}
    assert {type(op) for op in ops} == {dnn.ConvolutionForward, dnn.ConvolutionBackwardWeights}
    with pytest.raises(dnn.DescriptorError, match="only --dir, --mb, --dt, --alg with it; got --t"):
        drawn(SAMPLE, 3, 4, {"tag": "axb"}, "")


def test_seeds_are_new():
    assert len({record["seed"] for _ in range(3) for record in fresh(SAMPLE, full=False)}) == 9
    assert drawn(SAMPLE, 3, None, {}, "").seed != drawn(SAMPLE, 3, None, {}, "").seed


def test_the_summary_has_means_low_rows_errors_and_skipped_layers():
    outcomes = [*rows(2, **MEDIAN)[:38], {"problem": "p", "wrong": "by far"},
                {"problem": "q", "left_out": "too hard"}]  # fmt: skip
    assert summary(LINE, outcomes, {"concat": 3}) == (
        "Sample of 40 layers, seed 7: geometric mean 1.42, least 0.50 of 38; 2 below 0.85 (the goal"
        " permits 2); 1 wrong; 1 left out; mean errors of dnncore and of the peer: 1.0e-07,"
        " 2.0e-07; larger in 0 of 38.\n"
        "Skipped layers of missing operations: concat 3."
    )


def compare(*words):
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.compare", *words],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_the_printed_command_repeats_the_sample():
    words = ["--draw=2", "--peer=numpy", "--samples=1", "--dir=FWD_I", "--mb=1,2", "--json",
             "--match=dlrm:eltwise[1-6]"]  # fmt: skip
    first = compare(*words)
    assert first.returncode == 0, first.stderr
    found = json.loads(first.stdout)
    repeat = found["sample"]["command"]
    assert re.search(r"--draw=2 --seed=\d+ --engine=cpu --peer=numpy --dir=FWD_I", repeat)
    assert repeat.endswith(" --samples=1")
    assert repeat in first.stderr
    assert "Sample of 2 layers" in first.stderr
    again = subprocess.run(
        repeat.replace("python", shlex.quote(sys.executable), 1) + " --json",
        shell=True, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    texts = [[row["problem"] for row in run["rows"]] for run in (found, json.loads(again.stdout))]
    assert len(texts[0]) == 2
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    "words", [["--tag=axb"], ["--set=alexnet"], ["--eltwise", "2x3"], ["--match=^--lstm"]]
)
def test_words_that_do_not_fit_a_sample_are_refused(words):
    run = compare("--draw=2", "--peer=numpy", *words)
    assert run.returncode == 2
    assert "draw: expected" in run.stderr
    assert "Traceback" not in run.stderr


# -- pages -----------------------------------------------------------------------------------------

PROGRAMS = {
    "roofline": {"flops": 5e11, "bandwidth": 5e10},
    "alexnet": {"cpu": {"the whole step": {"goal": 1.1, "ratio": 1.2}, "errors": {"lrn": 2e-7}}},
    "digits": {"problem": "an epoch", "ratio": 1.2},
    "overheads": [["a call", 3.0, 2.0, "us"]],
}


MACHINE = {"device": "a CPU", "system": "Linux", "date": "2026-01-02", "versions": ["torch 2"]}


def goals(text):
    return {line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("|")}


@pytest.mark.peer
@pytest.mark.parametrize(
    ("outcomes", "verdict"),
    [
        (rows(2, **MEDIAN), "holds"),
        (rows(2), "**missed**"),
        (rows(3, **MEDIAN), "**missed**"),
        ([*rows(0)[1:], {"problem": TEXTS[0], "left_out": "a: too hard"}], "holds"),
        ([*rows(0)[1:], {"problem": TEXTS[0], "left_out": "x", "refused": True}], "**missed**"),
        ([*rows(0)[1:], {"problem": TEXTS[0], "wrong": "by far"}], "**1 wrong**"),
        ([row(text, 0.9) for text in TEXTS], "**missed**"),
    ],
)
def test_the_page_has_the_goals_of_samples_and_the_lists_as_history(tmp_path, outcomes, verdict):
    lines = {line.title: [row(TEXTS[0], 2.0)] for line in LINES} | {LINE.title: outcomes}
    figures = Figures(
        lines, [row(TEXTS[0], 1.0)], PROGRAMS, 2, False, MACHINE, [record_of(SAMPLE, 7)]
    )
    text = document.write(figures, tmp_path).read_text()
    first, lists = text.split("## Named lists")
    first = first.partition("## Goals")[2]
    assert goals(first)[LINE.title].endswith(f"| {verdict} |")
    assert "| >= 1, all but 2 >= 0.85 |" in goals(first)[LINE.title]
    assert command(LINE, "cpu", LINE.peers, full=False) in first
    assert f"`: {skipped_text(sample_of(LINE, full=False).skipped)}\n" in first
    assert not goals(first).keys() & {line.title for line in LINES}
    assert goals(lists).keys() >= {line.title for line in LINES}
    figures.save(tmp_path / "cpu.jsonl")
    assert document.page(Figures.load(tmp_path / "cpu.jsonl")) == text


def test_a_continued_run_keeps_its_samples_and_a_new_one_has_others(tmp_path):
    def samples():
        ledger = Ledger(tmp_path / "ledger.jsonl")
        return ledger, suite.Run(ledger, full=False, threads=2, seconds=1).samples()

    _, first = samples()
    ledger, second = samples()
    assert first == second
    ledger.finish()
    assert samples()[1] != first


def test_a_page_does_not_change_with_the_corpus(monkeypatch):
    """Its samples are stored as data, so another network changes only new samples."""
    record = json.loads(json.dumps(record_of(SAMPLE, 3)))
    before = [str(problem) for problem in problems_of(recorded(SAMPLE, [record])[0], full=False)]
    monkeypatch.setattr("benchmarks.corpus.sample.draw", None)
    (line,) = recorded(SAMPLE, [record])
    assert [str(problem) for problem in problems_of(line, full=False)] == before
    assert sample_of(line, full=False).record() == {n: v for n, v in record.items() if n != "seed"}


def test_the_page_of_devices_has_samples(tmp_path):
    records = [record_of(GPU_SAMPLE, seed, full=True) for seed in (1, 2, 3)]
    lines = recorded(GPU_SAMPLE, records)
    texts = [str(problem) for problem in problems_of(lines[1], full=True)]
    values = [row("samples", 1.0) | {"records": records}, *(row(text, 1.5) for text in texts)]
    (figures,) = gpu_document.devices(values).values()
    text = gpu_document.write([figures], tmp_path / "gpu.md").read_text()
    assert goals(text)[lines[1].title].endswith("| 40 of 40 | holds |")
    assert text.count("--draw=40 --seed=") == 3
    values[-1] = values[-1] | {"ratio": 0.5, **MEDIAN}
    values[-2] = values[-2] | {"ratio": 0.5}
    (figures,) = gpu_document.devices(values).values()
    text = gpu_document.write([figures], tmp_path / "gpu.md").read_text()
    assert goals(text)[lines[1].title].endswith("| **missed** |")


def test_a_page_without_samples_says_so(tmp_path):
    (figures,) = gpu_document.devices([row(TEXTS[0], 1.0)]).values()
    text = gpu_document.write([figures], tmp_path / "gpu.md").read_text()
    assert "None has been measured yet" in text


def test_wrong_rows_of_former_samples_do_not_count():
    former = {**row(TEXTS[0], 1.0), "wrong": "by far"}
    del former["ratio"]
    (figures,) = gpu_document.devices([former]).values()
    assert not figures.wrong
    record = record_of(GPU_SAMPLE, 0, full=True)
    text = record["problems"][0]
    values = {**row("samples", 1.0), "records": [record]}
    (figures,) = gpu_document.devices([values, former | {"problem": text}]).values()
    assert [outcome["problem"] for outcome in figures.wrong] == [text]


def test_low_rows_of_a_device_are_replaced_in_the_ledger(monkeypatch, tmp_path):
    """By the median of new processes, which a resumed run does not measure again."""
    line = drawn(GPU_SAMPLE, 2, 1, {}, "")
    texts = [str(problem) for problem in problems_of(line, full=False)]
    calls = []

    def measured(problems, _settings, processes, *, first, ledger, on_outcome):
        calls.append((list(map(str, problems)), processes, first))
        for problem in problems:
            key = Ledger.key(str(problem), {"process": first}, "")
            ratio = 0.5 if str(problem) == texts[0] else 2.0
            ledger.put(key, row(str(problem), ratio))
        found = [ledger.get(Ledger.key(str(p), {"process": first}, "")) for p in problems]
        return [outcome | ({"ratios": [0.5] * 3} if processes == 3 else {}) for outcome in found]

    monkeypatch.setattr(gpu, "measured", measured)
    monkeypatch.setattr(gpu, "circumstances", lambda _engine: {"device": "a GPU"})
    ledger = Ledger(tmp_path / "ledger.jsonl")
    run = gpu.Run("opencl:0", ledger, peers=(), samples=1, seconds=60)
    run.problems([(line, problem) for problem in problems_of(line, full=False)])
    found = run.sample(line, full=False)
    assert calls == [(texts, 1, 0), (texts[:1], 3, 1)]
    assert found[0]["ratios"] == [0.5, 0.5, 0.5]
    newest = Ledger(tmp_path / "ledger.jsonl")
    newest.keep_newest("device", "problem")
    assert [value.get("ratios") for value in newest.values()] == [None, [0.5] * 3]
    assert newest.get(Ledger.key(texts[0], {"process": 0}, "")) == found[0]
    again = gpu.Run("opencl:0", newest, peers=(), samples=1, seconds=60)
    assert sorted(o["ratio"] for o in again.sample(line, full=False)) == [0.5, 2.0]
    assert len(calls) == 2


def test_lines_of_a_page_draw_what_the_command_draws():
    """Also with the batch sizes of the full run."""
    for base in (SAMPLE, GPU_SAMPLE):
        for full in (False, True):
            (line,) = recorded(base, [record_of(base, 11, full=full)])
            words = dict(re.findall(r"--(\w+)=(\S+)", command(line, "x", line.peers, full=full)))
            options = {name: words[name] for name in ("dir", "mb", "alg") if name in words}
            other = drawn(base, int(words["draw"]), int(words["seed"]), options, "")
            assert problems_of(other, full=False) == problems_of(line, full=full)
            assert sample_of(other, full=False).skipped == sample_of(line, full=full).skipped
