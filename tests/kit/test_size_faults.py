"""The list "smoke" shows faults at some sizes, values and addresses only."""

from __future__ import annotations

import re

import pytest
import size_faults

import dnncore as dnn
from dnncore.testing import run_case
from dnncore.testing.problems.cases import cases


@pytest.fixture(scope="module")
def engine():
    dnn.register(size_faults)
    yield dnn.engine(size_faults.KIND)
    dnn.unregister(size_faults)


TYPES = {"f32", "f16", "bf16"}  # of the implementations with faults


@pytest.mark.parametrize("name", size_faults.FAULTS)
def test_a_fault_is_caught_by_a_case_of_the_list(engine, name):
    fault = size_faults.FAULTS[name]
    found = (p for p in cases("smoke") if re.search(fault.problems, str(p)))
    problems = [p for p in found if {d.data_type for _, d in p.op.tensors()} <= TYPES]
    checks = fault.checks.split()
    results = [run_case(p, engine, impl=f"*:{name}", checks=checks) for p in problems]
    failed = {failure.check for result in results for failure in result.failures}
    assert failed & {*checks}, [str(result) for result in results]
    rights = [run_case(p, engine, impl="*:right", checks=checks) for p in problems]
    assert {right.status for right in rights} == {"passed"}, [str(right) for right in rights]
