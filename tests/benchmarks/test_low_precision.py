"""The benchmark of types: its groups of problems, and its page."""

import json

import pytest

pytest.importorskip("benchmarks.low_precision", exc_type=ImportError)

from benchmarks import low_precision
from benchmarks.problems import type_lines
from dnncore.problem import read


def test_each_group_has_problems_of_its_types():
    groups = type_lines.cpu_lines(seed=3)
    assert len({group.title for group in groups}) == len(groups)
    for group in groups:
        types = group.title.split()[0]
        for problem in group.problems:
            found = {desc.data_type for _, desc in problem.op.tensors()}
            expected = {"int8": "s8", "bf16": "bf16"}.get(types)
            assert expected in found if expected else found & {"s4", "u4"}
            assert ("scales" in problem.attr.words) == (types != "bf16")


def test_the_same_problem_in_f32():
    (problem,) = read(
        "--matmul --dt=u8:s8:u8 --attr-scales=src:0+wei:2 --attr-post-ops=relu 3x4:4x5"
    )
    assert str(type_lines.in_f32(problem)) == "--matmul --attr-post-ops=relu 3x4:4x5"


def test_each_group_of_a_gpu_has_problems_of_its_types():
    groups = type_lines.gpu_lines(seed=3)
    assert len({group.title for group in groups}) == len(groups)
    for group in groups:
        assert group.problems
        (data_type,) = {"f16", "bf16", "s8", "f32"} & set(group.title.split(" over ")[0].split())
        for problem in group.problems:
            found = {desc.data_type for _, desc in problem.op.tensors()}
            assert found == {data_type} | ({"s32"} if data_type == "s8" else set())
            assert len(type_lines.variants(group, problem)) == max(1, len(group.formats))


def test_the_fastest_format_of_each_side_counts():
    (problem,) = read("--conv --dt=f16 g4mb1ic4oc4ih5oh5kh3ph1")
    line = type_lines.TypesLine("t", None, None, [problem], ("cpu",), type_lines.ORDERS)
    rows = [
        {"problem": str(own), "impl": "a", "peer": "cpu", "peer_impl": name, "ours_ms": ours,
         "peer_ms": theirs, "ratio": theirs / ours}
        for own, name, ours, theirs in zip(type_lines.variants(line, problem), ("b", "c"),
                                           (1.0, 2.0), (8.0, 3.0), strict=True)
    ]  # fmt: skip
    found = low_precision.best(rows)
    assert found["problem"] == rows[0]["problem"]
    assert (found["peer_impl"], found["ratio"]) == ("c", 3.0)
    wrong = {"problem": "p", "wrong": "differs"}
    assert low_precision.best([rows[0], wrong]) == wrong
    absent = {"problem": "p", "left_out": "no such format"}
    assert low_precision.best([absent, rows[0]])["ratio"] == 8.0
    assert low_precision.best([absent, absent]) == absent


@pytest.mark.parametrize("engine", ["cpu", "opencl:0"])
def test_the_page_is_that_of_its_ledger(engine):
    record = json.loads(low_precision.ledger_of(engine).read_text())
    assert low_precision.page_of(engine).read_text() == low_precision.page(record)


def test_the_page_has_means_goals_and_what_is_left_out():
    rows = [
        {"problem": "--matmul 3x4:4x5", "impl": "a", "peer": "f32", "peer_impl": "b",
         "ours_ms": 1.0, "peer_ms": ms, "ratio": ms} for ms in (2.0, 8.0)
    ]  # fmt: skip
    rows.append({"problem": "--matmul 3x4:4x6", "left_out": "no types"})
    line = {"title": "t", "threads": 1, "seed": 1, "goal": 2.5, "least": None, "rows": rows,
            "date": "2026-11-27"}  # fmt: skip
    machine = {"system": "Linux", "versions": "v", "device": "d"}
    page = low_precision.page({"machine": machine, "lines": {"t, 1 thread": line}})
    assert "| t, 1 thread | 2, 1 left out | 4.00 | 2.00 | >= 2.5 | 2026-11-27 |" in page
    assert "| `--matmul 3x4:4x6` |  |  | no types |  |  |" in page
    assert "--line=t$' --threads=1 --seed=1" in page


def test_a_missed_goal_has_a_reason():
    line = {"title": "portable f16 matmul over f32", "goal": 1.5, "least": None}
    rows = [{"problem": "--matmul 3x4:4x5", "ratio": 1.4}]
    assert "compute in f32" in low_precision.why_missed(line | {"rows": rows})
    assert not low_precision.why_missed(line | {"rows": [rows[0] | {"ratio": 1.6}]})
    assert not low_precision.why_missed(line | {"title": "another", "rows": rows})


@pytest.mark.parametrize("weights", ["ab", "ba"])
def test_torch_computes_products_of_integers(weights):
    by_torch = pytest.importorskip("benchmarks.contestants.by_torch", exc_type=ImportError)
    text = f"--matmul --dt=s8:s8:s32 --stag=ab --wtag={weights} --dtag=ab 24x16:16x32"
    (problem,) = read(text)
    calls = [by_torch.call_of(problem, by_torch.Place(exact=exact)) for exact in (False, True)]
    for call in calls:
        call.run()
    got, expected = (call.outputs()["dst"] for call in calls)
    assert got.dtype == "int32"
    assert (got == expected).all()
    (biased,) = read(text.replace("--stag", "--bia-dt=s32 --stag"))
    with pytest.raises(by_torch.LeftOut):
        by_torch.call_of(biased, by_torch.Place())
