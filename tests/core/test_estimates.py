"""Estimates that measured times contradict are stored, listed and forgotten."""

import json
import time

import numpy as np
import pytest
from click.testing import CliRunner
from toy import Relu, registered, relu, relu_op

import dnncore as dnn
from dnncore.backend import HostFunction, TimedEvent
from dnncore.cli import main
from dnncore.engines import estimates
from dnncore.engines.estimates import MOST, judge, wrong_estimates
from dnncore.execution.timing import Timing
from dnncore.problem import Problem
from dnncore.store import DiskStore

SECONDS = 0.002  # of the toy's relu


@pytest.fixture(autouse=True)
def own_store(tmp_path, monkeypatch):
    """A store of the test's own, on a machine that is not busy."""
    monkeypatch.setenv("DNNCORE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(estimates, "is_busy", lambda: False)


def slow(src, dst):
    time.sleep(SECONDS)
    relu(src, dst)


class Timed(Relu):
    """A relu that takes `SECONDS` and estimates other times."""

    def __init__(self, name, seconds):
        super().__init__(name, None, seconds=seconds)

    def build(self):
        return HostFunction(slow)


def run(name, *, times=3, profiling=True, bound=False):
    engine = dnn.engine("cpu")
    primitive = dnn.PrimitiveDesc(relu_op(), engine, impl=name).primitive()
    src = dnn.Memory.from_numpy(np.ones((4, 5), np.float32), engine=engine)
    memories = {"src": src, "dst": dnn.Memory(primitive.pd.dst_desc, engine)}
    stream = engine.stream(profiling=profiling)
    call = primitive.bind(**memories) if bound else lambda s: primitive.execute(s, **memories)
    for _ in range(times):
        call(stream)


@pytest.mark.parametrize("bound", [False, True])
@pytest.mark.parametrize(("estimate", "word"), [(SECONDS / 10, "short"), (SECONDS * 10, "long")])
def test_an_estimate_that_is_wrong_by_ten_is_listed_and_a_right_one_is_not(estimate, word, bound):
    implementations = Timed("toybackend:wrong", estimate), Timed("toybackend:right", SECONDS * 1.2)
    with registered(*implementations):
        run("toybackend:wrong", bound=bound)
        run("toybackend:right", bound=bound)
        (found,) = wrong_estimates()
        assert (found.implementation, found.estimate) == ("toybackend:wrong", estimate)
        assert found.problem == str(Problem(relu_op()))
        assert SECONDS <= found.measured < 3 * SECONDS
        assert found.device == dnn.engine("cpu").device.name
        shown = CliRunner().invoke(main, ["backends", "-v"]).output
        assert f"times too {word}: toybackend:wrong --eltwise" in shown
        assert "dnncore cache clear --store=estimates forgets them" in shown
        rows = json.loads(CliRunner().invoke(main, ["backends", "-v", "--json"]).output)
        by_name = {row["name"]: row["wrong_estimates"] for row in rows}
        assert [one["problem"] for one in by_name["toybackend"]] == [found.problem]
        assert by_name["reference"] == []


def test_less_than_three_times_or_no_profiling_show_nothing():
    with registered(Timed("toybackend:wrong", SECONDS / 10)):
        run("toybackend:wrong", times=2)
        run("toybackend:wrong", profiling=False)
    assert wrong_estimates() == []


def test_events_that_end_later_are_taken_at_a_later_launch(monkeypatch):
    pocl = dnn.engine("pocl")
    op = dnn.MatMul(**{name: dnn.MemoryDesc((20000, 4, 4)) for name in ("src", "weights", "dst")})
    pd = dnn.PrimitiveDesc(op, pocl, impl="opencl:simd")
    primitive = pd.primitive()
    memories = {name: dnn.Memory(desc, pocl) for name, desc in pd.descs.items()}
    stream = pocl.stream(profiling=True)
    judged = []
    monkeypatch.setattr("dnncore.execution.timing.judge", lambda *found: judged.append(found))
    for _ in range(4):
        primitive.execute(stream, **memories)
    stream.wait()
    primitive.execute(stream, **memories).wait()
    ((implementation, _, problem, estimate, measured),) = judged
    assert (implementation, estimate) == ("opencl:simd", pd.seconds)
    assert problem() == str(Problem(op))
    assert 0 < measured < 1


def take_far_too_long(pd):
    timing = Timing(pd)
    for start in range(3):
        timing.add(TimedEvent(float(start), start + 1000 * pd.seconds))


def test_the_reference_is_not_judged():
    take_far_too_long(dnn.PrimitiveDesc(relu_op(), dnn.engine("cpu"), impl="reference:*"))
    assert wrong_estimates() == []


def test_a_problem_with_an_opaque_format_has_no_text_but_a_record():
    cpu, dims = dnn.engine("cpu"), {"src": (2, 16, 8, 8), "dst": (2, 16, 6, 6)}
    descs = {name: dnn.MemoryDesc(shape) for name, shape in dims.items()}
    weights = dnn.MemoryDesc((16, 16, 3, 3), "f32", "any")
    for _ in range(2):  # then with the opaque format of the first time
        op = dnn.ConvolutionForward("forward_inference", algorithm="winograd", strides=(1, 1),
                                    weights=weights, **descs)  # fmt: skip
        pd = dnn.PrimitiveDesc(op, cpu, impl="cpu_numba:winograd:*")
        weights = pd.weights_desc
    take_far_too_long(pd)
    (found,) = wrong_estimates()
    assert found.problem == "convolution with an opaque format"


# -- the records ----------------------------------------------------------------------------------


def record(name="a:b", problem="--eltwise 2x3", estimate=1e-3, measured=1e-2):
    judge(name, "a device", lambda: problem, estimate, measured)


def test_a_problem_has_one_record_which_a_right_time_removes():
    record()
    record(measured=2e-2)
    record("a:c")
    assert [(one.implementation, one.measured) for one in wrong_estimates()] == [
        ("a:c", 1e-2),
        ("a:b", 2e-2),
    ]
    record(measured=1.9e-3)
    assert [one.implementation for one in wrong_estimates()] == ["a:c"]


def test_the_newest_records_are_kept():
    for index in range(MOST + 3):
        record(problem=str(index))
    found = wrong_estimates()
    assert len(found) == MOST
    assert found[0].problem == str(MOST + 2)


@pytest.mark.parametrize(
    ("estimate", "measured"), [(1e-3, 1.9e-3), (1e-3, 0.6e-3), (1e-7, 9e-6), (1e-3, 0.0)]
)
def test_small_differences_and_small_times_are_not_recorded(estimate, measured):
    record(estimate=estimate, measured=measured)
    assert wrong_estimates() == []


def test_a_busy_machine_shows_only_that_an_estimate_is_too_long(monkeypatch):
    monkeypatch.setattr(estimates, "is_busy", lambda: True)
    record()
    assert wrong_estimates() == []
    record(estimate=1e-1)
    assert len(wrong_estimates()) == 1


def test_one_store_is_cleared_and_nothing_else():
    DiskStore("peaks").put("key", b"kept")
    record()
    done = CliRunner().invoke(main, ["cache", "clear", "--store=estimates"])
    assert done.exit_code == 0
    assert "removed 1 entry" in done.output
    assert wrong_estimates() == []
    assert DiskStore("peaks").get("key") == b"kept"
    assert "no estimate is known to be wrong" in CliRunner().invoke(main, ["backends", "-v"]).output
