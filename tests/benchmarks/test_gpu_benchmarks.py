"""The benchmarks of devices: parts, errors, circumstances, the ledger and its document."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import dnncore as dnn
from benchmarks import gpu
from benchmarks.contestants.contestant import Terms
from benchmarks.documents import gpu_document
from benchmarks.measuring import contest
from benchmarks.measuring.ledger import Ledger
from benchmarks.measuring.sampling import in_turn, one_by_one, timed
from benchmarks.problems.gpu_lines import GPU_LINES, PORTABLE_LINES
from benchmarks.problems.lines import problems_of
from benchmarks.problems.problem_sets import changed, read_set
from dnncore.problem import read

CONVOLUTION = "--conv --dir=FWD_I mb2ic16ih8oc32kh3ph1"


def problem(text):
    (found,) = read(text)
    return found


# -- lines and problems ----------------------------------------------------------------------------


@pytest.mark.parametrize("line", GPU_LINES + PORTABLE_LINES, ids=lambda line: line.title)
def test_every_line_has_problems_of_its_implementations(line):
    quick, full = (problems_of(line, full=full) for full in (False, True))
    assert 0 < len(quick) <= len(full)
    assert {p.impl for p in full} == {line.impl}


def test_convolutions_are_those_of_both_networks_in_two_batches():
    forward, data, weights = (problems_of(line, full=True) for line in GPU_LINES[:3])
    assert [len(found) for found in (forward, data, weights)] == [58, 54, 58]  # images: no gradient
    assert {p.op.src_role.dims[0] for p in forward + data + weights} == {32, 64}


def test_large_problems_have_tensors_of_205_mb():
    for p in read_set("memory_bound_gpu", {}):
        assert max(desc.nbytes for _, desc in p.op.tensors()) == pytest.approx(205e6, rel=0.02)


@pytest.mark.parametrize(
    "text",
    [CONVOLUTION, "--sum --scales=1:2 4x4", "--binary 4x4:4x4", "--softmax 4x4", "--matmul 4x4:4x4",
     "--reorder 4x4", "--reduction 4x4:1x4"],
)  # fmt: skip
def test_a_type_is_that_of_all_tensors(text):
    op = changed(problem(text), {"dt": "f16"}).op
    assert {desc.data_type for _, desc in op.tensors()} == {"f16"}


# -- a run -----------------------------------------------------------------------------------------


def test_rounds_take_one_problem_of_each_line_at_a_time():
    lines = list(GPU_LINES[:3])
    found = gpu.in_rounds(lines, full=False, match="")
    assert [line for line, _ in found[:3]] == lines
    assert len(found) == sum(len(problems_of(line, full=False)) for line in lines)
    assert not gpu.in_rounds(lines, full=False, match="no such problem")


def test_lines_are_those_of_the_kind_of_device_or_those_named():
    assert gpu.chosen_lines("cpu", "") == list(PORTABLE_LINES)
    assert gpu.chosen_lines("cpu", ".") == list(GPU_LINES + PORTABLE_LINES)
    assert gpu.chosen_lines("cpu", "no such line") == []


def test_a_program_that_fails_is_reported_as_wrong(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    run = gpu.Run("cpu", ledger, peers=(), samples=1, seconds=1e6)
    run.program("no_such_program")
    assert run.wrong == ["no_such_program ended with 1"]
    (found,) = ledger.values()
    assert found["wrong"] == "ended with 1"
    assert not ledger.keys()


# -- sampling --------------------------------------------------------------------------------------


def test_the_number_of_calls_is_the_one_that_repeat_returns(clock):
    """Graphs of several calls round up."""

    @timed
    def in_tens(count):
        tens = -(-count // 10)
        clock.spend(tens * 10 * 1e-4)
        return tens * 10

    (found,) = in_turn([in_tens], 3, pause=0.0)
    assert found == pytest.approx(1e-4)


def test_samples_repeat_short_calls_a_least_number_of_times(clock):
    counts = []

    @timed
    def repeat(count):
        counts.append(count)
        clock.spend(count * 0.003)
        return count

    in_turn([repeat], 1, pause=0.0, least=10)
    assert counts[-1] == 10
    in_turn([repeat], 1, pause=0.0, least=1000)
    assert 10 < counts[-1] < 100


# -- contestants -----------------------------------------------------------------------------------


def test_opaque_weights_are_packed_in_each_run_of_a_gradient(monkeypatch):
    """This applies to a gradient of data. For forward, weights are packed before."""
    from benchmarks.contestants.by_dnncore import Dnncore
    from benchmarks.contestants.libraries import contestant

    for text, count in (("BWD_D", 2), ("FWD_I", 1)):
        (p,) = read(f"--conv --dir={text} --alg=winograd mb2ic32ih16oc32kh3ph1")
        library = Dnncore(dnn.engine("cpu"))
        pd = library.choose(p.op, p.attr)
        if pd.descs["weights"].format_kind != "opaque":
            pytest.skip("no Winograd here")
        calls: list[Any] = []

        def repeat(found: list[Any], calls: list[Any] = calls) -> Any:
            calls.extend(found)
            return one_by_one(lambda: None)

        monkeypatch.setattr(library, "repeat", repeat)
        contestant(library, pd)
        assert len(calls) == count


# -- devices ---------------------------------------------------------------------------------------

DEVICES = pytest.mark.skipif(
    not any(d.name == "opencl:0" and d.status == "ok" for d in dnn.devices()),
    reason="no OpenCL device",
)


@DEVICES
def test_the_key_depends_on_the_kernels():
    from benchmarks.contestants.by_dnncore import kernels

    first, same, larger, other = (
        kernels(problem(text), "opencl:0")
        for text in (CONVOLUTION, CONVOLUTION, CONVOLUTION.replace("mb2", "mb3"), "--eltwise 4x4")
    )
    assert first == same
    assert len({first, larger, other}) == 3
    assert kernels(problem(CONVOLUTION), "cpu") is None


@DEVICES
def test_the_key_depends_on_options_of_the_compiler(monkeypatch):
    from benchmarks.contestants.by_dnncore import kernels

    plain = kernels(problem("--eltwise 4x4"), "opencl:0")
    flushed = ("-cl-denorms-are-zero",)
    monkeypatch.setattr(
        "dnncore_opencl.elementwise.implementation.quick_options", lambda *_: flushed
    )
    dnn.cache.primitives.clear()
    assert kernels(problem("--eltwise 4x4"), "opencl:0") != plain
    dnn.cache.primitives.clear()


@DEVICES
def test_a_device_is_compared_with_the_cpu():
    outcome = contest.measure(
        problem(CONVOLUTION.replace("mb2", "--impl=opencl:* mb2")),
        ["cpu"],
        Terms("opencl:0"),
        samples=1,
    )
    assert outcome["impl"].startswith("opencl:")
    assert not outcome["peer_impl"].startswith("opencl:")


@DEVICES
def test_a_tuned_row_has_the_figures_without_the_table(monkeypatch):
    from dnncore_opencl.gemm.tuned import parameters
    from dnncore_opencl.runtime.engine import OpenCLEngine

    from benchmarks.measuring.trials import OneChoice
    from benchmarks.tune_opencl import Search
    from dnncore.selection import ranking

    def forget():
        ranking.forget()
        dnn.cache.primitives.clear()

    p = replace(problem(CONVOLUTION), impl="opencl:tiled*")
    family = Search(p, "opencl:0", "tiled", varied=False).family
    other = parameters(replace(family, tiles=family.tiles[:1])) | {"parts": 2}
    for found, is_tuned in ((other, True), (None, False)):
        forget()
        monkeypatch.setattr(OpenCLEngine, "tuning_table", lambda *_, f=found: OneChoice(f))
        outcome = contest.measure(p, ["cpu"], Terms("opencl:0"), samples=1)
        assert ("untuned_ms" in outcome) == is_tuned, outcome
    forget()


@pytest.mark.peer
def test_torch_without_cuda_gives_the_reason():
    import torch

    if torch.cuda.is_available():
        pytest.skip("it has CUDA")
    outcome = contest.measure(problem(CONVOLUTION), ["cudnn", "torch-cuda"])
    assert "cudnn: this torch has no CUDA device" in outcome["left_out"]


# -- the document ----------------------------------------------------------------------------------


def _row(text, ratio, **more):
    row = {
        "problem": text, "impl": "ours", "peer": "cudnn", "peer_impl": "theirs", "ratio": ratio,
        "ours_ms": 1.0, "peer_ms": ratio, "error": 1e-7, "ours_error": 1e-7, "peer_error": 2e-7,
        "share": None, "device": "a GPU", "driver": "1.0", "cores": False, "date": "2026-01-02",
        "versions": ["torch 2"],
    }  # fmt: skip
    for who in ("ours", "peer"):
        row |= {f"{who}_gflops": 9.0, f"{who}_gbps": 3.0, f"{who}_scratchpad": 0}
    return row | more


def _goals(values, tmp_path):
    devices = gpu_document.devices(values)
    text = gpu_document.write(list(devices.values()), tmp_path / "gpu.md").read_text()
    rows = {line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("|")}
    return text, rows


def test_the_document_has_the_newest_figures_of_each_device(tmp_path):
    line, on_cores = GPU_LINES[0], PORTABLE_LINES[0]
    first, second = map(str, problems_of(line, full=True)[:2])
    small = str(problems_of(on_cores, full=True)[0])
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.put("a", _row(first, 0.5))
    ledger.put("z", _row(small, 0.6, device="a CPU", cores=True))
    ledger.put("b", _row(second, 1.5))
    ledger.put("c", _row(first, 2.0, ours_error=1.5e-7, date="2026-02-03"))
    text, rows = _goals(Ledger(tmp_path / "ledger.jsonl").values(), tmp_path)
    assert text.index("## a GPU") < text.index("## a CPU")
    assert "from 2026-01-02 to 2026-02-03" in text
    errors = "1.2e-07, 2.0e-07; larger in 0 of 2"
    assert f"| 1.73 | 1.50 |  | {errors} |" in rows[line.title]
    assert rows[line.title].endswith("| 2 of 58, 56 not measured | holds so far |")
    assert rows[on_cores.title].endswith("| 1 of 20, 19 not measured | holds so far |")
    ledger.keep_newest("device", "problem")
    assert ledger.keys() == ["z", "b", "c"]
    assert _goals(ledger.values(), tmp_path)[0] == text


@pytest.mark.parametrize(
    ("index", "worse"),
    [(0, {"ratio": 0.7}), (0, {"ours_error": 6e-7}), (0, {"ours_error": 2.1e-7}),
     (6, {"share": 0.9}),
     (10, {"ours_gflops": 3e4}), (0, {"wrong": "by far"}),
     (0, {"left_out": "dnncore: too hard", "refused": True})],
)  # fmt: skip
def test_a_missed_goal_is_reported(tmp_path, index, worse):
    line = GPU_LINES[index]
    texts = [str(p) for p in problems_of(line, full=True)[:4]]
    good = {"share": 1.0, "ours_gflops": 5e4}
    values = [_row(text, 9.0, **good) for text in texts]
    assert _goals(values, tmp_path)[1][line.title].split("|")[-2].startswith(" holds")
    values[-1] = values[-1] | worse
    if "wrong" in worse or "left_out" in worse:
        del values[-1]["ratio"]
    verdict = _goals(values, tmp_path)[1][line.title].split("|")[-2].strip()
    assert verdict in ("**missed**", "**1 wrong**")


def test_figures_without_the_table_have_columns(tmp_path):
    texts = [str(p) for p in problems_of(GPU_LINES[0], full=True)[:2]]
    tuned = {"untuned_ms": 1.25, "untuned_ratio": 1.6, "untuned_impl": "ours"}
    text, rows = _goals([_row(texts[0], 2.0, **tuned), _row(texts[1], 1.6)], tmp_path)
    assert "| 1.79 | 1.60 | 1.60 |" in rows[GPU_LINES[0].title]
    assert "| 2.00 | 1.250 | 1.60 |" in text
    assert "| 1.60 |  |  |" in text
    assert "2 rows are older than the second comparison" in text
    assert "are older" not in _goals([_row(texts[0], 2.0, verified=2)], tmp_path)[0]


def test_backends_that_are_not_installed_are_registered(monkeypatch):
    from benchmarks.measuring import checkout

    registered = []
    monkeypatch.setattr(dnn, "backends", list)
    monkeypatch.setattr(dnn, "register", registered.append)
    checkout._register_missing.__wrapped__()
    assert {module.__name__ for module in registered} >= {"dnncore_reference", "dnncore_cpu_numba"}
