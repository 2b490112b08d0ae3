"""A published row that a new measurement does not reach is refuted."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from benchmarks import remeasure
from benchmarks.documents.figures import Figures
from benchmarks.measuring.ledger import Ledger
from benchmarks.problems.lines import Line, record_of
from benchmarks.problems.samples import Sample
from dnncore.problem import read

TRUE, FORGED, ENTIRE = "--matmul 8x8:8x8", "--matmul 16x8:8x8", "--matmul 32x8:8x8"
PROGRAMS = {"alexnet": {}, "digits": {}, "overheads": [], "roofline": {}}
SAMPLE = Sample.of({"problems": [TRUE, FORGED, ENTIRE], "skipped": {}, "networks": 0})
LINE = Line("products", 1.0, None, (), peers=("torch",), reorders=True, sample=SAMPLE)


def row(text, ratio):
    return {"problem": text, "ratio": ratio, "ours_ms": 1.0, "peer_ms": ratio, "impl": "ours"}


@pytest.fixture
def ledgers(tmp_path, monkeypatch):
    """A ledger of three rows. The present measurements give 1.0 +- 10 %, and one is wrong."""
    monkeypatch.setattr(remeasure, "circumstances", lambda _engine: {"device": "here"})
    rows = [row(TRUE, 1.2), row(FORGED, 1.5), {"problem": ENTIRE, "wrong": "by 1"}]
    figures = Figures({LINE.title: rows}, [], PROGRAMS, 2, True, {"device": "here"}, goals=(LINE,))
    figures.save(tmp_path / "cpu.jsonl")

    def measured(problems, settings, processes):
        assert (settings.peers, settings.terms.reorders, processes) == (("torch",), True, 3)
        return [row(str(problem), 1.0) | {"ratios": [1.1, 0.9, 1.0]} for problem in problems]

    monkeypatch.setattr(remeasure, "measured", measured)
    return tmp_path


def run(ledgers, *words):
    return CliRunner().invoke(remeasure.main, [f"--ledgers={ledgers}", *words])


def test_a_forged_row_is_refuted_and_a_true_one_holds(ledgers):
    result = run(ledgers, "--rows=0")
    assert result.exit_code == 1
    assert f"holds  1.20  0.90 1.00 1.10  {TRUE}" in result.output
    assert f"REFUTED  1.50  0.90 1.00 1.10  {FORGED}" in result.output
    assert result.output.endswith("1 holds, 1 REFUTED, 0 not measured\n")
    assert run(ledgers, "--rows=0", "--match= 16x8:").exit_code == 1
    assert run(ledgers, "--rows=0", "--match= 8x8:").exit_code == 0


def test_the_seed_determines_the_rows(ledgers):
    one, same = (run(ledgers, "--rows=1", "--seed=3").output for _ in range(2))
    assert one == same
    assert {run(ledgers, "--rows=1", f"--seed={seed}").exit_code for seed in range(9)} == {0, 1}


def test_a_wrong_result_refutes_a_row(ledgers, monkeypatch):
    wrong = {"problem": TRUE, "wrong": "matmul differs"}
    monkeypatch.setattr(remeasure, "measured", lambda *_words: [wrong])
    result = run(ledgers, "--rows=0", "--match= 8x8:")
    assert result.exit_code == 1
    assert "WRONG" in result.output


def test_a_row_without_its_peers_is_not_measured(ledgers, monkeypatch):
    left_out = {"problem": TRUE, "left_out": "torch: torch is not installed"}
    monkeypatch.setattr(remeasure, "measured", lambda *_words: [left_out])
    result = run(ledgers, "--rows=0")
    assert result.exit_code == 2
    assert f"not measured  1.20  left out  {TRUE}: torch: torch is not installed" in result.output
    assert result.output.endswith("0 holds, 0 REFUTED, 2 not measured\n")


def test_a_busy_machine_is_told_of(ledgers, monkeypatch):
    for busy in (False, True):
        monkeypatch.setattr(remeasure, "is_busy", lambda busy=busy: busy)
        assert ("the machine is busy" in run(ledgers).output) == busy


def test_rows_of_other_devices_are_not_measured(ledgers, monkeypatch):
    monkeypatch.setattr(remeasure, "circumstances", lambda _engine: {"device": "elsewhere"})
    result = run(ledgers)
    assert result.exit_code == 2
    assert "no page has such a row" in result.output


def test_rows_of_opencl_devices_are_measured_on_their_engine(tmp_path, monkeypatch):
    names = {"opencl:0": "a GPU"}
    monkeypatch.setattr(
        remeasure, "circumstances", lambda engine: {"device": names.get(engine, "another")}
    )
    ledger = Ledger(tmp_path / "gpu.jsonl")
    where = {"device": "a GPU", "cores": False}
    lines = {"problem": "lines", "lines": [record_of(LINE, full=True)], **where}
    for value in (lines, row(TRUE, 3.0) | where, row(TRUE, 2.0) | where):
        ledger.put(str(value), value)
    (found,) = remeasure.published(tmp_path)
    assert found.outcome["ratio"] == 2.0  # the newest
    assert (found.settings.terms.engine, found.settings.peers) == ("opencl:0", ("torch",))


def test_a_real_row_is_measured_again(monkeypatch):
    monkeypatch.setattr(remeasure, "PROCESSES", 1)
    (problem,) = read("--eltwise --dir=FWD_I --alg=relu 2x16x8x8")
    settings = remeasure.Settings(("numpy",), samples=1, threads=1)
    again = remeasure.Row({"problem": str(problem), "ratio": 1.0}, settings).again()
    assert again["problem"] == str(problem)
    assert len(again["ratios"]) == 1
