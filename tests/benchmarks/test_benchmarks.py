"""The benchmarks measure the right things. No test asserts a speed."""

from __future__ import annotations

import io
import json
import math
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

import dnncore as dnn
from benchmarks.compare import chosen_problems, main
from benchmarks.contestants.contestant import Contestant, LeftOut, Terms, side, values_of
from benchmarks.contestants.onednn_packages import NEWEST
from benchmarks.documents import report
from benchmarks.measuring import contest
from benchmarks.measuring.accuracy import Exact
from benchmarks.measuring.ledger import Ledger
from benchmarks.measuring.processes import Settings, measured, merged
from benchmarks.measuring.sampling import one_by_one
from benchmarks.measuring.verification import allowed_error
from benchmarks.problems.lines import LINES, SELECTION, problems_of
from benchmarks.problems.problem_sets import changed, distinct, pass_of, read_set, set_files
from dnncore.problem import read

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
SETS = ("alexnet", "vgg_16", "googlenet", "resnet_50", "mobilenet", "groups", "odd", "matmul",
        "memory_bound", "memory_bound_gpu", "products", "reorders")  # fmt: skip
TINY = "--eltwise --dir=FWD_I 2x16x8x8"


def problem(text):
    (found,) = read(text)
    return found


# -- sets ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SETS)
def test_sets_have_problems_each_once(name):
    problems = list(read_set(name, {}))
    assert problems
    assert len(distinct(problems)) == len(problems)


def test_there_are_no_other_sets():
    assert set(set_files()) == set(SETS)


def test_the_error_for_an_unknown_set_lists_the_sets():
    with pytest.raises(dnn.DescriptorError, match=r"resnet_50.*got 'resnet50'"):
        list(read_set("resnet50", {}))


def test_odd_channels_are_no_multiple_of_16():
    shapes = {p.name: p.op for p in read_set("odd", {"dir": "FWD_I"})}
    assert len(shapes) == 10
    for op in shapes.values():
        assert op.src.dims[1] % 16 or op.dst.dims[1] % 16


def test_there_are_20_products_of_bert_and_lstms():
    problems = list(read_set("matmul", {}))
    assert len(problems) == 20
    assert all(isinstance(p.op, dnn.MatMul) for p in problems)
    assert {p.name.partition(":")[0] for p in problems} == {"bert", "gnmt", "lstm_650"}


def test_memory_bound_problems_have_the_size_in_their_names():
    problems = list(read_set("memory_bound", {}))
    for p in problems:
        largest = max(desc.nbytes for _, desc in p.op.tensors())
        megabytes = int(p.name.rpartition("_")[2].removesuffix("MB"))
        exact = 51.4e6 if megabytes == 51 else megabytes * 2**20
        assert largest == pytest.approx(exact, rel=0.01), str(p)
    kinds = {type(p.op) for p in problems}
    assert kinds == {
        dnn.Binary, dnn.EltwiseBackward, dnn.EltwiseForward, dnn.LRNBackward, dnn.LRNForward,
        dnn.PoolingBackward, dnn.PoolingForward, dnn.Reduction, dnn.SoftmaxBackward,
        dnn.SoftmaxForward, dnn.Sum,
    }  # fmt: skip


def test_reorders_go_both_ways():
    ways = {(p.op.src.tag, p.op.dst.tag) for p in read_set("reorders", {})}
    assert {
        ("abcd", "aBcd16b"),
        ("aBcd16b", "abcd"),
        ("acdb", "aBcd16b"),
        ("aBcd16b", "acdb"),
    } <= ways


# -- other options ---------------------------------------------------------------------------------


def test_options_replace_those_of_the_problem():
    p = changed(problem('--conv --dir=FWD_B mb2ic16ih8oc32kh3ph1n"x"'), {"dir": "BWD_W", "mb": "7"})
    assert isinstance(p.op, dnn.ConvolutionBackwardWeights)
    assert p.op.src.dims[0] == 7
    assert p.name == "x"


@pytest.mark.parametrize("text", ["--conv mb2ic16ih8oc32kh3ph1", "--pool mb2ic16ih8kh2sh2"])
def test_a_tag_is_that_of_all_activations(text):
    op = changed(problem(text), {"tag": "axb"}).op
    assert {op.src.tag, op.dst.tag} == {"acdb"}


def test_options_that_a_driver_lacks_change_nothing():
    p = problem("--matmul 4x8:8x16")
    assert changed(p, {"dir": "FWD_I", "mb": "4"}) == p


