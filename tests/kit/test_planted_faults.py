"""The kit catches each planted fault by the check that is meant for it, and by no other."""

from __future__ import annotations

import faulty_backends
import numpy as np
import pytest
import subtle_faults
from faulty_backends import DEADLY, FAULTS, KIND

import dnncore as dnn
from dnncore.problem import read
from dnncore.testing import CHECKS, run_case
from dnncore.testing.running.worker import Worker

PROBLEMS = [
    "--eltwise --alg=relu --alpha=0.25 --tag=aBc8b 2x11x7",
    "--eltwise --alg=relu --attr-post-ops=relu:0.5+relu 3x5",
    "--eltwise --alg=relu --attr-scratchpad=user 2x0x3",
    "--eltwise --alg=tanh 3",
]

# What a fault does to properties beside the one that it is planted for.
VALUES = {"integers", "random", "golden"}
ALSO = {
    "wrong_value": VALUES,
    "wrong_at_odd_shapes": VALUES,
    "shared_state": {"sequence", "memory", "threads"},  # the last by chance alone
    "second_call": {"sequence", "in_place", "events", "threads"},
    "stale_input": {"in_place"},
    "reads_dst": VALUES,
    "wrong_workspace": VALUES,
    "wrong_factor": VALUES,
    "reduced_precision": {"attributes"},
    "rounds_twice": {"attributes"},
    "sums_in_half": VALUES,
    "loses_small_numbers": VALUES,
    "wrong_stream": {"threads"},  # by chance alone
}


@pytest.fixture(scope="module")
def engine():
    dnn.register(faulty_backends)
    yield dnn.engine(KIND)
    dnn.unregister(faulty_backends)


def run(text, engine, name):
    (problem,) = read(text)
    return run_case(problem, engine, impl=f"{KIND}:{name}", checks=CHECKS)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_caught_by_its_check_alone(engine, name):
    fault = FAULTS[name]
    result = run(fault.problem, engine, name)
    failed = {failure.check for failure in result.failures}
    assert result.status == "failed"
    assert fault.check in failed, str(result)
    assert failed <= {fault.check} | ALSO.get(name, set()), str(result)
    assert {failure.impl_name for failure in result.failures} == {f"{KIND}:{name}"}


@pytest.fixture
def subtle():
    """The engine of subtle faults; what they did to the process is taken back."""
    dnn.register(subtle_faults)
    errors = np.geterr()
    yield dnn.engine(subtle_faults.KIND)
    np.seterr(**errors)
    dnn.unregister(subtle_faults)


@pytest.mark.parametrize("name", subtle_faults.FAULTS)
def test_a_subtle_fault_is_caught_by_its_check(subtle, monkeypatch, name):
    monkeypatch.setenv("SUBTLE", "")
    fault = subtle_faults.FAULTS[name]
    wrong, right = (
        run_case(read(fault.problem)[0], subtle, impl=f"subtle:{impl}", checks=CHECKS)
        for impl in (name, "right")
    )
    assert right.status == "passed", str(right)
    failed = {failure.check for failure in wrong.failures}
    assert fault.check in failed, str(wrong)
    assert failed <= {fault.check} | ALSO.get(name, set()), str(wrong)


@pytest.mark.parametrize("text", PROBLEMS)
def test_what_is_right_passes_every_check(engine, text):
    result = run(text, engine, "correct")
    assert not result.failures, str(result)
    assert result.status == ("unsupported" if "tanh" in text else "passed")


def test_what_is_wrong_at_odd_shapes_shows_at_even_ones_in_golden_cases_alone(engine):
    result = run("--eltwise --alg=relu 2x8", engine, "wrong_at_odd_shapes")
    assert {failure.check for failure in result.failures} == {"golden"}


def test_dirty_padding_passes_where_there_is_none(engine):
    assert run("--eltwise --alg=relu 2x11x7", engine, "dirty_padding").status == "passed"


def test_a_crash_and_a_hang_are_told_and_the_next_case_passes():
    with Worker(plugins=["faulty_backends"]) as worker:
        assert worker.run(PROBLEMS[1], KIND, f"{KIND}:correct").status == "passed"
        for name, words in DEADLY.items():
            worker.timeout = 60 if name == "crash" else 1
            (failure,) = worker.run(PROBLEMS[0], KIND, f"{KIND}:{name}").failures
            assert failure.check == "worker"
            assert words in failure.message
            assert f"in {name}" in failure.message
            worker.timeout = 60
            assert worker.run(PROBLEMS[1], KIND, f"{KIND}:correct").status == "passed"
