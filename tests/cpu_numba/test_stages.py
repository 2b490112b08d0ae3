"""The CPU backend's stages: which algorithms there are, and that LLVM made vector code of them."""

from __future__ import annotations

import itertools
import re

import checks
import numpy as np
import pytest
from checks import Target, check

pytest.importorskip("numba")

from dnncore_cpu_numba import eltwise
from dnncore_cpu_numba.elementwise import algorithms
from dnncore_cpu_numba.elementwise.chains import MAX_TENSORS
from dnncore_cpu_numba.elementwise.post_ops import UnknownAlgorithm, binary, refuse_unknown
from dnncore_cpu_numba.elementwise.post_ops import eltwise as eltwise_stage
from dnncore_cpu_numba.runtime import tensor
from dnncore_cpu_numba.softmax import implementations as softmax

import dnncore as dnn
from dnncore.algorithms.binary import BINARY
from dnncore.algorithms.eltwise import ELTWISE
from dnncore.algorithms.post_ops import POST_OPS
from dnncore.algorithms.reduction import REDUCTION
from dnncore.backend import PostOp, Refused
from dnncore.ops import pooling
from dnncore.ops import softmax as softmax_of_core

TABLES = (
    algorithms.ELTWISE,
    algorithms.SLOPES,
    algorithms.SLOPES_OF_DST,
    algorithms.BINARY,
    algorithms.POWERS,
    {"add_scaled": algorithms.ADD_SCALED, "prelu": algorithms.PRELU, "select": algorithms.SELECT},
)
STAGES = [task for table in TABLES for task in table.values()]
CPU = Target("cpu", "cpu", skip_impl="reference:*")


def test_every_algorithm_has_a_stage():
    assert {*algorithms.ELTWISE} - {"relu_0"} == {*ELTWISE}
    assert {*algorithms.SLOPES} == {name for name, a in ELTWISE.items() if a.slope}
    assert {*algorithms.SLOPES_OF_DST} == {name for name, a in ELTWISE.items() if a.slope_of_dst}
    assert {*algorithms.BINARY, "select"} == {*BINARY}


@pytest.mark.parametrize("stage", STAGES, ids=lambda task: task.name)
def test_stages_are_vector_code_without_calls(stage):
    text = stage.llvm_text("stage")
    assert re.search(r"store <\d+ x float>", text)
    called = set(re.findall(r"call [^@\n]*@([\w.]+)", text))
    assert {name for name in called if not name.startswith("llvm.")} == set()


@pytest.mark.parametrize("stage", STAGES[::10], ids=lambda task: task.name)
def test_streamed_twins_store_whole_lines(stage):
    text = algorithms.STREAMED[stage].llvm_text("twin")
    stores = re.findall(r"store <(\d+) x \w+>.*", text)
    streamed = re.findall(r"store <16 x float>.*align 64.*!nontemporal", text)
    assert 0 < len(streamed) < len(stores)  # the others are those of the chunk


@pytest.mark.parametrize("shift", [0, 16])
@pytest.mark.parametrize("dims", [(64,), (3, 1000), (9, 7, 333), (2, 20, 8, 8)])
def test_streamed_results(dims, shift, monkeypatch):
    """Every kind of stage, with whole chunks and rests, in one loop and in tiles, in place too."""
    monkeypatch.setattr(checks, "shift", shift)  # 0: what is written are whole lines
    monkeypatch.setattr(tensor, "STREAM_RESULT_BYTES", 0)
    desc = dnn.MemoryDesc(dims, "f32", "aBcd16b" if len(dims) == 4 else None)
    row = dnn.MemoryDesc((1, *dims[1:]))
    either = dnn.MemoryDesc(dims, "s8")
    forward = dnn.EltwiseForward("forward_inference", "linear", alpha=1.5, src=desc, dst=desc)
    backward = dnn.EltwiseBackward("square", diff_src=desc, diff_dst=desc, src=desc)
    for op in (
        forward, backward, dnn.Sum((1.0, 2.5), srcs=(desc, desc), dst=desc),
        dnn.Sum((1.0,), srcs=(desc,), dst=desc),  # a copy, without a stage
        dnn.Binary("sub", src0=desc, src1=row, dst=desc),
        dnn.Binary("select", src0=desc, src1=desc, src2=either, dst=desc),
    ):  # fmt: skip
        check(CPU, op)
    check(CPU, forward, in_place=("src", "dst"))
    check(CPU, forward, dnn.Attributes([dnn.PostOp.binary("add", row), dnn.PostOp.sum(2.0)]))
    check(CPU, forward, dnn.Attributes([dnn.PostOp.eltwise("abs"), dnn.PostOp.binary("add", row)]))
    for weights in (desc, row, dnn.MemoryDesc((1,) * len(dims))):
        prelu = dict.fromkeys(("src", "diff_dst", "diff_src"), desc)
        gradient = dnn.PReLUBackward(**prelu, weights=weights, diff_weights=weights)
        check(CPU, gradient)
    check(CPU, gradient, in_place=("diff_dst", "diff_src"))
    offset = dnn.MemoryDesc(dims, strides=desc.strides, offset0=3) if desc.is_plain else desc
    check(CPU, dnn.EltwiseForward("forward_inference", "abs", src=desc, dst=offset))


