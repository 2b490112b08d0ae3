"""The shortened front end of numba leaves numba itself as it was."""

from __future__ import annotations

import math

import numpy as np
import pytest

numba = pytest.importorskip("numba")

from dnncore_cpu_numba.codegen.call_schema import Record  # noqa: E402
from dnncore_cpu_numba.codegen.pointers import load_f32, store_f32  # noqa: E402
from dnncore_cpu_numba.codegen.task import device, task  # noqa: E402


@device
def half_of(x):
    """x / 2."""
    return x * np.float32(0.5)


@device
def clipped_half(x, most):
    """x / 2, at most `most`."""
    return min(half_of(x), most)


@task(Record("halves", ("x y", "address")))
def halves(params, begin, end):
    """Use functions that numba also compiles for others: max, min, floor division."""
    for i in range(max(begin, 0), min(end, end // 1 % (end + 1))):
        store_f32(params.y, i, clipped_half(load_f32(params.x, i), np.float32(4)))


def test_numba_is_unchanged_after_a_translation():
    core = numba.core
    context = core.registry.cpu_target.target_context
    places = (
        (context, "get_executable"),
        (context.codegen(), "_tm"),
        (core.codegen.CPUCodeLibrary, "add_linking_library"),
        (core.types.Function, "get_call_type"),
        (core.event, "broadcast"),
        (core.errors, "_termcolor_inst"),
    )
    before = [vars(owner).get(name) for owner, name in places]
    halves.llvm_text("halves")
    assert [vars(owner).get(name) for owner, name in places] == before


def test_functions_of_a_translation_are_compiled_later_for_others():
    halves.llvm_text("halves")

    @numba.njit
    def of_others(a, b):
        values = [max(a, i) // 2 - min(b, i) for i in range(5)]
        return sum(values), (a, b)[1], math.sqrt(max(2.25, 1.0))

    assert of_others(3, 2) == of_others.py_func(3, 2)
    of_tasks = numba.njit(lambda x: clipped_half(x, np.float32(4)))
    assert of_tasks(np.float32(3)) == 1.5
    assert of_tasks(np.float32(30)) == 4


def test_the_module_defines_all_that_it_calls():
    text = halves.llvm_text("halves")
    assert "define void @halves" in text
    assert "declare" not in text.replace("declare float @llvm", "").replace("declare i64 @llvm", "")
