"""The ledger of the kit: runs that go on where they stopped, and whether a commit is complete."""

import json
import shutil
import subprocess
import sys

import pytest
from test_kit_suite import REFERENCE, SUITE, UNRULY

import dnncore as dnn
from dnncore.testing.ledger import Ledger, report, runs
from dnncore.testing.running.plan import Plan
from dnncore.testing.running.source_state import source_state

pytestmark = pytest.mark.long

MATCH = "--dnncore-match=--sum|--binary"
LEDGER = (MATCH, "--dnncore-ledger=ledger", "--dnncore-commit=abc")
COUNT = len(Plan("reference", "tiny", match="--sum|--binary").jobs())
needs_git = pytest.mark.skipif(not shutil.which("git"), reason="needs git")


def lines(folder):
    files = sorted((folder / "ledger" / "abc").glob("*.jsonl"))
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A folder with one commit, which becomes the present folder; returns a function for git."""

    def git(*arguments):
        subprocess.run(("git", *arguments), cwd=tmp_path, check=True, capture_output=True)

    (tmp_path / "file").write_text("first")
    (tmp_path / ".gitignore").write_text("ignored\n")
    git("init")
    git("add", ".")
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "--message=first")
    monkeypatch.chdir(tmp_path)
    return git


def test_a_second_run_leaves_recorded_cases_out_and_has_the_same_table(kit, tmp_path):
    code, first = kit(*SUITE, *REFERENCE, *LEDGER, "--dnncore-shard=1/2", "-n", "2")
    assert code == 0, first
    recorded = lines(tmp_path)
    assert 0 < len(recorded) < COUNT
    code, second = kit(*SUITE, *REFERENCE, *LEDGER)
    assert code == 0, second
    assert f"ledger of abc: {COUNT} cases, {len(recorded)} from before" in second
    code, third = kit(*SUITE, *REFERENCE, *LEDGER)
    assert code == 0, third
    assert f"ledger of abc: {COUNT} cases, {COUNT} from before" in third
    assert len({line["id"] for line in lines(tmp_path)}) == len(lines(tmp_path)) == COUNT
    table = [
        part.partition("dnncore: coverage")[2].partition("time:")[0] for part in (second, third)
    ]
    assert table[0] == table[1]


def test_a_line_says_what_ran_where(kit, tmp_path):
    kit(*SUITE, *REFERENCE, *LEDGER, "--dnncore-skip-checks=events")
    line = lines(tmp_path)[0]
    assert line["commit"] == "abc"
    assert line["backend"].startswith("reference ")
    assert "numpy" in line["backend"]
    assert line["device"]
    assert "--dnncore-skip-checks=events" in line["settings"]
    assert (line["size"], line["planned"]) == ("tiny", len(Plan("reference", "tiny").jobs()))
    assert line["status"] in ("passed", "unsupported")


def test_other_settings_are_another_place(kit, tmp_path, monkeypatch):
    kit(*SUITE, *REFERENCE, *LEDGER)
    monkeypatch.setenv("DNNCORE_MAX_CPU_ISA", "avx2")
    _, output = kit(*SUITE, *REFERENCE, *LEDGER)
    assert f"ledger of abc: {COUNT} cases, 0 from before" in output
    assert len(runs(tmp_path / "ledger" / "abc")) == 2


def test_a_failed_case_is_reported_and_runs_again(kit, tmp_path, monkeypatch):
    monkeypatch.setenv("UNRULY", "ones")
    unruly = ("--pyargs", "dnncore.testing.suite", "--dnncore-size=tiny", *UNRULY)
    options = (*LEDGER[1:], "--dnncore-match=--conv.*FWD_D")
    code, _ = kit(*unruly, *options)
    assert code == 1
    (run,) = runs(tmp_path / "ledger" / "abc")
    assert run.failed
    assert any(line["failures"] for line in lines(tmp_path))
    is_complete, text = report([run], "abc", required=["unruly*"])
    assert not is_complete
    assert f"{len(run.failed)} failed" in text
    assert f"failed: {run.failed[0]}" in text
    _, output = kit(*unruly, *options)
    assert "0 from before" in output


def entry(problem, status="passed", planned=2, **others):
    place = {"backend": "mine 1: numpy 2", "device": "a CPU", "settings": "", "size": "tiny"}
    told = {"id": f"mine@cpu {problem}", "problem": problem, "planned": planned, "listed": ""}
    return {**place, **told, "status": status, "time": "1", **others}


def write(folder, name, *entries):
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(e) + "\n" for e in entries))


def test_files_of_two_machines_together_are_complete(tmp_path):
    write(tmp_path, "first", entry("a"))
    is_complete, text = report(runs(tmp_path), "abc")
    assert not is_complete
    assert text.splitlines() == [
        "INCOMPLETE: 1 of 2 cases (1 passed): mine 1: numpy 2 | a CPU |  | tiny",
        "NOT complete for abc: 1 cases, 0 failed",
    ]
    write(tmp_path, "second", entry("b", "unsupported"))
    is_complete, text = report(runs(tmp_path), "abc")
    assert is_complete
    assert text.splitlines()[-1] == "complete for abc: 2 cases, 0 failed"


def test_a_case_that_passes_after_a_failure_stays_in_the_report(tmp_path):
    write(tmp_path, "b", entry("a", "failed"))
    write(tmp_path, "a", entry("a", time="2"), entry("b", time="2"))
    is_complete, text = report(runs(tmp_path), "abc")
    assert is_complete
    assert "passed after a failure: mine@cpu a" in text
    write(tmp_path, "c", entry("a", "failed", time="3"))
    assert not report(runs(tmp_path), "abc")[0]


def test_a_required_run_must_be_there_and_complete(tmp_path):
    write(tmp_path, "a", entry("a", planned=1))
    assert report(runs(tmp_path), "abc", required=["mine*tiny"])[0]
    is_complete, text = report(runs(tmp_path), "abc", required=["mine*tiny", "mine*full"])
    assert not is_complete
    assert "no complete run matches 'mine*full'" in text
    assert not report([], "abc")[0]


def test_a_run_that_is_not_required_may_be_unfinished_but_may_not_fail(tmp_path):
    write(tmp_path, "a", entry("a", planned=1), entry("a", device="a GPU"))
    assert report(runs(tmp_path), "abc", required=["*a CPU*"])[0]
    write(tmp_path, "b", entry("b", "failed", device="a GPU"))
    assert not report(runs(tmp_path), "abc", required=["*a CPU*"])[0]


def test_a_line_that_a_killed_run_did_not_end_is_left_out_and_others_are_errors(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(entry("a")) + '\n{"problem": "b')
    assert runs(tmp_path)[0].statuses.total() == 1
    path.write_text('{"problem": "b"}\n')
    with pytest.raises(dnn.DescriptorError, match="line 1: expected a case of a ledger"):
        runs(tmp_path)


@needs_git
def test_changes_have_a_name_of_their_own(checkout, tmp_path):
    commit = source_state()
    assert len(commit) == 40
    (tmp_path / "ignored").write_text("nothing")
    assert source_state() == commit
    names = {commit}
    for name, text in (("file", "second"), ("file", "third"), ("new", "a"), ("new", "b")):
        (tmp_path / name).write_text(text)
        names.add(source_state())
    assert len(names) == 5
    assert all(name == commit or name.startswith(f"{commit}-dirty-") for name in names)
    (tmp_path / "new").unlink()
    (tmp_path / "file").write_text("first")
    assert source_state() == commit


@needs_git
def test_a_source_that_changes_during_a_run_is_not_recorded(checkout, tmp_path):
    ledger = Ledger(tmp_path / "ignored")
    found = {**entry("a"), "target": "reference@cpu"}
    ledger.add(found)
    ledger.write()
    (tmp_path / "file").write_text("second")
    ledger.add(found)
    with pytest.raises(dnn.DescriptorError, match="the source must stay the same during a run"):
        ledger.write()
    (path,) = (tmp_path / "ignored").glob("*/*.jsonl")
    assert len(path.read_text().splitlines()) == 1


def test_without_git_the_commit_must_be_named(kit, tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    code, output = kit(*SUITE, *REFERENCE, *LEDGER[:-1])
    assert code == pytest.ExitCode.INTERRUPTED
    assert "name the commit, with pytest's option --dnncore-commit=ID" in output


@pytest.mark.parametrize(("planned", "status"), [(1, 0), (2, 1)])
def test_the_command_reports_whether_a_commit_is_complete(tmp_path, planned, status):
    write(tmp_path / "abc", "a", entry("a", planned=planned))
    done = subprocess.run(
        (sys.executable, "-m", "dnncore.testing.ledger", str(tmp_path), "--commit=abc"),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == status, done.stderr
    assert "complete for abc: 1 cases, 0 failed" in done.stdout
