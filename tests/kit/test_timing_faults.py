"""Faults in the order of commands show every time on an engine whose streams have a lag."""

from __future__ import annotations

import pytest
import timing_faults

import dnncore as dnn
from dnncore.problem import read
from dnncore.testing import CHECKS, run_case
from dnncore.testing.checks import forks

(PROBLEM,) = read("--eltwise --alg=relu --alpha=0.25 2x11x7")
CHECKED = [
    "events", "in_flight", "several_events", "failures", "time_limits", "late_accesses",
    "profiling", "memory", "buffers", "forks",
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _registered():
    dnn.register(timing_faults)
    yield
    dnn.unregister(timing_faults)


@pytest.mark.parametrize("name", timing_faults.FAULTS)
def test_a_fault_is_caught(name, monkeypatch):
    monkeypatch.setattr(forks, "CHILD_SECONDS", 3.0)
    result = run_case(PROBLEM, dnn.engine(name), checks=CHECKED)
    assert result.status == "failed", str(result)
    assert not any("raised" in failure.message for failure in result.failures), str(result)


def test_asynchronous_streams_without_a_fault_pass_every_check():
    result = run_case(PROBLEM, dnn.engine("timely"), checks=CHECKS)
    assert result.status == "passed", str(result)
    assert not result.remarks


def test_an_engine_whose_streams_have_no_lag_is_reported(monkeypatch):
    monkeypatch.setattr(timing_faults.ThreadStream, "lag", None)
    result = run_case(PROBLEM, dnn.engine("timely"), checks=["in_flight"])
    assert result.status == "passed", str(result)
    (remark,) = result.remarks
    assert "cannot delay commands" in remark
