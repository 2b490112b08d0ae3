"""A depthwise convolution as a post-op of a 1x1 convolution."""

import numpy as np
import pytest

import dnncore as dnn
from dnncore.problem import read

DW = dnn.PostOp.depthwise
desc = dnn.MemoryDesc


def conv(src=(2, 3, 5, 5), kernel=(1, 1), oc=4, dst_type="f32", tag="any", groups=1):
    n, ic, *sizes = src
    places = [size - k + 1 for size, k in zip(sizes, kernel, strict=True)]
    weights = (oc, ic, *kernel) if groups == 1 else (groups, oc // groups, ic // groups, *kernel)
    kind = "f32" if dst_type in ("f16", "bf16") else dst_type
    return dnn.ConvolutionForward(
        "forward_inference",
        src=desc(src, "u8" if kind == "s8" else "f32"),
        weights=desc(weights, "s8" if kind == "s8" else "f32"),
        dst=desc((n, oc, *places), kind, tag),
    )


WEIGHTS = desc((4, 1, 1, 3, 3))


def run(engine, op, attr, values):
    pd = dnn.PrimitiveDesc(op, dnn.engine(engine), attr)
    stream = pd.engine.stream()
    memories = {
        a.name: dnn.Memory.from_numpy(values[a.name].astype(d.dtype), d, pd.engine)
        if a.direction == "in"
        else dnn.Memory(d, pd.engine)
        for a, d in pd.arguments
    }
    pd.primitive().execute(stream, **memories)
    return pd, memories["dst"].numpy(stream)


def test_values_by_hand(target):
    """x is 2 * src + 1 after relu; each result is the sum of x in a window of 3, every second."""
    op = dnn.ConvolutionForward(
        "forward_inference",
        src=desc((1, 1, 5)), weights=desc((1, 1, 1)), bias=desc((1,)), dst=desc((1, 1, 5)),
    )  # fmt: skip
    step = DW(desc((1, 1, 1, 3)), desc((1,)), stride=2)
    attr = dnn.Attributes([dnn.PostOp.eltwise("relu"), step, dnn.PostOp.eltwise("linear", 10, 0)])
    values = {
        "src": np.float32([[[0, -9, 1, 2, 3]]]),
        "weights": np.full((1, 1, 1), 2),
        "bias": np.ones(1),
        "post_op_1_weights": np.ones((1, 1, 1, 3)),
        "post_op_1_bias": np.full(1, 100),
    }
    pd, dst = run(target.engine_name, op, attr, values)
    assert pd.dst_desc.dims == (1, 1, 3)
    assert dst.tolist() == [[[1010, 1080, 1120]]]  # x is 1, 0, 3, 5, 7


def test_two_convolutions_agree(target):
    rng = np.random.default_rng(0)
    op = conv(tag="acdb")
    bias, added = desc((4,)), desc((1, 4, 1, 1))
    chain = [DW(WEIGHTS, bias), dnn.PostOp.binary("add", added)]
    shapes = {"src": op.src, "weights": op.weights, "post_op_0_weights": WEIGHTS,
              "post_op_0_bias": bias, "post_op_1_src": added}  # fmt: skip
    values = {name: rng.normal(size=own.dims) for name, own in shapes.items()}
    pd, dst = run(target.engine_name, op, dnn.Attributes(chain), values)
    assert pd.dst_desc.tag == "acdb"
    middle = dnn.functional.conv2d(*(np.float32(values[n]) for n in ("src", "weights")))
    last = dnn.functional.conv2d(
        middle, np.float32(values["post_op_0_weights"]), np.float32(values["post_op_0_bias"]),
        padding=1,
    )  # fmt: skip
    np.testing.assert_allclose(
        dst, last + np.float32(values["post_op_1_src"]), rtol=1e-4, atol=1e-4
    )


def test_without_elements():
    op = conv((0, 3, 5, 5))
    shapes = {"src": op.src, "weights": op.weights, "post_op_0_weights": WEIGHTS}
    values = {name: np.zeros(own.dims) for name, own in shapes.items()}
    assert run("cpu", op, dnn.Attributes([DW(WEIGHTS, stride=2)]), values)[1].shape == (0, 4, 3, 3)


@pytest.mark.parametrize(
    "text",
    [
        "--conv --attr-post-ops=relu+dw:k3s2p1 mb2_ic3oc4_ih5oh5kh1",
        "--conv --dir=FWD_D --dt=bf16 --attr-post-ops=dw:k3s1p1:f32:axb:undef+sum ic3oc4_ih5oh5kh1",
        "--conv --attr-post-ops=dw:k3s2p1+add:f32:per_tensor ic3oc4_ih5oh5kh1",
    ],
)
def test_texts_are_read_back(text):
    (problem,) = read(text)
    assert read(str(problem)) == [problem]


def of(op, *chain, **options):
    return lambda: dnn.PrimitiveDesc(op, None, dnn.Attributes(chain, **options))


RELU = dnn.EltwiseForward("forward_inference", "relu", src=desc((2, 3)), dst=desc((2, 3)))
SPARSE = conv().with_descs(dst=desc((2, 4, 5, 5), "f32", strides=(200, 50, 10, 2)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (of(RELU, DW(WEIGHTS)), "eltwise: the post-op depthwise follows only a convolution"),
        (of(conv(kernel=(3, 3)), DW(WEIGHTS)), "only a kernel of size 1 without groups"),
        (of(conv((2, 4, 5, 5), groups=2), DW(WEIGHTS)), "2 groups"),
        (of(conv(), DW(WEIGHTS), DW(WEIGHTS)), "there may be only one post-op depthwise"),
        (of(conv(), dnn.PostOp.sum(), DW(WEIGHTS)), "a sum must follow the post-op depthwise"),
        (
            of(conv(), DW(desc((8, 1, 1, 3, 3)))),
            r"post_op_0_weights must be \(4, 1, 1, kernel\) with 5 dims .* got \(8, 1, 1, 3, 3\)",
        ),
        (of(conv(), DW(desc((4, 1, 1, 3, 1)))), "a kernel of equal sizes"),
        (of(conv(), DW(desc((4, 1, 1, 3)))), "with 5 dims"),
        (of(conv(), DW(desc((4, 1, 1, 8, 8)))), r"must fit into the result \(5, 5\)"),
        (of(SPARSE, DW(WEIGHTS)), "dst must be dense or 'any'"),
        (of(conv(dst_type="s8"), DW(WEIGHTS)), "tensors must be of floating-point types"),
        (of(conv(), DW(WEIGHTS, dst_type="s8")), "got f32, f32 and s8"),
        (of(conv(), DW(WEIGHTS.with_format("any"))), "must have a concrete format; got 'any'"),
        (of(conv(), DW(WEIGHTS, desc((3,)))), r"bias must be \(4,\)"),
        (
            of(conv(), DW(WEIGHTS, stride=2), dnn.PostOp.binary("add", desc((2, 4, 5, 5)))),
            r"post_op_1_src must have dst's rank.* for dst \(2, 4, 3, 3\)",
        ),
        (
            of(conv(), DW(WEIGHTS), scales={"src": dnn.Scales()}),
            "cannot be combined with scales and zero points",
        ),
        (lambda: DW(WEIGHTS, stride=0), "stride must be an integer, at least 1; got 0"),
        (lambda: DW(WEIGHTS, padding=-1), "padding must be an integer, at least 0; got -1"),
        (lambda: DW(WEIGHTS, dst_type="x"), "x"),
        (lambda: DW(None), "post-op depthwise: weights must be a MemoryDesc"),
        (lambda: dnn.PostOp("sum", stride=2), "post-op sum: it has no stride; leave it out"),
    ],
)
def test_mistakes_are_reported(call, message):
    with pytest.raises(dnn.DescriptorError, match=message):
        call()
