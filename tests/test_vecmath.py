"""The CPU backend's elementary functions against float64, in units in the last place."""

import ctypes

import numpy as np
import pytest

from dnncore.cache import DiskStore

pytest.importorskip("numba")

from dnncore_cpu_numba import native, vecmath
from dnncore_cpu_numba.pointers import load_f32, load_i64, store_f32
from dnncore_cpu_numba.task import task


def logistic(x):
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, 1) / (1 + e)


def logistic_slope(x):
    e = np.exp(-np.abs(x))
    return e / (1 + e) ** 2


FUNCTIONS = {  # reference, largest error in ulp
    "exp": (np.exp, 1.0),
    "log": (np.log, 0.8),
    "tanh": (np.tanh, 1.3),
    "logistic": (logistic, 2.5),
    "tanh_slope": (lambda x: 1 / np.cosh(x) ** 2, 4.5),
    "logistic_slope": (logistic_slope, 4.5),
}


def evaluate(name, x):
    """Apply a function of vecmath to an array in a task of its own."""
    function = getattr(vecmath, name)

    def loop(params, begin, end):
        source, target = load_i64(params, 0), load_i64(params, 1)
        for i in range(begin, end):
            store_f32(target, i, function(load_f32(source, i)))

    loop.__name__ = f"test_{name}"
    y = np.empty_like(x)
    params = np.array([x.ctypes.data, y.ctypes.data])
    run = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3)(task(loop).address)
    run(params.ctypes.data, 0, x.size)
    return y


@pytest.fixture(autouse=True)
def own_store(tmp_path, monkeypatch):
    monkeypatch.setenv("DNNCORE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(native, "_store", DiskStore("cpu_numba"))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_errors_are_as_small_as_stated(name):
    reference, ulps = FUNCTIONS[name]
    x = np.arange(0, 1 << 32, 1 << 11, np.uint64).astype(np.uint32).view(np.float32)
    x = np.concatenate([x, np.linspace(-20, 20, 1 << 17, dtype=np.float32)])
    got = evaluate(name, x)
    with np.errstate(all="ignore"):
        exact = reference(x.astype(np.float64))
        expected = exact.astype(np.float32)
    assert (np.isnan(got) == np.isnan(expected)).all()
    finite = np.isfinite(expected) & np.isfinite(got)
    assert (got[~finite & ~np.isnan(got)] == expected[~finite & ~np.isnan(got)]).all()
    error = np.abs(got[finite] - exact[finite]) / np.spacing(np.abs(expected[finite]))
    worst = error.argmax()
    assert error[worst] <= ulps, f"{name}({x[finite][worst]}) is off by {error[worst]} ulp"


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("exp", {0.0: 1.0, -np.inf: 0.0, np.inf: np.inf, 89.0: np.inf, -105.0: 0.0}),
        ("log", {1.0: 0.0, 0.0: -np.inf, np.inf: np.inf}),
        ("tanh", {0.0: 0.0, np.inf: 1.0, -np.inf: -1.0}),
        ("logistic", {0.0: 0.5, np.inf: 1.0, -np.inf: 0.0}),
        ("tanh_slope", {0.0: 1.0, np.inf: 0.0, -np.inf: 0.0}),
        ("logistic_slope", {0.0: 0.25, np.inf: 0.0, -np.inf: 0.0}),
    ],
)
def test_special_values(name, values):
    assert evaluate(name, np.array(list(values), np.float32)).tolist() == list(values.values())
    assert np.isnan(evaluate(name, np.array([np.nan], np.float32))[0])
