"""OpenCL refuses the post-ops and algorithms that it has no code for, in every implementation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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


def unknown(engine: dnn.Engine, attr: Attributes) -> set[str]:
    """The implementations that accept small problems, and refuse these with `attr` as unknown."""
    names = set()
    for op in OPERATIONS:
        able = {name for name, answer in answers(engine, op, Attributes()) if _accepts(answer)}
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
    assert unknown(engine, Attributes(post_ops=(step,)))


@pytest.mark.parametrize("place", range(3))
def test_implementations_for_gpus_refuse_unknown_post_ops(gpu, monkeypatch, place):
    step = post_ops(monkeypatch)[place]
    assert any("tiled" in name for name in unknown(gpu, Attributes(post_ops=(step,))))


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
