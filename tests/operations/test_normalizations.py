"""Batch, layer and group normalization: cancellation, empty sets, equal results, layouts."""

from __future__ import annotations

import numpy as np
import pytest
from checks import Target, check

import dnncore as dnn
from dnncore.comparison.compare import consistent_inputs
from dnncore.comparison.fills import fill_normal
from dnncore.problem import read
from dnncore.testing import run_case

IMPLEMENTATIONS = ("reference:*", "cpu_numba:*")


def the(text):
    (problem,) = read(text)
    return problem.op


def run(op, impl, **inputs):
    """Return the outputs of an operation on the CPU by name."""
    cpu = dnn.engine("cpu")
    pd = dnn.PrimitiveDesc(op, cpu, impl=impl)
    memories = {}
    for argument, desc in pd.arguments:
        if argument.direction == "in":
            memories[argument.name] = dnn.Memory.from_numpy(
                np.asarray(inputs[argument.name], desc.dtype), desc, cpu
            )
        else:
            memories[argument.name] = dnn.Memory(desc, cpu)
    stream = cpu.stream()
    pd.primitive().execute(stream, **memories).wait()
    return {a.name: memories[a.name].numpy() for a, _ in pd.arguments if a.direction == "out"}


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("text", [
    "--bnorm mb4ic3_ih9iw9eps0", "--bnorm --tag=axb mb4ic3_ih9iw9eps0", "--lnorm --eps=0 5x700",
    "--gnorm g2mb2ic4_iw300eps0",
])  # fmt: skip
def test_statistics_do_not_cancel(text, impl):
    """A difference of f32 sums of squares would have no correct digit here."""
    op = the(text)
    src = fill_normal(op.src, 1, mean=1e4)
    got = run(op, impl, src=src)
    wide = src.astype(np.float64)
    axes = {"bnorm": (0, 2, 3), "lnorm": (1,)}.get(text[2:7])
    if axes is None:
        wide, axes = wide.reshape(2, 2, 2, 300), (2, 3)
    np.testing.assert_allclose(got["variance"].ravel(), wide.var(axes).ravel(), rtol=5e-3)
    np.testing.assert_allclose(got["mean"].ravel(), wide.mean(axes).ravel(), rtol=1e-6)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_the_first_elements_may_be_far_from_the_average(impl):
    """An implementation may estimate the average from them."""
    op = the("--lnorm --dir=FWD_D 2x60000")
    src = fill_normal(op.src, 1)
    src[:, :64] -= 1e4
    got = run(op, impl, src=src)
    np.testing.assert_allclose(got["variance"], src.astype(np.float64).var(1), rtol=2e-6)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    "text", ["--bnorm mb0ic3_ih2", "--lnorm 2x0", "--gnorm g1mb2ic3_ih0", "--lnorm --flags=M 2x0"]
)
def test_statistics_of_empty_sets_are_0(text, impl):
    op = the(text)
    got = run(op, impl, src=np.zeros(op.src.dims))
    assert not got["variance"].any()
    assert not got.get("mean", np.zeros(1)).any()


@pytest.mark.parametrize("flags", ["G", "GC"])
def test_given_statistics_of_images_differ(flags):
    """The means that the kernel subtracts are the same for all images, their factors are not."""
    ((problem,)) = read(f"--gnorm --dir=BWD_D --tag=axb --flags={flags} g2mb3_ic34_iw7")
    result = run_case(problem, dnn.engine("cpu"), impl="cpu_numba:*", checks=("random",))
    assert result.executed
    assert not result.failures


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("text", [
    "--bnorm --dir=BWD_DW --flags=CH mb0ic3_ih2", "--lnorm --dir=BWD_DW --flags=CH 0x3",
    "--gnorm --dir=BWD_DW --flags=CH g1mb0ic3_ih2",
])  # fmt: skip
def test_gradients_of_empty_batches_are_0(text, impl):
    op = the(text)
    names = ("src", "diff_dst", "mean", "variance", "scale")
    inputs = {name: np.ones(getattr(op, name).dims) for name in names}
    got = run(op, impl, **inputs)
    assert not got["diff_scale"].any()
    assert not got["diff_shift"].any()


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_one_element_per_channel_becomes_the_shift(impl):
    op = the("--bnorm --flags=CH mb1ic2eps0.5")
    got = run(op, impl, src=[[7, -3]], scale=[2, 3], shift=[5, 6])
    assert got["dst"].tolist() == [[5, 6]]
    assert got["variance"].tolist() == [0, 0]