@pytest.mark.parametrize("repeated", [(0, 1), (1, 0), (0, 0)])
@pytest.mark.parametrize("dst", [(64, 2), (64, 1), (1, 8), (16, 1)])
def test_copies_of_repeated_rows_and_columns_into_any_layout(repeated, dst):
    src, dst = (dnn.MemoryDesc((8, 16), strides=strides) for strides in (repeated, dst))
    values = np.arange(16, dtype=np.float32)
    x, y = dnn.Memory(src, CPU.engine, dnn.Memory.from_numpy(values).buffer), dnn.Memory(dst)
    pd = dnn.PrimitiveDesc(dnn.Sum((1.0,), srcs=(src,), dst=dst), CPU.engine, impl="cpu_numba:*")
    pd.primitive().execute(CPU.engine.stream(), src0=x, dst=y).wait()
    rows, columns = (np.arange(n) * step for n, step in zip(src.dims, repeated, strict=True))
    np.testing.assert_array_equal(y.numpy(), values[np.add.outer(rows, columns)])


@pytest.mark.parametrize("dims", [(3, 40), (5, 1000), (3, 1 << 15), (2, (1 << 15) + 21)])
@pytest.mark.parametrize("algorithm", ["accurate", "log"])
def test_streamed_softmax(dims, algorithm, monkeypatch):
    monkeypatch.setattr(softmax, "STREAM_BYTES", 0)
    desc = dnn.MemoryDesc(dims)
    op = dnn.SoftmaxForward("forward_inference", algorithm, axis=1, src=desc, dst=desc)
    check(CPU, op)
    check(CPU, op, in_place=("src", "dst"))
    gradient = dnn.SoftmaxBackward(algorithm, axis=1, diff_src=desc, diff_dst=desc, dst=desc)
    check(CPU, gradient)


def test_unknown_algorithms_are_refused_never_taken_for_others():
    with pytest.raises(UnknownAlgorithm, match="'sine'"):
        eltwise_stage("sine")
    with pytest.raises(UnknownAlgorithm, match="'hypot'"):
        binary("hypot", 2)
    unknown = PostOp.eltwise("exp")
    object.__setattr__(unknown, "algorithm", "sine")  # as a later version of the core may have it
    refusal = refuse_unknown([PostOp.sum(), unknown])
    assert isinstance(refusal, Refused)
    assert refusal.kind == "attribute"
    desc = dnn.MemoryDesc((2, 3))
    op = dnn.EltwiseForward("forward_inference", "relu", src=desc, dst=desc)
    attr = dnn.Attributes([unknown])
    assert isinstance(eltwise.FORWARD[0].accept(op, attr, dnn.engine("cpu"), None), Refused)
    product = dnn.MatMul(src=dnn.MemoryDesc((2, 2)), weights=dnn.MemoryDesc((2, 3)), dst=desc)
    assert not list(dnn.primitive_descs(product, dnn.engine("cpu"), attr, impl="cpu_numba:*"))


def _refusals(op, attr=None, impl="cpu_numba:*"):
    """The kinds of the reasons of these implementations, each of which refuses."""
    with pytest.raises(dnn.NoImplementation) as caught:
        dnn.PrimitiveDesc(op, dnn.engine("cpu"), attr, impl=impl)
    return {refusal.kind for refusal in caught.value.refusals} - {"filter"}


def test_new_algorithms_of_the_core_are_refused(monkeypatch):
    monkeypatch.setitem(ELTWISE, "new", ELTWISE["mish"])
    monkeypatch.setitem(BINARY, "new", BINARY["add"])
    monkeypatch.setattr(pooling, "ALGORITHMS", (*pooling.ALGORITHMS, "new"))
    monkeypatch.setattr(softmax_of_core, "ALGORITHMS", (*softmax_of_core.ALGORITHMS, "new"))
    monkeypatch.setitem(REDUCTION, "new", REDUCTION["mean"])
    monkeypatch.setitem(REDUCTION, "new_power_p", REDUCTION["norm_lp_power_p_max"])
    desc, row = dnn.MemoryDesc((2, 3)), dnn.MemoryDesc((1, 3))
    image = dnn.MemoryDesc((2, 3, 4, 4))
    for op in (
        dnn.EltwiseForward("forward_inference", "new", src=desc, dst=desc),
        dnn.EltwiseBackward("new", src=desc, diff_dst=desc, diff_src=desc),
        dnn.Binary("new", src0=desc, src1=desc, dst=desc),
        dnn.Reduction("new", src=desc, dst=row),
        dnn.SoftmaxForward("forward_inference", "new", axis=1, src=desc, dst=desc),
        dnn.PoolingForward("forward_inference", "new", src=image, dst=image, kernel=(1, 1)),
        dnn.Reduction("new_power_p", src=desc, dst=row),
    ):
        assert _refusals(op) == {"algorithm"}


