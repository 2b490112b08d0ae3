"""Faults of state, of the surroundings and of events are caught as a run of the kit would."""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import warnings

import numpy as np
import pytest
import state_faults

import dnncore as dnn
from dnncore.problem import read
from dnncore.testing import CHECKS, run_case
from dnncore.testing.checks import table


@pytest.fixture(scope="module")
def engine():
    dnn.register(state_faults)
    yield dnn.engine(state_faults.KIND)
    dnn.unregister(state_faults)


@pytest.fixture
def surroundings():
    """Restore the states that the faults change."""
    errors, path, hook = np.geterr(), [*sys.path], sys.unraisablehook
    states, handler = (random.getstate(), np.random.get_state()), signal.getsignal(signal.SIGUSR2)  # noqa: NPY002
    with warnings.catch_warnings():
        yield
    np.seterr(**errors)
    sys.path[:], sys.unraisablehook = path, hook
    random.setstate(states[0])
    np.random.set_state(states[1])  # noqa: NPY002
    signal.signal(signal.SIGUSR2, handler)
    gc.enable()
    os.environ.pop("SUBTLE", None)
    if state_faults._libm is not None:
        state_faults._libm.fesetenv(state_faults.ENVIRONMENT)


TRIES = {"in_order_of_arrival": 4}  # a race shows in most runs, but not in each


@pytest.mark.parametrize("name", state_faults.FAULTS)
def test_a_fault_is_caught_by_its_check(engine, surroundings, monkeypatch, name):
    """Without the names of checks, as in a run: slow checks run once per implementation."""
    monkeypatch.setattr(table, "_made", set())
    fault = state_faults.FAULTS[name]
    (problem,) = read(fault.problem)
    for _ in range(TRIES.get(name, 1)):
        result = run_case(problem, engine, impl=f"{state_faults.KIND}:{name}")
        if fault.check in {failure.check for failure in result.failures}:
            return
    pytest.fail(str(result))


@pytest.mark.parametrize("text", sorted({f.problem for f in state_faults.FAULTS.values()}))
def test_what_is_right_passes(engine, text):
    (problem,) = read(text)
    result = run_case(problem, engine, impl=f"{state_faults.KIND}:right", checks=CHECKS)
    assert result.status == "passed", str(result)