def test_a_set_without_variance_gives_nan_if_epsilon_is_0():
    op = the("--lnorm --eps=0 1x2")
    assert np.isnan(run(op, "reference:*", src=[[3, 3]])["dst"]).all()


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_the_mask_of_the_relu_marks_what_is_not_negative_or_0(impl):
    op = the("--bnorm --flags=GR mb1ic1_iw4eps0")
    forward = dnn.BatchNormalizationForward(
        "forward_training", src=op.src, dst=op.dst, epsilon=0.0, use_global_stats=True,
        fuse_relu=True,
    )  # fmt: skip
    src = [[[-1, 0, 2, np.nan]]]
    got = run(forward, impl, src=src, mean=[0], variance=[1])
    assert got["workspace"].tolist() == [[[0, 0, 1, 1]]]
    assert got["dst"][0, 0, :3].tolist() == [0, 0, 2]
    assert np.isnan(got["dst"][0, 0, 3])


def test_groups_of_all_and_of_single_channels():
    """One group is the layer of an image; a group per channel is an instance."""
    src = fill_normal(dnn.MemoryDesc((2, 4, 3)), 0)
    one = run(the("--gnorm g1mb2ic4_iw3"), "cpu_numba:*", src=src)["dst"]
    flat = run(the("--lnorm 2x12"), "cpu_numba:*", src=src.reshape(2, 12))["dst"]
    np.testing.assert_allclose(one.reshape(2, 12), flat, rtol=1e-5, atol=1e-6)
    each = run(the("--gnorm g4mb2ic4_iw3"), "cpu_numba:*", src=src)["dst"]
    lines = run(the("--lnorm 2x4x3"), "cpu_numba:*", src=src)["dst"]
    np.testing.assert_allclose(each, lines, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", ["--bnorm mb2ic3iw4", "--lnorm 2x3", "--gnorm g1mb2ic4iw3"])
def test_the_hint_of_a_gradient_writes_statistics(shape):
    name, dims = shape.split()
    cpu = dnn.engine("cpu")
    inference = dnn.PrimitiveDesc(the(f"{name} --dir=FWD_I {dims}"), cpu, impl="reference:*")
    rule = "hint must be .* of prop_kind forward_training, which writes the statistics"
    with pytest.raises(dnn.DescriptorError, match=rule):
        dnn.PrimitiveDesc(the(f"{name} --dir=BWD_D {dims}"), cpu, hint=inference)
    given = [the(f"{name} --dir={way} --flags=G {dims}") for way in ("FWD_I", "BWD_D")]
    inference = dnn.PrimitiveDesc(given[0], cpu, impl="reference:*")
    dnn.PrimitiveDesc(given[1], cpu, hint=inference, impl="reference:*")


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_gradients_of_images_of_one_element_with_given_statistics(impl):
    op = the("--gnorm --dir=BWD_D --flags=G g1mb3ic1iw1")
    src, diff, mean, variance = (np.float32([1, 2, 3]) + n for n in range(4))
    got = run(op, impl, src=src.reshape(3, 1, 1), diff_dst=diff.reshape(3, 1, 1),
              mean=mean.reshape(3, 1), variance=variance.reshape(3, 1))  # fmt: skip
    right = diff / np.sqrt(variance + np.float32(op.epsilon))
    np.testing.assert_allclose(got["diff_src"].ravel(), right, rtol=1e-6)


PADDED_IMAGES = [
    f"--gnorm --dir={direction} --stag={src} --dtag={dst} {shape}"
    for direction in ("FWD_D", "BWD_D")
    for src, dst in (("abC16c", "abc"), ("abc", "abC16c"))
    for shape in ("g2mb3ic8iw3", "g1mb2ic17iw5")
]


@pytest.mark.parametrize("text", PADDED_IMAGES)
def test_images_may_have_padding(target: Target, text):
    """Places in a row of channels and pixels do not count the padding of a tensor."""
    op = the(text)
    inputs = consistent_inputs(op, dnn.Attributes(), fill_normal)
    check(target, op, inputs=inputs)
