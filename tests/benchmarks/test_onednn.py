"""oneDNN and the reference agree on every operation: the wrapper translates, and both are right."""

from __future__ import annotations

import pytest
from problems import KINDS, inputs_of, problems, retyped

import dnncore as dnn
from benchmarks.contestants.onednn import OPERATIONS, OneDnnError, Peer, Unsupported
from dnncore.comparison.compare import expected_outputs
from dnncore.comparison.fills import fill_normal, reads

pytestmark = pytest.mark.peer

NOT_IN_3_2 = (dnn.GroupNormalizationForward, dnn.GroupNormalizationBackward)
SERVED = [kind for kind in KINDS if kind in OPERATIONS and kind not in NOT_IN_3_2]
ENOUGH = 30  # compared problems of an operation
DRAWN = 400
FEW = 40  # problems in bf16, if oneDNN computes none of them here
PRECISION = 5e-6  # norm-wise: oneDNN's logarithms have errors up to 2e-6


@pytest.fixture(scope="module")
def peer() -> Peer:
    return Peer()


def agree(peer, op, attr, inputs, precision=PRECISION):
    expected = expected_outputs(op, attr, inputs)
    for name, values in peer.outputs(op, attr, inputs).items():
        result = expected[name].check(values)
        assert result.ok or result.error <= precision, f"{op}: {name}: {result}"


def tame_problems(kind):
    """Problems that oneDNN 3.2 computes rightly, without damage to memory.

    Tensors have no offsets, no gaps, at most six dims and three blocks, of 4, 8, 16 or 32 or of
    pairs. They are not empty. Tensors of softmax and of layer normalization have one format. The
    mask of a fused relu is private.
    """
    for op in problems(kind, DRAWN):
        descs = [desc for _, desc in op.tensors()]
        is_dense = all(d.is_any or d == d.with_format(d.order_tag) for d in descs)
        formats = {d.order_tag for d in descs if not d.is_any}
        is_usual = all(
            d.ndims <= 6
            and len(d.inner_blocks) <= 3
            and all(size in (2, 4, 8, 16, 32) for _, size in d.inner_blocks)
            for d in descs
        )
        is_mixed = len(formats) > 1 if kind is dnn.SoftmaxBackward else _changes_format(op)
        is_private = getattr(op, "fuse_relu", False) and op.forward_op is not None
        if is_dense and is_usual and not (is_mixed or is_private) and all(d.nelems for d in descs):
            yield op


def _changes_format(op):
    """Whether tensors of a layer normalization with src's dims have several formats."""
    if not isinstance(op, dnn.LayerNormalizationForward | dnn.LayerNormalizationBackward):
        return False
    same = [d for _, d in op.tensors() if d.dims == op.src.dims and not d.is_any]
    return len({d.order_tag for d in same}) > 1


@pytest.mark.parametrize("kind", SERVED, ids=lambda kind: kind.__name__)
def test_the_reference_agrees_with_onednn(peer, kind):
    compared = 0
    for op in tame_problems(kind):
        try:
            agree(peer, op, dnn.Attributes(), inputs_of(op))
        except OneDnnError:  # some gradients of inner products fail in oneDNN 3.2
            continue
        compared += 1
        if compared == ENOUGH:
            break
    assert compared >= 5  # oneDNN has no select, few reorders between integers, few private masks


@pytest.mark.parametrize("kind", SERVED, ids=lambda kind: kind.__name__)
def test_the_reference_agrees_with_onednn_in_bf16(peer, kind):
    """Operations that oneDNN computes in bf16 here. It rounds partial sums of pooling gradients."""
    tolerance = 5e-3 if kind is dnn.PoolingBackward else PRECISION
    compared = 0
    for tried, op in enumerate(retyped(op, "bf16") for op in tame_problems(kind)):
        if tried == FEW and not compared:
            break
        if op.data_type != "bf16" or getattr(op, "function", "") == "round":  # oneDNN has it in f32
            continue
        try:
            agree(peer, op, dnn.Attributes(), inputs_of(op), tolerance)
        except OneDnnError:
            continue
        compared += 1
        if compared == ENOUGH:
            break
    if not compared:
        pytest.skip("oneDNN does not compute in bf16 here")