def test_new_post_ops_of_the_core_are_refused(monkeypatch):
    monkeypatch.setitem(POST_OPS, "new", POST_OPS["prelu"])
    monkeypatch.setitem(ELTWISE, "new", ELTWISE["mish"])
    monkeypatch.setitem(BINARY, "new", BINARY["add"])
    image, one = dnn.MemoryDesc((2, 3, 4, 4)), dnn.MemoryDesc((1, 1, 1, 1))
    filters = dnn.MemoryDesc((3, 3, 1, 1))
    forward, window = "forward_inference", {"kernel": (1, 1), "src": image, "dst": image}
    operations = (
        dnn.EltwiseForward(forward, "relu", src=image, dst=image),
        dnn.Binary("add", src0=image, src1=image, dst=image),
        dnn.Sum((1.0, 1.0), srcs=(image, image), dst=image),
        dnn.Reorder(src=image, dst=image.with_format("acdb")),
        dnn.SoftmaxForward(forward, "log", axis=1, src=image, dst=image),
        dnn.LRNForward(forward, "across_channels", src=image, dst=image),
        dnn.Reduction("sum", src=image, dst=one),
        dnn.PoolingForward(forward, "max", **window),
        dnn.MatMul(src=image, weights=image, dst=image),
        dnn.ConvolutionForward(forward, src=image, weights=filters, dst=image),
    )
    steps = PostOp("new", weights=one), PostOp.eltwise("new"), PostOp.binary("new", one)
    for op, step in itertools.product(operations, steps):
        kinds = _refusals(op, dnn.Attributes([step]))
        assert "attribute" in kinds
        assert "failed" not in kinds
        assert _refusals(op, dnn.Attributes([step]), "reference:*") == {"attribute"}


@pytest.mark.parametrize("count", [MAX_TENSORS - 1, MAX_TENSORS, 2 * MAX_TENSORS])
def test_sums_of_many_tensors(count):
    """Where a chain has no room for more, it goes on from dst."""
    desc = dnn.MemoryDesc((2, 5, 3), "f32", "aBc4b")
    op = dnn.Sum(tuple(1.0 + i % 3 for i in range(count)), srcs=(desc,) * count, dst=desc)
    check(CPU, op)
    check(CPU, op, in_place=("src0", "dst"))
    scale = dnn.MemoryDesc((1, 5, 1))
    check(CPU, op, dnn.Attributes([PostOp.sum(2.0), PostOp.binary("mul", scale)]))


def test_chains_of_many_operands_and_calls():
    """More than a register tile or a thread's buffers hold."""
    desc = dnn.MemoryDesc((5, 40))
    op = dnn.MatMul(src=dnn.MemoryDesc((5, 7)), weights=dnn.MemoryDesc((7, 40)), dst=desc)
    row = dnn.MemoryDesc((1, 40))
    attr = dnn.Attributes([PostOp.binary("max", row), PostOp.eltwise("mish")] * 30)
    check(CPU, op, attr)


@pytest.mark.parametrize("tag", ["ab", "ba", "aB8b", "BA8b16a", "Ab16a"])
def test_conditions_of_products_in_any_format(tag):
    """They are copied into rows of float32; 17 columns are two blocks and one more."""
    desc = dnn.MemoryDesc((16, 17))
    op = dnn.MatMul(src=dnn.MemoryDesc((16, 3)), weights=dnn.MemoryDesc((3, 17)), dst=desc)
    condition = dnn.MemoryDesc(desc.dims, "s8", tag)
    check(CPU, op, dnn.Attributes([PostOp.binary("select", desc, condition)]))


def test_a_condition_is_true_wherever_it_is_not_zero():
    desc, condition = dnn.MemoryDesc((4,)), dnn.MemoryDesc((4,), "s8")
    op = dnn.Binary("select", src0=desc, src1=desc, src2=condition, dst=desc)
    inputs = {
        "src0": np.array([1, np.nan, 3, 4], np.float32),
        "src1": np.array([np.nan, 6, np.inf, 8], np.float32),
        "src2": np.array([-128, 0, 127, 0], np.int8),
    }
    check(CPU, op, inputs=inputs)
