"""OpenCL refuses the post-ops and algorithms that it has no code for, in every implementation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import TARGETS

import dnncore as dnn
from dnncore.algorithms.binary import BINARY
from dnncore.algorithms.eltwise import ELTWISE, USE_DST
from dnncore.algorithms.post_ops import POST_OPS
from dnncore.algorithms.reduction import REDUCTION
from dnncore.backend import Accepted, Attributes, Operation, PostOp, Refused
from dnncore.selection.plugins import registry
from dnncore.testing.problems.cases import cases

OPENCL = [target for target in TARGETS if target.engine_name.startswith("opencl")]
ROWS = dnn.MemoryDesc((2, 3))
OPERATIONS = [problem.op for problem in cases("smoke", more=False)]
SUMS = dnn.MemoryDesc((2, 1))


@pytest.fixture(params=OPENCL, ids=str)
def engine(request) -> dnn.Engine:
    """Each device."""
    return request.param.engine


@pytest.fixture
def gpu(engine, planned_for_gpus) -> dnn.Engine:
    """Each device, with implementations as for a GPU."""
    return engine


def add(monkeypatch, table: Mapping[Any, Any], like: str) -> str:
    """Add a record, the same as another, until the test ends."""
    monkeypatch.setitem(table, "newest", table[like])
    return "newest"


def answers(
    engine: dnn.Engine, op: Operation, attr: Attributes
) -> Iterator[tuple[str, Accepted | Refused]]:
    """What each implementation says of a problem."""
    for _, implementation in registry.implementations("opencl", type(op)):
        yield implementation.name, implementation.answer(op, attr, engine, None)


def unknown(engine: dnn.Engine, step: PostOp) -> set[str]:
    """The implementations that accept small problems, and refuse these with `step` as unknown."""
    names = set()
    for op in OPERATIONS:
        able = {name for name, answer in answers(engine, op, Attributes()) if _accepts(answer)}
        operand = step.src and dnn.MemoryDesc((1,) * len(op.result.dims))
        attr = Attributes(post_ops=(replace(step, src=operand),))
        for name, answer in answers(engine, op, attr):
            assert isinstance(answer, Refused), f"{name} accepts {op}"
            if name in able:
                assert answer.kind == "attribute", f"{name}: {op}: {answer}"
                names.add(name)
    return names


def _accepts(answer: Accepted | Refused) -> bool:
    return isinstance(answer, Accepted)


def post_ops(monkeypatch) -> list[PostOp]:
    """A step of an unknown kind, and one of each kind that has algorithms with an unknown one."""
    steps = [PostOp(add(monkeypatch, POST_OPS, "sum"))]
    steps.append(PostOp.eltwise(add(monkeypatch, ELTWISE, "square")))
    return [*steps, PostOp.binary(add(monkeypatch, BINARY, "add"), dnn.MemoryDesc((1,)))]


@pytest.mark.parametrize("place", range(3))
def test_all_implementations_refuse_unknown_post_ops(engine, monkeypatch, place):
    step = post_ops(monkeypatch)[place]
    assert unknown(engine, step)


@pytest.mark.parametrize("place", range(3))
def test_implementations_for_gpus_refuse_unknown_post_ops(gpu, monkeypatch, place):
    step = post_ops(monkeypatch)[place]
    assert any("tiled" in name for name in unknown(gpu, step))


def refused_algorithm(engine: dnn.Engine, op: Operation) -> bool:
    """Whether all implementations refuse the operation's algorithm by its name."""
    found = [answer for _, answer in answers(engine, op, Attributes())]
    return all(
        isinstance(answer, Refused) and answer.kind == "algorithm" and "newest" in answer.reason
        for answer in found
    )


def test_an_unknown_eltwise_algorithm_is_refused_forward_and_backward(engine, monkeypatch):
    new = add(monkeypatch, ELTWISE, "tanh")
    forward = dnn.EltwiseForward("forward_training", new, src=ROWS, dst=ROWS)
    backward = dnn.EltwiseBackward(new, src=ROWS, diff_dst=ROWS, diff_src=ROWS)
    from_dst = dnn.EltwiseBackward(new + USE_DST, dst=ROWS, diff_dst=ROWS, diff_src=ROWS)
    assert all(refused_algorithm(engine, op) for op in (forward, backward, from_dst))


