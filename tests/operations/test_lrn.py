"""Local response normalisation: across and within channels, formats, the workspace, gradients."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from checks import REFERENCE, Target, agree, check, reference_outputs, run

import dnncore as dnn
from dnncore.comparison.compare import expected_outputs
from dnncore.comparison.fills import fill_normal
from dnncore.testing.checks.torch_oracle import torch_outputs

ALEXNET = {"local_size": 5, "alpha": 1e-4, "beta": 0.75, "k": 1.0}
STRONG = {"local_size": 3, "alpha": 2.0, "beta": 0.75, "k": 0.5}
ACROSS, WITHIN = "across_channels", "within_channel"


def desc(*dims, tag=None):
    return dnn.MemoryDesc(dims, "f32", tag)


def forward(algorithm, src, dst=None, prop_kind="forward_training", **fields):
    return dnn.LRNForward(prop_kind, algorithm, src=src, dst=dst or src, **{**STRONG, **fields})


def backward(algorithm, src, **fields):
    return dnn.LRNBackward(algorithm, src=src, diff_dst=src, diff_src=src, **{**STRONG, **fields})


def backward_inputs(op):
    """Values, and the workspace that the reference's forward gives them."""
    fields = {name: getattr(op, name) for name in STRONG}
    src = fill_normal(op.src, 1)
    outputs = reference_outputs(forward(op.algorithm, op.src, **fields), {"src": src})
    return {"src": src, "diff_dst": fill_normal(op.src, 2), "workspace": outputs["workspace"]}


PROBLEMS = {
    "across": (ACROSS, desc(2, 7, 5, 4), {}),
    "across_nhwc": (ACROSS, desc(2, 19, 5, 4, tag="nhwc"), {}),
    "across_blocked": (ACROSS, desc(2, 32, 5, 4, tag="nChw16c"), {}),
    "across_blocked_padded": (ACROSS, desc(2, 19, 5, 4, tag="nChw8c"), {}),
    "across_wider_than_the_channels": (ACROSS, desc(2, 3, 4, 4), {"local_size": 9}),
    "across_one_channel": (ACROSS, desc(2, 1, 4, 4), {}),
    "across_size1": (ACROSS, desc(2, 5, 4, 4), {"local_size": 1}),
    "across_even": (ACROSS, desc(2, 9, 4, 4), {"local_size": 4}),
    "across_2d": (ACROSS, desc(6, 21), {}),
    "across_1_spatial_dim": (ACROSS, desc(2, 21, 9), {"local_size": 5}),
    "across_3_spatial_dims": (ACROSS, desc(2, 6, 3, 4, 2, tag="ndhwc"), {"local_size": 5}),
    "across_batch0": (ACROSS, desc(0, 6, 3, 3), {}),
    "across_weak": (ACROSS, desc(2, 24, 6, 5, tag="nhwc"), ALEXNET),
    "across_part": (ACROSS, desc(4, 9, 7, 8).submemory((2, 6, 4, 5), (1, 2, 1, 3)), {}),
    "root": (ACROSS, desc(2, 7, 5, 4), {"beta": 0.5}),
    "reciprocal": (ACROSS, desc(2, 7, 5, 4), {"beta": 1.0}),
    "other_power": (ACROSS, desc(2, 7, 5, 4), {"beta": 0.3}),
    "no_power": (ACROSS, desc(2, 7, 5, 4), {"beta": 0.0}),
    "negative_power": (ACROSS, desc(2, 7, 5, 4), {"beta": -0.6}),
    "within": (WITHIN, desc(2, 3, 7, 6), {}),
    "within_nhwc": (WITHIN, desc(2, 5, 7, 6, tag="nhwc"), {}),
    "within_blocked_padded": (WITHIN, desc(2, 13, 7, 6, tag="nChw8c"), {"local_size": 5}),
    "within_larger_than_the_image": (WITHIN, desc(2, 3, 2, 3), {"local_size": 7}),
    "within_even": (WITHIN, desc(1, 2, 6, 6), {"local_size": 4}),
    "within_1_spatial_dim": (WITHIN, desc(2, 3, 11), {"local_size": 5}),
    "within_3_spatial_dims": (WITHIN, desc(1, 3, 4, 3, 5), {}),
    "within_root": (WITHIN, desc(2, 3, 7, 6), {"beta": 0.5}),
}
all_problems = pytest.mark.parametrize(
    ("algorithm", "src", "fields"), PROBLEMS.values(), ids=PROBLEMS
)


@pytest.mark.in_turn(2)
@all_problems
def test_forward(target: Target, algorithm, src, fields):
    check(target, forward(algorithm, src, **fields))


@pytest.mark.in_turn(2)
@all_problems
def test_inference_gives_the_same_without_a_workspace(target: Target, algorithm, src, fields):
    op = forward(algorithm, src, prop_kind="forward_inference", **fields)
    assert all(pd.workspace_desc is None for pd in target.primitive_descs(op))
    check(target, op)


