"""`dnncore check` and `dnncore impls`: problem words in, lines or JSON out."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import precision_faults
import pytest
import size_faults
import unruly
from click.testing import CliRunner
from toy import Relu, registered

import dnncore as dnn
from dnncore.backend import HostFunction
from dnncore.cli import main

CONV = ("--conv", "--dir=FWD_D", "--stag=abx", "--dtag=abx", "mb1ic3oc4ih5kh3")
RELU = ("--eltwise", "--alg=relu", "2x3x4")


def invoke(*arguments, code=0):
    result = CliRunner().invoke(main, arguments, env={"COLUMNS": "80"})
    assert result.exit_code == code, result.output
    return result.output


def rows(*arguments, code=0):
    return json.loads(invoke(*arguments, "--json", code=code))


class OffByOne(Relu):
    """A result with a wrong last element."""

    def build(self):
        return HostFunction(self.compute)

    def compute(self, src, dst):
        values = src.numpy().clip(0)
        values.flat[-1] += 1
        dst.desc.pack(values, dst.buffer)


@pytest.fixture
def wrong():
    """An implementation with one wrong element."""
    with registered(OffByOne("toybackend:off_by_one")):
        yield


def test_every_implementation_on_every_engine_is_checked_on_both_fills():
    found = rows("check", *CONV)
    engines = {row["engine"] for row in found}
    assert engines == {row.name for row in dnn.devices() if row.status == "ok"}
    problem_op = dnn.ConvolutionForward(
        "forward_training", src=dnn.MemoryDesc((1, 3, 5, 5)),
        weights=dnn.MemoryDesc((4, 3, 3, 3), "f32", "any"), dst=dnn.MemoryDesc((1, 4, 3, 3)),
    )  # fmt: skip
    for name in engines:
        told = {row["implementation"] for row in found if row["engine"] == name}
        assert told == {pd.impl_name for pd in dnn.primitive_descs(problem_op, dnn.engine(name))}
    assert {row["fill"] for row in found} == {"integers", "random"}
    unchecked = {row["implementation"] for row in found if row["status"] == "unchecked"}
    assert unchecked == {"reference:convolution"}
    checked = [row for row in found if row["implementation"] not in unchecked]
    assert {row["status"] for row in checked} == {"ok"}
    assert all(row["error"] == 0 for row in checked if row["fill"] == "integers")


@pytest.mark.peer
def test_torch_checks_the_reference():
    found = rows("check", "--engines=cpu", "--conv", "--impl=reference:*", *CONV[1:])
    assert [(row["fill"], row["status"]) for row in found] == [("integers", "ok"), ("random", "ok")]
    assert found[0]["error"] == 0


@pytest.mark.peer
def test_torch_checks_reductions_without_results_along_an_empty_dim():
    found = rows("check", "--engines=cpu", "--reduction", "--alg=max,min", "2x0x0:1x0x1")
    assert {row["status"] for row in found} == {"ok"}


def test_the_text_has_the_reason_why_the_reference_is_unchecked():
    command = ("check", "--engines=cpu", "--eltwise", "--impl=reference*", "2x3x4")
    lines = invoke(*command, code=1).splitlines()
    assert lines[1] == "  unchecked  reference:eltwise  integers"
    assert lines[2] == "      it defines correct results; install torch to check it"
    assert lines[-1] == "1 implementation of 1 problem: 1 unchecked"


@pytest.mark.parametrize(
    "words",
    [("--eltwise", "--attr-dropout=0.5"), ("--matmul", "--attr-rounding-mode=dst:stochastic")],
)
def test_torch_is_not_recommended_for_random_numbers(words):
    shape, types = ("3x5", ()) if words[0] == "--eltwise" else ("3x5:5x2", ("--dt=bf16",))
    found = rows("check", "--engines=cpu", *words, *types, "--impl=reference:*", shape, code=1)
    assert {row["status"] for row in found} == {"unchecked"}
    assert all("it draws other random numbers" in row["reason"] for row in found)


def test_a_wrong_element_is_reported_with_its_place_and_is_a_failure(wrong):
    found = rows("check", "--engines=cpu", *RELU, code=1)
    (bad, _) = (row for row in found if row["status"] == "wrong")
    assert bad["implementation"] == "toybackend:off_by_one"
    assert bad["worst"] == [1, 2, 3]
    assert (bad["wrong"], bad["share"]) == (1, pytest.approx(1 / 24))
    assert bad["got"] == bad["expected"] + 1
    assert bad["distance"].startswith("off by 1")
    text = invoke("check", "--engines=cpu", *RELU, code=1)
    again = text.partition("again: dnncore ")[2].splitlines()[0]
    alone = rows(*again.split(), code=1)
    assert {row["implementation"] for row in alone} == {"toybackend:off_by_one"}
    assert any(row["got"] == bad["got"] for row in alone)  # the values are the same


def test_the_text_has_a_line_per_row_with_errors_below_and_a_summary(wrong):
    text = invoke("check", "--engines=cpu", "--eltwise", "--impl=toy*,cpu_numba*", "2x3x4", code=1)
    lines = text.splitlines()
    assert lines[0] == "--eltwise --impl=toy*,cpu_numba* 2x3x4 on cpu"
    assert "  ok     cpu_numba:simd         integers  dst  exact" in lines
    (place,) = (i for i, line in enumerate(lines) if "toybackend:off_by_one  integers" in line)
    assert lines[place].startswith("  WRONG  toybackend:off_by_one  integers  dst  error ")
    assert lines[place + 1].startswith("      worst at [1, 2, 3]: got ")
    assert lines[place + 2].startswith("      off by 1")
    assert lines[place + 2].endswith("; 1 wrong (4.2%), only there")
    assert text.count("again: dnncore check") == 1
    assert lines[-1] == "2 implementations of 1 problem: 1 ok, 1 wrong"
    assert "\x1b" not in text


class Inexact(OffByOne):
    """A result with rounding errors below the bound."""

    def compute(self, src, dst):
        dst.desc.pack(src.numpy().clip(0) * np.float32(1 + 2**-23), dst.buffer)


def test_a_row_within_the_bound_has_its_share_of_the_bound():
    words = ("check", "--engines=cpu", "--eltwise", "--impl=toy*", "2x3x4")
    with registered(Inexact("toybackend:inexact")):
        (row,) = (row for row in rows(*words, code=1) if row["fill"] == "random")
        text = invoke(*words, code=1)
    assert row["status"] == "ok"
    assert 0 < row["of_bound"] < 1
    assert row["of_bound"] == pytest.approx(abs(row["got"] - row["expected"]) / row["bound"])
    assert f"dst  error {row['error']:.2g}, {row['of_bound']:.2g} of the bound" in text


@pytest.mark.parametrize(
    ("way", "code", "where"),
    [("crash", -signal.SIGSEGV, "Segmentation fault"), ("hang", 1, "Timeout (0:00:10)")],
)
def test_a_crash_or_a_hang_ends_with_the_place_the_implementation_and_the_check(way, code, where):
    # A busy machine takes seconds for what comes before the place.
    command = ["check", "--plugin=unruly", "--engines=cpu", "--timeout=10", "--conv"]
    path = os.pathsep.join([*sys.path, str(Path(unruly.__file__).parent)])
    done = subprocess.run(
        [sys.executable, "-P", "-m", "dnncore", *command, "--impl=unruly:*", "mb1ic1oc1ih3kh3"],
        env={**os.environ, "UNRULY": way, "PYTHONPATH": path},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert where in done.stderr
    assert f"in {way}\n" in done.stderr  # the function of the plugin
    step = f"error: the process ended during unruly:{way}, check integers, of --conv"
    assert done.stderr.splitlines()[-1].startswith(step)


class PastTheEnd(Relu):
    """Writes a byte after dst."""

    def build(self):
        return HostFunction(self.compute)

    def compute(self, src, dst):
        dst.desc.pack(src.numpy().clip(0), dst.buffer)
        dst.buffer[dst.desc.nbytes] = 0


def test_a_wrongly_written_byte_is_reported_in_a_sentence():
    with registered(PastTheEnd("toybackend:past_the_end")):
        text = invoke("check", "--engines=cpu", "--eltwise", "--impl=toy*", "2x3x4", code=1)
    assert "Finding" not in text
    assert "dst: bytes outside of the tensor were written: 1 byte changed" in " ".join(text.split())


def test_checks_of_the_kit_run_by_their_names(wrong):
    relu = ("--eltwise", "--impl=toy*", "2x3x4")
    (bad,) = rows("check", "--engines=cpu", "--checks=random,padding", *relu, code=1)
    assert (bad["fill"], bad["status"]) == ("random", "failed")
    assert "dst: WRONG" in bad["reason"]
    assert "--checks=random" in bad["command"]
    (good,) = rows("check", "--engines=cpu", "--checks=padding", *relu)
    assert good["status"] == "ok"
    message = invoke("check", "--engines=cpu", "--checks=spelling", *relu, code=2)
    assert "--checks: expected all or names among accept, refusals" in message


def test_a_plugin_is_registered_by_its_module():
    message = invoke("check", "--plugin=no_such_module", *RELU, code=2)
    assert "--plugin=no_such_module: No module named" in message


def test_the_command_of_a_row_has_the_plugins():
    words = ("check", "--plugin=size_faults", "--plugin=precision_faults", "--engines=imprecise")
    try:
        (row, *_) = rows(*words, "--matmul", "--impl=imprecise:bits_20", "8x100:100x8", code=1)
    finally:
        for plugin in (size_faults, precision_faults):
            dnn.unregister(plugin)
    command = "dnncore check --plugin=size_faults --plugin=precision_faults --engines=imprecise:0 "
    assert row["command"].startswith(command)


def test_colours_are_for_terminals(wrong):
    environment = {"COLUMNS": "80", "FORCE_COLOR": "1", "TERM": "xterm"}
    words = ["check", "--engines=cpu", "--eltwise", "--impl=toy*", "2x3x4"]
    result = CliRunner().invoke(main, words, env=environment, color=True)
    assert "\x1b[1;31mWRONG\x1b[0m" in result.output


def test_a_failed_build_is_reported_with_the_reason():
    broken = Relu("toybackend:broken", build=ZeroDivisionError("so much for that"))
    with registered(broken):
        found = rows("check", "--engines=cpu", *RELU, code=1)
    (reason,) = {row["reason"] for row in found if row["status"] == "failed"}
    assert "ZeroDivisionError: so much for that" in reason


def test_several_problems_and_files_of_them(tmp_path):
    batch = tmp_path / "problems.txt"
    batch.write_text("--conv mb1ic1oc1ih3kh3 mb1ic2oc2ih3kh3\n")
    output = invoke("check", "--engines=cpu", "--conv", f"--batch={batch}", "mb1ic5oc1ih3kh3")
    assert all(f"ic{n}oc" in output for n in (1, 2, 5))


def test_an_unsupported_problem_is_reported_with_the_refusals():
    nobody = ("check", "--engines=cpu", "--conv", "--impl=cpu_numba:depthwise*", CONV[-1])
    (row,) = rows(*nobody, code=1)
    assert row["status"] == "refused"
    text = invoke(*nobody, code=1)
    assert "  not supported\n      cpu_numba:depthwise:" in text
    assert text.splitlines()[-1] == (
        "0 implementations of 1 problem: 1 problem not supported on cpu"
    )
    assert max(map(len, text.splitlines()[1:])) <= 80


def test_filters_that_remove_all_candidates_are_reported():
    text = invoke("check", "--engines=cpu", "--conv", "--impl=nobody:*", CONV[-1], code=1)
    assert "there is no implementation that matches --impl=nobody:*" in text


def test_an_unsupported_problem_is_no_failure_if_another_is_computed():
    text = invoke(
        "check", "--engines=cpu", "--eltwise", "--impl=cpu_numba:*", "2x3", "--impl=no:*", "2x3"
    )
    assert text.splitlines()[-1] == (
        "1 implementation of 2 problems: 1 ok, 1 problem not supported on cpu"
    )


def test_a_problem_that_exceeds_memory_is_reported_as_failed(monkeypatch):
    def full(*_):
        raise MemoryError("Unable to allocate 7 EiB")

    monkeypatch.setattr("dnncore.testing.checks.case.make_round", full)
    text = invoke("check", "--engines=cpu", "--eltwise", "--impl=reference:*", "2x3", code=1)
    assert "FAILED  reference:eltwise  integers" in text
    assert "the expected result could not be computed: MemoryError: Unable to allocate" in text


def test_implementations_are_ranked_and_refusals_have_kind_and_reason():
    found = rows("impls", *CONV)
    accepted = [row for row in found if row["status"] == "accepted"]
    assert [row["rank"] for row in accepted] == [*range(1, len(accepted) + 1)]
    own = [row["seconds"] for row in accepted if not row["implementation"].startswith("reference")]
    assert own == sorted(own)
    assert accepted[-1]["implementation"] == "reference:convolution"
    assert all(row["source"] for row in accepted)
    refused = [row for row in found if row["status"] == "refused"]
    assert all(row["kind"] and row["reason"] for row in refused)
    assert "cpu_numba:depthwise" in " ".join(row["implementation"] for row in refused)


def test_the_text_has_a_line_per_implementation_and_refusals_below():
    found = rows("impls", *CONV)
    lines = invoke("impls", *CONV).splitlines()
    assert lines[0].startswith("--conv --dir=FWD_D --stag=abx")
    assert lines[0].endswith(" on cpu")
    accepted = [row for row in found if row["status"] == "accepted"]
    for row, line in zip(accepted, lines[1:], strict=False):
        assert line.split()[:2] == [str(row["rank"]), row["implementation"]]
        assert float(line.split()[2]) == pytest.approx(row["seconds"] * 1e6, rel=0.01)
        assert line.split()[3] == "us"
        assert line.endswith(row["source"])
    below = " ".join(" ".join(lines[len(accepted) + 1 :]).split())
    for row in found[len(accepted) :]:
        told = f"{row['implementation']}: {row['kind']}: {row['reason']}"
        assert " ".join(told.split()) in below
    assert max(map(len, lines[1:])) <= 80


def test_notes_and_knobs_are_listed_on_demand():
    words = ("--matmul", "--impl=cpu_numba:brgemm:*", "--knobs=vectors:2", "64x64:64x64")
    best, *_ = rows("impls", *words)
    assert best["notes"] == ["compiles"]
    assert [(knob["name"], knob["value"], knob["default"]) for knob in best["knobs"]] == [
        ("vectors", 2, 0),
        ("cache_kib", 0, 0),
    ]
    shown = invoke("impls", "-v", *words).splitlines()
    assert "      notes: compiles" in shown
    assert any(line.startswith("      knob vectors:2  most vectors of a panel") for line in shown)
    assert "notes" not in invoke("impls", *words)


def test_filters_are_listed_if_no_candidate_remains_or_on_demand():
    filtered = ("--conv", "--impl=reference:*", "mb1ic1oc1ih3kh3")
    assert {row["status"] for row in rows("impls", *filtered)} == {"accepted"}
    assert {row.get("kind") for row in rows("impls", "-v", *filtered)} == {None, "filter"}
    nobody = ("--conv", "--impl=nobody:*", "mb1ic1oc1ih3kh3")
    assert {row["kind"] for row in rows("impls", *nobody)} == {"filter"}


def test_backends_that_are_not_available_are_listed_last():
    with registered(table="no_such_module:TABLE"):
        row = rows("impls", *RELU)[-1]
        assert (row["backend"], row["status"]) == ("toybackend", "unavailable")
        assert "No module named 'no_such_module'" in row["reason"]
        shown = "\nunavailable: backend toybackend: ModuleNotFoundError"
        assert shown in invoke("impls", *RELU)


@pytest.mark.parametrize("command", ["impls", "check"])
def test_filters_of_the_environment_apply(monkeypatch, command):
    with registered(Relu("toybackend:a"), Relu("toybackend:b")):
        problem = ("--engines=cpu", *RELU)
        monkeypatch.setenv("DNNCORE_IMPL", "toybackend:*")
        found = {row["implementation"] for row in rows(command, *problem)}
        assert found == {"toybackend:a", "toybackend:b"}
        monkeypatch.setenv("DNNCORE_SKIP_IMPL", "*:a")
        assert {row["implementation"] for row in rows(command, *problem)} == {"toybackend:b"}
        monkeypatch.setenv("DNNCORE_SKIP_IMPL", "*")
        told = {"impls": "matched by skip_impl=*", "check": "DNNCORE_SKIP_IMPL=*"}[command]
        assert told in invoke(command, *problem, code=int(command == "check"))


BATCH = """--eltwise --alg=relu --tag=ab
2x3 2y3
--dt=s4 3x4
--frob=1
--reset --attr-precomputed-reductions=src:1:s32:1x1 --dt=u4,f32 5x6
--reset --alg=clip --alpha=2 7x8
"""


@pytest.fixture
def batch(tmp_path):
    path = tmp_path / "batch"
    path.write_text(BATCH)
    return f"--batch={path}"


def test_problems_with_missing_features_are_left_out_and_counted(batch):
    text = invoke("check", "--engines=cpu", batch, code=2)
    assert "--eltwise 2x3 on cpu\n  ok  " in text
    assert (
        "--dt=s4 --tag=ab --alg=relu --alpha=0 --beta=0 3x4\n  left out: no data type s4\n" in text
    )
    assert "3 left out: 2 precomputed reductions, 1 data type s4, 1 data type u4; 1 inv" in text


def test_the_summary_counts_problems_features_and_lines(batch):
    text = invoke("impls", batch, code=2)
    assert "batch, line 2, word 2: 2y3: expected dims" in text
    assert "batch, line 4, word 1: --frob=1: --eltwise has no such option" in text
    assert "left out: no precomputed reductions, data type u4" in text
    assert "left out: invalid" in text
    assert text.splitlines()[-1] == (
        "1 problem read; 3 left out: 2 precomputed reductions, 1 data type s4, 1 data type u4;"
        " 1 invalid; 2 lines unreadable"
    )


def test_a_problem_that_is_left_out_has_a_row_in_json(batch):
    found = [row for row in rows("check", "--engines=cpu", batch, code=2) if "engine" not in row]
    assert [row["status"] for row in found] == [
        "unreadable", "unsupported", "unreadable", "unsupported", "unsupported", "invalid",
    ]  # fmt: skip
    assert found[3]["features"] == ["precomputed reductions", "data type u4"]
    assert "clip needs beta >= alpha" in found[5]["reason"]


def test_missing_features_are_no_failure(tmp_path):
    path = tmp_path / "batch"
    path.write_text("--eltwise --dt=f32,s4 2x3")
    assert "1 left out: 1 data type s4" in invoke("check", "--engines=cpu", f"--batch={path}")
    path.write_text("--eltwise --dt=s4 2x3")
    invoke("check", "--engines=cpu", f"--batch={path}", code=1)  # nothing was compared


class WrongInPlace(Relu):
    """A wrong implementation: it assumes that dst is not src."""

    def build(self):
        return HostFunction(self.compute)

    def compute(self, src, dst):
        dst.desc.pack(dst.numpy() * 0, dst.buffer)
        dst.desc.pack(src.numpy().clip(0), dst.buffer)


def test_a_problem_in_place_is_checked_in_place():
    with registered(WrongInPlace("toybackend:wrong_in_place")):
        words = ("--eltwise", "--impl=toy*", "2x3x4")
        assert {row["status"] for row in rows("check", "--engines=cpu", *words)} == {"ok"}
        found = rows("check", "--engines=cpu", "--eltwise", "--inplace=true", *words[1:], code=1)
        assert {row["status"] for row in found} == {"wrong"}
        assert "--inplace=true" in found[0]["command"]


@pytest.mark.parametrize("command", ["check", "impls"])
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "name a problem"),
        (("--from-verbose=/dev/null",), "there is no problem in --from-verbose=/dev/null; name"),
        (("--conv", "mb1ic3oc5ih2kh5"), "kernel spans 5 cells along h but src has 2 + padding 0"),
        (("--conv", "ic3oc4zz5"), "ic3oc4zz5"),
        (("mb1ic1oc1ih3kh3",), "expected an operation first"),
        (("--from-verbose=/dev/null", "--impl=x"), "--impl=x: options apply to the shapes and"),
        (("--eltwise", "2x3", "--match", "x"), "at the end: x: options apply to the shapes"),
        (("--eltwise", "2x3", "--skip_impl=x"), "--skip_impl=x: options apply to the shapes"),
        (("--alg=relu", "--eltwise", "2x3"), "only --impl, --skip-impl, --knobs may precede it"),
        (("--matmul", "--dt=f32:s32:f32", "4x6:6x8"), "weights must be of type f32, f8_e5m2"),
        (("--eltwise", "--dt=f32,s4", "4x6"), "data type s4 (eltwise: src must be of type f64"),
        (("--eltwise", "--inplace=true", "--dt=f16", "--stag=ab", "--dtag=ba", "4x6"), "in place"),
    ],
)
def test_a_malformed_problem_is_a_usage_error(command, words, message):
    assert message in invoke(command, *words, code=2)


@pytest.mark.parametrize(
    ("words", "is_noted"),
    [
        (("--eltwise", "--attr-dropout=0.5:12345", "3x5"), True),
        (("--eltwise", "--attr-dropout", "0.3", "3x5"), True),
        (("--eltwise", "--attr-dropout=0.5:0:undef:1", "3x5"), False),
        (("--matmul", "--dt=bf16", "--attr-rounding-mode=dst:stochastic:7", "3x5:5x2"), True),
        (("--matmul", "--dt=bf16", "--attr-rounding-mode=dst:stochastic", "3x5:5x2"), False),
        (("--matmul", "--attr-scales=wei:per_oc:f16+src:common:0.5:f32", "3x5:5x2"), True),
        (("--matmul", "--dt=u8:s8:s8", "--attr-zero-points=src:common:3", "3x5:5x2"), True),
        (("--matmul", "--attr-scales=wei:2:f16", "3x5:5x2"), False),
    ],
)
def test_values_without_effect_are_mentioned_once(words, is_noted):
    result = CliRunner().invoke(main, ["impls", *words])
    assert result.exit_code == 0, result.output
    assert result.stderr.count("have no effect") == is_noted


def test_an_unknown_engine_is_a_usage_error_that_lists_engines():
    output = invoke("check", "--engines=abacus", *CONV, code=2)
    assert "unknown engine 'abacus'; there are: cpu" in output


# -- precision -------------------------------------------------------------------------------------


@pytest.fixture
def imprecise():
    dnn.register(precision_faults)
    yield
    dnn.unregister(precision_faults)


@pytest.mark.parametrize(
    ("problem", "name", "words"),
    [
        ("--matmul 8x100:100x8", "bits_20", "lost precision: rms error"),
        ("--matmul 1x100:100x1", "bits_20", "lost precision: rms error"),
        ("--matmul 8x9:9x8", "claims_more", "claims the error factor 9; the algorithm of the"),
        ("--matmul 8x9:9x8", "inexact", "where no error is allowed"),
    ],
)
def test_lost_precision_and_false_claims_are_wrong(imprecise, problem, name, words):
    options = ["--engines=imprecise", f"--impl=imprecise:{name}"]
    driver, shape = problem.split()
    text = invoke("check", options[0], driver, options[1], shape, code=1)
    assert words in " ".join(text.split())
    assert "WRONG" in text


def test_the_error_factor_is_printed_where_it_is_not_1():
    words = ["--engines=cpu", "--conv", "--alg=wino", "--impl=cpu_numba:*", "mb1ic4ih6oc4kh3ph1"]
    assert "error factor 8.1" in invoke("check", *words)
    rows = json.loads(invoke("check", "--json", *words))
    assert {f"{row['error_factor']:.2g}" for row in rows} == {"8.1"}
    assert "error factor" not in invoke("check", "--engines=cpu", "--matmul", "3x4:4x5")
