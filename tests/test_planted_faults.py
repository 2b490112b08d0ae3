"""The kit catches each planted fault by the check that is meant for it, and nothing else."""

from __future__ import annotations

import pytest
from faulty_backends import FAULTS, Correct, registered

from dnncore.problem import read
from dnncore.testing import CHECKS, run_case

PROBLEMS = [
    "--eltwise --alg=relu --alpha=0.25 --tag=aBc8b 2x11x7",
    "--eltwise --alg=relu --attr-post-ops=relu:0.5+relu 3x5",
    "--eltwise --alg=relu --attr-scratchpad=user 2x0x3",
    "--eltwise --alg=tanh 3",
]

# What one fault does to more than one property.
VALUES = {"integers", "random", "golden"}
ALSO = {
    "wrong_value": VALUES,
    "wrong_at_odd_shapes": VALUES,
    "shared_state": {"sequence", "memory"},
}


def run(text, engine):
    (problem,) = read(text)
    return run_case(problem, engine, checks=CHECKS)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_caught_by_its_check_alone(name):
    fault = FAULTS[name]
    with registered(fault.implementation(name)) as engine:
        result = run(fault.problem, engine)
    failed = {failure.check for failure in result.failures}
    assert result.status == "failed"
    assert failed == {fault.check} | ALSO.get(name, set()), str(result)
    assert {failure.impl_name for failure in result.failures} == {f"faulty:{name}"}


@pytest.mark.parametrize("text", PROBLEMS)
def test_what_is_right_passes_every_check(text):
    with registered(Correct("correct")) as engine:
        result = run(text, engine)
    assert not result.failures, str(result)
    assert result.status == ("unsupported" if "tanh" in text else "passed")
