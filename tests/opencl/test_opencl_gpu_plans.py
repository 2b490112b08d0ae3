"""OpenCL kernels as they are planned for GPUs, on the devices at hand: shares, tiles and planes."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from checks import Target, check, check_pooling_gradient
from combinations import every_second
from conftest import TARGETS

pytest.importorskip("pyopencl")

from dnncore_opencl.copies.joined import joined
from dnncore_opencl.resampling import held

import dnncore as dnn
from dnncore.backend import Refused
from dnncore.comparison.compare import expected_outputs
from dnncore.comparison.fills import fill_integers, fill_normal
from dnncore.selection.plugins import registry
from dnncore.testing.checks.case import Case
from dnncore.testing.checks.contract import refusals
from dnncore.testing.problems.cases import cases


def is_sound(target: Target) -> bool:
    """Whether the driver compiles barriers as they are written."""
    from dnncore_opencl.devices.pocl import miscompiles_barriers

    return not miscompiles_barriers(target.engine.native.device)


OPENCL = [target for target in TARGETS if target.engine_name.startswith("opencl")]


@pytest.fixture(params=OPENCL, ids=str)
def target(request, planned_for_gpus) -> Target:
    """Each device, with kernels as for a GPU."""
    if not is_sound(request.param):
        pytest.skip("this driver miscompiles barriers in loops")
    return request.param


@pytest.mark.in_turn
@pytest.mark.parametrize("length", [5, 1000, 5000])
@pytest.mark.parametrize(("axis", "dims"), [(1, (9,)), (0, (12,)), (0, (3, 7))])
def test_softmax_shares_rows_along_and_across(target, length, axis, dims):
    desc = dnn.MemoryDesc((*dims[:axis], length, *dims[axis:]))
    src = fill_normal(desc, 1)
    forward = dnn.SoftmaxForward("forward_training", "accurate", src=desc, dst=desc, axis=axis)
    check(target, forward, inputs={"src": src}, impl="opencl:tiled")
    dst = expected_outputs(forward, dnn.Attributes(), {"src": src})["dst"].values
    backward = dnn.SoftmaxBackward("accurate", dst=desc, diff_dst=desc, diff_src=desc, axis=axis)
    inputs = {"dst": dst, "diff_dst": fill_normal(desc, 2)}
    check(target, backward, inputs=inputs, impl="opencl:tiled")


@pytest.mark.parametrize("length", [5, 1000, 5000, 9000])
def test_softmax_of_halves_takes_quick_exponentials_again(target, monkeypatch, length):
    def quick(*_):
        return {"exp": "native_exp"}

    monkeypatch.setattr("dnncore_opencl.softmax.implementations.quick_functions", quick)
    desc = dnn.MemoryDesc((3, length), "f16")
    src = fill_normal(desc, 1)
    for algorithm in ("accurate", "log"):
        forward = dnn.SoftmaxForward("forward_training", algorithm, src=desc, dst=desc, axis=1)
        check(target, forward, inputs={"src": src}, impl="opencl:tiled")


@pytest.mark.in_turn
@pytest.mark.parametrize("length", [5, 1000, 5000, 9000])
@pytest.mark.parametrize("algorithm", ["accurate", "log"])
def test_gradients_of_softmax_read_long_rows_of_halves_again(target, length, algorithm):
    desc = dnn.MemoryDesc((3, length), "f16")
    inputs = {"dst": fill_normal(desc, 1), "diff_dst": fill_normal(desc, 2)}
    backward = dnn.SoftmaxBackward(algorithm, dst=desc, diff_dst=desc, diff_src=desc, axis=1)
    check(target, backward, inputs=inputs, impl="opencl:tiled")


@pytest.mark.in_turn(2)
@pytest.mark.parametrize(
    ("src", "dst"),
    [
        ("abcd", "acdb"),
        ("acdb", "abcd"),
        ("aBcd16b", "abcd"),
        ("abcd", "aBcd16b"),
        ("abcd", "dcba"),
    ],
)
@pytest.mark.parametrize("dims", [(1, 64, 8, 16), (2, 19, 5, 13)])
@pytest.mark.parametrize("types", [("f32", "f32"), ("f16", "f32"), ("f64", "f64")])
def test_tiles_are_turned_in_vectors_and_without(target, src, dst, dims, types):
    descs = [dnn.MemoryDesc(dims, t, tag) for t, tag in zip(types, (src, dst), strict=True)]
    check(target, dnn.Reorder(src=descs[0], dst=descs[1]))


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("image", "kernel", "stride", "padding", "dilation", "data_type"),
    [
        ((12, 16), 3, 2, 1, 0, "f32"), ((12, 16), 3, 2, 1, 0, "f16"), ((9, 7), 2, 2, 0, 0, "f32"),
        ((7, 7), 3, 1, 1, 0, "f32"), ((11, 13), 3, 2, 2, 1, "f32"), ((150, 40), 3, 2, 1, 0, "f32"),
        ((5, 6), 2, 3, 0, 0, "f32"), ((4, 4), 5, 1, 2, 0, "f32"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("algorithm", ["max", "avg_include_padding", "avg_exclude_padding"])
def test_gradients_of_pooling_are_added_plane_by_plane(
    target, algorithm, image, kernel, stride, padding, dilation, data_type
):
    if target.name.endswith("pocl"):
        pytest.skip("PoCL loses work-items between barriers in loops; which ones hangs on the text")
    extent = (kernel - 1) * (dilation + 1) + 1
    windows = [(size + 2 * padding - extent) // stride + 1 for size in image]
    diff_src = dnn.MemoryDesc((2, 3, *image), data_type)
    diff_dst = dnn.MemoryDesc((2, 3, *windows), data_type)
    geometry = {
        "kernel": (kernel, kernel),
        "strides": (stride, stride),
        "dilations": (dilation, dilation),
        "padding_l": (padding, padding),
    }
    backward = dnn.PoolingBackward(algorithm, diff_src=diff_src, diff_dst=diff_dst, **geometry)
    check_pooling_gradient(target, backward)


@pytest.mark.parametrize("length", [5, 8, 1000])
def test_softmax_along_and_across_behind_operands_of_each_row(target, length):
    """Operands have no elements along the axis."""
    for axis, dims in ((1, (9, length)), (0, (length, 9))):
        desc = dnn.MemoryDesc(dims)
        of_rows = dnn.MemoryDesc(tuple(1 if d == axis else n for d, n in enumerate(dims)))
        attr = dnn.Attributes([dnn.PostOp.binary("mul", of_rows)])
        op = dnn.SoftmaxForward("forward_training", "accurate", src=desc, dst=desc, axis=axis)
        check(target, op, attr)


def test_tiles_are_not_turned_in_vectors_where_an_operand_has_another_order(target):
    src, dst = dnn.MemoryDesc((2, 16, 8, 12)), dnn.MemoryDesc((2, 16, 8, 12), "f32", "acdb")
    chains = [
        dnn.MemoryDesc(src.dims),
        dnn.MemoryDesc((1, 16, 1, 1)),
        dnn.MemoryDesc((1, 1, 8, 12)),
    ]
    for operand in chains:
        attr = dnn.Attributes([dnn.PostOp.binary("mul", operand)])
        check(target, dnn.Reorder(src=src, dst=dst), attr)


@pytest.mark.parametrize(("src", "dst"), [("s32", "f64"), ("f64", "bf16")])
def test_tiles_are_turned_before_steps_in_f64(target, src, dst):
    dims = 2, 16, 8, 12
    attr = dnn.Attributes(
        [dnn.PostOp.sum(0.5), dnn.PostOp.eltwise("linear", alpha=0.25, beta=-1.25)]
    )
    descs = dnn.MemoryDesc(dims, src), dnn.MemoryDesc(dims, dst, "acdb")
    op = dnn.Reorder(src=descs[0], dst=descs[1])
    check(target, op, attr, impl="opencl:transpose")


@pytest.mark.parametrize("blocks", [(6, 4), (4, 6), (16, 24)])
def test_vectors_inside_blocks_that_do_not_nest(target, blocks):
    """A loop over such blocks has no constant step, so that vectors may begin anywhere."""
    src, dst = (dnn.MemoryDesc((2, 48, 8), "f32", f"aBC{block}b4c") for block in blocks)
    check(target, dnn.Reorder(src=src, dst=dst))
    descs = {"src0": src, "src1": dst, "dst": src}
    check(target, dnn.Binary("add", **descs), dnn.Attributes([dnn.PostOp.sum(0.5)]))


@pytest.mark.parametrize("tag", ["nchw", "nhwc"])
@pytest.mark.parametrize("dims", [(2, 3, 7, 7), (1, 40, 3, 5)])
def test_averages_over_the_whole_image_are_means(target, tag, dims):
    src = dnn.MemoryDesc(dims, "f32", tag)
    dst = dnn.MemoryDesc((*dims[:2], 1, 1), "f32", tag)
    algorithm = "avg_include_padding"
    forward = dnn.PoolingForward(
        "forward_training", algorithm, src=src, dst=dst, kernel=dims[2:], strides=(1, 1)
    )
    check(target, forward, impl="opencl:global")
    backward = dnn.PoolingBackward(
        algorithm, diff_src=src, diff_dst=dst, kernel=dims[2:], strides=(1, 1)
    )
    check(target, backward, impl="opencl:global")


@pytest.mark.parametrize("data_type", ["f16", "bf16"])
def test_half_types_are_right_by_native_functions(target, data_type, monkeypatch):
    monkeypatch.setitem(target.engine.device.limits, "compute_capability", (7, 0))
    desc = dnn.MemoryDesc((9, 40), data_type)
    for algorithm in ("logistic", "gelu_tanh", "soft_relu", "swish", "mish"):
        fields = {"alpha": 1.0} if algorithm in ("soft_relu", "swish") else {}
        check(
            target, dnn.EltwiseForward("forward_inference", algorithm, src=desc, dst=desc, **fields)
        )
    softmax = dnn.SoftmaxForward("forward_inference", "accurate", src=desc, dst=desc, axis=1)
    check(target, softmax, impl="opencl:simd")


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("algorithm", ["max", "avg_include_padding", "avg_exclude_padding"])
@pytest.mark.parametrize(
    ("image", "kernel", "stride", "padding", "dilation"),
    [
        ((9, 8), 3, 2, 1, 0), ((9, 11), 3, 1, 2, 1), ((5, 6), 2, 3, 3, 0), ((7, 9), 3, 2, 4, 2),
        ((12, 12), 4, 1, 0, 2),
    ],
    ids=["plain", "dilated", "windows that see nothing", "both", "many windows see a cell"],
)  # fmt: skip
@pytest.mark.parametrize("data_type", ["f32", "f16"])
def test_small_windows_are_pooled_in_vectors_of_channels(
    target, algorithm, image, kernel, stride, padding, dilation, data_type
):
    extent = (kernel - 1) * (dilation + 1) + 1
    if algorithm == "avg_exclude_padding" and padding >= extent:
        pytest.skip("an average of nothing")
    windows = [(size + 2 * padding - extent) // stride + 1 for size in image]
    src, dst = (dnn.MemoryDesc((2, 16, *sizes), data_type, "acdb") for sizes in (image, windows))
    geometry = {
        "kernel": (kernel, kernel),
        "strides": (stride, stride),
        "dilations": (dilation, dilation),
        "padding_l": (padding, padding),
    }
    forward = dnn.PoolingForward("forward_training", algorithm, src=src, dst=dst, **geometry)
    values = fill_normal(src, 1)
    values[:, ::2] -= 3  # below the zeros of padding
    values[0, 3, 2, 1] = float("nan")
    values[1, 5] = float("-inf")
    check(target, forward, inputs={"src": values})
    backward = dnn.PoolingBackward(algorithm, diff_src=src, diff_dst=dst, **geometry)
    inputs = {"diff_dst": fill_normal(dst, 2)}
    if algorithm == "max":
        outputs = expected_outputs(forward, dnn.Attributes(), {"src": values})
        inputs["workspace"] = outputs["workspace"].values
    check(target, backward, inputs=inputs)


# src, kernel, strides, padding on the left and on the right
BLOCKS = {
    "2x2": ((2, 8, 7, 6), (2, 2), (2, 2), (0, 0), (0, 0)),
    "3x3": ((2, 64, 9, 8), (3, 3), (2, 2), (1, 1), (1, 1)),
    "3x3, unlike paddings": ((1, 16, 8, 7), (3, 3), (2, 2), (0, 2), (1, 1)),
    "3x3 in each place": ((1, 8, 5, 6), (3, 3), (1, 1), (1, 1), (1, 1)),
    "unlike strides": ((1, 8, 6, 9), (3, 2), (1, 2), (1, 0), (0, 1)),
    "gaps": ((1, 8, 6, 5), (1, 2), (2, 2), (0, 1), (0, 0)),
    "cells behind the last window": ((1, 8, 9, 10), (4, 3), (2, 2), (0, 0), (0, 0)),
    "windows in the padding": ((1, 8, 3, 2), (2, 2), (2, 2), (3, 4), (4, 3)),
    "row": ((2, 16, 11), (3,), (2,), (1,), (1,)),
    "volume": ((1, 8, 4, 5, 3), (3, 2, 2), (2, 1, 2), (1, 0, 1), (1, 1, 0)),
}


POOLINGS = [
    ("max", "f32", False), ("max", "f32", True), ("max", "f16", False),
    ("avg_include_padding", "f32", False), ("avg_include_padding", "f16", True),
    ("avg_exclude_padding", "f32", True), ("avg_exclude_padding", "f16", False),
]  # fmt: skip


@pytest.fixture
def kernels(monkeypatch) -> list[str]:
    """The kernels over places, as they are launched, and whether they are of pairs."""
    from dnncore_opencl.elementwise.windows import Windows

    names = []
    launch = Windows.launch

    def listed(windows, kernel, defines, *args, **options):
        names.append(f"{kernel} of pairs" if "PAIRS" in defines else kernel)
        return launch(windows, kernel, defines, *args, **options)

    monkeypatch.setattr(Windows, "launch", listed)
    return names


def channels_last(dims, data_type="f32") -> dnn.MemoryDesc:
    """A tensor whose channels lie side by side."""
    return dnn.MemoryDesc(dims, data_type, {3: "acb", 4: "acdb", 5: "acdeb"}[len(dims)])


def pooled(name, data_type) -> dnn.MemoryDesc:
    """The tensor of the windows."""
    dims, *geometry = BLOCKS[name]
    sides = zip(dims[2:], *geometry, strict=True)
    windows = [(size + before + after - k) // step + 1 for size, k, step, before, after in sides]
    return channels_last((*dims[:2], *windows), data_type)


def gradient(name, algorithm, data_type) -> tuple[dnn.PoolingBackward, dict[str, np.ndarray]]:
    """The gradient of a pooling, and what it reads."""
    dims, kernel, strides, left, right = BLOCKS[name]
    diff_src, diff_dst = channels_last(dims, data_type), pooled(name, data_type)
    geometry = {"kernel": kernel, "strides": strides, "padding_l": left, "padding_r": right}
    backward = dnn.PoolingBackward(algorithm, diff_src=diff_src, diff_dst=diff_dst, **geometry)
    inputs = {"diff_dst": fill_normal(diff_dst, 1)}
    if algorithm == "max":
        src = {"src": fill_integers(diff_src, 2, low=0, high=3)}
        outputs = expected_outputs(backward.forward_op, dnn.Attributes(), src)
        inputs["workspace"] = outputs["workspace"].values
    return backward, inputs


@pytest.mark.in_turn(2)
@every_second(("name", BLOCKS), ("pooling", POOLINGS))
def test_gradients_of_small_windows_are_gathered_in_blocks(
    target, kernels, monkeypatch, name, pooling
):
    algorithm, data_type, has_chain = pooling
    monkeypatch.setattr("dnncore_opencl.pooling.implementations.has_pairs", lambda *_: False)
    if algorithm == "avg_exclude_padding" and name == "windows in the padding":
        pytest.skip("an average of nothing")
    backward, inputs = gradient(name, algorithm, data_type)
    post_ops = []
    if has_chain:
        factors = channels_last((1, *backward.diff_src.dims[1:]))
        inputs["post_op_0_src"] = fill_normal(factors, 3)
        post_ops = [dnn.PostOp.binary("mul", factors), dnn.PostOp.eltwise("relu")]
    check(target, backward, dnn.Attributes(post_ops), inputs=inputs)
    assert "pooling_blocks" in kernels


SHARED = [
    "3x3", "3x3, unlike paddings", "3x3 in each place", "unlike strides",
    "cells behind the last window", "volume",
]  # fmt: skip


@pytest.mark.in_turn
@every_second(("name", SHARED), ("pooling", POOLINGS))
def test_small_windows_that_share_rows_are_pooled_together(
    target, kernels, monkeypatch, name, pooling
):
    algorithm, data_type, has_chain = pooling
    monkeypatch.setattr("dnncore_opencl.pooling.implementations.has_pairs", lambda *_: False)
    dims, kernel, strides, left, right = BLOCKS[name]
    src, dst = channels_last(dims, data_type), pooled(name, data_type)
    geometry = {"kernel": kernel, "strides": strides, "padding_l": left, "padding_r": right}
    values = fill_integers(src, 1, low=-9, high=-6)
    values[:, 3, ..., 1] = float("nan")
    values[:, 5] = float("-inf")
    inputs = {"src": values}
    post_ops = []
    if has_chain:
        factors = channels_last((1, *dst.dims[1:]))
        inputs["post_op_0_src"] = fill_normal(factors, 3)
        post_ops = [dnn.PostOp.binary("add", factors), dnn.PostOp.eltwise("relu")]
    for prop_kind in ("forward_training", "forward_inference"):
        forward = dnn.PoolingForward(prop_kind, algorithm, src=src, dst=dst, **geometry)
        check(target, forward, dnn.Attributes(post_ops), inputs=inputs)
    row_by_row = algorithm == "max" and data_type == "f16" and dims[1] % 8 == 0  # with places
    assert set(kernels) == {"pooling_rows", *(["pooling_forward"] if row_by_row else [])}


@pytest.fixture
def compares_pairs(monkeypatch) -> None:
    """Maxima by pairs, on devices that lack instructions for them, too."""
    monkeypatch.setattr("dnncore_opencl.pooling.implementations.has_pairs", lambda *_: True)


def maximum(src, dst, prop_kind, kernel, **geometry) -> dnn.PoolingForward:
    """The largest of each window."""
    return dnn.PoolingForward(prop_kind, "max", src=src, dst=dst, kernel=kernel, **geometry)


def with_special_values(src: dnn.MemoryDesc) -> np.ndarray:
    """Small numbers, some NaN and infinite."""
    values = fill_integers(src, 1, low=-9, high=9)
    values[:, 0, ..., 1] = float("nan")
    values[0, -1] = float("nan")
    values[:, 1] = float("-inf")
    return values


@pytest.mark.in_turn
@every_second(("name", BLOCKS), ("data_type", ["f16", "bf16"]))
def test_maxima_of_halves_are_compared_in_pairs(target, kernels, compares_pairs, name, data_type):
    dims, kernel, strides, left, right = BLOCKS[name]
    src, dst = channels_last(dims, data_type), pooled(name, data_type)
    geometry = {"strides": strides, "padding_l": left, "padding_r": right}
    inputs = {"src": with_special_values(src)}
    for prop_kind in ("forward_training", "forward_inference"):
        check(target, maximum(src, dst, prop_kind, kernel, **geometry), inputs=inputs)
    assert kernels == ["pooling_forward of pairs"] * 2


@pytest.mark.in_turn
@pytest.mark.parametrize("data_type", ["s8", "u8", "f16"])
def test_maxima_of_other_elements_than_halves_are_not(target, kernels, compares_pairs, data_type):
    """Bytes become halves on the way, and the code of stochastic rounding takes no words."""
    attr = dnn.Attributes(rounding="stochastic") if data_type == "f16" else dnn.Attributes()
    src, dst = channels_last((2, 8, 7, 6), data_type), channels_last((2, 8, 5, 4), "f16")
    check(target, maximum(src, dst, "forward_inference", (3, 3)), attr)
    assert kernels in (["pooling_forward"], ["pooling_rows"])


@pytest.mark.in_turn
@every_second(("name", BLOCKS), ("data_type", ["f16", "bf16"]))
def test_gradients_of_halves_are_added_in_pairs(target, kernels, compares_pairs, name, data_type):
    backward, inputs = gradient(name, "max", data_type)
    inputs["diff_dst"][:, 1, ..., 0] = float("nan")
    inputs["diff_dst"][0, -1] = float("-inf")
    check(target, backward, inputs=inputs)
    assert "pooling_blocks of pairs" in kernels


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("channels", "tag", "dilations", "is_large"),
    [
        (2, "acdb", (0, 0), False), (4, "acdb", (0, 0), False), (8, "acdb", (1, 1), False),
        (24, "aBcd16b", (0, 0), False), (8, "acdb", (0, 0), True),
    ],
)  # fmt: skip
@pytest.mark.parametrize("data_type", ["f32", "f16"])
def test_places_of_maxima_are_found(
    target, kernels, compares_pairs, monkeypatch, data_type, channels, tag, dilations, is_large
):
    if is_large:
        monkeypatch.setattr("dnncore_opencl.codegen.layout.LARGE", 1)
    extent = 2 * (dilations[0] + 1) + 1
    src, dst = (
        dnn.MemoryDesc((2, channels, size, size), data_type, tag) for size in (7, 9 - extent)
    )
    geometry = {"padding_l": (1, 1), "padding_r": (0, 0), "dilations": dilations}
    inputs = {"src": with_special_values(src)}
    forward = maximum(src, dst, "forward_training", (3, 3), **geometry)
    check(target, forward, inputs=inputs)
    assert ("pooling_forward of pairs" in kernels) == (data_type == "f16")
    geometry["kernel"] = (3, 3)
    backward = dnn.PoolingBackward("max", diff_src=src, diff_dst=dst, **geometry)
    workspace = expected_outputs(forward, dnn.Attributes(), inputs)["workspace"].values
    check(target, backward, inputs={"diff_dst": fill_normal(dst, 2), "workspace": workspace})
    in_pairs = data_type == "f16" and not any(dilations)
    assert ("pooling_blocks of pairs" in kernels) == in_pairs


def test_gradients_of_windows_that_take_too_many_registers_are_gathered_by_cell(target, kernels):
    src, dst = channels_last((1, 8, 7, 6), "f16"), channels_last((1, 8, 4, 3), "f16")
    geometry = {"kernel": (4, 4), "strides": (1, 1)}
    backward = dnn.PoolingBackward("max", diff_src=src, diff_dst=dst, **geometry)
    workspace = fill_integers(dst.with_data_type("u8"), 1, low=0, high=15)
    inputs = {"diff_dst": fill_normal(dst, 2), "workspace": workspace}
    check(target, backward, dnn.Attributes([dnn.PostOp.eltwise("relu")]), inputs=inputs)
    assert "pooling_backward" in kernels


def test_denormals_are_zeros_only_where_f16_would_round_them_away(monkeypatch):
    from dnncore_opencl.codegen.vectors import quick_options

    monkeypatch.setattr(
        "dnncore_opencl.codegen.vectors.is_nvidia", lambda engine: engine == "nvidia"
    )
    f16, bf16, f32 = (dnn.MemoryDesc((8,), kind) for kind in ("f16", "bf16", "f32"))
    none, chain = dnn.Attributes(), dnn.Attributes([dnn.PostOp.eltwise("relu")])
    assert quick_options("nvidia", [f16, f16], none) == ("-cl-denorms-are-zero",)
    others: list[Any] = [("nvidia", [f16, f32], none), ("nvidia", [bf16, bf16], none)]
    others += [("nvidia", [f16, f16], chain), ("another", [f16, f16], none)]
    others += [("nvidia", [f16, f16], none, [x]) for x in (1e38, -1e38, 1e-40, float("inf"))]
    assert not any(quick_options(*other) for other in others)
    assert quick_options("nvidia", [f16, f16], none, [0.0, -3e4])


def test_each_gpu_of_nvidia_has_its_instructions():
    from dnncore_opencl.codegen import vectors
    from dnncore_opencl.codegen.grid import Shares
    from dnncore_opencl.runtime.launch import template

    def engine(*capability: int) -> Any:
        limits = {"compute_capability": capability} if capability else {}
        return SimpleNamespace(is_cpu=False, device=SimpleNamespace(limits=limits))

    none, old, ampere, hopper = engine(), engine(7, 5), engine(8, 0), engine(9, 0)
    for gpu, converts in ((none, False), (old, False), (ampere, True), (hopper, True)):
        own = "halves_nvidia" if converts else "halves"
        wanted = tuple(vectors.with_lanes(template(own), lanes) for lanes in (1, 4))
        assert vectors.conversions(gpu, ["f32", "f16"], [4, 1, 4]) == wanted
        assert vectors.conversions(gpu, ["f32"], [4]) == ()
        loaded = "load_ushort8(at)" if converts else vectors.load(gpu, "ushort", 8, "at")
        assert vectors.read_bits(gpu, "f16", 8, "at") == loaded
        assert vectors.read_bits(gpu, "f16", 1, "at") == "(*(at))"
        assert vectors.read_bits(gpu, "f32", 4, "at") == vectors.load(gpu, "float", 4, "at")
        assert vectors.maxima_template(gpu) == ("maxima_nvidia" if converts else "maxima")
        pairs = "pairs_nvidia" if converts else "pairs"
        assert vectors.pairs_template(gpu, "f16") == pairs
    assert [vectors.has_pairs(gpu, "bf16") for gpu in (none, old, ampere, hopper)] == [
        False, False, False, True,
    ]  # fmt: skip
    assert vectors.pairs_template(hopper, "bf16") == "pairs_nvidia"
    chain = dnn.Attributes([dnn.PostOp.eltwise("relu")])
    assert vectors.quick_functions(ampere, "f16", dnn.Attributes()) == {"exp": "native_exp"}
    assert vectors.quick_functions(ampere, "f32", dnn.Attributes()) == {}
    assert vectors.quick_functions(ampere, "f16", chain) == {}
    assert vectors.quick_functions(none, "f16", dnn.Attributes()) == {}
    groups, shuffles = (template(name) for name in ("groups", "shuffle_nvidia"))
    assert Shares(8, 32).snippets(ampere) == (shuffles, groups)
    assert Shares(8, 32, across=True).snippets(ampere) == (groups,)
    assert Shares().snippets(ampere) == Shares(8, 32).snippets(none) == (groups,)


def test_denormals_are_kept_where_a_scalar_makes_more_of_them(target, monkeypatch):
    monkeypatch.setattr("dnncore_opencl.codegen.vectors.is_nvidia", lambda _engine: True)
    desc = dnn.MemoryDesc((8,), "f16")
    inputs = {"src": np.full(8, 2.0**-24, np.float16)}
    power = dnn.EltwiseForward("forward_inference", "pow", src=desc, dst=desc, alpha=1e38, beta=6)
    check(target, power, inputs=inputs)


def test_chains_are_not_computed_in_pairs(target, kernels, compares_pairs):
    src, dst = channels_last((1, 8, 4, 4), "f16"), channels_last((1, 8, 2, 2), "f16")
    forward = maximum(src, dst, "forward_inference", (2, 2), strides=(2, 2))
    inputs = {"src": fill_integers(src, 1, low=-9, high=9)}
    check(target, forward, dnn.Attributes([dnn.PostOp.eltwise("relu")]), inputs=inputs)
    assert kernels == ["pooling_forward"]


@pytest.mark.parametrize("algorithm", ["max", "avg_include_padding"])
def test_windows_of_an_empty_image_see_nothing(target, algorithm):
    src, dst = channels_last((1, 8, 0, 4)), channels_last((1, 8, 2, 4))
    geometry = {"kernel": (3, 3), "strides": (1, 1), "padding_l": (2, 1), "padding_r": (2, 1)}
    forward = dnn.PoolingForward("forward_training", algorithm, src=src, dst=dst, **geometry)
    check(target, forward, inputs={"src": np.zeros(src.dims, np.float32)})


@pytest.mark.parametrize("algorithm", ["max", "avg_exclude_padding"])
def test_large_tensors_are_pooled_with_longer_indices(target, kernels, monkeypatch, algorithm):
    monkeypatch.setattr("dnncore_opencl.codegen.layout.LARGE", 1)
    dims, kernel, strides, left, right = BLOCKS["3x3"]
    src, dst = channels_last(dims), pooled("3x3", "f32")
    geometry = {"kernel": kernel, "strides": strides, "padding_l": left, "padding_r": right}
    forward = dnn.PoolingForward("forward_training", algorithm, src=src, dst=dst, **geometry)
    inputs = {"src": fill_normal(src, 1)}
    check(target, forward, inputs=inputs)
    backward = dnn.PoolingBackward(algorithm, diff_src=src, diff_dst=dst, **geometry)
    gradient = {"diff_dst": fill_normal(dst, 2)}
    if algorithm == "max":
        outputs = expected_outputs(forward, dnn.Attributes(), inputs)
        gradient["workspace"] = outputs["workspace"].values
    check(target, backward, inputs=gradient)
    assert set(kernels) == {"pooling_rows", "pooling_blocks"}


@pytest.mark.parametrize("tag", ["nchw", "nhwc"])
@pytest.mark.parametrize("algorithm", ["max", "avg_exclude_padding"])
def test_gradients_of_no_window_are_zero(target, algorithm, tag):
    diff_src, diff_dst = (
        dnn.MemoryDesc((2, 16, 2, 2), "f32", tag),
        dnn.MemoryDesc((2, 16, 0, 0), "f32", tag),
    )
    backward = dnn.PoolingBackward(algorithm, diff_src=diff_src, diff_dst=diff_dst, kernel=(3, 3))
    places = {"workspace": np.zeros(diff_dst.dims, np.uint8)} if algorithm == "max" else {}
    check(target, backward, inputs={"diff_dst": fill_normal(diff_dst, 1), **places})


ROWS = {  # dims of src and dst, kernel, strides, padding on the left, tag of src, a chain
    "row": ((2, 3, 20), (2, 3, 10), (3,), (2,), (1,), "abc", False),
    "one cell": ((1, 1, 1, 1), (1, 1, 1, 1), (1, 1), (1, 1), (0, 0), "abcd", False),
    "a chain": ((2, 3, 7, 6), (2, 3, 4, 3), (3, 3), (2, 2), (1, 1), "abcd", True),
    "volume": ((1, 3, 4, 4, 3), (1, 3, 2, 5, 2), (2, 2, 2), (2, 1, 2), (0, 1, 1), "abcde", False),
    "blocks": ((2, 3, 8, 6), (2, 3, 4, 3), (3, 3), (2, 2), (1, 1), "abCd4c", False),
    "padded blocks": ((2, 3, 5, 6), (2, 3, 3, 3), (3, 3), (2, 2), (1, 1), "abCd4c", False),
    "channels last": ((2, 3, 7, 6), (2, 3, 4, 3), (3, 3), (2, 2), (1, 1), "acdb", False),
    "many windows": ((1, 1, 256, 8), (1, 1, 258, 8), (3, 3), (1, 1), (2, 1), "abcd", False),
    "a wide row": ((1, 1, 2, 4100), (1, 1, 2, 1366), (1, 3), (1, 3), (0, 0), "abcd", False),
}  # fmt: skip


@pytest.mark.in_turn
@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("algorithm", ["max", "avg_include_padding"])
def test_gradients_are_added_by_planes_only_where_rows_are_plain_and_fit(target, name, algorithm):
    if target.name.endswith("pocl"):
        pytest.skip("PoCL loses work-items between barriers in loops; which ones hangs on the text")
    src, dst, kernel, strides, left, tag, has_chain = ROWS[name]
    diff_src, diff_dst = (dnn.MemoryDesc(dims, "f32", tag) for dims in (src, dst))
    geometry = {"kernel": kernel, "strides": strides, "padding_l": left}
    backward = dnn.PoolingBackward(algorithm, diff_src=diff_src, diff_dst=diff_dst, **geometry)
    attr = dnn.Attributes([dnn.PostOp.eltwise("relu")] if has_chain else [])
    check_pooling_gradient(target, backward, attr)
    (pd,) = target.primitive_descs(backward, attr, impl="opencl:gather")
    (launch,) = pd.primitive().executable.launches
    assert (launch.kernel == "pooling_planes") == (name in ("row", "one cell"))


def test_gradients_by_planes_of_columns_apart(target):
    """The last dim has one element, so the last that has more does not step by one."""
    if target.name.endswith("pocl"):
        pytest.skip("PoCL loses work-items between barriers in loops; which ones hangs on the text")
    diff_src = dnn.MemoryDesc((2, 3, 8, 1), strides=(60, 20, 2, 1))
    diff_dst = dnn.MemoryDesc((2, 3, 4, 1))
    geometry = {"kernel": (3, 1), "strides": (2, 1), "padding_l": (1, 0)}
    for algorithm in ("max", "avg_include_padding"):
        backward = dnn.PoolingBackward(algorithm, diff_src=diff_src, diff_dst=diff_dst, **geometry)
        check_pooling_gradient(target, backward)


UNSHARED = {  # dims of src and dst, kernel, strides, padding on the left, tag
    "a row": ((2, 16, 11), (2, 16, 6), (3,), (2,), (1,), "acb"),
    "one window high": ((2, 16, 3, 8), (2, 16, 1, 6), (3, 3), (1, 1), (0, 0), "acdb"),
    "windows before the image": ((2, 16, 3, 8), (2, 16, 6, 6), (3, 3), (1, 1), (5, 0), "acdb"),
    "windows behind the image": ((2, 16, 3, 8), (2, 16, 6, 6), (3, 3), (1, 1), (1, 0), "acdb"),
    "blocks of rows": ((2, 16, 10, 8), (2, 16, 8, 6), (3, 3), (1, 1), (0, 0), "aBCd4c16b"),
}


@pytest.mark.in_turn
@pytest.mark.parametrize("name", UNSHARED)
@pytest.mark.parametrize("algorithm", ["max", "avg_include_padding"])
def test_windows_that_share_no_rows_are_pooled_by_themselves(target, kernels, name, algorithm):
    src, dst, kernel, strides, left, tag = UNSHARED[name]
    images = [dnn.MemoryDesc(dims, "f32", tag) for dims in (src, dst)]
    right = [
        (windows - 1) * step + k - size - before
        for windows, step, k, size, before in zip(
            dst[2:], strides, kernel, src[2:], left, strict=True
        )
    ]
    geometry = {"kernel": kernel, "strides": strides, "padding_l": left, "padding_r": right}
    forward = dnn.PoolingForward(
        "forward_inference", algorithm, src=images[0], dst=images[1], **geometry
    )
    check(target, forward)
    assert set(kernels) == {"pooling_forward"}
    backward = dnn.PoolingBackward(algorithm, diff_src=images[0], diff_dst=images[1], **geometry)
    check_pooling_gradient(target, backward)
    assert ("pooling_blocks" in kernels) == (name != "blocks of rows")


def test_registers_are_limited_on_nvidia_alone(target, monkeypatch):
    """The option of NVIDIA's compiler is not passed to others."""
    from dnncore_opencl.elementwise.windows import Windows

    given, launch = [], Windows.launch

    def recorded(windows, *args, options=(), **others):
        given.append(options)
        return launch(windows, *args, **others)

    monkeypatch.setattr(Windows, "launch", recorded)
    src, dst = channels_last((2, 16, 8, 9)), channels_last((2, 16, 6, 7))
    forward = dnn.PoolingForward("forward_inference", "max", src=src, dst=dst, kernel=(3, 3))
    for is_nvidia, options in ((False, ()), (True, ("-cl-nv-maxrregcount=128",))):
        dnn.cache.primitives.clear()
        monkeypatch.setattr(
            "dnncore_opencl.pooling.implementations.is_nvidia",
            lambda _engine, is_it=is_nvidia: is_it,
        )
        check(target, forward)
        assert given.pop() == options


