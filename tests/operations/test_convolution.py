"""Convolution in its three directions: windows, formats, and what holds for any convolution."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from checks import REFERENCE, Target, check, reference_outputs, run
from combinations import every, every_second

import dnncore as dnn
from dnncore.comparison.fills import fill_inputs, fill_integers, fill_normal
from dnncore.ops.window import window_output
from dnncore.testing.checks.torch_oracle import torch_outputs

FORWARD, BACKWARD_DATA, BACKWARD_WEIGHTS = DIRECTIONS = (
    "forward",
    "backward_data",
    "backward_weights",
)


class Problem:
    """One convolution: dims of src and weights (groups first, where there are any), a window."""

    def __init__(self, src, weights, *, bias=True, **window):
        spatial = len(src) - 2
        left = window.get("padding_l", (0,) * spatial)
        geometry = zip(
            src[2:],
            weights[-spatial:],
            window.get("strides", (1,) * spatial),
            window.get("dilations", (0,) * spatial),
            left,
            window.get("padding_r", left),
            strict=True,
        )
        channels = int(np.prod(weights[: len(weights) - spatial - 1]))
        self.src, self.weights, self.window = src, weights, window
        self.bias = (channels,) if bias else None
        self.dst = (src[0], channels, *(window_output(*dim) for dim in geometry))

    def op(self, direction, src=None, weights=None, dst=None):
        """The operation with these formats; None is row-major."""
        x = dnn.MemoryDesc(self.src, "f32", src)
        w = dnn.MemoryDesc(self.weights, "f32", weights)
        y = dnn.MemoryDesc(self.dst, "f32", dst)
        b = dnn.MemoryDesc(self.bias) if self.bias else None
        if direction == FORWARD:
            return dnn.ConvolutionForward(
                "forward_training", src=x, weights=w, bias=b, dst=y, **self.window
            )
        if direction == BACKWARD_DATA:
            return dnn.ConvolutionBackwardData(diff_src=x, weights=w, diff_dst=y, **self.window)
        return dnn.ConvolutionBackwardWeights(
            src=x, diff_weights=w, diff_bias=b, diff_dst=y, **self.window
        )


def same(n):
    """Strides and paddings of n on both sides."""
    return {"padding_l": (n, n)}


PROBLEMS = {
    "3x3": Problem((2, 16, 8, 9), (16, 16, 3, 3), **same(1)),
    "3x3_valid": Problem((1, 16, 7, 20), (32, 16, 3, 3)),
    "1x1": Problem((2, 16, 5, 7), (32, 16, 1, 1)),
    "1x1_odd_channels": Problem((2, 17, 5, 7), (9, 17, 1, 1)),
    "1x1_stride2": Problem((2, 16, 7, 8), (16, 16, 1, 1), strides=(2, 2)),
    "1x1_padded": Problem((1, 8, 4, 4), (8, 8, 1, 1), **same(1)),
    "5x5_stride2": Problem((1, 8, 11, 12), (16, 8, 5, 5), strides=(2, 2), **same(2)),
    "7x7_stride2_ic3": Problem((1, 3, 21, 20), (16, 3, 7, 7), strides=(2, 2), **same(3)),
    "11x11_stride4_ic3": Problem((1, 3, 35, 35), (16, 3, 11, 11), strides=(4, 4), bias=False),
    "ic1_oc1": Problem((2, 1, 6, 6), (1, 1, 3, 3)),
    "ic1": Problem((3, 1, 8, 8), (32, 1, 3, 3), **same(1)),
    "oc1": Problem((2, 32, 6, 6), (1, 32, 3, 3), **same(1)),
    "odd_channels": Problem((2, 7, 9, 9), (13, 7, 3, 3), **same(1)),
    "many_channels": Problem((1, 72, 4, 5), (40, 72, 3, 3), **same(1)),
    "wide_row": Problem((1, 8, 3, 70), (8, 8, 3, 3), **same(1)),
    "1x3": Problem((1, 4, 5, 9), (8, 4, 1, 3), padding_l=(0, 1)),
    "3x1": Problem((1, 4, 5, 9), (8, 4, 3, 1), padding_l=(1, 0)),
    "2x2_stride2": Problem((2, 8, 6, 8), (8, 8, 2, 2), strides=(2, 2)),
    "dilated": Problem((2, 8, 9, 10), (8, 8, 3, 3), dilations=(1, 1), **same(2)),
    "dilated_strided": Problem(
        (1, 6, 13, 12), (5, 6, 3, 2), strides=(2, 3), dilations=(2, 1), padding_l=(2, 1)
    ),
    "asymmetric_padding": Problem((2, 8, 6, 7), (8, 8, 3, 3), padding_l=(0, 2), padding_r=(2, 1)),
    "right_padding": Problem((2, 8, 6, 7), (8, 8, 3, 3), padding_l=(0, 0), padding_r=(1, 1)),
    "points_in_right_padding": Problem(
        (1, 16, 8, 8), (16, 16, 1, 1), strides=(2, 2), padding_l=(0, 0), padding_r=(3, 3)
    ),
    "dilated_strided_alike": Problem(
        (1, 16, 9, 10), (16, 16, 3, 3), strides=(2, 2), dilations=(1, 1), **same(2)
    ),
    "negative_right_padding": Problem(
        (1, 8, 9, 10), (8, 8, 3, 3), strides=(2, 3), padding_l=(1, 0), padding_r=(-1, -2)
    ),
    "windows_in_padding": Problem((1, 4, 3, 3), (8, 4, 2, 2), **same(3)),
    "kernel_larger_than_image": Problem((1, 4, 2, 3), (8, 4, 5, 5), **same(2)),
    "stride_larger_than_kernel": Problem((2, 4, 8, 11), (8, 4, 2, 2), strides=(3, 4)),
    "unseen_edge": Problem((1, 4, 8, 8), (8, 4, 3, 3), strides=(2, 2), bias=False),
    "one_pixel": Problem((4, 8, 3, 3), (24, 8, 3, 3)),
    "groups": Problem((2, 8, 6, 6), (2, 16, 4, 3, 3), **same(1)),
    "groups_odd": Problem((2, 9, 5, 6), (3, 5, 3, 3, 3), strides=(1, 2), bias=False),
    "groups_1x1": Problem((2, 12, 5, 5), (4, 2, 3, 1, 1)),
    "depthwise": Problem((2, 19, 6, 7), (19, 1, 1, 3, 3), **same(1)),
    "depthwise_stride2": Problem((1, 16, 9, 9), (16, 2, 1, 3, 3), strides=(2, 2), **same(1)),
    "depthwise_5x5": Problem((1, 32, 9, 10), (32, 1, 1, 5, 5), **same(2)),
    "depthwise_dilated": Problem((2, 8, 9, 9), (8, 1, 1, 3, 3), dilations=(1, 2), padding_l=(2, 3)),
    "depthwise_uneven": Problem(
        (1, 24, 7, 8), (24, 1, 1, 3, 2), padding_l=(0, 1), padding_r=(2, 0)
    ),
    "groups_of_4": Problem((2, 32, 5, 6), (8, 4, 4, 3, 3), **same(1)),
    "batch0": Problem((0, 8, 6, 6), (8, 8, 3, 3), **same(1)),
    "batch0_groups": Problem((0, 8, 6, 6), (8, 1, 1, 3, 3), **same(1)),
    "1d": Problem((2, 4, 11), (6, 4, 3), padding_l=(1,), strides=(2,)),
    "1d_groups": Problem((2, 6, 9), (2, 4, 3, 3), dilations=(1,)),
    "1d_depthwise": Problem((2, 16, 9), (16, 1, 1, 3), padding_l=(1,)),
    "1d_dilated_uneven": Problem(
        (1, 5, 20), (7, 5, 4), dilations=(2,), padding_l=(3,), padding_r=(-1,), strides=(2,)
    ),
    "3d_same": Problem((2, 8, 4, 5, 6), (8, 8, 3, 3, 3), padding_l=(1, 1, 1)),
    "3d_depthwise": Problem((1, 16, 4, 4, 5), (16, 1, 1, 2, 3, 3), padding_l=(0, 1, 1)),
    "3d_groups": Problem((1, 6, 4, 5, 4), (2, 4, 3, 2, 2, 2), dilations=(1, 0, 1), bias=False),
    "3d": Problem((1, 3, 5, 6, 5), (4, 3, 3, 2, 3), padding_l=(1, 0, 1), strides=(2, 1, 1)),
}

all_problems = pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
all_directions = pytest.mark.parametrize("direction", DIRECTIONS)


@pytest.mark.in_turn(4)
@every(2, ("formats", ["plain", "any"]), ("direction", DIRECTIONS), ("name", PROBLEMS))
def test_agrees_with_the_reference(target: Target, formats, direction, name):
    tag = None if formats == "plain" else "any"
    check(target, PROBLEMS[name].op(direction, tag, tag, tag))


@all_directions
@pytest.mark.parametrize("size", [(0, 4), (4, 0)])
def test_images_without_pixels(target: Target, direction, size):
    problem = Problem((2, 16, *size), (16, 16, 1, 1))
    check(target, problem.op(direction, "any", "any", "any"))


@pytest.mark.peer
@all_problems
@all_directions
def test_the_reference_agrees_with_torch(problem, direction):
    check(REFERENCE, problem.op(direction), oracle=torch_outputs)


FORMATS = {
    "nhwc": ("nhwc", "any", "nhwc"),
    "nhwc_hwio": ("nhwc", "hwio", "nhwc"),
    "nhwc_to_nchw": ("nhwc", "oihw", "nchw"),
    "blocked8": ("nChw8c", "OIhw8i8o", "nChw8c"),
    "blocked16": ("nChw16c", "OIhw16i16o", "nChw16c"),
    "nchw_to_blocked8": ("nchw", "any", "nChw8c"),
    "blocked8_to_any": ("nChw8c", "any", "any"),
    "chwn": ("chwn", "oihw", "chwn"),
}


@pytest.mark.in_turn(3)
@all_directions
@every_second(
    ("name", ["3x3", "odd_channels", "1x1_odd_channels", "5x5_stride2"]), ("formats", FORMATS)
)
def test_in_other_formats(target: Target, name, direction, formats):
    check(target, PROBLEMS[name].op(direction, *FORMATS[formats]))


@pytest.mark.in_turn(2)
@all_directions
@pytest.mark.parametrize("name", ["3x3", "many_channels", "groups_odd"])
def test_a_deterministic_result_is_equal_bit_for_bit(target: Target, name, direction):
    op = PROBLEMS[name].op(direction)
    inputs = fill_inputs(op, dnn.Attributes(), fill_normal)
    for pd in target.primitive_descs(op, dnn.Attributes(deterministic=True)):
        assert pd.deterministic
        first, second = run(pd, inputs), run(pd, inputs)
        assert all(np.array_equal(first[k], second[k]) for k in first), pd.impl_name


@all_directions
@pytest.mark.parametrize("name", ["5x5_stride2", "odd_channels", "groups"])
def test_with_the_users_scratchpad(target: Target, name, direction):
    check(target, PROBLEMS[name].op(direction), dnn.Attributes(scratchpad="user"))


@all_directions
def test_on_parts_of_larger_tensors(target: Target, direction):
    problem = PROBLEMS["3x3"]
    op = problem.op(direction)
    part = {}
    for argument, desc in op.tensors():
        if desc.ndims == 4:
            whole = dnn.MemoryDesc([d + 3 for d in desc.dims])
            part[argument.name] = whole.submemory(desc.dims, (1, 2, 1, 3))
    check(target, op.with_descs(**part))


# -- the reference itself -------------------------------------------------------------------------


def test_golden_forward():
    op = Problem((1, 1, 3, 3), (1, 1, 2, 2)).op(FORWARD)
    inputs = {
        "src": np.arange(9.0).reshape(1, 1, 3, 3),
        "weights": np.array([[[[1.0, 2.0], [0.0, -1.0]]]]),
        "bias": np.array([10.0]),
    }
    # 0*1 + 1*2 - 4*1 + 10 = 8, 1*1 + 2*2 - 5 + 10 = 10, ...
    assert reference_outputs(op, inputs)["dst"].tolist() == [[[[8.0, 10.0], [14.0, 16.0]]]]


def test_golden_stride_dilation_and_unequal_padding():
    problem = Problem(
        (1, 1, 4), (1, 1, 2), strides=(2,), dilations=(1,), padding_l=(1,), padding_r=(2,),
        bias=False,
    )  # fmt: skip
    inputs = {"src": np.array([[[1.0, 2.0, 3.0, 4.0]]]), "weights": np.array([[[1.0, 10.0]]])}
    # windows see cells (-1, 1), (1, 3), (3, 5)
    assert reference_outputs(problem.op(FORWARD), inputs)["dst"].tolist() == [[[20.0, 42.0, 4.0]]]


def test_golden_backward():
    problem = Problem((1, 1, 3), (1, 1, 2))
    inputs = {"diff_dst": np.array([[[1.0, 10.0]]]), "weights": np.array([[[2.0, 3.0]]])}
    assert reference_outputs(problem.op(BACKWARD_DATA), inputs)["diff_src"].tolist() == [
        [[2.0, 23.0, 30.0]]
    ]
    inputs = {"diff_dst": np.array([[[1.0, 10.0]]]), "src": np.array([[[5.0, 6.0, 7.0]]])}
    outputs = reference_outputs(problem.op(BACKWARD_WEIGHTS), inputs)
    assert outputs["diff_weights"].tolist() == [[[65.0, 76.0]]]
    assert outputs["diff_bias"].tolist() == [11.0]


def test_the_identity_kernel_copies_and_a_shifted_one_shifts():
    problem = Problem((2, 3, 5, 6), (3, 3, 3, 3), bias=False, **same(1))
    src = fill_integers(dnn.MemoryDesc(problem.src), 0)
    weights = np.zeros(problem.weights, np.float32)
    weights[range(3), range(3), 1, 1] = 1
    op = problem.op(FORWARD)
    assert np.array_equal(reference_outputs(op, {"src": src, "weights": weights})["dst"], src)
    shifted = np.roll(weights, 1, axis=3)  # the tap that sees one cell further right
    dst = reference_outputs(op, {"src": src, "weights": shifted})["dst"]
    assert np.array_equal(dst[..., :-1], src[..., 1:])
    assert not dst[..., -1].any()


def test_groups_are_convolutions_side_by_side():
    problem = PROBLEMS["groups_odd"]
    src = fill_integers(dnn.MemoryDesc(problem.src), 1)
    weights = fill_integers(dnn.MemoryDesc(problem.weights), 2)
    whole = reference_outputs(problem.op(FORWARD), {"src": src, "weights": weights})["dst"]
    one = Problem((2, 3, 5, 6), (5, 3, 3, 3), strides=(1, 2), bias=False).op(FORWARD)
    parts = [
        reference_outputs(one, {"src": src[:, 3 * g : 3 * g + 3], "weights": weights[g]})["dst"]
        for g in range(3)
    ]
    assert np.array_equal(whole, np.concatenate(parts, axis=1))


@all_problems
def test_the_gradients_are_adjoint_to_the_convolution(problem):
    """<conv(x, w), y> = <x, conv'(y, w)> = <w, conv''(x, y)>, exactly on whole numbers."""
    x, w, y = (
        fill_integers(dnn.MemoryDesc(dims), seed).astype(np.float64)
        for seed, dims in enumerate((problem.src, problem.weights, problem.dst))
    )
    zero = {"bias": np.zeros(problem.bias)} if problem.bias else {}
    forward = reference_outputs(problem.op(FORWARD), {"src": x, "weights": w, **zero})
    data = reference_outputs(problem.op(BACKWARD_DATA), {"diff_dst": y, "weights": w})
    weights = reference_outputs(problem.op(BACKWARD_WEIGHTS), {"src": x, "diff_dst": y})
    product = np.vdot(forward["dst"].astype(np.float64), y)
    assert product == np.vdot(x, data["diff_src"].astype(np.float64))
    assert product == np.vdot(w, weights["diff_weights"].astype(np.float64))


