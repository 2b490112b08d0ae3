"""All engines compute the same bits of problems with integers."""

import numpy as np
from click.testing import CliRunner

import dnncore as dnn
from dnncore.problem import read
from dnncore.testing.checks.case import Trial
from dnncore.testing.equal_bits import Findings, examined, main, problems

CPU = dnn.engine("cpu")
TEXT = "--matmul --dt=u8:s8:s8 --attr-scales=src:common+wei:per_oc+dst:common 5x32:32x7"


def test_problems_are_of_integers():
    drawn = problems(60, 3)
    assert problems(60, 3) == drawn
    assert {p.op.KIND for p in drawn} >= {"convolution", "matmul", "inner product", "reorder"}
    words = {word for p in drawn for word in p.attr.words}
    assert words >= {"scales", "zero_points"}


def test_engines_agree():
    findings = Findings()
    for problem in read(TEXT):
        examined(problem, [CPU, dnn.engine("pocl")], findings)
    assert findings.wrong == []
    assert findings.equal == findings.executed.total() > 1


def test_another_bit_is_found(monkeypatch):
    execute = Trial.execute

    def wrong(trial, inputs):
        outputs = execute(trial, inputs)
        return {name: np.where(values > 3, values - 1, values) for name, values in outputs.items()}

    monkeypatch.setattr(Trial, "execute", wrong)
    findings = Findings()
    for problem in read(TEXT):
        examined(problem, [CPU], findings)
    assert "dnncore check --engines=cpu --matmul" in findings.wrong[0]
    assert "differ" in findings.wrong[0]


def test_a_run_ends_when_its_time_is_over():
    result = CliRunner().invoke(main, ["--engines=cpu", "--count=8", "--seed=3", "--seconds=0"])
    assert result.exit_code == 0, result.output
    assert "1 of 8 problems of seed 3" in result.output


def test_an_unknown_engine_is_an_error():
    result = CliRunner().invoke(main, ["--engines=none"])
    assert result.exit_code == 1
    assert "none" in result.output