def test_an_unknown_binary_algorithm_is_refused(engine, monkeypatch):
    new = add(monkeypatch, BINARY, "add")
    assert refused_algorithm(engine, dnn.Binary(new, src0=ROWS, src1=ROWS, dst=ROWS))


def test_an_unknown_reduction_algorithm_is_refused(engine, monkeypatch):
    new = add(monkeypatch, REDUCTION, "sum")
    assert refused_algorithm(engine, dnn.Reduction(new, src=ROWS, dst=SUMS))


def reasons(engine: dnn.Engine, op: Operation, hint: Any = None) -> set[str]:
    """Why implementations refuse an operation."""
    found = (
        (i.name, i.answer(op, Attributes(), engine, hint))
        for _, i in registry.implementations("opencl", type(op))
    )
    return {f"{name}: {a.kind}: {a.reason}" for name, a in found if isinstance(a, Refused)}


def test_workspaces_of_another_form_are_refused(engine):
    src, dst = dnn.MemoryDesc((1, 8, 4, 4)), dnn.MemoryDesc((1, 8, 2, 2))
    op = dnn.PoolingBackward("max", diff_src=src, diff_dst=dst, kernel=(2, 2), strides=(2, 2))
    lrn = dnn.LRNBackward("across_channels", src=src, diff_dst=src, diff_src=src)
    opaque = dnn.MemoryDesc(dst.dims, "u8", "toy:places", nbytes=64)
    for name, backward, dims, good, bad in (
        ("gather", op, dst.dims, "u8", (dst, src.with_data_type("u8"), opaque)),
        ("direct", lrn, src.dims, "f32", (src.with_data_type("f64"), dst)),
    ):
        for desc in bad:
            found = reasons(engine, backward, SimpleNamespace(workspace_desc=desc))
            refusal = f"the workspace must be {dims} of {good}; got {desc}"
            assert f"opencl:{name}: format: {refusal}" in found
        wanted = dnn.MemoryDesc(dims, good)
        assert not any(
            "workspace" in text
            for text in reasons(engine, backward, SimpleNamespace(workspace_desc=wanted))
        )


def test_f64_is_refused_by_devices_that_lack_it(engine):
    device = SimpleNamespace(extensions="cl_khr_fp16", native_vector_width_float=4)
    without = SimpleNamespace(
        is_cpu=True,
        device=SimpleNamespace(name="Small", limits=engine.device.limits),
        native=SimpleNamespace(device=device),
    )
    desc = dnn.MemoryDesc((4, 6))
    for src, dst in (("f64", "f32"), ("f32", "f64")):
        op = dnn.Reorder(src=desc.with_data_type(src), dst=desc.with_data_type(dst))
        assert (
            "opencl:pointwise: device: Small does not compute in f64 (no cl_khr_fp64)"
            in reasons(without, op)
        )
    desc = desc.with_data_type("f64")
    refusal = "device: Small does not compute in f64 (no cl_khr_fp64)"
    softmax = dnn.SoftmaxForward("forward_inference", "accurate", src=desc, dst=desc, axis=1)
    assert f"opencl:simd: {refusal}" in reasons(without, softmax)


def test_devices_that_cannot_run_groups_or_lack_tensor_cores_are_told(engine, monkeypatch):
    square = dnn.MemoryDesc((64, 64))
    op = dnn.MatMul(src=square, weights=square, dst=square)
    monkeypatch.setitem(engine.device.limits, "compute_capability", (7, 5))
    name = engine.device.name
    text = f"opencl:mma: device: needs compute capability 8.0; {name} has 7.5"
    assert text in reasons(engine, op)
    with monkeypatch.context() as patch:
        patch.setitem(engine.device.limits, "max_work_group", 255)
        text = "opencl:tiled: device: work-groups must have 256 items; got 255"
        assert text in reasons(engine, op)
    monkeypatch.setattr("dnncore_opencl.gemm.tiled.family.miscompiles_barriers", lambda _: True)
    version = engine.device.version
    text = f"opencl:tiled: device: this driver miscompiles barriers in loops: {version}"
    assert text in reasons(engine, op)
