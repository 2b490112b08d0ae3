"""Normalizations as planned for GPUs, and statistics that must not cancel, on OpenCL devices."""

from __future__ import annotations

import numpy as np
import pytest
from checks import Target, check
from conftest import TARGETS
from dnncore_opencl.rows import staged, statistics

import dnncore as dnn
from dnncore.comparison.fills import fill_normal
from dnncore.problem import read
from dnncore.testing import run_case

OPENCL = [target for target in TARGETS if target.engine_name.startswith("opencl")]


def is_sound(target: Target) -> bool:
    """Whether the driver compiles barriers as they are written."""
    from dnncore_opencl.devices.pocl import miscompiles_barriers

    return not miscompiles_barriers(target.engine.native.device)


@pytest.fixture(params=OPENCL, ids=str)
def target(request, planned_for_gpus) -> Target:
    """Each device, with kernels as for a GPU."""
    if not is_sound(request.param):
        pytest.skip("this driver miscompiles barriers in loops")
    return request.param


def far_from_zero(dims: tuple[int, ...]) -> np.ndarray:
    """Numbers with the mean 1e4 and the deviation 1."""
    return fill_normal(dnn.MemoryDesc(dims), 1) + np.float32(1e4)


def batch(src: dnn.MemoryDesc) -> dnn.BatchNormalizationForward:
    vector = dnn.MemoryDesc(src.dims[1:2])
    return dnn.BatchNormalizationForward(
        "forward_training", src=src, dst=src, scale=vector, shift=vector, fuse_relu=True
    )


def layer(src: dnn.MemoryDesc) -> dnn.LayerNormalizationForward:
    return dnn.LayerNormalizationForward("forward_training", src=src, dst=src)


def inputs_of(op, seed=3):
    """Random inputs; those of src are far from zero."""
    inputs = {"src": far_from_zero(op.src.dims)}
    for i, (argument, desc) in enumerate(op.tensors()):
        if argument.direction == "in" and argument.name != "src":
            inputs[argument.name] = fill_normal(desc, seed + i)
    return inputs


@pytest.mark.in_turn
@pytest.mark.parametrize("tag", ["abcd", "acdb", "aBcd16b"])
@pytest.mark.parametrize("dims", [(3, 19, 5, 6), (2, 64, 40, 32)])
def test_statistics_of_channels_do_not_cancel(target, dims, tag):
    op = batch(dnn.MemoryDesc(dims, "f32", tag))
    check(target, op, inputs=inputs_of(op))


@pytest.mark.in_turn
@pytest.mark.parametrize("impl", ["opencl:rows", "opencl:staged"])
@pytest.mark.parametrize("length", [5, 1000, 9000])
def test_statistics_of_rows_do_not_cancel(target, length, impl):
    op = layer(dnn.MemoryDesc((7, length)))
    check(target, op, inputs=inputs_of(op), impl=impl)


@pytest.mark.in_turn
@pytest.mark.parametrize("tag", ["ab", "ba"])
def test_gradients_of_rows_along_and_across(target, tag):
    desc, vector = dnn.MemoryDesc((12, 1000), "f32", tag), dnn.MemoryDesc((1000,))
    op = dnn.LayerNormalizationBackward(
        src=desc, diff_dst=desc, diff_src=desc, scale=vector, diff_scale=vector, diff_shift=vector
    )
    rows = dnn.MemoryDesc((12,))
    inputs = {name: fill_normal(desc, i) for i, name in enumerate(("src", "diff_dst"), 1)}
    inputs |= {"mean": fill_normal(rows, 3), "variance": 1 + fill_normal(rows, 4) ** 2}
    check(target, op, inputs=inputs | {"scale": fill_normal(vector, 5)}, impl="opencl:rows")


@pytest.mark.in_turn
@pytest.mark.parametrize("tag", ["abcd", "acdb"])
def test_parts_of_channels_are_joined(target, monkeypatch, tag):
    """Small boxes give a channel many parts, also in the gradient."""
    monkeypatch.setattr(staged, "BOX", 64)
    for module in (staged, statistics):
        monkeypatch.setattr(module, "LONE_BOX", 4)
    desc = dnn.MemoryDesc((3, 16, 9, 12), "f32", tag)
    op = batch(desc)
    check(target, op, inputs=inputs_of(op))
    vector, statistic = dnn.MemoryDesc((16,)), fill_normal(dnn.MemoryDesc((16,)), 5)
    gradient = dnn.BatchNormalizationBackward(
        src=desc, diff_dst=desc, diff_src=desc, scale=vector, diff_scale=vector, diff_shift=vector
    )
    given = {"mean": statistic, "variance": 1 + statistic**2, "scale": statistic}
    given |= {"src": fill_normal(desc, 6), "diff_dst": fill_normal(desc, 7)}
    check(target, gradient, inputs=given)


