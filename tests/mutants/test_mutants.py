"""The tool of `make mutants`: places of changes, what is left out, maps, results and proofs."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from mutants.__main__ import ROOT, draw, main, place_of, proofs, report
from mutants.copy import Copy
from mutants.ledger import Ledger, Result
from mutants.reach import Reach
from mutants.scope import STRATA, files_for, sites
from mutants.sites import Site, c_sites, python_sites
from mutants.tracing import _listed

pytestmark = pytest.mark.long

PYTHON = '''"""A docstring: 1 + 1."""
LIMIT: int = 3


def f(x: tuple[int, 2], y=1) -> None:
    assert x > 4
    if x < y and not x:  # 5 > 4
        raise ValueError(f"{x + 1}")
    return min(x, y - 1) * 2.5
'''
C = """// a + b
#if A > 1
#pragma unroll 4
kernel void f(__global float *a, int n)
{
    for (int i = 0; i < n; ++i) a[i] = fmax(a[i] * 2.0f, "x + 1");
}
"""


@dataclass(frozen=True)
class Item:
    nodeid: str


def changes(found):
    return [(site.line, site.old, site.new) for site in found]


def nothing(_where, _node):
    return False


def test_operators_and_constants_of_python():
    assert changes(python_sites("f.py", PYTHON, nothing)) == [
        (2, "3", "4"), (5, "1", "2"), (7, "x < y", "True"), (7, "<", "<="), (7, "and", "or"),
        (7, "not", ""), (7, "not x", "True"),
        (9, "min", "max"), (9, "-", "+"), (9, "1", "2"), (9, "*", "+"), (9, "2.5", "5.0"),
    ]  # fmt: skip


def test_operators_and_constants_of_templates():
    assert changes(c_sites("f.cl", C)) == [
        (6, "0", "1"), (6, "<", "<="), (6, "fmax", "fmin"), (6, "*", "+"), (6, "2.0f", "4.0f"),
    ]  # fmt: skip


def test_sizes_of_arrays_are_left_out():
    text = "int at[2], end[3], sum = 4;\nx[2] = y[5];\nfloat z = a[6];\n"
    assert changes(c_sites("f.cl", text)) == [
        (1, "4", "5"), (2, "2", "3"), (2, "5", "6"), (3, "6", "7"),
    ]  # fmt: skip


def test_choices_between_values_are_reversed():
    """At the border, both values are often equal."""
    text = "y = a if x > 0 else b\ny = np.where(x <= z, a, b)\n"
    assert changes(python_sites("f.py", text, nothing)) == [
        (1, ">", "<="), (1, "0", "1"), (2, "<=", ">"),
    ]  # fmt: skip
    assert changes(c_sites("f.cl", "x = s > 0.0f ? s : t;")) == [
        (1, ">", "<="), (1, "0.0f", "1.0f"),
    ]  # fmt: skip


def test_statements_of_c_in_strings():
    text = 'STEP = f"x = s * {alpha} + 1.0f;"\nNAME = "a + b"\n'
    assert changes(python_sites("f.py", text, nothing)) == [
        (1, "*", "+"), (1, "+", "-"), (1, "1.0f", "2.0f"),
    ]  # fmt: skip


@pytest.mark.parametrize("stratum", STRATA, ids=lambda stratum: stratum.name)
def test_every_mutant_differs_and_can_be_read(stratum):
    found = sites(ROOT, stratum)
    assert len(found) > 200
    for site in found[:: max(1, len(found) // 100)]:
        text = (ROOT / site.path).read_text()
        other = site.apply(text)
        assert other != text
        if site.path.endswith(".py"):
            ast.parse(other)
    assert files_for(ROOT, stratum)


def test_a_change_of_the_source_moves_no_other_mutant(monkeypatch):
    """A draw without the sites of some files is that of all files, without these."""
    without = [pair for pair in draw(400, 1, "core") if "ops/" not in pair[1].path]
    monkeypatch.setattr(
        "mutants.__main__.sites",
        lambda root, stratum: [s for s in sites(root, stratum) if "ops/" not in s.path],
    )
    assert draw(len(without), 1, "core") == without


def test_estimates_are_left_out():
    found = [site for stratum in STRATA for site in sites(ROOT, stratum)]
    assert not [site for site in found if "seconds" in site.where or "flops" in site.where]


def test_a_draw_depends_on_the_seed_alone():
    first, again, other = draw(20, 1, ""), draw(20, 1, ""), draw(20, 2, "")
    assert first == again != other
    assert [stratum.name for stratum, _ in first] == 4 * [stratum.name for stratum in STRATA]


def test_a_draw_is_from_the_mutants_that_match():
    found = draw(20, 1, "core,reference", "planning/")
    assert len(found) == 20
    assert {stratum.name for stratum, _ in found} == {"core"}
    assert all("planning/" in site.path for _, site in found)


@pytest.mark.parametrize(
    ("option", "message"),
    [("--only=foo", "--only: expected some of reference, core, cpu_numba, opencl, templates"),
     ("--only=core,", "--only: expected some of"),
     ("--match=zzzz", "--match: expected a part of a mutant's path or change; none"),
     ("--jobs=0", "--jobs"), ("--count=-1", "--count"), ("--seconds=-1", "--seconds")],
)  # fmt: skip
def test_options_without_meaning_are_refused(option, message):
    found = CliRunner().invoke(main, [option])
    assert found.exit_code == 2
    assert message in found.output


def test_at_the_end_of_the_time_what_is_at_work_is_stopped(tmp_path):
    """A mutant that is at work then has no result."""
    command = [sys.executable, "-m", "mutants", "--count=2", "--only=core", "--seconds=3",
               f"--folder={tmp_path}"]  # fmt: skip
    ended = subprocess.run(
        command, cwd=ROOT, text=True, capture_output=True, timeout=60, check=False
    )
    assert ended.returncode == 1
    assert "mapping" in ended.stdout
    assert "no mutant was tested; give more --seconds" in ended.stdout
    assert not ended.stderr


def test_nothing_tested_is_a_failure(capsys):
    assert report([]) == 1
    assert "no mutant was tested" in capsys.readouterr().out


def test_tests_that_execute_a_line_come_first_and_then_the_others_of_its_file(
    tmp_path, monkeypatch
):
    reach = Reach(SimpleNamespace(folder=tmp_path, root=ROOT), tmp_path)
    tests = [
        ["t::a[1]", 2.0],
        ["t::a[2]", 1.0],
        ["t::b", 3.0],
        *([f"t::c[{i}]", 9.0] for i in range(5)),
    ]
    lines = {"f.py": {"1": [0], "5": [1, 2], "9": [3, 4, 5, 6, 7]}}
    found = {"tests": tests, "lines": lines, "rest": ["t::b[x]", "t::c[8]", "t::d"]}
    monkeypatch.setattr(reach, "_map", lambda *_: found)

    def names(path, line):
        site = Site(path, line, "g()", 0, 1, "1", "2")
        return [test.name for test in reach.tests(site, "t", STRATA[0])]

    assert names("f.py", 9) == [*(f"t::c[{i}]" for i in range(5)), "t::c[8]"]
    assert names("f.py", 1)[:4] == ["t::a[1]", "t::a[2]", "t::b", "t::c[0]"]
    assert len(names("f.py", 3)) == len(tests)
    assert names("g.py", 1) == []


def test_all_tests_of_a_function_run_if_a_mutant_changes_their_names():
    ids = ["t::a[2x2]", "t::a[4x4]", "t::b", "t::c[1]"]
    items: list[Any] = [Item(name) for name in ids]
    chosen = _listed(items, ["t::c[1]", "t::a[3x3]"])
    assert [item.nodeid for item in chosen] == ["t::c[1]", "t::a[2x2]", "t::a[4x4]"]


def test_results_are_kept_and_survivors_are_tested_again_with_other_tests(tmp_path):
    site = Site("f.py", 1, "", 0, 1, "1", "2")
    other = Site("f.py", 1, "", 3, 4, "1", "2")
    ledger = Ledger(tmp_path / "results.jsonl")
    ledger.put(Result(site, "killed", "t"), "tests")
    ledger.put(Result(other, "survived", ""), "tests")
    again = Ledger(tmp_path / "results.jsonl")
    assert again.get(site, "changed") == Result(site, "killed", "t")
    assert again.get(other, "tests") == Result(other, "survived", "")
    assert again.get(other, "changed") is None


@pytest.mark.parametrize(("killed", "survived", "status"), [(98, 2, 0), (97, 3, 1), (19, 1, 0)])
def test_too_many_survivors_are_an_error(capsys, killed, survived, status):
    site = sites(ROOT, STRATA[0])[0]
    results = [Result(site, "killed", "")] * killed + [Result(site, "survived", "")] * survived
    assert report(results) == status
    assert f"{killed / (killed + survived):.1%}" in capsys.readouterr().out


def test_every_proof_is_about_a_line_and_a_change_of_it():
    found = {place_of(site) for stratum in STRATA for site in sites(ROOT, stratum)}
    assert set(proofs()) <= found
    assert all(len(proof) > 40 for proof in proofs().values())


def test_tests_notice_a_mutant_and_the_map_has_its_lines(tmp_path):
    """The whole way on a small file of tests: trace, change, run."""
    pytest.importorskip("coverage")
    copy = Copy(ROOT, tmp_path)
    file = "tests/core/test_planning.py"
    reach = Reach(copy, tmp_path / "maps")
    stratum = next(stratum for stratum in STRATA if stratum.name == "core")
    site = next(s for s in sites(ROOT, stratum) if s.path.endswith("phases.py") and s.where)
    tests = reach.tests(site, file, stratum)
    names = [test.name for test in tests]
    assert names
    assert copy.fails(names[:5], 1.0, stratum) == ""
    text = (copy.root / site.path).read_text()
    with copy.mutated(site):
        assert copy.fails(names, 1.0, stratum).startswith("FAILED tests/core/test_planning.py")
    assert (copy.root / site.path).read_text() == text


def test_native_code_is_reached_through_its_functions(tmp_path):
    """A test reaches the source of a task that it executes, though Python executes no line."""
    pytest.importorskip("coverage")
    found = tmp_path / "map.json"
    options = ("-p", "mutants.tracing", f"--mutants-map={found}", "-p", "no:cacheprovider")
    tests = f"{ROOT}/tests/operations/test_softmax.py"
    paths = [str(ROOT), *map(str, sorted((ROOT / "backends").iterdir()))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*paths, *sys.path]),
                   "DNNCORE_BACKENDS": "reference,cpu_numba",
                   "DNNCORE_CACHE_DIR": str(tmp_path / "cache")}  # fmt: skip
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *options, "--mutants-target=cpu",
         "--mutants-seconds=9", tests],
        cwd=ROOT, env=environment, check=False, capture_output=True,
    )  # fmt: skip
    lines = json.loads(Path(found).read_text())["lines"]
    tasks = "backends/cpu_numba/dnncore_cpu_numba/softmax/tasks.py"
    text = (ROOT / tasks).read_text().splitlines()
    stores = {str(i) for i, line in enumerate(text, 1) if "store_f32(" in line}
    assert stores & lines[tasks].keys()
