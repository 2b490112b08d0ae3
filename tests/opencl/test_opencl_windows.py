"""OpenCL's windows and reductions where plans change: vectors, kept terms, boxes, stages, GPUs."""

from __future__ import annotations

import pytest
from checks import Target, check, check_pooling_gradient
from conftest import TARGETS

import dnncore as dnn
from dnncore.comparison.compare import expected_outputs
from dnncore.comparison.fills import fill_normal

OPENCL = [target for target in TARGETS if target.engine_name.startswith("opencl")]
devices = pytest.mark.parametrize("target", OPENCL, ids=str)


def check_lrn(target: Target, dims, tag, algorithm, local_size):
    desc = dnn.MemoryDesc(dims, "f32", tag)
    numbers = {"local_size": local_size, "alpha": 0.5, "k": 2.0}
    forward = dnn.LRNForward("forward_training", algorithm, src=desc, dst=desc, **numbers)
    backward = dnn.LRNBackward(algorithm, src=desc, diff_dst=desc, diff_src=desc, **numbers)
    src = fill_normal(desc, 1)
    base = expected_outputs(forward, dnn.Attributes(), {"src": src})["workspace"].values
    check(target, forward, inputs={"src": src})
    inputs = {"src": src, "diff_dst": fill_normal(desc, 2), "workspace": base}
    check(target, backward, inputs=inputs)


@pytest.mark.in_turn
@devices
@pytest.mark.parametrize("local_size", [1, 2, 9, 11, 41])
@pytest.mark.parametrize("channels", [1, 2, 32])
@pytest.mark.parametrize("tag", ["nchw", "nhwc"])
def test_lrn_windows_about_as_large_as_vectors_and_tensors(target, local_size, channels, tag):
    check_lrn(target, (2, channels, 3, 18), tag, "across_channels", local_size)


@devices
def test_lrn_of_more_channels_than_a_box_has(target):
    check_lrn(target, (1, 4099, 1, 4), "nchw", "across_channels", 5)


@devices
@pytest.mark.parametrize("tag", ["nchw", "nhwc"])
def test_vectors_that_overlap_do_not_add_dst_twice(target, tag):
    src = dnn.MemoryDesc((1, 13, 5, 29), "f32", tag)
    dst = dnn.MemoryDesc((1, 13, 2, 14), "f32", tag)
    kernel = {"kernel": (3, 3), "strides": (2, 2)}
    op = dnn.PoolingForward("forward_training", "max", src=src, dst=dst, **kernel)
    check(target, op, dnn.Attributes([dnn.PostOp.sum(2.0)]))
    sums = dnn.Reduction("sum", src=src, dst=dnn.MemoryDesc((1, 13, 1, 29), "f32", tag))
    check(target, sums, dnn.Attributes([dnn.PostOp.sum(2.0)]))


@pytest.mark.in_turn
@devices
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("algorithm", ["max", "avg_include_padding", "avg_exclude_padding"])
def test_columns_at_the_borders(target, stride, algorithm):
    width = (20 + 4 - 5) // stride + 1
    op = dnn.PoolingForward(
        "forward_inference",
        algorithm,
        src=dnn.MemoryDesc((1, 2, 6, 20)),
        dst=dnn.MemoryDesc((1, 2, 6, width)),
        kernel=(3, 5),
        strides=(1, stride),
        padding_l=(1, 2),
    )
    check(target, op)


@devices
@pytest.mark.parametrize("dims", [(1, 5, 1, 1), (3, 5, 1, 1), (0, 5, 2, 2)])
def test_the_gradient_of_a_bias_may_have_one_term_or_none(target, dims):
    images, channels, *places = dims
    op = dnn.ConvolutionBackwardWeights(
        src=dnn.MemoryDesc((images, 4, *places)),
        diff_weights=dnn.MemoryDesc((channels, 4, 1, 1)),
        diff_bias=dnn.MemoryDesc((channels,)),
        diff_dst=dnn.MemoryDesc(dims),
    )
    check(target, op)