@pytest.mark.in_turn(2)
@all_problems
def test_backward(target: Target, algorithm, src, fields):
    op = backward(algorithm, src, **fields)
    check(target, op, inputs=backward_inputs(op))


@pytest.mark.peer
@all_problems
def test_the_reference_agrees_with_torch(algorithm, src, fields):
    check(REFERENCE, forward(algorithm, src, **fields), oracle=torch_outputs)
    op = backward(algorithm, src, **fields)
    check(REFERENCE, op, inputs=backward_inputs(op), oracle=torch_outputs)


@pytest.mark.parametrize("name", ["across_nhwc", "across_blocked_padded", "within"])
def test_any_takes_the_format_of_src(target: Target, name):
    algorithm, src, fields = PROBLEMS[name]
    op = forward(algorithm, src, src.with_format("any"), **fields)
    for pd in target.primitive_descs(op):
        assert pd.dst_desc == pd.workspace_desc == src
    op = replace(backward(algorithm, src, **fields), diff_src=src.with_format("any"))
    assert all(pd.diff_src_desc == src for pd in target.primitive_descs(op))
    check(target, op, inputs=backward_inputs(op))


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("algorithm", [ACROSS, WITHIN])
@pytest.mark.parametrize("tags", [("nhwc", "nchw"), ("nchw", "nChw8c"), ("nChw8c", "nhwc")])
def test_from_one_format_to_another(target: Target, algorithm, tags):
    src, dst = (desc(2, 11, 5, 4, tag=tag) for tag in tags)
    check(target, forward(algorithm, src, dst))
    op = replace(backward(algorithm, src), diff_src=dst)
    check(target, op, inputs=backward_inputs(op))


@pytest.mark.parametrize("name", ["across_nhwc", "across_blocked_padded", "within"])
def test_any_forward_feeds_any_backward(target: Target, name):
    """The reference's workspace is understood by all, and all of theirs by the reference."""
    algorithm, src, fields = PROBLEMS[name]
    op = backward(algorithm, src, **fields)
    inputs = backward_inputs(op)
    right = expected_outputs(op, dnn.Attributes(), inputs)
    own = expected_outputs(forward(algorithm, src, **fields), dnn.Attributes(), inputs)
    for other in (src, src.with_format("nhwc"), src.with_format("nchw")):
        for hint in target.primitive_descs(forward(algorithm, src, other, **fields)):
            got = run(hint, inputs)
            agree(hint, got, own)
            for pd in target.primitive_descs(op, hint=hint):
                assert pd.workspace_desc == other
                agree(pd, run(pd, {**inputs, "workspace": got["workspace"]}), right)


@pytest.mark.parametrize("name", ["across", "across_nhwc", "root", "reciprocal", "other_power"])
def test_what_is_not_finite_stays_in_its_windows(target: Target, name):
    """The neighbours of inf have an infinite base, and become 0; those of NaN become NaN."""
    algorithm, src, fields = PROBLEMS[name]
    values = fill_normal(src, 1)
    values[0, 2, 1, 1], values[0, 4, 3, 2] = np.inf, np.nan
    check(target, forward(algorithm, src, **fields), inputs={"src": values})


EXTREMES = [
    pytest.param(ACROSS, desc(1, 9, 3, 5), id="across"),
    pytest.param(ACROSS, desc(1, 32, 2, 2, tag="nhwc"), id="across_nhwc"),
    pytest.param(WITHIN, desc(1, 3, 5, 6), id="within"),
]


@pytest.mark.in_turn(4)
@pytest.mark.parametrize(("algorithm", "src"), EXTREMES)
@pytest.mark.parametrize("beta", [0.3, 0.5, 0.75, 1.0])
@pytest.mark.parametrize("k", [1e-36, 1e-20, 1e26, 1e37])
def test_bases_of_any_size(target: Target, k, beta, algorithm, src):
    """src is as large as makes the sum about k, so that neither part of a base is lost."""
    fields = {"local_size": 3, "alpha": 1e-3, "k": k, "beta": beta}
    size = np.sqrt(k / fields["alpha"])
    inputs = {"src": (size * fill_normal(src, 1)).astype(np.float32)}
    op = forward(algorithm, src, **fields)
    check(target, op, inputs=inputs)
    inputs |= {"diff_dst": fill_normal(src, 2), **reference_outputs(op, inputs)}
    inputs["diff_dst"] *= np.float32(min(1.0, 1e20 * k**beta))
    check(target, backward(algorithm, src, **fields), inputs=inputs)


