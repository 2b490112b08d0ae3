"""Cases run in a process of their own, and what happens to it happens to no one else."""

import time
from pathlib import Path

import pytest

import dnncore as dnn
from dnncore.testing.checks.table import CHECKS
from dnncore.testing.running.worker import Worker

SLOW = [name for name, check in CHECKS.items() if check.every > 1]
PROBLEM = "--conv --dir=FWD_D --stag=abx --wtag=abx --dtag=abx mb1ic1oc1ih3kh3"


@pytest.fixture(scope="module")
def shared():
    """One process for all tests that need no new one, without the slow checks."""
    settings = {"forbidden": "Invalid (read|write)", "skip_checks": SLOW}
    with Worker(plugins=["unruly"], **settings) as worker:
        yield worker


@pytest.fixture
def worker(shared):
    """The shared process, which has run a case: imports take their time."""
    shared.timeout = Worker().timeout
    assert shared.run(PROBLEM, "cpu", "reference:*").status == "passed"
    return shared


def message(worker, way):
    """What is said of an implementation that has to bring the process down."""
    result = worker.run(PROBLEM, "cpu", f"unruly:{way}*")
    assert result.status == "failed"
    assert (result.problem, result.engine) == (PROBLEM, "cpu")
    (failure,) = result.failures
    assert failure.check == "worker"
    assert failure.impl_name == f"unruly:{way}"
    return failure.message


def test_a_case_passes_and_the_process_is_kept(worker):
    started = worker.started
    results = [worker.run(PROBLEM, "cpu", "reference:*") for _ in range(3)]
    assert {result.status for result in results} == {"passed"}
    assert worker.started == started


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the memory from /proc")
def test_a_process_that_has_grown_is_replaced(worker, monkeypatch):
    started = worker.started
    monkeypatch.setattr("dnncore.testing.running.worker.MOST_BYTES", 1 << 20)
    results = [worker.run(PROBLEM, "cpu", "reference:*") for _ in range(2)]
    assert {result.status for result in results} == {"passed"}
    assert worker.started == started + 1


def test_a_crash_is_told_by_signal_and_python_line_and_the_next_case_passes(worker):
    started = worker.started
    text = message(worker, "crash")
    assert "in the check integers: the process died of SIGSEGV" in text
    assert "in crash" in text
    assert worker.run(PROBLEM, "cpu", "reference:*").status == "passed"
    assert worker.started == started + 1


def test_a_backend_whose_table_cannot_be_loaded_fails(worker):
    """A refused case would be skipped, so a misspelled name of a table would not be noticed."""
    result = worker.run("--sum 2x3", "cpu", "unruly:*")
    assert result.status == "failed"
    assert "backend unruly: AttributeError: " in result.failures[0].message
    assert "MISSING" in result.failures[0].message
    assert worker.run("--sum 2x3", "cpu", "reference:*").status == "passed"


def test_a_read_behind_a_tensor_is_told_as_a_crash_in_its_check():
    with Worker(plugins=["unruly"]) as worker:
        text = message(worker, "beyond")
    assert "in the check fences: the process died of SIGSEGV" in text
    assert "in beyond" in text


def test_a_hang_ends_at_the_timeout_and_shows_where_it_hung(worker):
    worker.timeout = 1
    start = time.monotonic()
    text = message(worker, "hang")
    assert 1 <= time.monotonic() - start < 15
    assert "no reply within 1 s" in text
    assert "in hang" in text


def test_after_three_hangs_in_a_row_no_case_runs():
    """As with a device that does not reply any more."""
    with Worker(plugins=["unruly"]) as worker:
        assert worker.run(PROBLEM, "cpu", "reference:*").status == "passed"
        for hangs in (2, 3):
            worker.timeout = 1
            for _ in range(hangs):
                (failure,) = worker.run(PROBLEM, "cpu", "unruly:hang*").failures
                assert "no reply within 1 s" in failure.message
            worker.timeout = Worker().timeout
            if hangs == 2:
                assert worker.run(PROBLEM, "cpu", "reference:*").status == "passed"
        started = worker.started
        (failure,) = worker.run(PROBLEM, "cpu", "reference:*").failures
        assert failure.message.startswith("not run, because the 3 cases before hung")
        assert worker.started == started


def test_checks_share_no_timeout():
    """What goes on is no hang, however long it is altogether."""
    with Worker(plugins=["unruly"], skip_checks=["memory", "many"]) as worker:
        worker.run(PROBLEM, "cpu", "reference:*")  # imports take their time
        worker.timeout = 3
        result = worker.run(PROBLEM, "cpu", "unruly:slow")
    assert "worker" not in {failure.check for failure in result.failures}
    assert sum(result.seconds.values()) > worker.timeout


def test_a_death_between_two_cases_is_not_overlooked(worker):
    """As heaps that were spoilt end a process when nobody looks."""
    worker.run(PROBLEM, "cpu", "unruly:later")
    time.sleep(3)
    (failure,) = worker.run(PROBLEM, "cpu", "reference:*").failures
    assert failure.check == "worker"
    assert "exited with status 4 after the request before this one" in failure.message
    assert worker.run(PROBLEM, "cpu", "reference:*").status == "passed"


def test_an_exit_is_told_with_what_was_printed_last(worker):
    text = message(worker, "leave")
    assert "exited with status 3" in text
    assert "out of patience" in text


def test_a_problem_that_cannot_be_read_fails_alone(worker):
    started = worker.started
    (failure,) = worker.run("--nonsense", "cpu").failures
    assert failure.check == "worker"
    assert "--nonsense" in failure.message
    assert worker.run(PROBLEM, "cpu", "reference:*").status == "passed"
    assert worker.started == started


def test_what_a_sanitizer_prints_fails_the_case_that_made_it_print(worker):
    failures = worker.run(PROBLEM, "cpu", "unruly:chatter").failures
    (found,) = [failure for failure in failures if failure.check == "output"]
    assert "Invalid write of size 4 at address 0x10" in found.message
    assert worker.run(PROBLEM, "cpu", "reference:*").status == "passed"


def test_settings_reach_the_process():
    with Worker(environment={"DNNCORE_DISABLE_BACKENDS": "cpu_numba"}) as worker:
        assert worker.run(PROBLEM, "cpu", "cpu_numba:*").status == "unsupported"


def test_a_process_that_cannot_start_is_an_error_with_the_reason():
    worker = Worker(plugins=["no_such_module"])
    with pytest.raises(dnn.ExecutionError, match="no_such_module"):
        worker.run(PROBLEM, "cpu")


def test_dear_checks_are_rare_in_the_process_too():
    with Worker() as worker:
        first, *others = [worker.run(PROBLEM, "cpu", "reference:*").executed for _ in range(2)]
    dear = sum(check.every > 1 for check in CHECKS.values())
    assert min(others) < first <= min(others) + dear


def test_checks_can_be_left_out_and_must_exist():
    everything = run_with()
    assert 0 < run_with("random", "guards").executed < everything.executed
    with pytest.raises(dnn.DescriptorError, match=r"expected names among .*guards.*; got nonsense"):
        Worker(skip_checks=["nonsense"])


def run_with(*left_out):
    with Worker(skip_checks=[*SLOW, *left_out]) as worker:
        return worker.run(PROBLEM, "cpu", "reference:*")