@pytest.mark.in_turn
@pytest.mark.parametrize("impl", ["opencl:rows", "opencl:staged"])
@pytest.mark.parametrize("tag", ["abc", "aBc4b", "aBc16b"])
def test_blocks_within_and_across_groups(target, tag, impl):
    """Groups of 8 channels without blocks, with blocks within them, and with blocks of two."""
    src = dnn.MemoryDesc((2, 32, 5), "f32", tag)
    op = dnn.GroupNormalizationForward("forward_training", src=src, dst=src, groups=4)
    check(target, op, inputs=inputs_of(op), impl=impl)


@pytest.mark.parametrize("tag", ["abc", "aBc16b"])
def test_blocked_statistics_and_scales_are_refused_with_the_rule(target, tag):
    src, rows = dnn.MemoryDesc((4, 20, 30), "f32", tag), dnn.MemoryDesc((4, 5), "f32", "aB8b")
    for own in {"mean": rows, "variance": rows}, {"scale": dnn.MemoryDesc((20,), "f32", "A8a")}:
        op = dnn.GroupNormalizationForward("forward_training", src=src, dst=src, groups=5, **own)
        if "mean" not in own:
            plain = dnn.MemoryDesc((4, 5))
            op = op.with_descs(mean=plain, variance=plain)
        with pytest.raises(dnn.NoImplementation, match=r"scales without blocks; got (aB8b|A8a)"):
            dnn.PrimitiveDesc(op, target.engine)


def test_one_outlier_leaves_the_variance_of_the_others(target):
    """The first number is the shift of a naive one-pass formula."""
    src = fill_normal(dnn.MemoryDesc((2, 5000)), 1)
    src[:, 0] = 1e5
    check(target, layer(dnn.MemoryDesc(src.shape)), inputs={"src": src})


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("length", "wanted", "rms"), [(20, "CH", False), (1000, "H", False), (1000, "C", True)]
)
def test_rows_are_read_once_for_all_gradients(target, monkeypatch, length, wanted, rms):
    monkeypatch.setattr("dnncore_opencl.normalization.rows.THREADS", 1)
    desc, vector, rows = dnn.MemoryDesc((50, length)), dnn.MemoryDesc((length,)), 50
    sums = {"C": {"diff_scale": vector}, "H": {"diff_shift": vector}}
    tensors = {"scale": vector} if "C" in wanted else {}
    for letter in wanted:
        tensors |= sums[letter]
    op = dnn.LayerNormalizationBackward(src=desc, diff_dst=desc, diff_src=desc, rms=rms, **tensors)
    inputs = {"src": fill_normal(desc, 1), "diff_dst": fill_normal(desc, 2)}
    inputs["variance"] = np.ones(rows, np.float32)
    if not rms:
        inputs["mean"] = np.zeros(rows, np.float32)
    if "scale" in tensors:
        inputs["scale"] = fill_normal(vector, 3)
    check(target, op, inputs=inputs, impl="opencl:rows")


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("dims", "groups"),
    [((3, 12, 5, 7), 2), ((2, 4, 40, 40), 2), ((2, 6, 90, 90), 1), ((2, 2, 8), 2)],
)
def test_groups_of_channels(target, dims, groups):
    desc, vector = dnn.MemoryDesc(dims), dnn.MemoryDesc(dims[1:2])
    affine = {"scale": vector, "shift": vector}
    forward = dnn.GroupNormalizationForward(
        "forward_training", src=desc, dst=desc, groups=groups, **affine
    )
    inputs = {"src": far_from_zero(dims), "scale": fill_normal(vector, 2)}
    check(
        target, forward, inputs=inputs | {"shift": fill_normal(vector, 3)}, impl="opencl:channels"
    )
    backward = dnn.GroupNormalizationBackward(
        src=desc, diff_dst=desc, diff_src=desc, groups=groups, scale=vector,
        diff_scale=vector, diff_shift=vector,
    )  # fmt: skip
    sets = (dims[0], groups)
    inputs |= {"src": fill_normal(desc, 4), "diff_dst": fill_normal(desc, 5)}
    inputs |= {"mean": np.full(sets, 0.5, np.float32), "variance": np.ones(sets, np.float32)}
    check(target, backward, inputs=inputs, impl="opencl:channels")


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("text", "check"),
    [
        # The gradient of src1 has no padding, that of src has.
        (
            "--bnorm --dir=BWD_DW --stag=aBx8b:aBx8b:axb --dtag=abx --flags=CHA mb2_ic9_ih5",
            "random",
        ),
        ("--bnorm --dir=BWD_DW --stag=axb:axb:aBx8b --dtag=abx --flags=CHA mb2_ic9_ih5", "padding"),
        # A scale is infinite, so the order of operations decides between infinity and NaN.
        (
            "--bnorm --dir=BWD_DW --flags=CH --attr-post-ops=relu mb2_ic9_ih4iw5_eps0.0625",
            "special",
        ),
    ],
)
def test_gradients(target, text, check):
    ((problem,)) = read(text)
    result = run_case(problem, target.engine, impl="opencl:staged", checks=(check,))
    assert result.executed
    assert not result.failures


