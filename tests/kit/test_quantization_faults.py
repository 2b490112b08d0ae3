"""The lists "smoke" and "types" show each fault of quantization and of data types."""

from __future__ import annotations

from functools import cache

import pytest
import quantization_faults
from quantization_faults import FAULTS, KIND, OPERATIONS, words_of

import dnncore as dnn
from dnncore.testing import run_case
from dnncore.testing.problems.cases import cases

SIZES = ("smoke", "types")
CHECKS = ("integers", "random", "ties", "wide", "tiny", "special", "special_operands")
MOST_FLOPS = 2e5
MOST_PROBLEMS = 30


@pytest.fixture(scope="module", autouse=True)
def plugin():
    dnn.register(quantization_faults)
    yield
    dnn.unregister(quantization_faults)


@cache
def problems(size):
    """The small problems of a list, with their words."""
    known = tuple(OPERATIONS)
    return [
        (problem, words_of(problem))
        for problem in cases(size)
        if isinstance(problem.op, known) and problem.op.flops < MOST_FLOPS
    ]


def failed(problem, name):
    result = run_case(problem, dnn.engine(KIND), impl=f"{KIND}:{name}", checks=CHECKS)
    assert result.impl_names == (f"{KIND}:{name}",), str(result)
    return [failure for failure in result.failures if "raised" not in failure.message]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", FAULTS)
def test_a_list_shows_a_fault(name, size):
    wanted = set(FAULTS[name].words.split())
    shown = [problem for problem, words in problems(size) if wanted <= words][:MOST_PROBLEMS]
    assert any(failed(problem, name) for problem in shown), f"{len(shown)} problems"


@pytest.mark.parametrize("size", SIZES)
def test_what_has_no_fault_passes(size):
    """Problems with attributes that depend on types."""
    quantized = [problem for problem, words in problems(size) if words & {"scales", "dropout"}]
    for problem in quantized[:: len(quantized) // 12]:
        assert not failed(problem, "right"), str(problem)
