"""`dnncore checklist`: complete operations have no gaps, and what is taken away is listed."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

import dnncore as dnn
from dnncore.cli import main
from dnncore.problem import drivers
from dnncore.testing import checklist
from dnncore.testing.checklist import Gap, gaps

CPU = dnn.engine("cpu")


@pytest.fixture(scope="module")
def found():
    return list(gaps([CPU]))


def of(subject, found):
    return [gap for gap in found if gap.subject == subject]


def test_the_core_lacks_two_one_line_functions(found):
    named = [gap for gap in found if gap.subject.startswith("operation ")]
    assert [gap for gap in named if gap.place.startswith("dnncore/")] == [
        Gap("operation Reorder", "dnncore/functional", "no function"),
        Gap("operation Sum", "dnncore/functional", "no function"),
    ]


def test_the_reference_computes_everything(found):
    rules = "dnncore/ops"  # which types an operation has at all
    assert [gap for gap in found if "reference" in gap.place and gap.place != rules] == []


def test_types_are_listed_by_rule_and_by_backend(found):
    assert of("data type f32", found) == []
    (rule,) = (gap for gap in of("data type s8", found) if gap.place == "dnncore/ops")
    assert "ConvolutionForward" in rule.reason
    assert "Reorder" not in rule.reason
    (ours,) = of("data type f16", found)
    assert ours.place == "cpu_numba on cpu"
    assert "MatMul" in ours.reason


def test_a_missing_driver_is_listed(monkeypatch):
    without = {name: d for name, d in drivers.DRIVERS.items() if name != "pool"}
    monkeypatch.setattr(checklist, "DRIVERS", without)
    expected = Gap(
        "operation PoolingForward",
        "dnncore/problem/drivers",
        "no driver, so no problem text, error bound and oracle",
    )
    assert expected in list(gaps([]))


def test_missing_cases_are_listed(monkeypatch):
    monkeypatch.setattr(checklist, "_listed", lambda _size: [])
    places = {gap.place for gap in gaps([])}
    assert {f"dnncore/testing/problems, size {size}" for size in checklist.LISTS} <= places


def test_an_algorithm_that_a_backend_lacks_is_listed(monkeypatch):
    accepts = checklist._is_accepted

    def refuses_mish(problem, backend, engine):
        lacks = getattr(problem.op, "algorithm", "") == "mish" and backend == "cpu_numba"
        return not lacks and accepts(problem, backend, engine)

    monkeypatch.setattr(checklist, "_is_accepted", refuses_mish)
    assert of("algorithm mish", gaps([CPU])) == [
        Gap("algorithm mish", "cpu_numba on cpu", "refuses EltwiseForward, EltwiseBackward")
    ]


def test_the_command_filters_by_words_and_prints_json():
    arguments = ["checklist", "--engine=cpu", "--json", "type f16"]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    rows = json.loads(done.output)
    assert {row["subject"] for row in rows} == {"data type f16"}
    text = CliRunner().invoke(main, ["checklist", "--engine=cpu", "no subject"]).output
    assert text == "0 gaps\n"
