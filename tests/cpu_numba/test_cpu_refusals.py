"""Problems that the CPU backend refuses, and its reasons."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("numba")

from dnncore_cpu_numba.codegen.isa import DOT_ISAS
from dnncore_cpu_numba.elementwise.chains import MAX_TENSORS
from dnncore_cpu_numba.gemm.tile_loop import MOST_OPERANDS

import dnncore as dnn
from dnncore.problem import read

CPU = dnn.engine("cpu")
DESC = dnn.MemoryDesc((2, 8, 3, 3))
OPAQUE = dnn.MemoryDesc(DESC.dims, "f32", "some:format", nbytes=4096)
PLACES = "shape: has tables of up to 16777216 places along a dim; got 16777217"


def refusals(op, attr=None):
    """The reason of each implementation by its name; all refuse."""
    with pytest.raises(dnn.NoImplementation) as caught:
        dnn.PrimitiveDesc(op, CPU, attr, impl="cpu_numba:*")
    return {r.impl_name: str(r) for r in caught.value.refusals if r.kind != "filter"}


@pytest.mark.parametrize(
    ("text", "reason"),
    {
        "--conv ic1oc1_iw20000kw16385": "shape: takes up to 16384 taps; got (16385,)",
        "--conv ic1oc1_iw16777217kw1": PLACES,
        "--lrn --alg=ACROSS ic16777217ih1": PLACES,
        "--lrn --alg=ACROSS ic1100ih1ls2101": "sums up to 1024 places along an axis; got 1100",
        "--pool --alg=max ic1_iw16777217ow16777216kw2": PLACES,
        "--softmax --axis=1 1x16777217": PLACES,
    }.items(),
)
def test_long_dims(text, reason):
    (problem,) = read(text)
    reasons = refusals(problem.op)
    assert any(reason in own for own in reasons.values()), reasons


def steps(count):
    """So many post-ops with an operand each."""
    return dnn.Attributes([dnn.PostOp.binary("add", dnn.MemoryDesc((1, 1, 1, 1)))] * count)


def test_more_tensors_than_a_thread_has_room_for():
    relu = dnn.EltwiseForward("forward_inference", "relu", src=DESC, dst=DESC)
    binary = dnn.Binary("add", src0=DESC, src1=DESC, dst=DESC)
    most = MAX_TENSORS - 2
    assert dnn.PrimitiveDesc(relu, CPU, steps(most), impl="cpu_numba:*")
    (reason,) = refusals(relu, steps(most + 1)).values()
    assert f"attribute: takes up to {most} post-op operands; got {most + 1}" in reason
    (reason,) = refusals(binary, steps(most)).values()
    assert f"attribute: takes up to {MAX_TENSORS} tensors; got {MAX_TENSORS + 1}" in reason


def test_more_operands_than_a_product_reads():
    product = dnn.MatMul(src=DESC, weights=DESC, dst=DESC)
    count = MOST_OPERANDS // 2  # each is an operand and a step
    reasons = refusals(product, steps(count))
    wanted = f"{2 * count} operands and steps; fewer than {MOST_OPERANDS} do"
    assert reasons
    names = (*(isa.name for isa in DOT_ISAS), ":gemm")  # they refuse the types first
    reasons = {name: own for name, own in reasons.items() if not name.endswith(names)}
    reasons = {name: own for name, own in reasons.items() if ": device: " not in own}
    assert all(wanted in own for own in reasons.values()), reasons


def test_layouts_without_strides():
    relu = dnn.EltwiseForward("forward_inference", "relu", src=DESC, dst=DESC)
    (reason,) = refusals(replace(relu, src=OPAQUE)).values()
    assert "format: needs formats made of strides; got some:format" in reason