def image(dims=(2, 16, 8, 8), tag="any"):
    return dnn.MemoryDesc(dims, "f32", tag)


def convolution(tag="any"):
    weights = image((16, 16, 3, 3))
    return dnn.ConvolutionForward(
        "forward_training", src=image(), weights=weights, dst=image(tag=tag), padding_l=1
    )


CHAINS = {
    "eltwise": [dnn.PostOp.eltwise("clip", -0.5, 1.0), dnn.PostOp.eltwise("linear", 2.0, 1.0)],
    "sum": [dnn.PostOp.sum(0.5), dnn.PostOp.eltwise("relu")],
    "binary": [dnn.PostOp.binary("mul", image((1, 16, 1, 1), "abcd"))],
    "prelu": [dnn.PostOp.prelu(image((1, 16, 1, 1), "abcd"))],
    "two operands": [
        dnn.PostOp.binary("add", image((1, 16, 1, 1), "abcd")),
        dnn.PostOp.prelu(image((1, 16, 1, 1), "abcd")),
    ],
}


@pytest.mark.parametrize("name", CHAINS)
def test_post_ops_are_translated(peer, name):
    op, attr = convolution("abcd"), dnn.Attributes(post_ops=CHAINS[name])
    inputs = {n: fill_normal(desc, i) for i, (n, desc) in enumerate(reads(op, attr).items())}
    agree(peer, op, attr, inputs)


def test_a_user_scratchpad_is_an_argument(peer):
    attr = dnn.Attributes(scratchpad="user")
    assert "scratchpad" not in peer.primitive(convolution("abcd")).descs
    assert peer.primitive(convolution("abcd"), attr=attr).descs["scratchpad"].data_type == "u8"
    op = convolution("abcd")
    inputs = {n: fill_normal(desc, i) for i, (n, desc) in enumerate(reads(op, attr).items())}
    agree(peer, op, attr, inputs)


@pytest.mark.parametrize("tag", ["abcd", "acdb", "aBcd8b", "aBcd16b", "ABcd16b16a"])
def test_layouts_are_converted_both_ways(peer, tag):
    desc = dnn.MemoryDesc((32, 24, 3, 1), "f32", tag)
    assert peer.layouts.desc(peer.layouts.md(desc).handle.value) == desc


def test_unknown_names_are_refused(peer):
    desc = image(tag="abcd")
    select = dnn.Binary("select", src0=desc, src1=desc, src2=desc.with_data_type("s8"), dst=desc)
    for op, attr in [
        (select, dnn.Attributes()),
        (convolution(), dnn.Attributes(deterministic=True)),
    ]:
        with pytest.raises(Unsupported):
            peer.primitive(op, attr=attr)


def test_copies_with_more_loops_than_onednn_has_are_refused(peer):
    blocks = "2a2b2a2b2a2b2a2b2a"  # 9 blocks and 3 dims are 12 loops
    for text, works in [(f"ABc{blocks}", True), (f"ABc{blocks}2b", False)]:
        src, dst = dnn.MemoryDesc((40, 20, 2)), dnn.MemoryDesc((40, 20, 2), format=text)
        for op in (dnn.Reorder(src=src, dst=dst), dnn.Sum(srcs=[src], scales=[2.0], dst=dst)):
            if works:
                assert peer.primitive(op)
                continue
            with pytest.raises(Unsupported, match="12 loops"):
                peer.primitive(op)


def test_wrong_arguments_are_refused(peer):
    primitive = peer.primitive(convolution("abcd"))
    memories = {name: peer.memory(desc) for name, desc in primitive.descs.items()}
    with pytest.raises(TypeError, match="takes src, weights, dst; got src"):
        primitive.bind(src=memories["src"])
    memories["dst"] = peer.memory(image(tag="acdb"))
    with pytest.raises(TypeError, match="dst must be"):
        primitive.bind(**memories)
