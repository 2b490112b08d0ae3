"""The lines of `benchmarks.operations`: shapes, torch's operators, the run and its section."""

from __future__ import annotations

import re

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks import operations
from benchmarks.documents.check import _contradictory, _rows
from benchmarks.documents.operations import Operations, section
from benchmarks.measuring.ledger import Ledger
from benchmarks.problems.lines import line_of, problems_of, record_of
from benchmarks.problems.operations import cpu_lines, gpu_lines
from dnncore.problem import read

CELL = "l1t3mb2_sic8slc8dhc8dic8"
TEXTS = (
    "--bnorm --dir=FWD_D,BWD_DW --flags=CH --tag=abx,axb mb2ic8_ih5",
    "--bnorm --dir=FWD_I --flags=GCH,GCHR mb2ic8_ih5",
    "--bnorm --dir=FWD_D --flags=CHR mb2ic8_ih5",
    "--lnorm --dir=FWD_D,BWD_DW --flags=CH 6x20",
    "--lnorm --dir=FWD_I --flags=CM 6x20",
    "--gnorm --dir=FWD_D,BWD_DW --flags=CH g2mb2ic8_ih5",
    "--prelu --dir=FWD_D,BWD_DW 2x8x5x5:1x8x1x1",
    "--shuffle --dir=FWD_D,BWD_D --group=4 2x8x5x5",
    "--resampling --dir=FWD_D,BWD_D --alg=nearest,linear mb2ic8_ih4oh8",
    "--deconv --dir=FWD_B,BWD_D,BWD_WB mb2ic8oc4_ih4oh8kh4sh2ph1",
    "--deconv --dir=FWD_B,BWD_WB g2mb2ic8oc4_ih4oh8kh2sh2",
    f"--rnn --dir=FWD_D,BWD_DW --alg=VANILLA_LSTM,LBR_GRU {CELL}",
    "--sdpa --dir=FWD_D,BWD_D --mask_type=none,causal_top_left 1x2x6x8:1x2x8x6:1x2x6x8",
)


@pytest.mark.peer
@pytest.mark.parametrize("text", TEXTS)
def test_torch_computes_the_operation(text):
    """torch's operators in float64 agree with the reference."""
    from benchmarks.measuring.accuracy import _by_reference, _by_torch

    for problem in read(text):
        exact, expected = _by_torch(problem, 1), _by_reference(problem, 1)
        names = [row.name for row, _ in problem.op.tensors() if row.direction == "out"]
        for name in set(names) - {"workspace"}:
            found = exact[name].numpy()
            np.testing.assert_allclose(
                found, expected[name], 1e-4, 1e-5, err_msg=f"{problem} {name}"
            )


@pytest.mark.peer
@pytest.mark.parametrize("text", TEXTS)
def test_outputs_can_be_overwritten_with_nan(text):
    """Otherwise results of an earlier run could pass as those of the last one."""
    from benchmarks.contestants.by_torch import Place, call_of

    for problem in read(text):
        call = call_of(problem, Place())
        call.run()
        assert not any(np.isnan(values).any() for values in call.outputs().values())
        call.spoil()
        assert all(np.isnan(values).all() for values in call.outputs().values())


def test_shapes_have_about_the_size_of_their_line():
    for line in cpu_lines(5):
        for size in (51, 1) if " MB" in line.title else ():
            if f", {size} MB" not in line.title:
                continue
            for problem in problems_of(line, full=True):
                most = max(d.nelems * d.itemsize for _, d in problem.op.tensors())
                assert 0.6 * size < most / 1e6 < 1.5 * size, problem


def test_another_seed_draws_other_shapes():
    texts = [[str(p) for line in cpu_lines(seed) for p in problems_of(line, full=True)]
             for seed in (1, 1, 2)]  # fmt: skip
    assert texts[0] == texts[1]
    assert texts[0] != texts[2]


def test_a_recorded_line_has_the_same_problems():
    for line in (*cpu_lines(3), *gpu_lines(3, ("torch-cuda",))):
        same = line_of(record_of(line, full=True))
        assert problems_of(same, full=True) == problems_of(line, full=True)
        assert same.title == line.title


def _run(path, ratios):
    """A ledger with a run in which the first problems of the first line have these ratios."""
    line = cpu_lines(3)[0]
    machine = {"device": "a processor", "date": "2026-11-28", "versions": ["numpy 2"]}
    ledger = Ledger(path)
    ledger.put("operations 0", {"goals": [record_of(line, full=True)], "threads": 2,
                                "machine": machine})  # fmt: skip
    for problem, (ratio, share) in zip(problems_of(line, full=True), ratios, strict=False):
        outcome = {"problem": str(problem), "ratio": ratio, "share": share, "ours_error": 1e-7,
                   "peer_error": 1e-7}  # fmt: skip
        key = f"operations 0: {line.title}: {problem}"
        ledger.put(key, {"line": line.title, "outcome": outcome})
    return line


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ([(1.4, 0.5), (0.9, 0.95)], "holds so far"),
        ([(1.4, 0.5), (0.9, 0.85)], "**missed**"),
        ([(1.3, 0.1)] * 20, "holds"),
        ([], "not measured"),
    ],
)
def test_a_goal_needs_the_ratio_or_the_share_of_a_copy(tmp_path, ratios, verdict):
    line = _run(tmp_path / "cpu.jsonl", ratios)
    text, table = section(Operations.load(tmp_path / "cpu.jsonl"))
    assert "a processor" in text
    assert "28 November 2026" in text
    (row,) = (each for each in table.split("\n") if each.startswith(f"| {line.title}"))
    assert "each >= 1.3 or 0.9 of a copy" in row
    assert row.endswith(f"| {verdict} |")


def test_a_ledger_without_such_a_run_has_no_section(tmp_path):
    assert Operations.load(tmp_path / "cpu.jsonl") is None


@pytest.mark.parametrize(("option", "ratios"), [("--resume", [2, 2, 5]), ("--again", [5, 5, 5])])
def test_a_run_is_continued_or_measured_again(tmp_path, monkeypatch, option, ratios):
    path = tmp_path / "cpu.jsonl"
    line = _run(path, [(2, 0.5)] * 2)
    third = re.escape(str(problems_of(line, full=True)[2]))
    first, second = (re.escape(str(p)) for p in problems_of(line, full=True)[:2])

    def measured(problems, _settings, *, on_outcome):
        for problem in problems:
            outcome = {"problem": str(problem), "ratio": 5, "share": 0.5, "sources": "newer"}
            on_outcome(outcome)

    monkeypatch.setattr(operations, "measured", measured)
    monkeypatch.setattr(operations.report, "one_line", str)
    monkeypatch.setattr(operations.document, "page", lambda *_: "")
    monkeypatch.setattr(operations.Figures, "load", lambda _path: None)
    options = [option, f"--match={first}$|{second}$|{third}$", f"--ledger={path}"]
    done = CliRunner().invoke(operations.main, [*options, f"--folder={tmp_path}"])
    assert done.exit_code == 0, done.output
    rows = Operations.load(path).rows
    assert [outcome["ratio"] for _, outcome in rows] == ratios
    assert not list(_contradictory(path, _rows(path)))  # other sources may be faster