def test_refusals_tell_of_the_problem(target, monkeypatch):
    """A third of the conformance kit's cases, which the devices take in turn; nothing is built."""
    from dnncore_opencl.gemm.mma.family import Mma

    monkeypatch.setattr(Mma, "refusal", classmethod(lambda _family, _engine: None))
    refused = set()
    for problem in itertools.islice(cases("full"), OPENCL.index(target), None, 3 * len(OPENCL)):
        case = Case(problem, target.engine)
        for _, implementation in registry.implementations("opencl", type(problem.op)):
            refusals(case, implementation)
            if isinstance(implementation.answer(case.op, case.attr, case.engine, None), Refused):
                refused.add(implementation.name)
    assert "opencl:mma" in refused


def test_powers_of_two():
    from dnncore_opencl.codegen.grid import power_of_two, power_of_two_within

    assert [power_of_two(size) for size in (1, 2, 3, 4, 5)] == [1, 2, 4, 4, 8]
    assert [power_of_two_within(most, 16) for most in (0, 1, 2, 3, 4, 40)] == [1, 1, 2, 2, 4, 16]


@pytest.mark.in_turn
@pytest.mark.parametrize("algorithm", ["nearest", "linear"])
@pytest.mark.parametrize("tag", ["abcd", "acdb", "aBcd8b"])
def test_resampling_holds_taps_for_several_images(target, monkeypatch, tag, algorithm):
    monkeypatch.setattr("dnncore_opencl.resampling.held.ITEMS", 0)
    small, large = (dnn.MemoryDesc((3, 16, *size), "f32", tag) for size in ((3, 5), (7, 9)))
    for source, result in ((small, large), (large, small)):
        forward = dnn.ResamplingForward("forward_inference", algorithm, src=source, dst=result)
        backward = dnn.ResamplingBackward(algorithm, diff_dst=source, diff_src=result)
        check(target, forward, inputs={"src": fill_normal(source, 1)}, impl="opencl:held")
        check(target, backward, inputs={"diff_dst": fill_normal(source, 1)}, impl="opencl:held")


