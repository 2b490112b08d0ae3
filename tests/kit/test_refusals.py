"""Cases of the kit that a built-in backend refuses are listed; it computes all others."""

from __future__ import annotations

from pathlib import Path

import pytest

import dnncore as dnn
from dnncore.testing.checks.case import Case
from dnncore.testing.problems.cases import cases

LISTS = Path(__file__).parents[1] / "refused"


@pytest.mark.parametrize(
    ("backend", "name"), [("cpu_numba", "cpu"), ("opencl", "pocl"), ("reference", "cpu")]
)
def test_a_backend_refuses_the_listed_cases_alone(backend, name):
    """The lists in tests/refused have one problem a line. Change them with what a backend takes."""
    engine = dnn.engine(name)
    found = {
        str(problem)
        for problem in cases("smoke")
        if not Case(problem, engine, f"{backend}:*").trials
    }
    listed = set((LISTS / f"{backend}.txt").read_text().splitlines())
    assert sorted(found - listed) == []
    assert sorted(listed - found) == []
