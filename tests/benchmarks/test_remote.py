"""Contestants in processes of their own: results, ends of processes, and their processors' time."""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from benchmarks.contestants.contestant import (
    SIDES,
    Contestant,
    LeftOut,
    Terms,
    imported,
    side,
    values_of,
)
from benchmarks.contestants.onednn_packages import NEWEST, OPENMP
from benchmarks.contestants.remote import Disturbed, Process
from benchmarks.measuring.sampling import PAUSE, one_by_one
from dnncore.problem import read

ROOT = Path(__file__).parents[2]
HERE = "test_remote"  # the module that the processes import


def doubling(size):
    """Contestants that double values, one of which ends the process."""
    state = {}

    def refill(draw):
        state["src"], state["dst"] = values_of("src", (size,), draw), np.full(size, np.nan)

    def double():
        state["dst"] = 2 * state["src"]

    refill(0)

    def outputs():
        return {"dst": state["dst"]}

    yield Contestant("double", one_by_one(double), outputs, refill, scratchpad=3)
    yield Contestant("abort", one_by_one(os.abort), outputs, refill)
    yield Contestant("raise", one_by_one(lambda: 1 / 0), outputs, refill)


def refusing(_size):
    raise LeftOut("too hard")
    yield


def spinning(_size):
    """A contestant whose thread goes on after its work."""
    import threading

    def spin():
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            pass

    call = one_by_one(lambda: threading.Thread(target=spin, daemon=True).start())
    yield Contestant("spin", call, dict, lambda _draw: None)


@pytest.fixture
def process(monkeypatch):
    """Start processes that import this module."""
    found = [str(Path(__file__).parent), str(ROOT), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(found))
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    made = []

    def start(name):
        made.append(Process(f"{HERE}:{name}", {}))
        return made[-1]

    yield start
    for each in made:
        each.end()


def test_results_are_those_of_the_present_draw(process):
    double, *_ = process("doubling").make(5)
    assert (double.name, double.scratchpad) == ("double", 3)
    assert np.isnan(double.outputs()["dst"]).all()
    for draw in (0, 1):
        double.refill(draw)
        assert 0 < double.repeat(3) < 1
        assert np.array_equal(double.outputs()["dst"], 2 * values_of("src", (5,), draw))


def test_a_process_that_ends_leaves_the_problem_out(process):
    _, abort, _ = process("doubling").make(5)
    with pytest.raises(LeftOut, match=r"doubling: its process was killed by SIGABRT"):
        abort.repeat(1)


def test_errors_and_refusals_reach_this_process(process):
    *_, fail = process("doubling").make(5)
    with pytest.raises(RuntimeError, match="division by zero"):
        fail.repeat(1)
    with pytest.raises(LeftOut, match="too hard"):
        process("refusing").make(5)


def test_a_process_that_computes_while_it_waits_is_noticed(process):
    (spin,) = process("spinning").make(5)
    spin.repeat(1)
    time.sleep(0.3)
    with pytest.raises(Disturbed, match="of processor time while it waited"):
        spin.repeat(1)


# -- the packages of oneDNN ------------------------------------------------------------------------

PACKAGES = [
    pytest.param(name, package, marks=pytest.mark.skipif(
        not package.is_installed, reason=f"{package.name} is not installed: {package.how}"))
    for name, package in (("onednn-3.2", OPENMP), ("onednn-3.13", NEWEST))
]  # fmt: skip


def version(_size):
    """A contestant whose name is the version of the newest oneDNN."""
    from benchmarks.contestants.onednn import load

    call = one_by_one(lambda: None)
    yield Contestant(load(NEWEST.library).version, call, dict, lambda _draw: None)


@pytest.mark.peer
@pytest.mark.parametrize(("name", "package"), PACKAGES)
def test_threads_rest_between_samples(name, package):
    """Two samples with the pause of `in_turn` raise nothing, and results are those of each draw."""
    (problem,) = read("--eltwise --alg=relu 16x64x56x56")
    (contestant,) = side(name)(problem, Terms())
    for draw in (0, 1):
        contestant.refill(draw)
        for _ in range(3):
            time.sleep(PAUSE)
            contestant.repeat(10)
        expected = np.maximum(values_of("src", problem.op.src.dims, draw), 0)
        assert np.array_equal(contestant.outputs()["dst"], expected)


@pytest.mark.peer
@pytest.mark.skipif(not NEWEST.is_installed, reason=f"not installed: {NEWEST.how}")
def test_the_newest_library_has_the_version_of_its_table(process, monkeypatch):
    from benchmarks.contestants.onednn_packages import newest_environment

    for name, value in newest_environment().items():
        monkeypatch.setenv(name, value)
    (found,) = process("version").make(1)
    assert found.name == NEWEST.library_version


@pytest.mark.peer
def test_the_older_library_has_the_version_of_its_table():
    from benchmarks.contestants.onednn import load

    assert load(OPENMP.library).version == OPENMP.library_version


def test_packages_are_those_that_make_installs():
    makefile = (ROOT / "Makefile").read_text()
    assert f".venv/{NEWEST.prefix}\n" in makefile
    assert NEWEST.prefix == f"{NEWEST.name}-{NEWEST.version}"
    project = (ROOT / "pyproject.toml").read_text()
    assert re.search(rf'"{OPENMP.name}=={re.escape(OPENMP.version)}"', project)


def test_a_missing_package_says_how_to_install_it(monkeypatch, tmp_path):
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    assert not NEWEST.is_installed
    with pytest.raises(ModuleNotFoundError, match=r"onednn 2026.1.0 is not installed: make "):
        _ = NEWEST.library


@pytest.mark.parametrize("name", ["torch", "cudnn", "torch-cuda"])
def test_a_library_that_is_not_installed_leaves_problems_out(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    for module in ("by_torch", "by_torch_cuda", "by_torch_memory"):
        monkeypatch.delitem(sys.modules, f"benchmarks.contestants.{module}", raising=False)
    (problem,) = read("--eltwise 2x3")
    with pytest.raises(LeftOut, match=r"torch is not installed: python -m pip install"):
        imported(SIDES[name].path)(problem, Terms())
