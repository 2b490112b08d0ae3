"""Claims of backends: what keeps them, what loses them, and proposals, which only add."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import dnncore as dnn
from dnncore.testing import check_backend
from dnncore.testing.checks.case import Case
from dnncore.testing.claims import propose, read_claims
from dnncore.testing.floors import Floors
from dnncore.testing.ledger import Ledger
from dnncore.testing.running.plan import Plan
from dnncore.testing.running.sample import in_sample_order

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
BUILT_IN = {
    "reference": "backends/reference/claims.txt",
    "cpu_numba": "backends/cpu_numba/claims.txt",
    "opencl": "backends/opencl/claims.txt",
}
RELU = "--eltwise 2x3x4"
SUITE = ("--pyargs", "dnncore.testing.suite", "--dnncore-size=claims", "--dnncore-timeout=20")
FADING = ("--dnncore-backend=fading", "--dnncore-plugin=fading")
CLAIMS = "--dnncore-claims=claims.txt"


@pytest.fixture
def claims(tmp_path):
    """Write lines to a file of claims, and return its path."""

    def write(*lines):
        path = tmp_path / "claims.txt"
        path.write_text("".join(f"{line}\n" for line in lines))
        return path

    return write


def judged(path, step, monkeypatch, **wishes):
    """The failures of the backend `fading` at a step of its decline."""
    monkeypatch.setenv("FADED", step)
    results = check_backend("fading", "claims", plugins="fading", claims=path, **wishes)
    return [failure for result in results for failure in result.failures]


# -- what loses a claim ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "level", "message"),
    [
        ("accept", "accept", "'accept' is claimed; refused: fading:relu: algorithm: computes relu"),
        ("build", "build", "'build' is claimed; the level is only 'accept'"),
        ("run", "run", "'run' is claimed; the level is only 'build'"),
        ("right", "right", "'right' is claimed; the level is only 'run'"),
        ("crash", "run", "'run' is claimed; unknown: there is no result"),
        ("hang", "run", "'run' is claimed; unknown: there is no result"),
        ("error", "accept", "'accept' is claimed; unknown: there is no result: fading:relu: fail"),
    ],
)
def test_a_claim_is_lost_at_its_level(step, level, message, claims, monkeypatch):
    path = claims(f"cpu {level} {RELU}")
    monkeypatch.setattr("dnncore.testing.running.process.GRACE", 1.0)
    (lost,) = [f for f in judged(path, step, monkeypatch, timeout=3) if f.check == "claim"]
    assert lost.message.startswith(f"{path}, line 1: {message}")


@pytest.mark.parametrize(
    ("step", "level"),
    [("", "right"), ("build", "accept"), ("run", "build"), ("right", "run")],
)
def test_a_claim_is_kept_below_the_level_that_is_lost(step, level, claims, monkeypatch):
    path = claims(f"cpu {level} {RELU}")
    assert all(f.check != "claim" for f in judged(path, step, monkeypatch))


def test_a_table_that_is_gone_loses_the_claims_for_its_engine(claims, monkeypatch):
    path = claims(f"cpu accept {RELU}")
    (lost,) = judged(path, "table", monkeypatch)
    assert lost.message.endswith("refused: the backend has no implementation")


def test_an_engine_of_the_backend_that_is_gone_is_an_error(claims, monkeypatch):
    path = claims(f"cpu right {RELU}", f"fading right {RELU}")
    with pytest.raises(dnn.EngineUnavailable, match="the device does not answer"):
        judged(path, "engine", monkeypatch)


def test_a_lost_claim_fails_the_run_and_is_no_skip(kit, claims, monkeypatch):
    claims(f"cpu right {RELU}", f"fading right {RELU}")
    monkeypatch.setenv("FADED", "accept")
    code, output = kit(*SUITE, *FADING, CLAIMS, "-n", "2")
    assert code == 1
    assert re.search(r"^claim: case: claims.txt, line 1: 'right' is claimed; refused", output, re.M)
    assert "claims: 0 kept, 2 lost" in output
    assert " 2 failed in" in output.splitlines()[-1]


def test_failures_above_the_claimed_level_are_expected_in_a_run_of_claims(kit, claims, monkeypatch):
    claims(f"cpu run {RELU}")
    monkeypatch.setenv("FADED", "right")
    code, output = kit(*SUITE, *FADING, CLAIMS, "--dnncore-engine=cpu")
    assert code == 0, output
    assert "1 xfailed" in output
    assert "claims: 1 kept, 0 lost" in output
    wrong = ("--dnncore-size=tiny", "--dnncore-match=--eltwise 2x3x4")
    code, output = kit(*SUITE, *FADING, CLAIMS, "--dnncore-engine=cpu", *wrong)
    assert code == 1


def test_a_case_that_is_known_to_fail_may_not_lose_its_claim(kit, claims, monkeypatch, tmp_path):
    claims(f"cpu run {RELU}")
    (tmp_path / "known.txt").write_text("*2x3x4  # wrong values")
    options = (*SUITE, *FADING, CLAIMS, "--dnncore-engine=cpu", "--dnncore-xfail=known.txt")
    monkeypatch.setenv("FADED", "right")
    assert kit(*options)[0] == 0
    monkeypatch.setenv("FADED", "build")
    code, output = kit(*options)
    assert code == 1
    assert "'run' is claimed; the level is only 'accept'" in output


# -- which cases run ------------------------------------------------------------------------------


def jobs(path, size="claims", **wishes):
    return Plan("reference", size, claims=path, **wishes).jobs()


def test_the_size_claims_has_the_claimed_problems_alone(claims):
    path = claims("# mine", "", f"cpu right {RELU}", "cpu run --eltwise --alg=tanh 4x5")
    assert [(job.text, job.claim.level) for job in jobs(path)] == [
        (RELU, "right"),
        ("--eltwise --alg=tanh 4x5", "run"),
    ]


def test_other_sizes_have_the_claimed_problems_too_which_always_run(claims):
    path = claims(f"cpu right {RELU}")
    found = jobs(path, "tiny")
    assert len(found) == len(Plan("reference", "tiny").jobs()) + 1
    assert [job.text for job in found if job.required] == [RELU]


def test_the_highest_claim_counts_if_names_share_a_device(claims):
    path = claims(f"cpu:0 accept {RELU}", f"cpu build {RELU}")
    assert [job.claim.level for job in jobs(path)] == ["build"]


def test_claims_for_an_engine_that_this_machine_lacks_are_listed(kit, claims):
    claims(f"cpu right {RELU}", f"abacus right {RELU}", "abacus right --eltwise --alg=tanh 4x5")
    code, output = kit(*SUITE, *FADING, CLAIMS)
    assert code == 0, output
    assert "fading: no such engine here: abacus: 2 claims are not judged" in output
    assert "claims: 1 kept, 0 lost" in output
    claims(f"cpu right {RELU}", f"abacus right {RELU}", f"fading right {RELU}")
    code, output = kit(*SUITE, *FADING, CLAIMS, "--dnncore-engine=cpu")
    assert code == 0, output
    assert "claims: 1 kept, 0 lost" in output
    assert "no such engine" not in output
    code, output = kit(*SUITE, *FADING, CLAIMS, "--dnncore-engine=abacus")
    assert code == pytest.ExitCode.INTERRUPTED
    assert "unknown engine 'abacus'" in output


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["cpu right --eltwse 2x3"], r"line 1: .*--eltwse"),
        (["cpu right --eltwise 2x3", "cpu fine --eltwise 2x4"], "line 2: the level must be one of"),
        (["cpu --eltwise 2x3"], "line 1: expected ENGINE LEVEL PROBLEM"),
        (["cpu right --eltwise 2x3", "# late"], "line 2: expected ENGINE LEVEL PROBLEM"),
        (["cpu right --eltwise 2x3 2x4"], "line 1: expected one problem; got 2"),
        (["cpu right --eltwise 2x3", "CPU run --eltwise --alg=relu 2x3"],
         "line 2: a problem must have one claim for an engine; there is another one in .*line 1"),
        (["# nothing"], "the file has none"),
        (["abacus right --eltwise 2x3"], "no claim is for an engine of this run: cpu"),
    ],
)  # fmt: skip
def test_what_is_no_claim_is_an_error_with_its_line(lines, message, claims):
    with pytest.raises(dnn.DescriptorError, match=message):
        jobs(claims(*lines))


def test_a_file_that_cannot_be_read_is_an_error(tmp_path):
    with pytest.raises(dnn.DescriptorError, match="cannot be read: No such file"):
        jobs(tmp_path / "claims.txt")
    (tmp_path / "claims.txt").write_bytes(b"\xff")
    with pytest.raises(dnn.DescriptorError, match="expected lines of text in UTF-8"):
        jobs(tmp_path / "claims.txt")
    with pytest.raises(dnn.DescriptorError, match="name it with claims=FILE"):
        Plan("reference", "claims")


def test_a_sample_begins_with_the_claimed_cases(claims):
    path = claims(f"cpu right {RELU}", "cpu run --eltwise --alg=tanh 4x5")
    first, second, *others = in_sample_order(jobs(path, "tiny"), 0)
    assert {first.text, second.text} == {RELU, "--eltwise --alg=tanh 4x5"}
    assert first.required
    assert second.required
    assert not any(job.claim for job in others)
    assert not all(job.required for job in others)


def test_a_ledger_without_the_claim_does_not_answer_for_it(claims, tmp_path):
    ledger = Ledger(tmp_path / "ledger", "one")
    (job,) = jobs(claims(f"cpu right {RELU}"))
    entry = {"target": "reference@cpu", "problem": RELU, "status": "passed", "listed": "",
             "claimed": "", "planned": 1, "size": "claims", "id": "one"}  # fmt: skip
    ledger.add(entry)
    ledger.write()
    again = Ledger(tmp_path / "ledger", "one")
    assert again.find(job) is None
    assert again.find(replace(job, claim=None)) is not None


def test_a_claimed_case_is_not_listed_as_unsupported(claims):
    with pytest.raises(dnn.DescriptorError, match="must not be listed as unsupported"):
        jobs(claims(f"cpu right {RELU}"), unsupported={"*2x3x4": "why"})


def test_one_file_is_for_one_backend(kit, claims):
    claims(f"cpu right {RELU}")
    code, output = kit(*SUITE, *FADING, "--dnncore-backend=reference", CLAIMS)
    assert code == pytest.ExitCode.INTERRUPTED
    assert "a file has the claims of one backend; got fading, reference" in output


def test_three_lines_in_an_implementers_repository_enforce_claims(kit, claims, monkeypatch):
    path = claims(f"cpu right {RELU}")
    path.with_name("test_mine.py").write_text(
        "from dnncore.testing import conformance\n\n"
        'TestMine = conformance("fading", size="claims", claims="claims.txt")\n'
    )
    plugin = "--dnncore-plugin=fading"
    code, output = kit(plugin)
    assert code == 0, output
    monkeypatch.setenv("FADED", "accept")
    code, output = kit(plugin)
    assert code == 1
    assert "'right' is claimed; refused" in output


# -- proposals ------------------------------------------------------------------------------------


def row(problem, level, engine="cpu"):
    return {"target": f"mine@{engine}", "problem": problem, "level": level, "claim_engine": engine}


def test_a_proposal_makes_a_sorted_file(tmp_path):
    path = tmp_path / "claims.txt"
    rows = [
        row("--eltwise 2x3", "right"),
        row("--binary 2x3:2x3", "run"),
        row("--sum 2x3", "refused"),
    ]
    said = propose(
        path, [*rows, row("--eltwise 2x4", "unknown"), row("--eltwise 2x3", "build", "b")]
    )
    assert said == [f"{path}: 3 claims added, 0 raised, 0 not reached and kept"]
    assert path.read_text().splitlines() == [
        "# Problems that mine serves: engine, level, problem.",
        "b    build   --eltwise 2x3",
        "cpu  run     --binary 2x3:2x3",
        "cpu  right   --eltwise 2x3",
    ]


def test_a_proposal_only_adds_and_raises(claims):
    before = ["# Ours.", "# All of it.", *(f"cpu  run     --eltwise 2x{n}" for n in (3, 4, 5, 6))]
    path = claims(*before)
    rows = [
        row("--eltwise 2x3", "right"),
        row("--eltwise 2x4", "build"),
        row("--eltwise 2x5", "run"),
    ]
    said = propose(path, [*rows, row("--eltwise 2x6", "unknown"), row("--eltwise 2x7", "accept")])
    assert said == [
        f"{path}: 1 claims added, 1 raised, 2 not reached and kept",
        f"  {path}, line 4: 'run' is kept; got 'build'",
        f"  {path}, line 6: 'run' is kept; got 'unknown'",
    ]
    levels = {3: "right", 4: "run", 5: "run", 6: "run", 7: "accept"}
    after = [f"cpu  {level:6}  --eltwise 2x{n}" for n, level in levels.items()]
    assert path.read_text().splitlines() == [*before[:2], *after]


def test_all_devices_of_a_name_must_reach_a_proposed_level(tmp_path):
    path = tmp_path / "claims.txt"
    propose(path, [row("--eltwise 2x3", "right"), row("--eltwise 2x3", "build")])
    assert [claim.level for claim in read_claims(path)] == ["build"]


def test_a_run_proposes_what_it_then_enforces(kit, tmp_path):
    propose_claims = "--dnncore-propose-claims=claims.txt"
    tiny = ("--dnncore-size=tiny", "--dnncore-match=--eltwise --tag|softmax")
    code, output = kit(*SUITE, *FADING, *tiny, propose_claims)
    assert code == 0, output
    assert re.search(r"claims.txt: [1-9] claims added, 0 raised, 0 not reached", output)
    text = (tmp_path / "claims.txt").read_text()
    assert re.search(r"^cpu +right +--eltwise", text, re.M)
    assert re.search(r"^fading +right +--eltwise", text, re.M)
    code, output = kit(*SUITE, *FADING, CLAIMS, propose_claims)
    assert code == 0, output
    assert (tmp_path / "claims.txt").read_text() == text


def test_a_proposal_is_for_one_backend(tmp_path):
    rows = [row("--eltwise 2x3", "right"), {**row("--eltwise 2x3", "right"), "target": "other@cpu"}]
    with pytest.raises(dnn.DescriptorError, match="those of mine, other"):
        propose(tmp_path / "claims.txt", rows)


def test_saved_results_propose_claims_too(tmp_path):
    def run(results):
        (tmp_path / "found.json").write_text(json.dumps(results))
        command = (sys.executable, "-m", "dnncore.testing.claims", "claims.txt", "found.json")
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert run({"cases": [row("--eltwise 2x3", "right")]}).stdout.startswith("claims.txt: 1 claims")
    assert len(read_claims(tmp_path / "claims.txt")) == 1
    rows = row("--eltwise 2x4", "right", ""), row("--eltwise 2x4", "fine"), 1
    for bad in ([], {"cases": []}, *({"cases": [one]} for one in rows)):
        done = run(bad)
        assert done.returncode == 2
        assert ": expected" in done.stderr
    assert len(read_claims(tmp_path / "claims.txt")) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--dnncore-propose-claims=no/claims.txt",), "there is no such folder; make it first"),
        (("--dnncore-propose-claims=bad.txt",), "bad.txt, line 1: expected ENGINE LEVEL PROBLEM"),
        (("--dnncore-propose-claims=a.txt", "--dnncore-backend=reference"), "of one backend; got"),
        (("--dnncore-floor=cpu:x",), "--dnncore-floor: expected N or BACKEND:N"),
    ],
)
def test_what_could_not_be_written_stops_the_run_before_it_begins(kit, tmp_path, options, message):
    (tmp_path / "bad.txt").write_text("nonsense\n")
    code, output = kit(*SUITE, *FADING, "--dnncore-size=tiny", *options)
    assert code == pytest.ExitCode.INTERRUPTED
    assert message in output


# -- floors ---------------------------------------------------------------------------------------


def test_floors_count_each_backend():
    floors = Floors.read("5,a:7")
    assert list(floors.missing({"a": 6, "b": 5, "c": 4}, {})) == [
        "a: 6 cases were executed, fewer than the floor of 7",
        "c: 4 cases were executed, fewer than the floor of 5",
    ]
    assert list(Floors.read("").missing({"a": 2}, {"a": 2, "b": 1})) == [
        "b: 0 cases were executed, fewer than the floor of 1"
    ]


@pytest.mark.parametrize("text", ["x", "a:", ":3", "a:b:c", "3,,4", "-1"])
def test_what_is_no_floor_is_an_error(text):
    with pytest.raises(dnn.DescriptorError, match="expected N or BACKEND:N"):
        Floors.read(text)


def test_a_backend_that_is_expected_and_executes_nothing_fails_the_run(kit):
    options = ("--dnncore-size=tiny", "--dnncore-match=--eltwise --tag", "--dnncore-engine=cpu")
    both = (*FADING, "--dnncore-backend=reference", *options, "--dnncore-skip-checks=failures")
    assert kit(*SUITE, *both)[0] == 0
    code, output = kit(*SUITE, *both, "--dnncore-floor=reference:1,fading:1,other:1")
    assert code == 1
    assert "other: 0 cases were executed, fewer than the floor of 1" in output
    code, output = kit(*SUITE, *both, "-k", "reference")
    assert code == 1
    assert "fading: 0 cases were executed, fewer than the floor of 1" in output


# -- the built-in backends ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("backend", "engine"), [("reference", "cpu"), ("cpu_numba", "cpu"), ("opencl", "pocl")]
)
def test_built_in_backends_accept_what_they_claim(backend, engine):
    """`make conformance` judges the levels above."""
    found = [claim for claim in read_claims(ROOT / BUILT_IN[backend]) if claim.engine == engine]
    assert len(found) > 50
    device = dnn.engine(engine)
    lost = [c.place for c in found if not Case(c.problem, device, f"{backend}:*").trials]
    assert not lost
