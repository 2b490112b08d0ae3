"""What only the CPU backend's convolutions do: groups as lanes, parts, repeated plans."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

pytest.importorskip("numba")

from checks import Target, check
from dnncore_cpu_numba.convolution import brgemm_weights as convolution_brgemm_weights
from dnncore_cpu_numba.convolution import gemm as convolution_gemm
from dnncore_cpu_numba.convolution.depthwise import data as convolution_depthwise
from dnncore_cpu_numba.convolution.depthwise.tiles import DepthwiseGather
from dnncore_cpu_numba.convolution.geometry import Geometry
from dnncore_cpu_numba.gemm import problem, tiling

import dnncore as dnn

DEPTHWISE = Target("cpu", "cpu", impl="cpu_numba:depthwise:*")
BRGEMM = Target("cpu", "cpu", impl="cpu_numba:brgemm:*")
GEMM = Target("cpu", "cpu", impl="cpu_numba:gemm")
ALL = Target("cpu", "cpu", skip_impl="reference:*")
DIRECTIONS = ("forward", "backward_data", "backward_weights")
all_directions = pytest.mark.parametrize("direction", DIRECTIONS)


def convolution(direction, src, weights, dst, tag=None, **window):
    """The operation; dst: its spatial dims. Activations have the tag, the filter is `any`."""
    channels = int(np.prod(weights[: len(weights) - len(dst) - 1]))
    x = dnn.MemoryDesc(src, "f32", tag)
    w = dnn.MemoryDesc(weights, "f32", "any")
    y = dnn.MemoryDesc((src[0], channels, *dst), "f32", tag)
    b = dnn.MemoryDesc((channels,))
    if direction == "forward":
        return dnn.ConvolutionForward("forward_training", src=x, weights=w, bias=b, dst=y, **window)
    if direction == "backward_data":
        return dnn.ConvolutionBackwardData(diff_src=x, weights=w, diff_dst=y, **window)
    return dnn.ConvolutionBackwardWeights(src=x, diff_weights=w, diff_bias=b, diff_dst=y, **window)


GROUPED = {
    "depthwise": ((2, 32, 9, 30), (32, 1, 1, 3, 3), (9, 30), {"padding_l": (1, 1)}),
    "odd": ((2, 19, 6, 7), (19, 1, 1, 3, 3), (3, 4), {"padding_l": (1, 1), "strides": (2, 2)}),
    "many_channels": ((2, 72, 5, 27), (72, 1, 1, 3, 3), (5, 27), {"padding_l": (1, 1)}),
    "multiplier": ((2, 18, 5, 6), (18, 3, 1, 3, 2), (5, 5), {"padding_l": (1, 0)}),
    "small_groups": ((2, 32, 5, 6), (16, 3, 2, 3, 3), (5, 6), {"padding_l": (1, 1)}),
    "narrow": ((9, 16, 20, 2), (16, 1, 1, 3, 3), (20, 2), {"padding_l": (1, 1)}),
    "dilated": (
        (1, 16, 13, 12), (16, 1, 1, 3, 2), (6, 4),
        {"padding_l": (3, 1), "padding_r": (1, 0), "dilations": (2, 1), "strides": (2, 3)},
    ),
    "many_taps_along_w": ((1, 16, 6, 70), (16, 1, 1, 3, 66), (4, 5), {}),
    "no_pixel_sees_all_taps": ((2, 16, 2, 3), (16, 1, 1, 5, 5), (2, 3), {"padding_l": (2, 2)}),
    "too_many_parts": ((1, 16, 12, 12), (16, 1, 1, 9, 9), (12, 12), {"padding_l": (4, 4)}),
    "empty_batch": ((0, 16, 4, 4), (16, 1, 1, 3, 3), (4, 4), {"padding_l": (1, 1)}),
    "1d": ((2, 20, 11), (20, 1, 1, 3), (11,), {"padding_l": (1,)}),
    "3d": ((1, 16, 4, 5, 6), (16, 1, 1, 3, 3, 3), (4, 5, 6), {"padding_l": (1, 1, 1)}),
}  # fmt: skip


@all_directions
@pytest.mark.parametrize("problem", GROUPED.values(), ids=GROUPED)
@pytest.mark.parametrize("channels", ["plain", "last", "blocked"])
def test_groups_as_lanes(direction, problem, channels):
    *shapes, window = problem
    spatial = "dhw"[5 - len(shapes[0]) :]
    tag = {"plain": f"nc{spatial}", "last": f"n{spatial}c", "blocked": f"nC{spatial}16c"}
    check(DEPTHWISE, convolution(direction, *shapes, tag[channels], **window))


@all_directions
@pytest.mark.parametrize("name", ["depthwise", "multiplier", "small_groups"])
def test_groups_as_lanes_with_post_ops(direction, name):
    *shapes, window = GROUPED[name]
    op = convolution(direction, *shapes, "any", **window)
    dims = op.result.dims
    per_channel = (1, dims[1]) if direction != "backward_weights" else dims[:2]
    attr = dnn.Attributes(
        post_ops=[
            dnn.PostOp.sum(2.0),
            dnn.PostOp.binary("mul", dnn.MemoryDesc((*per_channel, *[1] * (len(dims) - 2)))),
            dnn.PostOp.binary("add", dnn.MemoryDesc((1,) * len(dims))),
            dnn.PostOp.binary("add", dnn.MemoryDesc(dims)),
            dnn.PostOp.eltwise("relu"),
        ]
    )
    check(DEPTHWISE, op, attr)


def in_type(op, data_type):
    """The operation with all tensors of another type."""
    descs = {argument.name: desc.with_data_type(data_type) for argument, desc in op.tensors()}
    return op.with_descs(**descs)


COPIED = ("multiplier", "small_groups")  # channels of a group are apart


@all_directions
@pytest.mark.parametrize("name", sorted(GROUPED.keys() - COPIED))
def test_groups_as_lanes_in_f64(direction, name):
    *shapes, window = GROUPED[name]
    spatial = "dhw"[5 - len(shapes[0]) :]
    for tag in ("any", f"n{spatial}c", f"nC{spatial}16c"):
        check(DEPTHWISE, in_type(convolution(direction, *shapes, tag, **window), "f64"))


@all_directions
def test_what_depthwise_refuses_in_f64(direction):
    *shapes, window = GROUPED["multiplier"]
    op = in_type(convolution(direction, *shapes, "any", **window), "f64")
    with pytest.raises(dnn.NoImplementation, match="f64 of groups"):
        dnn.PrimitiveDesc(op, dnn.engine("cpu"), impl="cpu_numba:depthwise:*")
    *shapes, window = GROUPED["depthwise"]
    op = in_type(convolution(direction, *shapes, "any", **window), "f64")
    attr = dnn.Attributes(post_ops=[dnn.PostOp.sum(2.0), dnn.PostOp.eltwise("tanh")])
    if direction == "backward_weights":
        with pytest.raises(dnn.NoImplementation, match="post-ops of f64"):
            dnn.PrimitiveDesc(op, dnn.engine("cpu"), attr, impl="cpu_numba:depthwise:*")
    else:
        check(DEPTHWISE, op, attr)


@pytest.mark.parametrize("direction", ["forward", "backward_data"])
def test_single_pixels_of_plain_images_stay_where_they_lie(direction):
    op = convolution(direction, (2, 64, 14, 14), (64, 64, 1, 1), (14, 14), "nchw")
    pd = dnn.PrimitiveDesc(op, dnn.engine("cpu"))
    assert "pointwise" in pd.impl_name
    assert pd.scratchpad_bytes == 0


def test_pointwise_refuses_windows_and_borders():
    for kernel, size, window in (
        (3, 2, {}),
        (1, 2, {"strides": (2, 2)}),
        (1, 6, {"padding_l": (1, 1)}),
    ):
        op = convolution("forward", (1, 16, 4, 4), (16, 16, kernel, kernel), (size, size), **window)
        with pytest.raises(dnn.NoImplementation, match="one pixel"):
            dnn.PrimitiveDesc(op, dnn.engine("cpu"), impl="cpu_numba:pointwise:*")


def test_one_group_is_refused():
    op = convolution("forward", (1, 16, 4, 4), (1, 16, 16, 3, 3), (2, 2))
    with pytest.raises(dnn.NoImplementation, match="one group"):
        dnn.PrimitiveDesc(op, dnn.engine("cpu"), impl="cpu_numba:depthwise:*")


@all_directions
@pytest.mark.parametrize("data_type", ["f64", "f32", "f16", "bf16"])
def test_depthwise_is_chosen(direction, data_type):
    *shapes, window = GROUPED["depthwise"]
    op = in_type(convolution(direction, *shapes, "any", **window), data_type)
    pd = dnn.PrimitiveDesc(op, dnn.engine("cpu"))
    assert pd.impl_name.startswith("cpu_numba:depthwise:")


@all_directions
@pytest.mark.parametrize("tag", ["nchw", "nhwc"])
def test_column_matrices_of_a_few_images_at_a_time(monkeypatch, direction, tag):
    monkeypatch.setattr(convolution_gemm, "COLUMN_BYTES", 40_000)
    shapes = (5, 6, 12, 11), (2, 4, 3, 3, 3), (12, 11)
    op = convolution(direction, *shapes, tag, padding_l=(1, 1))
    check(GEMM, op)
    if direction == "forward":
        operand = dnn.MemoryDesc((5, 8, 1, 1))
        steps = [dnn.PostOp.sum(), dnn.PostOp.binary("add", operand)]
        check(GEMM, op, dnn.Attributes(post_ops=steps))


@pytest.mark.parametrize("tag", ["nchw", "nhwc"])
def test_depthwise_results_past_the_caches(monkeypatch, tag):
    monkeypatch.setattr(convolution_depthwise, "STREAM_BYTES", 0)
    monkeypatch.setattr(convolution_depthwise, "AHEAD_BYTES", {8: 0, 4: 0})
    op = convolution("forward", (2, 48, 9, 11), (48, 1, 1, 3, 3), (9, 11), tag, padding_l=(1, 1))
    check(DEPTHWISE, op)
    check(DEPTHWISE, in_type(op, "f64"))


@all_directions
def test_a_kernel_too_wide_to_unroll_is_refused(direction):
    op = convolution(direction, (1, 16, 70, 70), (16, 1, 1, 65, 65), (6, 6))
    with pytest.raises(dnn.NoImplementation, match="65 in all dims"):
        dnn.PrimitiveDesc(op, dnn.engine("cpu"), impl="cpu_numba:depthwise:*")


GATHERS = [(way, *sizes) for way in ("forward", "backward_data") for sizes in
           itertools.product([1, 3, 4], [1, 2, 3], [1, 2], [0, 1, 4])]  # fmt: skip


@pytest.mark.parametrize(("way", "kernel", "stride", "dilation", "padding"), GATHERS)
def test_tiles_see_each_place_through_the_right_tap(way, kernel, stride, dilation, padding):
    size = 11
    length = (size + 2 * padding - (kernel - 1) * dilation - 1) // stride + 1
    window = {"strides": (stride,), "dilations": (dilation - 1,), "padding_l": (padding,)}
    op = convolution(way, (1, 4, size), (4, 1, 1, kernel), (length,), **window)
    gather = DepthwiseGather.of(Geometry.of(op), 2)
    found = set()
    for tile in gather.tiles(5):
        for number, (pixel, seen) in itertools.product(range(tile.count), enumerate(tile.seen)):
            origin = tile.origin + number * tile.advance
            output = tile.first + number * tile.pixels + pixel
            found |= {(output, tap, origin + at) for tap, at in seen}
    pairs = {(o, t, o * stride + t * dilation - padding)
             for o in range(length) for t in range(kernel)}  # fmt: skip
    pairs = {(o, t, i) for o, t, i in pairs if 0 <= i < size}
    assert found == (pairs if way == "forward" else {(i, t, o) for o, t, i in pairs})


@pytest.mark.parametrize("tag", ["abcdefghijkl", "jihgfedcbalk", "abcdefghijkL16l"])
def test_a_product_with_twelve_dims(tag):
    src = (2, 1, 2, 1, 1, 2, 1, 1, 2, 1, 3, 5)
    weights = (1, 2, 2, 1, 2, 1, 1, 2, 2, 1, 5, 7)
    dst = (*map(max, src[:-2], weights[:-2]), 3, 7)
    op = dnn.MatMul(
        src=dnn.MemoryDesc(src, "f32", tag),
        weights=dnn.MemoryDesc(weights, "f32", "any"),
        bias=dnn.MemoryDesc((1, 2, *[1] * 9, 7)),
        dst=dnn.MemoryDesc(dst, "f32", tag),
    )
    check(ALL, op)


def test_products_of_depth_zero_are_bias():
    for bias in (None, dnn.MemoryDesc((1, 7))):
        op = dnn.MatMul(
            src=dnn.MemoryDesc((20, 0)),
            weights=dnn.MemoryDesc((0, 7)),
            bias=bias,
            dst=dnn.MemoryDesc((20, 7)),
        )
        check(ALL, op)


@pytest.mark.parametrize("tag", ["nchw", "nhwc"])
@pytest.mark.parametrize("groups", [1, 2])
def test_a_border_for_a_few_images_at_a_time(monkeypatch, tag, groups):
    image = 4 * 3 * groups * 14 * 13
    monkeypatch.setattr(convolution_brgemm_weights, "BORDERED_BYTES", 2 * image)
    filters = (17, 3, 3, 3) if groups == 1 else (2, 17, 3, 3, 3)
    shapes = (5, 3 * groups, 12, 11), filters, (12, 11)
    check(BRGEMM, convolution("backward_weights", *shapes, tag, padding_l=(1, 1)))


@pytest.mark.parametrize("direction", ["forward", "backward_data"])
@pytest.mark.parametrize("kernel", [1, 3])
def test_what_is_fetched_ahead_changes_nothing(monkeypatch, direction, kernel):
    monkeypatch.setattr(tiling, "LARGE_B", 0)
    monkeypatch.setattr(problem, "LARGE_C", 0)
    shapes = (1, 40, 7, 9), (35, 40, kernel, kernel), (7, 9)
    check(ALL, convolution(direction, *shapes, "nchw", padding_l=(kernel // 2,) * 2))


@pytest.mark.parametrize("direction", ["forward", "backward_weights"])
@pytest.mark.parametrize("data_type", ["f64", "bf16"])
def test_pixels_that_no_tap_reads_end_within_a_block(direction, data_type):
    """A block has two pixels. Because of the stride, no tap reads the second one."""
    src = dnn.MemoryDesc((3, 5, 4, 2), data_type, "abCD4c2d")
    weights = dnn.MemoryDesc((6, 5, 1, 1), data_type, "any")
    dst = dnn.MemoryDesc((3, 6, 4, 1), data_type, "nchw")
    op: dnn.Operation
    if direction == "forward":
        op = dnn.ConvolutionForward(
            "forward_training", src=src, weights=weights, dst=dst, strides=(1, 2)
        )
    else:
        op = dnn.ConvolutionBackwardWeights(
            src=src, diff_weights=weights, diff_dst=dst, strides=(1, 2)
        )
    check(ALL, op)
