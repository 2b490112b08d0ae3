"""Tasks compute what the same functions compute in Python."""

from __future__ import annotations

import ctypes
import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba")

from dnncore_cpu_numba.codegen.call_schema import Record
from dnncore_cpu_numba.codegen.pointers import load_f32, load_f64, load_i64, stack, store_f64
from dnncore_cpu_numba.codegen.task import device, exact, native_function, task

import dnncore as dnn

CALL = Record("call", ("a b", "index"), ("x y", "address"), ("results", "address"))


def operators(a, b, x, y):
    """Operators of integers and floats."""
    return (
        a + b, a - b, a * b, a // b, a % b, a / b, a & b, a | b, a ^ b, -a, ~b, a << 3, a >> 2,
        x + y, x - y, x * y, x / y, a * x, x - b, -x, 1.5 * y + a, 7 // 2 * b,
    )  # fmt: skip


def comparisons(a, b, x, y):
    """Comparisons, truths and choices."""
    both = a > 0 and b > 0
    either = a > 0 or x > y
    return (
        1 if both else 0, 2.5 if either else x, a if a < b else b, 1 if not a else 2,
        1 if 0 <= a < 5 else 0, 1 if a in (3, b) else 0, 1 if x != x else 0, 1 if x == y else 0,
        1 if (a > 0) & (x > 0.0) else 0, b if b else 9,
    )  # fmt: skip


def calls(a, b, x, y):
    """Functions of Python, math and numpy."""
    return (
        min(a, b), max(a, b, 2), min(x, y), max(x, 0.25), abs(a), abs(x), int(x), np.float32(x),
        np.float64(a), math.exp(-abs(x)), math.tanh(x), math.log1p(abs(x)), np.sqrt(abs(x)),
        np.floor(x), np.rint(y), 1 if math.isnan(x) else 0, 1 if math.isfinite(y) else 0,
        np.int32(a) + b, math.pow(abs(y), 2.0),
    )  # fmt: skip


def loops(a, b, x, y):
    """Loops that change variables, and that end early."""
    total, turns, last = 0, 0, 0.0
    for i in range(5):
        total += i * a
        for j in range(i, 12, 3):
            if j > 7:
                turns += 1
            else:
                last = last + x
    n = 40
    while n > 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        total += n
        if total > 1000:
            break
    for weight in (0.5, 0.25, 0.125):
        last = last * weight + y
    for _ in range(3, a - 90):
        total = 0
    for i in range(a, -4, -3):
        turns = 10 * turns + i
    return total, turns, last, n


def returns(a, b, x, y):
    """Variables that change their type, and branches with their own results."""
    value = a
    value = value * x
    if a > b:
        value += 1.0
        if x > y:
            return value, 1
    elif x > 1.0:
        return 3.0, a
    pair = b, a
    low, high = pair
    return value * low, high


ARGUMENTS = [(3, 5, 0.75, -2.5), (-7, 2, -1.5, 0.5), (5, -3, 2.25, 2.25), (9, 4, 8.0, 1.0)]
FUNCTIONS = [operators, comparisons, calls, loops, returns]


def native(function: Any, results: int) -> Any:
    """The task that stores a function's results as float64."""
    inlined = exact(function)

    def run(a, b, x, y, results):
        values = inlined(a, b, load_f64(x, 0), load_f64(y, 0))
        for i in range(size):
            store_f64(results, i, np.float64(values[i]))

    size = results
    run.__name__ = f"run_{function.__name__}"
    return native_function(CALL)(run)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_results_are_those_of_python(function):
    first = [float(value) for value in function(3, 5, 0.75, -2.5)]
    compiled = native(function, len(first))
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 5)(compiled.address)
    for a, b, x, y in (
        (3, 5, 0.75, -2.5),
        (-7, 2, -1.5, 0.5),
        (5, -3, 2.25, 2.25),
        (9, 4, 8.0, 1.0),
    ):
        numbers = np.array([x, y])
        got = np.zeros(len(first))
        place = numbers.ctypes.data
        call(a, b, place, place + 8, got.ctypes.data)
        expected = [float(value) for value in function(a, b, np.float64(x), np.float64(y))]
        np.testing.assert_allclose(got, expected, rtol=1e-15)


def test_quotients_that_do_not_exist_are_0():
    size = len(operators(1, 1, 1.0, 1.0))
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 5)(native(operators, size).address)
    numbers, got = np.ones(2), np.zeros(size)
    for a, b in ((7, 0), (-(2**63), -1)):
        call(a, b, numbers.ctypes.data, numbers.ctypes.data, got.ctypes.data)
        assert got[3] == got[4] == 0


@device
def clipped_half(x, most):
    """x / 2, at most `most`."""
    return min(x * np.float32(0.5), most)


@task(Record("halves", ("x y", "address")))
def halves(params, begin, end):
    """Call functions."""
    for i in range(max(begin, 0), min(end, end // 1 % (end + 1))):
        store_f64(params.y, i, clipped_half(load_f32(params.x, i), np.float32(4)))


def test_the_module_defines_all_that_it_calls():
    text = halves.llvm_text("halves")
    assert "define void @halves" in text
    assert "declare" not in text.replace("declare float @llvm", "").replace("declare i64 @llvm", "")


PLACE = Record("place", ("x", "address"))


def unknown_function(params, begin, end):
    print(begin)


def unknown_statement(params, begin, end):
    del params


def name_of_one_branch(params, begin, end):
    if begin > 1:
        once = 1.0
    store_f64(params.x, 0, once)


def another_kind_in_a_loop(params, begin, end):
    total = 0
    for i in range(begin, end):
        total += load_f64(params.x, i)
    store_f64(params.x, 0, total)


def too_few_arguments(params, begin, end):
    clipped_half(load_i64(params.x, 0))


def size_at_run_time(params, begin, end):
    stack(end)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (unknown_function, "tasks cannot call print"),
        (unknown_statement, "tasks cannot use Delete"),
        (name_of_one_branch, "once has no value"),
        (another_kind_in_a_loop, "total is int64 and float64 in a loop"),
        (too_few_arguments, r"clipped_half has \('x', 'most'\); got 1 arguments"),
        (size_at_run_time, "the size of memory on the stack is a constant"),
    ],
)
def test_other_uses_of_python_are_refused(function, message):
    with pytest.raises(dnn.BuildError, match=f"cannot compile task .*{message}"):
        task(PLACE)(function).llvm_text("refused")


def test_each_task_has_its_own_name():
    """Names are keys of the store of compiled code."""
    program = """
import collections, gc, importlib, pkgutil
import dnncore_cpu_numba
from dnncore_cpu_numba.codegen.task import Task
for each in pkgutil.walk_packages(dnncore_cpu_numba.__path__, "dnncore_cpu_numba."):
    importlib.import_module(each.name)
names = collections.Counter(each.name for each in gc.get_objects() if isinstance(each, Task))
print(len(names) > 100, [name for name, count in names.items() if count > 1])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\n")[0] == "True []"