@pytest.mark.parametrize("direction", ["FWD_I", "BWD_D", "BWD_W"])
def test_a_direction_keeps_the_problems_of_its_pass(direction):
    expected = {"FWD_I": 20, "BWD_D": 19, "BWD_W": 20}  # the image has no gradient
    problems = chosen_problems(("resnet_50",), (), {"dir": direction, "mb": "4"}, "^--conv")
    assert len(problems) == expected[direction]
    assert len({pass_of(p.op) for p in problems}) == 1


def test_problems_that_options_make_equal_are_measured_once():
    assert len(chosen_problems(("alexnet", "alexnet"), (), {"mb": "4"}, "^--conv")) == 14
    words = ("--conv", "mb2ic16ih8oc32kh3ph1", "mb3ic16ih8oc32kh3ph1")
    assert len(chosen_problems((), words, {"mb": "4"}, "")) == 1


@pytest.mark.parametrize("line", [*LINES, SELECTION], ids=lambda line: line.title)
def test_every_line_has_problems(line):
    quick, full = (problems_of(line, full=full) for full in (False, True))
    assert 0 < len(quick) <= len(full)


# -- contestants -----------------------------------------------------------------------------------

SMALL = {
    "onednn-3.2": [
        "--conv --dir=BWD_WB mb2ic16ih8oc32kh3ph1",
        "--conv --stag=abx --dtag=abx mb2ic16ih8oc32kh3ph1",
        "--ip --dir=FWD_B mb2ic16ih3oc32",
        "--ip --dir=BWD_D mb2ic16ih3oc32",
        "--ip --dir=BWD_W mb2ic16ih3oc32",
        "--pool --dir=BWD_D --tag=aBx16b mb2ic16ih8kh2sh2",
        "--lrn --dir=BWD_D mb2ic16ih8",
    ],
    "onednn-3.13": [
        "--conv --dir=BWD_WB mb2ic16ih8oc32kh3ph1",
        "--conv --stag=abx --dtag=abx mb2ic16ih8oc32kh3ph1",
        "--ip --dir=BWD_D mb2ic16ih3oc32",
        "--pool --dir=BWD_D --tag=aBx16b mb2ic16ih8kh2sh2",
        "--lrn --dir=BWD_D mb2ic16ih8",
        "--binary --alg=MAX 2x16x8x8:1x16x1x1",
        "--reduction --alg=mean 2x16x8x8:2x16x1x1",
    ],
    "torch": [
        "--conv --dir=FWD_B g2mb2ic16ih8oc32kh3ph1",
        "--conv --dir=BWD_D mb2ic16ih8oc32kh3ph1",
        "--conv --dir=BWD_WB mb2ic16ih8oc32kh3ph1",
        "--ip --dir=BWD_WB mb2ic16ih3oc32",
        "--matmul --bia-dt=f32 --bia_mask=2 4x8:8x16",
        "--matmul --stag=ba --wtag=ba --dtag=ab 4x8:8x16",
        "--matmul --stag=abdc --dtag=abdc 2x3x4x8:2x3x8x16",
        "--matmul --bia-dt=f32 --bia_mask=2 --stag=ba --dtag=ba 4x8:8x16",
        *(
            f"--eltwise --dir=BWD_D {how} 2x16x8x8"
            for how in (
                "--alg=tanh_dst",
                "--alg=linear --alpha=0.2",
                "--alg=swish --alpha=1",
                "--alg=clip --beta=0.5",
                "--alpha=0.1",
                "--alg=relu_dst --alpha=0.1",
            )
        ),
        *(
            f"--eltwise {how} 2x16x8x8"
            for how in (
                "--alg=linear --alpha=0.2",
                "--alg=swish --alpha=1",
                "--alg=clip --beta=0.5",
                "--alpha=0.1",
                "--alg=elu --alpha=0.3",
            )
        ),
        "--binary --alg=MAX 2x16x8x8:1x16x1x1",
        "--sum --scales=0.5:2 2x16x8x8",
        "--reduction --alg=mean 2x16x8x8:2x16x1x1",
        "--softmax --dir=BWD_D --dtag=ab --alg=LOGSOFTMAX 4x10",
        "--lrn --dir=FWD_I mb2ic16ih8",
        "--pool --dir=BWD_D --alg=max mb2ic16ih9kh3sh2",
        "--pool --alg=avg_np mb2ic16ih9kh3sh2",
        *(
            f"--pool --dir={direction} --alg={algorithm} mb2ic16_{spatial}"
            for direction in ("FWD_D", "BWD_D")
            for algorithm in ("max", "avg_np")
            for spatial in ("iw9kw3sw2", "id5kd3sd2_ih9kh3sh2")
        ),
        "--reorder --stag=abcd --dtag=acdb 2x16x8x8",
    ],
    "numpy": [
        "--ip --dir=FWD_B --stag=abx --wtag=abx --dtag=abx mb2ic16ih3oc32",
        "--matmul --bia-dt=f32 --bia_mask=2 4x8:8x16",
        "--eltwise 2x16x8x8",
        "--binary --alg=DIV 2x16x8x8:1x16x1x1",
        "--sum --scales=0.5:2 2x16x8x8",
        "--reduction --alg=max 2x16x8x8:2x16x1x1",
        "--reorder 2x16x8x8",
    ],
}


