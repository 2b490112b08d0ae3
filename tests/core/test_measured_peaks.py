"""Measured rates expire, are repeated on a busy machine, and are corrected by executions."""

import json

import numpy as np
import pytest

import dnncore as dnn
from dnncore.engines import cpu_peaks, measured

CPU = dnn.engine("cpu")


@pytest.fixture
def store(monkeypatch):
    """A store in memory."""
    entries = {}

    class Store:
        def get(self, key):
            return entries.get(key)

        def put(self, key, data):
            entries[key] = data

    monkeypatch.setattr(measured, "_store", Store)
    return entries


@pytest.fixture
def machine(monkeypatch):
    """A machine whose load and time a test sets."""
    state = {"busy": False, "time": 1e9}
    monkeypatch.setattr(measured, "is_busy", lambda: state["busy"])
    monkeypatch.setattr(measured.time, "time", lambda: state["time"])
    return state


def figures(rate, **options):
    return measured.figures("key", lambda: {"flops": {"f32": rate}}, **options)["flops"]["f32"]


def test_a_measurement_holds_for_a_month(store, machine):
    assert figures(5.0) == 5.0
    assert figures(9.0) == 5.0
    machine["time"] += 29 * measured.DAYS
    assert figures(9.0) == 5.0
    machine["time"] += 2 * measured.DAYS
    assert figures(3.0) == 3.0


def test_on_a_busy_machine_it_is_soon_repeated_and_the_better_one_kept(store, machine):
    machine["busy"] = True
    assert figures(5.0) == 5.0
    assert figures(9.0) == 5.0
    machine["time"] += 2 * 3600
    assert figures(4.0) == 5.0  # still busy: a rate can only appear lower
    machine["time"] += 2 * 3600
    machine["busy"] = False
    assert figures(4.5) == 4.5


def test_it_is_repeated_on_demand(store, machine):
    figures(5.0)
    assert figures(7.0, again=True) == 7.0
    assert figures(9.0) == 7.0


def test_a_clock_that_was_put_back_does_not_keep_it(store, machine):
    figures(5.0)
    machine["time"] -= 1e6
    assert figures(7.0) == 7.0


@pytest.fixture
def slow(store, monkeypatch):
    """Peaks as measured beside a great load."""
    rates = {"f32": 1e6, "f64": 1e6, "bytes": 1e6}
    monkeypatch.setattr(cpu_peaks, "_rates", {})
    monkeypatch.setattr(cpu_peaks, "_measure", lambda: dict(rates))
    cpu_peaks.cpu_peaks.cache_clear()
    yield
    cpu_peaks.cpu_peaks.cache_clear()


def product(call):
    """Multiply two matrices on a profiling stream."""
    desc = dnn.MemoryDesc((400, 400))  # long enough for a clock
    op = dnn.MatMul(src=desc, weights=desc, dst=desc)
    primitive = dnn.PrimitiveDesc(op, CPU, impl="cpu_numba:*").primitive()
    x, y = (dnn.Memory.from_numpy(np.ones((400, 400), np.float32)) for _ in range(2))
    arguments = {"src": x, "weights": y, "dst": dnn.Memory(desc)}
    stream = CPU.stream(profiling=True)
    if call == "bound":
        primitive.bind(**arguments)(stream)
    else:
        primitive.execute(stream, **arguments)


@pytest.mark.parametrize("call", ["bound", "executed"])
def test_an_execution_that_is_faster_raises_the_peak(slow, store, call):
    before = CPU.peaks
    product(call)
    after = CPU.peaks
    assert after.flops["f32"] > 50 * before.flops["f32"]
    assert after.bandwidth == before.bandwidth  # a cache may hold these matrices
    (entry,) = store.values()
    assert json.loads(entry)["figures"]["f32"] == cpu_peaks._rates["f32"]


def test_a_slower_execution_changes_nothing(slow):
    before = CPU.peaks
    CPU.prove(1e3, 1e3, "f32", 1.0)
    CPU.prove(1e12, 1e3, "f32", 1e-9)  # too short for a clock
    CPU.prove(1e3, 1e3, "s8", 1.0)  # counts as f32
    assert CPU.peaks == before


def test_bytes_count_if_no_cache_holds_them(slow):
    CPU.prove(0.0, 1e10, "f32", 1.0)
    assert CPU.peaks.bandwidth == 1e10


def test_what_was_never_measured_is_not_corrected(store, machine):
    measured.correct("unknown", {"flops": {"f32": 1.0}})
    assert not store
