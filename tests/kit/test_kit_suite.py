"""The kit's pytest plugin, from an empty folder: options, lists, floors, tables, processes."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dnncore as dnn
from dnncore.testing import CHECKS
from dnncore.testing.coverage_page import REFUSED, markdown, reason
from dnncore.testing.running.plan import Plan, read_patterns
from dnncore.testing.running.shard import Shard

pytestmark = pytest.mark.long

SUPPORT = Path(__file__).parents[1] / "support"
SUITE = ("--pyargs", "dnncore.testing.suite", "--dnncore-size=tiny")
SKIPPED = sorted({*CHECKS} - {"accept", "integers", "random"})  # test_conformance.py runs them
REFERENCE = ("--dnncore-backend=reference", f"--dnncore-skip-checks={','.join(SKIPPED)}")
UNRULY = ("--dnncore-backend=unruly", "--dnncore-plugin=unruly")


def counts(output):
    """The closing line of pytest: passed=3, skipped=1, ..."""
    line = output.splitlines()[-1]
    return {word: int(number) for number, word in re.findall(r"(\d+) (\w+)", line)}


def test_cases_pass_and_header_table_and_file_tell_of_them(kit, tmp_path):
    code, output = kit(*SUITE, *REFERENCE, "--dnncore-match=--conv", "--dnncore-json=found.json")
    assert code == 0, output
    assert re.search(r"^backend reference \d.*numpy \d", output, re.M)
    assert re.search(r"^engine cpu: ", output, re.M)
    assert re.search(r"^convolution +f32 +forward training +\d+$", output, re.M)
    assert re.search(r"^time: reference .* building .* running .* the rest", output, re.M)
    found = json.loads((tmp_path / "found.json").read_text())
    passed = counts(output)["passed"]
    assert sum(row["passed"] for row in found["coverage"]) == len(found["cases"]) == passed
    assert all(case["executed"] > 0 for case in found["cases"])
    assert found["seconds"]["running"] > 0
    page = markdown(tmp_path / "found.json")
    heading = r"^\| operation \| types \| results \| direction \| reference@cpu \|$"
    assert re.search(heading, page, re.M)
    row = r"^\| convolution \| f32 \| f32, u8, s8 \| forward training \| \d+ \|$"
    assert re.search(row, page, re.M)
    assert re.search(r"^\| softmax \| bf16 \| [^|]* \| backward \| - \|$", page, re.M)


@pytest.mark.parametrize("what", REFUSED)
def test_types_that_only_onednn_has_are_refused(what):
    """The page of coverage lists the message."""
    assert reason(REFUSED[what])


def test_processes_of_xdist_report_to_one_table_and_one_floor(kit):
    options = (*SUITE, *REFERENCE, "--dnncore-match=--conv", "-n", "2")
    code, output = kit(*options, "--dnncore-floor=1000")
    assert code == 1
    passed = counts(output)["passed"]
    assert f"{passed} cases were executed, fewer than the floor of 1000" in output
    rows = re.findall(r"^convolution .* (\d+)$", output, re.M)
    assert sum(map(int, rows)) == passed


def test_unsupported_cases_do_not_count_for_the_floor_of_those_that_match(kit, tmp_path):
    texts = [str(job.problem) for job in Plan("reference", "tiny", match="--lrn").jobs()][:2]
    (tmp_path / "one.txt").write_text(f"*{texts[0]}  # not this one")
    match = "|".join(f"{re.escape(text)}$" for text in texts)
    options = (f"--dnncore-match={match}", "--dnncore-unsupported=one.txt")
    code, output = kit(*SUITE, *REFERENCE, *options)
    assert code == 0, output
    assert counts(output) == {"passed": 1, "skipped": 1}


def test_a_wrong_implementation_fails_with_its_name_and_a_line_to_repeat_it(kit):
    options = ("--dnncore-match=--conv.*FWD_D|FWD_I", "--dnncore-timeout=20", "-x")
    code, output = kit(*SUITE, *UNRULY, *options)
    assert code == 1
    assert "unruly:" in output
    again = r"dnncore check --plugin=unruly --engines=cpu --checks=\w+ --conv .*--impl=unruly:\*' "
    assert re.search(f"^(DNNCORE_\\w+=\\S+ )*{again}", output, re.M)


def test_lists_leave_out_or_demand_failure(kit, tmp_path):
    lists = tmp_path / "lists.txt"
    options = (*SUITE, *REFERENCE, "--dnncore-match=--conv")
    lists.write_text("# a comment\n\n*BWD_D*  # no gradient yet\n")
    code, output = kit(*options, "--dnncore-unsupported=lists.txt", "-rs")
    assert code == 0
    assert "no gradient yet" in output
    assert re.search(r"^convolution .*backward data .* unsupported$", output, re.M)
    code, output = kit(*options, "--dnncore-xfail=lists.txt")
    assert code == 1
    assert "[XPASS(strict)] no gradient yet" in output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "name a backend with --dnncore-backend"),
        (("--dnncore-backend=nobody",), "unknown backend 'nobody'; available: cpu_numba"),
        ((*REFERENCE, "--dnncore-xfail=missing.txt"), "No such file"),
        ((*REFERENCE, "--dnncore-match=("), "match: expected a regular expression; got '('"),
        ((*REFERENCE, "--dnncore-forbid=("), "forbidden: expected a regular expression; got '('"),
        ((*REFERENCE, "--dnncore-timeout=nan"), "timeout: expected seconds above 0; got nan"),
        ((*REFERENCE, "--dnncore-skip-checks=x"), "skip_checks: expected names among accept"),
        ((*REFERENCE, "--dnncore-json=no/found.json"), "there is no such folder; make it first"),
    ],
)
def test_what_cannot_run_stops_collection(kit, options, message):
    code, output = kit(*SUITE, *options, disabled="")
    assert code == pytest.ExitCode.INTERRUPTED
    assert message in output


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        ({"size": "huge"}, "size: expected one of .*tiny.*; got 'huge'"),
        ({"engine": "abacus"}, "unknown engine 'abacus'; there are: cpu"),
        ({"shard": "3/2"}, "shard: expected i/n with 1 <= i <= n; got '3/2'"),
        ({"match": "zzz"}, "no case of size 'smoke' matches 'zzz'"),
        ({"xfail": {"*zzz*": "never"}}, "none matches '[*]zzz[*]'"),
        ({"unsupported": {"re:zzz": "never"}}, "none matches 're:zzz'"),
        ({"xfail": {"re:(": "never"}}, r"pattern: expected a regular expression; got '\('"),
    ],
)
def test_a_plan_that_would_check_nothing_is_an_error(wishes, message):
    with pytest.raises(dnn.DnnError, match=message):
        Plan("reference", **wishes).jobs()


def test_shards_are_all_cases_once():
    every = Plan("reference").jobs()
    shards = [Plan("reference", shard=f"{index}/3").jobs() for index in (1, 2, 3)]
    assert sorted(str(job) for shard in shards for job in shard) == sorted(map(str, every))
    assert all(len(every) / 4 < len(shard) < len(every) / 2 for shard in shards)


def test_a_shard_runs_with_a_floor_of_its_own(kit):
    code, output = kit(*SUITE, *REFERENCE, "--dnncore-shard=1/3")
    assert code == 0, output
    assert 0 < counts(output)["passed"] < len(Plan("reference", "tiny").jobs()) / 2


def test_a_shard_of_which_nothing_ran_fails(kit, tmp_path):
    (tmp_path / "none.txt").write_text("*  # nothing of it")
    code, output = kit(*SUITE, *REFERENCE, "--dnncore-shard=1/3", "--dnncore-unsupported=none.txt")
    assert code == 1
    assert "0 cases were executed, fewer than the floor of 1" in output


@pytest.mark.parametrize("text", ["0/3", "4/3", "1", "a/b", "1/3/5"])
def test_a_shard_is_refused_that_cannot_be(text):
    with pytest.raises(dnn.DescriptorError, match=r"expected i/n"):
        Shard.read(text)


def test_a_list_that_is_no_text_is_an_error(tmp_path):
    path = tmp_path / "lists.txt"
    path.write_bytes(b"\xff # why")
    with pytest.raises(dnn.DescriptorError, match="expected lines of text in UTF-8"):
        read_patterns(path)


@pytest.mark.parametrize(("name", "reason"), [
    ("no_such_module", "No module named 'no_such_module'"), ("json", "must implement the hook"),
])  # fmt: skip
def test_a_plugin_that_is_none_is_a_wrong_usage(kit, name, reason):
    code, output = kit(*SUITE, *REFERENCE, f"--dnncore-plugin={name}")
    assert code == pytest.ExitCode.USAGE_ERROR
    assert re.search(f"ERROR: --dnncore-plugin={name}: .*{reason}", output), output


def test_three_lines_in_an_implementers_repository(kit, tmp_path):
    (tmp_path / "test_mine.py").write_text(
        "from dnncore.testing import conformance\n\n"
        'TestMine = conformance("reference", size="tiny", match="--conv.*BWD",'
        ' xfail={"*BWD_WB*": "bias"})\n'
    )
    code, output = kit("-q")
    assert code == 1  # what is listed as failing passes
    assert "TestMine::test_case[reference@cpu --conv --dir=BWD_WB" in output
    assert "dnncore: coverage" in output


def test_the_floor_of_an_implementer_s_class_is_that_of_its_size(kit, tmp_path):
    """A backend may refuse most of the cases that match."""
    (tmp_path / "test_mine.py").write_text(
        "from dnncore.testing import conformance\n\n"
        'TestMine = conformance("cpu_numba", match="BWD_WB --alg=")\n'
    )
    code, output = kit("-q", f"--dnncore-skip-checks={','.join(SKIPPED)}", disabled="")
    assert code == 0, output
    assert counts(output)["skipped"] > 0


def test_other_peoples_runs_see_nothing_of_the_kit(kit, tmp_path):
    (tmp_path / "test_other.py").write_text(
        "import sys\n\n"
        "def test_nothing_heavy_is_loaded():\n"
        "    heavy = {'dnncore.testing.checks.table', 'dnncore_reference', 'numba', 'pyopencl'}\n"
        "    assert not heavy & set(sys.modules)\n"
    )
    code, output = kit("-v", disabled="")
    assert code == 0, output
    shown = output.partition("test session starts")[2]
    for known in ("plugins: dnncore", sys.executable, str(tmp_path)):  # paths may contain the name
        shown = shown.replace(known, "")
    assert "dnncore" not in shown


def test_what_is_drawn_at_random_and_fails_is_shrunk_to_the_shortest_text(kit, monkeypatch):
    monkeypatch.setenv("UNRULY", "ones")
    options = ("--dnncore-size=random", "--dnncore-match=--conv", "-x")
    unruly = ("--dnncore-backend=unruly", "--dnncore-plugin=unruly")
    code, output = kit("--pyargs", "dnncore.testing.suite", *unruly, *options)
    assert code == 1
    again = re.search(r"^(?:DNNCORE_\w+=\S+ )*dnncore check .*$", output, re.M)
    assert again is not None
    assert "--attr" not in again[0]
    assert "--stag" not in again[0]


def test_a_notebook_gets_the_table_and_the_results(capsys):
    from dnncore.testing import check_backend

    results = check_backend("reference", size="tiny", match="--conv.*FWD_D")
    assert results
    assert {result.status for result in results} == {"passed"}
    assert f"{len(results)}" in capsys.readouterr().out


def test_a_notebook_needs_no_test_tools_and_no_installation():
    """Neither pytest nor hypothesis nor torch; the backend is a module on the path."""
    program = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(('pytest', 'hypothesis', 'torch')))\n"
        "from dnncore.testing import check_backend\n"
        "results = check_backend('unruly', 'tiny', match='--conv.*FWD', plugins='unruly')\n"
        "assert results and {r.status for r in results} == {'failed'}\n"
    )
    path = os.pathsep.join([*sys.path, str(SUPPORT)])
    environment = {**os.environ, "PYTHONPATH": path, "UNRULY": "ones"}
    done = subprocess.run(
        (sys.executable, "-P", "-c", program),
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "dnncore check --plugin=unruly --engines=cpu --checks=" in done.stdout