@pytest.mark.in_turn
@devices
@pytest.mark.parametrize(
    ("src", "dst"),
    [
        ((100_003,), (1,)), ((3, 20_011), (3, 1)), ((20_011, 12), (1, 12)), ((70, 300), (70, 1)),
        ((3, 16, 40, 5), (1, 16, 1, 1)),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("planned_for_gpus")
def test_reductions_planned_for_gpus(target, src, dst):
    from dnncore_opencl.devices.pocl import miscompiles_barriers

    if miscompiles_barriers(target.engine.native.device):
        pytest.skip("this driver miscompiles barriers in loops")
    op = dnn.Reduction("sum", src=dnn.MemoryDesc(src), dst=dnn.MemoryDesc(dst))
    check(target, op, impl="opencl:staged")


@pytest.mark.in_turn
@devices
@pytest.mark.parametrize("tag", ["nchw", "nhwc", "nChw8c"])
@pytest.mark.usefixtures("planned_for_gpus")
def test_windows_planned_for_gpus(target, tag):
    check_lrn(target, (2, 16, 5, 6), tag, "across_channels", 5)
    src = dnn.MemoryDesc((2, 16, 5, 6), "f32", tag)
    dst = dnn.MemoryDesc((2, 16, 2, 2), "f32", tag)
    kernel = {"kernel": (3, 3), "strides": (2, 2)}
    check(target, dnn.PoolingForward("forward_training", "max", src=src, dst=dst, **kernel))
    average = "avg_exclude_padding"
    check(target, dnn.PoolingBackward(average, diff_src=src, diff_dst=dst, **kernel))


@devices
@pytest.mark.parametrize("data_type", ["f32", "f16"])
@pytest.mark.parametrize("algorithm", ["max", "avg_include_padding"])
def test_gradients_of_many_planes_without_vectors(target, algorithm, data_type):
    """Sums of f16 are not kept in diff_src."""
    src, dst = (dnn.MemoryDesc((9, 37, size, size), data_type) for size in (7, 4))
    geometry = {"kernel": (3, 3), "strides": (2, 2), "padding_l": (1, 1)}
    backward = dnn.PoolingBackward(algorithm, diff_src=src, diff_dst=dst, **geometry)
    check_pooling_gradient(target, backward)


@devices
@pytest.mark.parametrize("algorithm", ["avg_include_padding", "avg_exclude_padding"])
def test_one_window_that_is_not_just_the_image(target, algorithm):
    src, dst = dnn.MemoryDesc((2, 16, 5, 4), "f32", "nhwc"), dnn.MemoryDesc((2, 16, 1, 1))
    geometry = {"kernel": (5, 4), "strides": (2, 2), "padding_l": (1, 0), "padding_r": (0, 0)}
    forward = dnn.PoolingForward("forward_training", algorithm, src=src, dst=dst, **geometry)
    backward = dnn.PoolingBackward(algorithm, diff_src=src, diff_dst=dst, **geometry)
    for op in (forward, backward):
        reasons = dnn.PrimitiveDesc(op, target.engine).explain()
        assert "opencl:global: shape: averages over the whole image (5, 4)" in reasons
        check(target, op)


@devices
def test_a_gradient_of_pooling_with_no_format_at_all_is_refused(target):
    src, dst = (
        dnn.MemoryDesc((2, 8, 4, 4), "f32", "any"),
        dnn.MemoryDesc((2, 8, 2, 2), "f32", "any"),
    )
    geometry = {"kernel": (2, 2), "strides": (2, 2)}
    op = dnn.PoolingBackward("max", diff_src=src, diff_dst=dst, **geometry)
    with pytest.raises(dnn.NoImplementation, match="diff_dst is 'any', and no other tensor"):
        dnn.PrimitiveDesc(op, target.engine, impl="opencl:*")


@devices
@pytest.mark.parametrize("dims", [(2, 0, 3, 3), (2, 3, 3, 0), (2, 3, 0, 4), (0, 3, 3, 3)])
@pytest.mark.parametrize("tag", ["nchw", "nhwc"])
def test_windows_over_tensors_without_elements(target, dims, tag):
    desc = dnn.MemoryDesc(dims, "f32", tag)
    for algorithm in ("across_channels", "within_channel"):
        check_lrn(target, dims, tag, algorithm, 3)
    pooling = {"src": desc, "dst": desc, "kernel": (1, 1)}
    check(target, dnn.PoolingForward("forward_training", "max", **pooling))
    average = {"diff_src": desc, "diff_dst": desc, "kernel": (1, 1)}
    check(target, dnn.PoolingBackward("avg_include_padding", **average))


@devices
@pytest.mark.parametrize("tag", ["nchw", "nhwc"])
def test_lrn_whose_sums_begin_at_zero(target, tag):
    desc = dnn.MemoryDesc((2, 16, 3, 4), "f32", tag)
    numbers = {"local_size": 5, "alpha": 0.5, "k": 0.0}
    forward = dnn.LRNForward("forward_training", "across_channels", src=desc, dst=desc, **numbers)
    src = 1.0 + abs(fill_normal(desc, 1))
    check(target, forward, inputs={"src": src})
    base = expected_outputs(forward, dnn.Attributes(), {"src": src})["workspace"].values
    tensors = {"src": desc, "diff_dst": desc, "diff_src": desc}
    backward = dnn.LRNBackward("across_channels", **tensors, **numbers)
    inputs = {"src": src, "diff_dst": fill_normal(desc, 2), "workspace": base}
    check(target, backward, inputs=inputs)