def _contestants(peer, p, reorders=False):
    return list(side(peer)(p, Terms(reorders=reorders)))


HAS_NEWEST = pytest.mark.skipif(not NEWEST.is_installed, reason=f"no {NEWEST}: {NEWEST.how}")


def _small(peer):
    marks = [pytest.mark.peer] if peer != "numpy" else []
    marks += [HAS_NEWEST] if peer == "onednn-3.13" else []
    return [pytest.param(peer, text, marks=marks) for text in SMALL[peer]]


@pytest.mark.parametrize(("peer", "text"), [row for peer in SMALL for row in _small(peer)])
def test_peers_compute_what_we_do(peer, text):
    p = problem(text)
    for draw in (0, 1):
        exact = Exact(p, draw)
        for contestant in _contestants(peer, p, reorders=True):
            contestant.refill(draw)
            error = exact.errors(_run(contestant)).largest
            assert error <= allowed_error(p.op), contestant.name


def _run(contestant):
    contestant.repeat(1)
    return contestant.outputs()


def test_our_contestant_may_use_reorders():
    p = problem("--conv --dir=FWD_I --stag=abx --dtag=abx mb2ic32ih8oc32kh3ph1")
    direct, between = _contestants("ours", p, reorders=True)
    assert between.name.endswith("between reorders")
    exact = Exact(p)
    assert all(exact.errors(_run(c)).largest <= allowed_error(p.op) for c in (direct, between))


def test_the_others_exclude_the_selected_one_and_the_reference():
    p = problem("--conv --dir=FWD_I mb2ic32ih8oc32kh3ph1")
    (chosen,) = _contestants("ours", p)
    names = [contestant.name for contestant in _contestants("others", p)]
    assert names
    assert not {chosen.name, "reference:convolution"} & set(names)


@pytest.mark.parametrize("text", ["--conv mb2ic32ih8oc32kh3ph1", "--eltwise --tag=aBx16b 2x16x8x8"])
def test_a_problem_that_a_peer_lacks_is_left_out_with_the_reason(text):
    outcome = contest.measure(problem(text), ["numpy"])
    assert outcome["left_out"].startswith("numpy: numpy ")


def test_values_are_the_same_for_the_same_name_and_dims():
    first, second = (values_of("src", (3, 1 << 20)) for _ in range(2))
    assert np.array_equal(first, second)
    assert not np.array_equal(first, values_of("dst", (3, 1 << 20)))
    assert abs(first.mean()) < 0.01
    assert not np.array_equal(first[0], first[1])


# -- right results ---------------------------------------------------------------------------------


def test_a_sum_that_lacks_a_term_is_wrong():
    p = problem("--matmul 64x4096:4096x64")
    src, weights = (values_of(name, getattr(p.op, name).dims) for name in ("src", "weights"))
    exact = Exact(p)
    assert exact.errors({"dst": src[:, 1:] @ weights[1:]}).largest > allowed_error(p.op)
    assert exact.errors({"dst": src @ weights}).largest <= allowed_error(p.op)


def test_the_fastest_of_each_side_is_reported(monkeypatch):
    inputs, values, p = {}, {}, problem(TINY)

    def compute(numbers):
        sum(range(numbers))
        values["dst"] = np.maximum(inputs["src"], 0)

    calls = {"slow": lambda: compute(200_000), "quick": lambda: compute(0)}

    def refill(draw):
        inputs["src"] = values_of("src", p.op.src.dims, draw)
        values["dst"] = np.full(p.op.dst.dims, np.nan, np.float32)

    refill(0)
    contestants = [Contestant(name, one_by_one(call), lambda: values, refill)
                   for name, call in calls.items()]  # fmt: skip
    monkeypatch.setattr(contest, "side", lambda _name: lambda _problem, _terms: iter(contestants))
    outcome = contest.measure(problem(TINY), ["a", "b"], samples=3)
    assert (outcome["impl"], outcome["peer_impl"]) == ("quick", "quick")