def test_convolution_is_linear_in_src():
    problem = PROBLEMS["dilated_strided"]
    op = Problem(problem.src, problem.weights, bias=False, **problem.window).op(FORWARD)
    a, b = (fill_integers(op.src, seed) for seed in (1, 2))
    weights = fill_integers(op.weights, 3)

    def convolve(src):
        return reference_outputs(op, {"src": src, "weights": weights})["dst"]

    assert np.array_equal(convolve(a + 2 * b), convolve(a) + 2 * convolve(b))


@all_directions
def test_what_is_direct_serves_auto_and_not_winograd(direction):
    """A 5x5 kernel has no Winograd: every implementation refuses, but for the definition."""
    op = Problem((1, 4, 9, 9), (8, 4, 5, 5)).op(direction)

    def answers(algorithm):
        pds = list(dnn.primitive_descs(replace(op, algorithm=algorithm), dnn.engine("cpu")))
        assert {pd.op.algorithm for pd in pds} == {algorithm.replace("auto", "direct")}
        return [pd.impl_name for pd in pds], pds[0].refusals

    direct, _ = answers("direct")
    assert answers("auto")[0] == direct
    accepted, refusals = answers("winograd")
    assert accepted == ["reference:convolution"]
    kinds = {refusal.impl_name: refusal.kind for refusal in refusals}
    assert {kinds[name] for name in direct if name not in accepted} == {"algorithm"}


@pytest.mark.parametrize(("asked", "other"), [("direct", "winograd"), ("winograd", "direct")])
def test_a_refused_algorithm_has_the_way_to_ask_for_it(target: Target, asked, other):
    src, dst = dnn.MemoryDesc((1, 4, 6, 6)), dnn.MemoryDesc((1, 4, 4, 4), "f32", "any")
    weights = dnn.MemoryDesc((4, 4, 3, 3), "f32", "any")
    tensors = {"src": src, "weights": weights, "dst": dst}
    op = dnn.ConvolutionForward("forward_inference", algorithm=asked, **tensors)
    refusals = dnn.PrimitiveDesc(op, target.engine).refusals
    told = {refusal.reason for refusal in refusals if refusal.kind == "algorithm"}
    assert told == {
        f"computes by algorithm {other}; got {asked}; pass algorithm='{other}' or 'auto'"
    }