def test_rows_of_one_element_take_random_rounding(target):
    text = "--gnorm --dt=f32:bf16 --attr-rounding-mode=dst:stochastic g3mb3_ic3_iw1"
    ((problem,)) = read(text)
    result = run_case(problem, target.engine, impl="opencl:rows", checks=("integers",))
    assert result.executed
    assert not result.failures


@pytest.mark.in_turn
@pytest.mark.parametrize("data_type", ["f32", "f16"])
@pytest.mark.parametrize("words", [4, 64])
@pytest.mark.parametrize(("dims", "groups"), [((2, 32, 9, 12), 2), ((3, 24, 5, 7), 3)])
def test_sets_of_contiguous_channels(target, monkeypatch, dims, groups, words, data_type):
    """Groups of few work-items, which hold a whole set or parts of it."""
    sizes = {"LEAST_SET": 1, "GROUP_FORWARD": 16, "GROUP_BACKWARD": 16}
    for name, size in (sizes | {"HELD_FORWARD": words, "HELD_BACKWARD": words}).items():
        monkeypatch.setattr(f"dnncore_opencl.normalization.rows.{name}", size)
    monkeypatch.setattr("dnncore_opencl.rows.rows.MOST_PARTS", 64)
    check_groups(target, dnn.MemoryDesc(dims, data_type, "acdb"), groups, "opencl:rows")


@pytest.mark.in_turn
@pytest.mark.parametrize("data_type", ["f32", "f16"])
@pytest.mark.parametrize(("dims", "groups"), [((2, 32, 9, 12), 2), ((3, 40, 5, 7), 4)])
def test_statistics_of_contiguous_channels_are_joined_to_sets(target, dims, groups, data_type):
    check_groups(target, dnn.MemoryDesc(dims, data_type, "acdb"), groups, "opencl:staged")


@pytest.mark.in_turn
@pytest.mark.parametrize("data_type", ["f32", "f16"])
@pytest.mark.parametrize("words", [4, 64])
def test_parts_of_channels_in_rows(target, monkeypatch, words, data_type):
    for name in ("HELD_FORWARD", "HELD_BACKWARD"):
        monkeypatch.setattr(f"dnncore_opencl.normalization.channels.{name}", words)
    monkeypatch.setattr("dnncore_opencl.rows.rows.MOST_PARTS", 64)
    check_groups(target, dnn.MemoryDesc((2, 6, 20, 31), data_type), 3, "opencl:channels")


def check_groups(target, desc, groups, impl):
    """Check group normalization, forward and backward."""
    vector = dnn.MemoryDesc(desc.dims[1:2])
    affine = {"scale": vector, "shift": vector}
    forward = dnn.GroupNormalizationForward(
        "forward_training", src=desc, dst=desc, groups=groups, **affine
    )
    src = fill_normal(desc, 1) + (100 if desc.data_type == "f32" else 1)
    inputs = {"src": src, "scale": fill_normal(vector, 2), "shift": fill_normal(vector, 3)}
    check(target, forward, inputs=inputs, impl=impl)
    sums = {"diff_scale": vector, "diff_shift": vector}
    backward = dnn.GroupNormalizationBackward(
        src=desc, diff_dst=desc, diff_src=desc, groups=groups, scale=vector, **sums
    )
    sets = (desc.dims[0], groups)
    inputs = {"src": fill_normal(desc, 4), "diff_dst": fill_normal(desc, 5)}
    inputs |= {"mean": np.full(sets, 0.5, np.float32), "variance": np.ones(sets, np.float32)}
    check(target, backward, inputs=inputs | {"scale": fill_normal(vector, 6)}, impl=impl)