def test_a_peer_that_lacks_a_problem_does_not_exclude_another(monkeypatch):
    def cannot(_problem, _terms):
        raise LeftOut("too hard")
        yield

    sides = {"ours": side("ours"), "a": cannot, "numpy": side("numpy")}
    monkeypatch.setattr(contest, "side", sides.__getitem__)
    outcome = contest.measure(problem(TINY), ["a", "numpy"], samples=1)
    assert (outcome["peer"], outcome["absent"]) == ("numpy", "a: too hard")
    assert contest.measure(problem(TINY), ["a"])["left_out"] == "a: too hard"


# -- processes and the ledger ----------------------------------------------------------------------


def _row(ratio, name="p"):
    ours = abs(ratio - 1) + 1  # the median time is not that of the median ratio
    return {"problem": name, "ratio": ratio, "impl": str(ratio),
            "ours_ms": ours, "peer_ms": ratio * ours}  # fmt: skip


def test_of_several_processes_that_with_the_median_ratio_counts():
    row = merged([_row(1.5), _row(0.5), _row(1.0)])
    assert row == _row(1.0) | {"ratios": [1.5, 0.5, 1.0]}


def test_one_wrong_result_makes_the_problem_wrong():
    assert "wrong" in merged([_row(1.0), {"problem": "p", "wrong": "by far"}, _row(1.0)])


def test_a_stopped_run_continues(tmp_path):
    path, settings = tmp_path / "ledger.jsonl", Settings(("numpy",), samples=1)
    problems = [problem(TINY), problem("--eltwise --alg=exp 2x16x8x8")]
    outcomes_seen = []

    def stop(outcome):
        outcomes_seen.append(outcome)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measured(problems, settings, ledger=Ledger(path), on_outcome=stop)
    with path.open("a") as file:
        file.write('["half a li')  # like after a crash of the machine
    (first, second) = measured(problems, settings, ledger=Ledger(path))
    assert first["ours_ms"] == outcomes_seen[0]["ours_ms"]
    assert second["problem"] == str(problems[1])
    assert measured(problems, settings, ledger=Ledger(path)) == [first, second]


def test_the_key_depends_on_settings_and_sources(monkeypatch):
    key = Ledger.key("p", {"samples": 9})
    assert key == Ledger.key("p", {"samples": 9})
    assert key != Ledger.key("p", {"samples": 5})
    assert key != Ledger.key("q", {"samples": 9})
    monkeypatch.setattr("benchmarks.measuring.ledger.source_hash", lambda: "other sources")
    assert key != Ledger.key("p", {"samples": 9})


def test_a_problem_that_ends_the_process_is_wrong_and_the_next_is_measured(monkeypatch, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import benchmarks.measuring.contest as c, os\n"
        "right = c.measure\n"
        "def measure(problem, *rest, **more):\n"
        "    if 'exp' in str(problem):\n"
        "        os.abort()\n"
        "    return right(problem, *rest, **more)\n"
        "c.measure = measure\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    problems = [problem(f"--eltwise --alg={name} 2x16x8x8") for name in ("relu", "exp", "abs")]
    outcomes = measured(problems, Settings(("numpy",), samples=1))
    assert ["ratio" in outcome for outcome in outcomes] == [True, False, True]
    assert outcomes[1]["wrong"] == "the process was killed by SIGABRT"


# -- reports ---------------------------------------------------------------------------------------


def _compare(*words):
    command = [sys.executable, "-m", "benchmarks.compare", *words]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )  # fmt: skip


def test_json_alone_goes_to_stdout():
    run = _compare("--peer=numpy", "--samples=1", "--processes=2", "--json", *TINY.split())
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    (row,) = found["rows"]
    assert found["geomean"] == pytest.approx(row["ratio"])
    assert found["min"] == row["ratio"]
    assert row["problem"] == str(problem(TINY))
    assert row.keys() >= {
        "impl", "peer", "peer_impl", "ours_ms", "peer_ms", "ours_gbps", "peer_gbps", "error",
        "ours_scratchpad", "peer_scratchpad", "ours_error", "peer_error", "verified",
    }  # fmt: skip
    assert len(row["ratios"]) == 2


