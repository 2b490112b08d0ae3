"""The kit catches each planted fault by the check that is meant for it, and by no other."""

from __future__ import annotations

import faulty_backends
import numpy as np
import pytest
import subtle_faults
from faulty_backends import DEADLY, FAULTS, KIND

import dnncore as dnn
from dnncore.comparison.fills import FILLS
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
VALUES = {*FILLS, "golden", "independent"}
CALLS = {
    "sequence", "long_sequence", "streams", "one_element", "many", "independent", "late_accesses"
}  # fmt: skip
ALSO = {
    "allocates_in_accept": {"buffers"},
    "kept_memory": {"buffers"},
    "wrong_value": VALUES,
    "wrong_at_odd_shapes": VALUES,
    "shared_state": {*CALLS, "memory", "threads", "profiling"},  # threads by chance alone
    "broken_sequence": {"long_sequence"},
    "second_call": {
        *FILLS,
        *CALLS,
        "in_place",
        "shifted",
        "events",
        "in_flight",
        "threads",
        "several_events",
        "allocations",
        "fences",
        "failures",
        "forks",
        "time_limits",
        "profiling",
        "memory",
        "surroundings",
        "scratchpad",
        "shared",
    },
    "stale_input": {*CALLS, "in_place", "in_flight", "profiling", "allocations"},
    "ignored_post_op": {"independent"},
    "ignores_beta": {"independent"},
    "touched_input": {"steady_inputs"},
    # An element that is -inf becomes the lowest number.
    "nondeterministic": {"repeatable_under_load", "slabs"},
    "ignored_events": {"failures", "several_events"},
    "sets_variables": {"surroundings"},
    "draws_numbers": {"surroundings"},
    "silences_numpy": {"surroundings"},
    "sets_threads": {"surroundings"},
    "reads_dst": VALUES,
    "wrong_workspace": VALUES,
    "wrong_factor": VALUES,
    "reduced_precision": {"attributes", "steady_inputs"},
    "rounds_twice": {"attributes"},
    "sums_in_half": VALUES,
    "cuts_off": VALUES,
    "loses_small_numbers": VALUES,
    "wrong_stream": {  # threads by chance alone
        "in_flight",
        "threads",
        "failures",
        "time_limits",
        "several_events",
        "late_accesses",
    },
}


@pytest.fixture(scope="module")
def engine():
    dnn.register(faulty_backends)
    yield dnn.engine(KIND)
    dnn.unregister(faulty_backends)


def run(text, engine, name):
    (problem,) = read(text)
    return run_case(problem, engine, impl=f"{engine.kind}:{name}", checks=CHECKS)


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
    wrong = run(fault.problem, subtle, name)
    failed = {failure.check for failure in wrong.failures}
    assert fault.check in failed, str(wrong)
    assert failed <= {fault.check} | ALSO.get(name, set()), str(wrong)


@pytest.mark.parametrize("text", sorted({f.problem for f in subtle_faults.FAULTS.values()}))
def test_what_has_no_subtle_fault_passes(subtle, text):
    result = run(text, subtle, "right")
    assert result.status == "passed", str(result)


@pytest.mark.parametrize("name", ["correct", "tunable"])
@pytest.mark.parametrize("text", PROBLEMS)
def test_what_is_right_passes_every_check(engine, text, name):
    result = run(text, engine, name)
    assert not result.failures, str(result)
    assert result.status == ("unsupported" if "tanh" in text else "passed")


def test_what_is_wrong_at_odd_shapes_shows_at_even_ones_in_golden_cases(engine):
    result = run("--eltwise --alg=relu --alpha=0.25 2x8", engine, "wrong_at_odd_shapes")
    assert {failure.check for failure in result.failures} == {"golden", "independent"}


def test_dirty_padding_passes_where_there_is_none(engine):
    problem = "--eltwise --alg=relu --alpha=0.25 2x11x7"
    assert run(problem, engine, "dirty_padding").status == "passed"


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
