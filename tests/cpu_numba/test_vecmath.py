"""The CPU backend's elementary functions: of float32 in units in the last place, and of float64."""

import ctypes
import math
import re
from typing import Any

import numpy as np
import pytest

from dnncore.store import DiskStore

pytest.importorskip("numba")

from dnncore_cpu_numba.codegen import native, precise_math, vecmath
from dnncore_cpu_numba.codegen.call_schema import Record
from dnncore_cpu_numba.codegen.pointers import load_f32, load_f64, store_f32, store_f64
from dnncore_cpu_numba.codegen.task import exact, task


def logistic(x):
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, 1) / (1 + e)


def logistic_slope(x):
    e = np.exp(-np.abs(x))
    return e / (1 + e) ** 2


def erfc(x):
    return np.frompyfunc(math.erfc, 1, 1)(x).astype(np.float64)


def gate(x):
    return 2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)


def gate_slope(x):
    return 2 * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x * x)


def gelu_erf_slope(x):
    density = np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    return erfc(-x / math.sqrt(2)) / 2 + x * density


def mish_slope(x):
    soft = np.logaddexp(0, x)
    return np.tanh(soft) + x * 4 * logistic_slope(2 * soft) * logistic(x)


FUNCTIONS: dict[str, Any] = {  # reference, largest error in ulp
    "exp": (np.exp, 1.0),
    "decay": (np.exp, 1.0),
    "expm1": (lambda x: np.expm1(np.minimum(x, 0)), 0.9),
    "log": (np.log, 0.8),
    "tanh": (np.tanh, 2.5),
    "logistic": (logistic, 2.5),
    "tanh_slope": (lambda x: 1 / np.cosh(x) ** 2, 4.5),
    "logistic_slope": (logistic_slope, 4.5),
    "sqrt": (np.sqrt, 0.5),
}

# reference, largest error in units of roundoff of what is given, which the result may be less than
SIGMOIDS: dict[str, Any] = {
    "gelu_erf": (lambda x: x / 2 * erfc(-x / math.sqrt(2)), 5.0, np.abs),
    "gelu_erf_slope": (gelu_erf_slope, 5.0, np.ones_like),
    "gelu_tanh": (lambda x: x * logistic(gate(x)), 5.0, np.abs),
    "gelu_tanh_slope": (
        lambda x: logistic(gate(x)) + x * logistic_slope(gate(x)) * gate_slope(x),
        5.0,
        np.ones_like,
    ),
    "mish": (lambda x: x * np.tanh(np.logaddexp(0, x)), 5.0, np.abs),
    "mish_slope": (mish_slope, 5.0, np.ones_like),
}


ARRAYS = Record("arrays", ("source target", "address"))


def evaluate(name, x, function=None, module=vecmath):
    """Apply a function, by default that of the module, to an array in a task of its own."""
    function = exact(function) if function else getattr(module, name)
    load, store = (load_f64, store_f64) if x.dtype == np.float64 else (load_f32, store_f32)

    def loop(params, begin, end):
        source, target = params.source, params.target
        for i in range(begin, end):
            store(target, i, function(load(source, i)))

    loop.__name__ = f"test_{x.dtype}_" + re.sub(r"\W", "_", name)  # the key of the code
    y = np.empty_like(x)
    params = ARRAYS.table([{"source": x.ctypes.data, "target": y.ctypes.data}])
    run = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3)(task(ARRAYS)(loop).address)
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
    x = -np.abs(x) if name == "decay" else x
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


@pytest.mark.parametrize("name", SIGMOIDS)
def test_errors_are_small_beside_the_argument(name):
    reference, units, size = SIGMOIDS[name]
    x = np.concatenate([np.geomspace(1e-30, 1e30, 1 << 14), np.linspace(0, 20, 1 << 14)])
    x = np.concatenate([x, -x]).astype(np.float32)
    with np.errstate(all="ignore"):
        exact = reference(x.astype(np.float64))
    error = np.abs(evaluate(name, x) - np.nan_to_num(exact)) / (2.0**-24 * size(x) + 1e-37)
    worst = error.argmax()
    assert error[worst] <= units, f"{name}({x[worst]}) is off by {error[worst]} units"


@pytest.mark.parametrize(
    "name", [name for name in (*FUNCTIONS, *SIGMOIDS) if hasattr(precise_math, name)]
)
def test_functions_of_float64(name):
    """1e-14 beside the result or 1: what the formulas here themselves may be off by."""
    reference = (FUNCTIONS | SIGMOIDS)[name][0]
    x = np.linspace(-6, 6, 4001)
    if name in ("log", "sqrt"):
        x = np.abs(x) + 0.1
    elif name == "expm1":  # the reference is that of negative x
        x = -np.abs(x)
    got = evaluate(name, x, module=precise_math)
    exact = reference(x)
    assert (np.abs(got - exact) <= 1e-14 * np.maximum(np.abs(exact), 1)).all()


@pytest.mark.parametrize("alpha", [1.0, -0.5, 1e-28])
def test_swish(alpha):
    """8 ulp, even where the sigmoid alone would vanish."""
    x = np.geomspace(1e-30, 1e30, 1 << 14)
    x = np.concatenate([x, -x]).astype(np.float32)
    a = np.float32(alpha)
    got = evaluate(f"swish_{alpha}", x, lambda x: vecmath.swish(x, a))
    with np.errstate(all="ignore"):
        exact = x.astype(np.float64) * logistic(np.float64(a) * x)
    assert (np.abs(got - exact) <= 8 * 2.0**-24 * np.abs(exact) * (1 + np.abs(a * x)) + 1e-37).all()


@pytest.mark.parametrize("exponent", [-2.5, -1.0, -0.1, 0.0, 0.5, 1.0, 2.0, 3.0, 7.25, 300.0])
def test_power(exponent):
    """0.6 ulp, at every sign and beyond the range of float32."""
    alpha, beta = np.float32(-1.5), np.float32(exponent)
    x = np.arange(0, 1 << 32, 1 << 12, np.uint64).astype(np.uint32).view(np.float32)
    x = np.concatenate([x, np.array([0.0, -0.0, np.inf, np.nan, 1.0, -1.0, 2.0], np.float32)])
    got = evaluate(f"power_{exponent:g}", x, lambda x: vecmath.power(x, alpha, beta))
    with np.errstate(all="ignore"):
        exact = np.float64(alpha) * np.float_power(x.astype(np.float64), np.float64(beta))
        expected = exact.astype(np.float32)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    infinite = np.isinf(expected)
    np.testing.assert_array_equal(got[infinite], expected[infinite])
    finite = np.isfinite(expected)
    error = np.abs(got[finite] - exact[finite]) / np.spacing(np.abs(expected[finite]))
    assert error.max() <= 0.6


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