def test_a_table_has_rows_and_problems_that_were_left_out(tmp_path):
    path = tmp_path / "rows.json"
    words = [
        "--peer=numpy",
        "--samples=1",
        f"--json={path}",
        *TINY.split(),
        "--conv",
        "ic3oc4ih8kh3",
    ]
    run = _compare(*words)
    assert run.returncode == 0, run.stderr
    assert "numpy has no convolution" in run.stdout
    assert "geometric mean" in run.stdout
    assert len(json.loads(path.read_text())["left_out"]) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [(["--set=resnet50"], "got 'resnet50'"), ([], "there is no problem; give --set or words"),
     (["--peer=mkl", TINY], "got 'mkl'"), (["--seed=3", TINY], "--seed: expected --draw with it"),
     (["--set=alexnet", "--mb=-1"], "set alexnet: no problem can have these options: .*a dim is"),
     (["--set=alexnet", "--dir=foo"], "no problem can have these options: .*'FOO'"),
     (["--set=alexnet", "--match=zzz"], "--match: the text of no problem matches 'zzz'"),
     (["--match=(", TINY], "expected a regular expression; got '\\('"),
     (["--engine=foo", TINY], "unknown engine 'foo'"),
     (["--draw=3", "--match=zzz"], "draw: expected an expression that matches a layer.*got 'zzz'"),
     (["--draw=3", "--mb=x"], "--mb: expected whole numbers above 0, with commas; got 'x'"),
     (["--draw=3", "--dir=foo"], "draw: expected some of FWD_D, .*got 'foo'")],
)  # fmt: skip
def test_bad_words_are_refused(words, message):
    run = CliRunner().invoke(main, shlex.split(" ".join(words)))
    assert run.exit_code == 2
    assert re.search(message, " ".join(run.output.split())), run.output


def test_a_row_of_several_processes_is_explained():
    rows = [_row(1.5) | figures for figures in ({"ratios": [1.5]}, {"ratios": [1.5, 1.4]})]
    more = {f"{who}_{name}": 1.0 for who in ("ours", "peer") for name in
            ("gbps", "gflops", "error", "scratchpad")}  # fmt: skip
    for row, is_explained in zip(rows, (False, True), strict=True):
        found = report.figures([row | more | {"peer": "numpy", "peer_impl": "x"}])
        console = Console(width=200, file=io.StringIO())
        console.print(report.table(found))
        assert ("the median ratio" in console.file.getvalue()) == is_explained


def test_short_texts_read_as_the_same():
    for name in SETS:
        for p in read_set(name, {}):
            brief = report.short(str(p))
            assert len(brief) <= len(str(p))
            assert read(brief) == [p]


def test_pictures_are_written(tmp_path):
    plots = pytest.importorskip("benchmarks.documents.plots", exc_type=ImportError)
    from benchmarks.roofline import Roofline

    rows = [_row(ratio, name) | {"ours_gflops": 50.0, "peer_gflops": 40.0, "ours_gbps": 5.0}
            for ratio, name in ((0.5, TINY), (1.5, "a line of several"))]  # fmt: skip
    for path in plots.draw(rows, tmp_path / "pictures", Roofline(5e11, 5e10)):
        assert path.read_bytes().startswith(b"\x89PNG")


def test_the_roofline_of_this_machine(monkeypatch):
    pytest.importorskip("numba")
    from benchmarks import roofline

    monkeypatch.setattr(roofline, "SECONDS", 0.02)
    found = roofline.roofline(1)
    assert found.flops > 1e9
    assert found.bandwidth > 1e8


@pytest.mark.peer
def test_the_roof_is_the_lower_of_both():
    pytest.importorskip("numba")
    from benchmarks.roofline import Roofline

    roof = Roofline(flops=100.0, bandwidth=10.0)
    assert [roof.at(x) for x in (1, 10, 1000)] == [10, 100, 100]


def test_the_first_epochs_must_agree():
    from benchmarks.digits import EPOCHS, difference

    ours = [1.0 / n for n in range(1, 2 * EPOCHS)]
    assert difference(ours, [*ours[:EPOCHS], 0.31, 0.21]) == 0.0
    assert difference(ours, [*ours[: EPOCHS - 1], ours[EPOCHS - 1] * 1.3]) == pytest.approx(0.3)
    assert difference(ours, [1.0, 1.0]) == math.inf
