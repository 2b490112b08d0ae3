"""The tool of `make conditions`: conditions, records of processes, and the report."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

import dnncore as dnn
from conditions import __main__ as command
from conditions import opencl
from conditions.hook import PACKAGES, ROOT, outcomes
from conditions.source import DECIDED, Condition, instrumented

pytestmark = pytest.mark.long

TEXT = """
if TYPE_CHECKING:
    import numpy


def f(x: int, y=2):
    assert x != 9
    if x > 1 and not (y or x == 3):
        return [a for a in range(x) if a % 2]
    while 0 < x < 5 or not y:
        x = x - 1 if y else x + 1
    name = x or "none"
    is_last = not name and y >= x
    return name, is_last
"""
CONDITIONS = [
    (8, "x > 1"), (8, "y"), (8, "x == 3"), (9, "a % 2"), (10, "0 < x < 5"), (10, "y"), (11, "y"),
    (12, "x"), (13, "name"), (13, "y >= x"),
]  # fmt: skip
SOURCE = "dnncore/ops/softmax.py"
POCL = [d for d in dnn.devices() if "pocl" in d.description.lower()]


def executed(text):
    """Execute a text with records; returns its names and the outcomes of each condition."""
    tree, found = instrumented("f.py", text)
    seen = {condition: set() for condition in found}

    def decided(number, value):
        seen[found[number]].add(bool(value))
        return value

    names = {DECIDED: decided, "TYPE_CHECKING": False}
    exec(compile(tree, "f.py", "exec"), names)
    return SimpleNamespace(**names), {c.text: outcomes for c, outcomes in seen.items()}


def test_conditions_of_a_text():
    tree, found = instrumented("f.py", TEXT)
    assert [(c.line, c.text) for c in found] == CONDITIONS
    numbers = [
        node.args[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == DECIDED
    ]
    assert sorted(numbers) == list(range(len(CONDITIONS)))


def test_results_are_those_of_the_source():
    names, plain = executed(TEXT)[0], {"TYPE_CHECKING": False}
    exec(TEXT, plain)
    function: Any = plain["f"]
    for x in range(7):
        for y in (0, 2):
            if y or x > 4:  # otherwise it never ends
                assert names.f(x, y) == function(x, y)


def test_outcomes_are_those_of_the_calls():
    names, seen = executed("def f(x):\n    return x > 1 and x < 5")
    names.f(0)
    assert seen == {"x > 1": {False}, "x < 5": set()}
    names.f(2)
    names.f(7)
    assert seen == {"x > 1": {False, True}, "x < 5": {False, True}}


def recorded(folder, *programs):
    """Run programs with records in a folder; returns the outcomes by condition."""
    for program in programs:
        subprocess.run(
            [sys.executable, "-m", "conditions", "run", folder, sys.executable, "-c", program],
            check=True, cwd=ROOT,
        )  # fmt: skip
    return outcomes(folder)


def test_processes_share_their_records(tmp_path):
    """A process that ends at once loses none of them."""
    program = "import os, dnncore as dnn; dnn.MemoryDesc({}); os._exit(0)"
    first = recorded(tmp_path, program.format("(2, 3), 'f32'"))
    both = recorded(tmp_path, program.format("(2, 0), 's8', 'ba'"))
    assert set(first) == set(both)
    gained = {c.path for c in both if first[c] != both[c]}
    assert "dnncore/tensors/format_tags.py" in gained
    assert all(was <= now for c in both for was, now in zip(first[c], both[c], strict=True))


ON_BOTH = """
import numpy as np, dnncore as dnn
from dnncore import functional
functional.relu(np.linspace(-1, 1, 5, dtype="f4"), alpha=0.5, engine=dnn.engine("cpu"))
one = np.ones((33, 7), "f4")
if {pocl}:
    functional.matmul(one, one.T, engine=dnn.engine("pocl"))
"""


@pytest.fixture(scope="module")
def on_both(tmp_path_factory):
    """The records of a process that computes on the CPU and on PoCL."""
    return recorded(tmp_path_factory.mktemp("both"), ON_BOTH.format(pocl=bool(POCL)))


def test_compiled_functions_have_records(on_both):
    formulas = {
        str(c): both
        for c, both in on_both.items()
        if c.path.endswith("cpu_numba/elementwise/formulas.py") and c.text == "x > _ZERO"
    }
    assert (True, True) in formulas.values()


def test_conditions_of_opencl_c():
    source = """
#define GUARD if (a[0] \\
                  > 1 || b) return
// if (comment)
kernel void f(int n) { if (n == 0 && (n < 2 || n > 3)) n = 1; while (g(n, 2)) --n; }
"""
    changed, texts = opencl.with_records(source, 0x1000)
    assert texts == ["a[0] > 1", "b", "n == 0", "(n < 2 || n > 3)", "g(n, 2)"]
    assert changed.count("dnncore_decided(") == 1 + len(texts)
    assert re.search(r"while \(dnncore_decided\(\d+UL, \(g\(n, 2\)\) != 0\)\)", changed)
    kept = re.sub(r"dnncore_decided\(\d+UL, \((.*?)\) != 0\)", r"\1", changed, flags=re.DOTALL)
    assert kept.endswith(source)


@pytest.mark.skipif(not POCL, reason="no PoCL here")
def test_conditions_of_programs_of_pocl_are_recorded(on_both):
    of_c = {c.text: both for c, both in on_both.items() if c.path == opencl.PLACE}
    assert (True, True) in of_c.values()
    assert all(opencl.has(text) for text in of_c)


CONDITION = Condition(SOURCE, 3, "x > 1")


@pytest.mark.parametrize(
    ("both", "known", "status", "printed"),
    [
        ((True, True), "", 0, "1 conditions: 1 were true and false"),
        ((True, False), "", 1, f"{SOURCE}:3: x > 1 was never true"),
        ((False, True), "", 1, f"{SOURCE}:3: x > 1 was never false"),
        ((True, False), "never_true = ['x > 1']", 0, "1 conditions: 0 were true and false"),
        ((True, False), "never_false = ['x > 1']", 1, "was never true"),
    ],
)
def test_the_report(both, known, status, printed, tmp_path, monkeypatch):
    file = tmp_path / "known.toml"
    file.write_text(f"[[known]]\nreason = 'r'\npath = '{SOURCE}'\n{known}\n" if known else "")
    monkeypatch.setattr(command, "KNOWN", file)
    monkeypatch.setattr(command, "outcomes", lambda _: {CONDITION: both})
    monkeypatch.setattr(command, "conditions_of", lambda _: [CONDITION])
    result = CliRunner().invoke(command.main, ["report", str(tmp_path)])
    assert result.exit_code == status, result.output
    assert printed in result.output


def test_known_conditions_exist_and_have_a_reason():
    for path, text, _ in command.read_known():
        assert command.exists(path, text), f"{path}: {text}"


def test_every_package_of_the_project_is_instrumented():
    assert set(PACKAGES) == {
        "dnncore", "dnncore_cpu_numba", "dnncore_opencl", "dnncore_reference",
    }  # fmt: skip