def test_many_taps_are_not_held(target):
    source, result = dnn.MemoryDesc((1, 2, 40)), dnn.MemoryDesc((1, 2, 3))
    op = dnn.ResamplingBackward("linear", diff_dst=source, diff_src=result)
    text = dnn.PrimitiveDesc(op, target.engine).explain()
    assert "holds at most 8 taps along a dim; got 32" in text
    check(target, op, inputs={"diff_dst": fill_normal(source, 1)}, impl="opencl:gather")


@pytest.mark.in_turn
@pytest.mark.parametrize("data_type", ["f32", "f16", "s8"])
@pytest.mark.parametrize("channels", [(4, 12), (8, 0, 8, 16), (3, 5)])
@pytest.mark.parametrize("tag", ["abcd", "acdb"])
def test_rows_of_several_sources_are_joined_in_one_launch(target, tag, channels, data_type):
    srcs = [dnn.MemoryDesc((2, size, 3, 4), data_type, tag) for size in channels]
    dst = dnn.MemoryDesc((2, sum(channels), 3, 4), data_type, tag)
    launch = joined(target.engine, srcs, dst, 1)
    assert (launch is None) == (tag == "acdb" and channels[0] * dst.itemsize % 4 > 0)
    check(target, dnn.Concat(srcs=srcs, dst=dst, axis=1))


@pytest.mark.in_turn
@pytest.mark.parametrize("rows", [1, 4, 28])
@pytest.mark.parametrize(
    ("src", "dst"),
    [((5, 7), (10, 21)), ((5, 7), (5, 9)), ((3, 5), (11, 2)), ((2, 3, 4), (3, 7, 5))],
)
def test_linear_resampling_shares_rows(target, monkeypatch, src, dst, rows):
    monkeypatch.setattr(held, "ROWS", rows)
    monkeypatch.setattr(held, "ROW_ITEMS", 0)
    tag = "acdb" if len(src) == 2 else "acdeb"
    small, large = (dnn.MemoryDesc((2, 8, *size), "f32", tag) for size in (src, dst))
    forward = dnn.ResamplingForward("forward_training", "linear", src=small, dst=large)
    check(target, forward, inputs={"src": fill_normal(small, 1)}, impl="opencl:held")
    backward = dnn.ResamplingBackward("linear", diff_src=small, diff_dst=large)
    check(target, backward, inputs={"diff_dst": fill_normal(large, 1)}, impl="opencl:held")
