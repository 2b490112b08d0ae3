"""`dnncore checklist`: complete operations have no gaps, and what is taken away is listed."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

import dnncore as dnn
from dnncore.algorithms.post_ops import POST_OPS
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


def test_the_core_lacks_nothing(found):
    named = [gap for gap in found if gap.subject.startswith("operation ")]
    assert [gap for gap in named if gap.place.startswith("dnncore/")] == []


def test_the_reference_computes_everything(found):
    rules = "dnncore/ops"  # which types an operation has at all
    assert [gap for gap in found if "reference" in gap.place and gap.place != rules] == []


def test_types_are_listed_by_rule_and_by_backend(found):
    assert of("data type f32", found) == []
    (rule,) = (gap for gap in of("data type s8", found) if gap.place == "dnncore/ops")
    assert "ConvolutionBackwardData" in rule.reason
    assert "Reorder" not in rule.reason
    assert of("data type f16", found) == []
    assert not any(gap.place == "cpu_numba on cpu" for gap in of("data type f64", found))


@pytest.mark.parametrize("name", ["s8", "u8", "f64"])
def test_an_operation_has_a_type_if_its_table_has_it(name, found):
    """Also in inference only, as recurrent cells of u8."""
    (rule,) = (gap for gap in of(f"data type {name}", found) if gap.place == "dnncore/ops")
    forbidden = {*rule.reason.removeprefix("not a type of ").split(", ")}
    kinds = {type(problem.op) for problem in checklist._plain_problems()}
    rows = {kind: [name in types for row in kind.TYPES for types in row.values()] for kind in kinds}
    assert forbidden == {kind.__name__ for kind, own in rows.items() if not any(own)}


@pytest.mark.parametrize("name", ["s4", "f8_e4m3", "s32"])
def test_types_of_single_tensors_are_types_of_the_operation(name, found):
    """Weights of 4 and 8 bits beside a src of f32; results of s32 beside integers of 8 bits."""
    (rule,) = of(f"data type {name}", found)
    forbidden = rule.reason.removeprefix("not a type of ").split(", ")
    assert rule.place == "dnncore/ops"
    assert not {"MatMul", "InnerProductForward", "Reorder"} & {*forbidden}
    assert ("ConvolutionForward" in forbidden) == (name != "s32")


def test_a_type_of_weights_that_a_backend_lacks_is_listed(monkeypatch):
    accepts = checklist._is_accepted

    def refuses_s4(problem, backend, engine):
        lacks = getattr(problem.op, "weights", problem.op.result).data_type == "s4"
        return not (lacks and backend == "cpu_numba") and accepts(problem, backend, engine)

    monkeypatch.setattr(checklist, "_is_accepted", refuses_s4)
    monkeypatch.setattr(checklist, "DATA_TYPES", ["s4"])
    refused = Gap(
        "data type s4", "cpu_numba on cpu", "refuses InnerProductForward, MatMul, Reorder"
    )
    assert refused in list(gaps([CPU], is_wanted=lambda subject: subject == "data type s4"))


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
    checklist._plain_problems()  # is kept from here on
    monkeypatch.setattr(checklist, "_listed", lambda _size: [])
    places = {gap.place for gap in gaps([])}
    assert {f"dnncore/testing/problems, size {size}" for size in checklist.LISTS} <= places


def test_an_algorithm_that_a_backend_lacks_is_listed(monkeypatch):
    accepts = checklist._is_accepted

    def refuses_mish(problem, backend, engine):
        lacks = getattr(problem.op, "algorithm", "") == "mish" and backend == "cpu_numba"
        return not lacks and accepts(problem, backend, engine)

    monkeypatch.setattr(checklist, "_is_accepted", refuses_mish)
    assert list(gaps([CPU], lambda subject: subject == "algorithm mish")) == [
        Gap("algorithm mish", "cpu_numba on cpu", "refuses EltwiseForward, EltwiseBackward")
    ]


ADDING = """
from dnncore.algorithms.binary import BINARY
from dnncore.algorithms.eltwise import ELTWISE
from dnncore.algorithms.reduction import REDUCTION
ELTWISE["new1"] = ELTWISE["mish"]
BINARY["new2"] = BINARY["add"]
REDUCTION["new3"] = REDUCTION["mean"]
from dnncore.cli import main
main(["checklist", "--engine=cpu", "--json", "algorithm new"])
"""


def test_a_new_record_lacks_its_function_and_all_formulas():
    """In another process, since drivers read the records when they are imported."""
    done = subprocess.run(
        [sys.executable, "-c", ADDING], check=True, capture_output=True, text=True
    )
    found = {(row["subject"], row["place"]): row["reason"] for row in json.loads(done.stdout)}
    expected = {}
    kinds = ("EltwiseForward, EltwiseBackward", "Binary", "Reduction")
    for number, names in enumerate(kinds, 1):
        subject = f"algorithm new{number}"
        expected[subject, "dnncore/functional"] = "no function"
        expected[subject, "cpu_numba on cpu"] = f"refuses {names}"
        expected[subject, "reference on cpu"] = f"refuses {names}"
    assert found == expected


def test_a_new_post_op_lacks_cases_and_all_formulas(monkeypatch):
    monkeypatch.setitem(POST_OPS, "other", POST_OPS["sum"])
    places = {gap.place for gap in gaps([CPU], lambda subject: subject == "post-op other")}
    core = "dnncore/testing/problems, size full"
    assert places == {core, "cpu_numba on cpu", "reference on cpu"}


def test_the_command_filters_by_words_and_prints_json():
    arguments = ["checklist", "--engine=cpu", "--json", "type f64"]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    rows = json.loads(done.output)
    assert {row["subject"] for row in rows} == {"data type f64"}
    text = CliRunner().invoke(main, ["checklist", "--engine=cpu", "type f32"]).output
    assert text == "0 gaps\n"


@pytest.mark.parametrize("word", ["batch_normalization", "layer_normalization", "mat_mul", "RNN"])
def test_words_are_compared_without_case_and_underscores(word):
    done = CliRunner().invoke(main, ["checklist", "--engine=cpu", word])
    assert done.exit_code == 0, done.output


def test_near_names_of_a_wrong_word_are_listed():
    done = CliRunner().invoke(main, ["checklist", "--engine=cpu", "pooling_forwards"])
    assert "near names: PoolingForward, " in done.output.replace("\n", " ")


def test_a_word_without_a_subject_is_an_error():
    done = CliRunner().invoke(main, ["checklist", "--engine=cpu", "cosh"])
    assert done.exit_code == 2
    assert "no operation, algorithm, post-op or data type is called 'cosh'" in done.output