@pytest.mark.parametrize(("algorithm", "src"), EXTREMES)
@pytest.mark.parametrize("alpha", [1e-4, -1e-4])
def test_squares_may_be_out_of_range_where_bases_are_not(target: Target, alpha, algorithm, src):
    inputs = {"src": (1e19 * (2 + fill_normal(src, 1))).astype(np.float32)}
    for beta in (0.3, 0.5, 0.75, 1.0):
        check(target, forward(algorithm, src, alpha=alpha, beta=beta), inputs=inputs)


@pytest.mark.parametrize("tag", ["nchw", "nhwc", "nChw8c"])
def test_results_do_not_depend_on_earlier_calls(target: Target, tag):
    """A call with many channels and large values goes before the second call."""
    small, large = (desc(2, channels, 5, 5, tag=tag) for channels in (9, 64))
    inputs = {"src": fill_normal(small, 1)}
    others = {"src": np.full(large.dims, 1e18, np.float32)}
    for pd in target.primitive_descs(forward(WITHIN, small)):
        first = run(pd, inputs)["dst"]
        for other in target.primitive_descs(forward(WITHIN, large)):
            run(other, others)
        assert np.array_equal(first, run(pd, inputs)["dst"])


def test_a_chain_of_post_ops_is_executed_or_refused(target: Target):
    """oneDNN's LRN takes no attributes; an implementation here may."""
    src = desc(2, 19, 5, 4, tag="nhwc")
    chain = dnn.Attributes([dnn.PostOp.eltwise("relu"), dnn.PostOp.sum(2.0)])
    check(target, forward(ACROSS, src), chain, may_refuse=True)


# -- the reference itself -------------------------------------------------------------------------


@pytest.mark.parametrize("dims", [(1, 1, 1, 5), (1, 1, 3, 1), (1, 4, 1, 5), (2, 1, 3, 5)])
def test_operands_are_broadcast_along_some_spatial_dims(target: Target, dims):
    chain = dnn.Attributes([dnn.PostOp.binary("add", desc(*dims))])
    check(target, forward(ACROSS, desc(2, 4, 3, 5)), chain, may_refuse=True)


def test_golden():
    """base = 1 + 3/3 * (squares of the neighbours), dst = src / base."""
    src = desc(1, 4, 1, 1)
    op = forward(ACROSS, src, local_size=3, alpha=3.0, beta=1.0, k=1.0)
    values = np.array([1.0, 2.0, 0.0, 3.0]).reshape(1, 4, 1, 1)
    got = reference_outputs(op, {"src": values})
    assert got["workspace"].ravel().tolist() == [6.0, 6.0, 14.0, 10.0]
    assert np.allclose(got["dst"].ravel(), [1 / 6, 2 / 6, 0.0, 0.3])
    flat = desc(1, 1, 4)
    op = forward(WITHIN, flat, local_size=3, alpha=3.0, beta=1.0, k=1.0)
    within = reference_outputs(op, {"src": values.reshape(1, 1, 4)})
    assert np.array_equal(within["workspace"].ravel(), got["workspace"].ravel())


@pytest.mark.parametrize(("algorithm", "alpha"), [(ACROSS, 4.0), (WITHIN, 16.0)])
def test_golden_even(algorithm, alpha):
    """Of size 4 the window reaches (4 - 1) // 2 = 1 to each side, and n is still 4 per dim."""
    values = np.arange(1.0, 6.0).reshape(1, 5, 1, 1)
    src = desc(1, 5, 1, 1)
    if algorithm == WITHIN:
        values, src = values.reshape(1, 1, 5, 1), desc(1, 1, 5, 1)
    op = forward(algorithm, src, local_size=4, alpha=alpha, beta=1.0, k=0.0)
    got = reference_outputs(op, {"src": values})["workspace"]
    assert got.ravel().tolist() == [1 + 4, 1 + 4 + 9, 4 + 9 + 16, 9 + 16 + 25, 16 + 25]


def test_golden_gradient():
    """dst = s / (1 + s**2), whose slope is (1 - s**2) / (1 + s**2)**2."""
    src = desc(1, 3, 1, 1)
    fields = {"local_size": 1, "alpha": 1.0, "beta": 1.0, "k": 1.0}
    s = np.array([1.0, 2.0, 0.0]).reshape(1, 3, 1, 1)
    inputs = {"src": s, "diff_dst": np.ones_like(s), "workspace": 1 + s * s}
    got = reference_outputs(backward(ACROSS, src, **fields), inputs)["diff_src"]
    assert np.allclose(got.ravel(), [0.0, -3 / 25, 1.0])


def test_the_hint_must_keep_a_workspace():
    src = desc(1, 4, 3, 3)
    hint = dnn.PrimitiveDesc(forward(ACROSS, src, prop_kind="forward_inference"), dnn.engine("cpu"))
    with pytest.raises(dnn.DescriptorError, match="of prop_kind forward_training"):
        dnn.PrimitiveDesc(backward(ACROSS, src), dnn.engine("cpu"), hint=hint)
