"""Pooling and its gradient: windows, formats, the workspace, ties and empty windows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from checks import REFERENCE, Target, agree, check, reference_outputs, run

import dnncore as dnn
from dnncore.comparison.compare import expected_outputs
from dnncore.comparison.fills import fill_integers, fill_normal
from dnncore.ops.window import LARGEST, entries, window_output
from dnncore.testing.checks.torch_oracle import torch_outputs

LOWEST = float(np.finfo(np.float32).min)


class Problem:
    """One pooling: src's dims, the kernel, a window; formats are those of src and dst."""

    def __init__(self, src, kernel, tag=None, dst_tag=None, **window):
        left = window.get("padding_l", (0,) * len(kernel))
        geometry = zip(
            src[2:],
            kernel,
            window.get("strides", (1,) * len(kernel)),
            window.get("dilations", (0,) * len(kernel)),
            left,
            window.get("padding_r", left),
            strict=True,
        )
        self.window = {"kernel": kernel, **window}
        self.src = dnn.MemoryDesc(src, "f32", tag)
        dst = (*src[:2], *(window_output(*dim) for dim in geometry))
        self.dst = dnn.MemoryDesc(dst, "f32", dst_tag or tag)

    def forward(self, algorithm="max", prop_kind="forward_training"):
        return dnn.PoolingForward(prop_kind, algorithm, src=self.src, dst=self.dst, **self.window)

    def backward(self, algorithm="max"):
        return dnn.PoolingBackward(algorithm, diff_src=self.src, diff_dst=self.dst, **self.window)

    def backward_inputs(self, fill):
        """Gradients, and the workspace of a forward run on values with many ties."""
        src = fill_integers(self.src, 1, low=0, high=3)
        workspace = reference_outputs(self.forward(), {"src": src})["workspace"]
        return {"diff_dst": fill(self.dst, 2), "workspace": workspace}


HALVES = {"strides": (2, 2)}
PROBLEMS = {
    "2x2_stride2": Problem((2, 16, 8, 6), (2, 2), **HALVES),
    "2x2_stride2_nhwc": Problem((2, 5, 8, 6), (2, 2), "nhwc", **HALVES),
    "2x2_stride2_blocked": Problem((2, 16, 8, 6), (2, 2), "nChw8c", **HALVES),
    "2x2_stride2_blocked_padded": Problem((2, 13, 8, 6), (2, 2), "nChw8c", **HALVES),
    "3x3_stride2_padded": Problem((2, 7, 9, 11), (3, 3), strides=(2, 2), padding_l=(1, 1)),
    "3x3_overlapping": Problem((1, 3, 6, 7), (3, 3), padding_l=(1, 1)),
    "2x3": Problem((1, 4, 6, 7), (2, 3), strides=(1, 2)),
    "asymmetric_padding": Problem((1, 4, 5, 6), (3, 3), padding_l=(0, 2), padding_r=(2, 1)),
    "negative_right_padding": Problem((1, 2, 9, 9), (3, 3), strides=(2, 2), padding_r=(-1, -1)),
    "dilated": Problem((1, 4, 9, 9), (3, 2), dilations=(1, 2), padding_l=(2, 0)),
    "windows_in_padding": Problem((1, 3, 3, 4), (2, 2), padding_l=(3, 2)),
    "windows_around_the_image": Problem((1, 2, 2, 2), (2, 2), dilations=(3, 3), padding_l=(2, 2)),
    "global": Problem((3, 10, 5, 5), (5, 5)),
    "more_than_255_cells": Problem((1, 2, 17, 17), (16, 16)),
    "1x1": Problem((1, 4, 5, 5), (1, 1), strides=(2, 2)),
    "batch0": Problem((0, 4, 6, 6), (2, 2), **HALVES),
    "1d": Problem((2, 3, 9), (3,), strides=(2,)),
    "3d": Problem((1, 3, 4, 5, 6), (2, 2, 2), strides=(2, 1, 2), padding_l=(0, 1, 0)),
}
all_problems = pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
AVERAGES = ("avg_include_padding", "avg_exclude_padding")
EMPTY_WINDOWS = ("windows_in_padding", "windows_around_the_image")
AVERAGED = [
    (PROBLEMS[name], algorithm)
    for name in PROBLEMS
    for algorithm in AVERAGES
    if algorithm == "avg_include_padding" or name not in EMPTY_WINDOWS
]
all_averages = pytest.mark.parametrize(
    ("problem", "algorithm"),
    AVERAGED,
    ids=[f"{name}-{a}" for name, p in PROBLEMS.items() for q, a in AVERAGED if p is q],
)


@pytest.mark.in_turn(2)
@all_problems
def test_forward(target: Target, problem):
    check(target, problem.forward())


@pytest.mark.in_turn(2)
@all_averages
def test_average(target: Target, problem, algorithm):
    check(target, problem.forward(algorithm))
    check(target, problem.backward(algorithm))


def test_averages_have_no_workspace(target: Target):
    problem = PROBLEMS["2x2_stride2"]
    for algorithm in AVERAGES:
        for forward in target.primitive_descs(problem.forward(algorithm)):
            assert forward.workspace_desc is None
            for backward in target.primitive_descs(problem.backward(algorithm), hint=forward):
                assert backward.workspace_desc is None


@pytest.mark.parametrize("problem", [PROBLEMS[name] for name in EMPTY_WINDOWS], ids=EMPTY_WINDOWS)
def test_an_average_over_no_cell_is_refused(problem):
    with pytest.raises(dnn.DescriptorError, match="so that no window is empty"):
        problem.forward("avg_exclude_padding")


@pytest.mark.parametrize("name", ["3x3_stride2_padded", "2x2_stride2_nhwc", "windows_in_padding"])
def test_inference_has_no_workspace(target: Target, name):
    op = PROBLEMS[name].forward(prop_kind="forward_inference")
    assert all(pd.workspace_desc is None for pd in target.primitive_descs(op))
    check(target, op)


@all_problems
def test_backward(target: Target, problem):
    for fill in (fill_integers, fill_normal):
        check(target, problem.backward(), inputs=problem.backward_inputs(fill))


@pytest.mark.peer
@all_problems
def test_the_reference_agrees_with_torch(problem):
    check(REFERENCE, problem.forward(), oracle=torch_outputs)


@pytest.mark.peer
@all_averages
def test_averages_of_the_reference_agree_with_torch(problem, algorithm):
    check(REFERENCE, problem.forward(algorithm), oracle=torch_outputs)
    src = fill_normal(problem.src, 1)
    inputs = {"src": src, "diff_dst": fill_normal(problem.dst, 2)}
    check(REFERENCE, problem.backward(algorithm), inputs=inputs, oracle=torch_outputs)


@pytest.mark.peer
@all_problems
def test_backward_agrees_with_torch(target: Target, problem):
    """Forward and backward of the same target, so that their workspaces must fit."""
    src, diff_dst = fill_normal(problem.src, 1), fill_normal(problem.dst, 2)
    right = torch_outputs(problem.backward(), dnn.Attributes(), {"src": src, "diff_dst": diff_dst})
    for forward in target.primitive_descs(problem.forward()):
        workspace = run(forward, {"src": src})["workspace"]
        for pd in target.primitive_descs(problem.backward(), hint=forward):
            got = run(pd, {"diff_dst": diff_dst, "workspace": workspace})["diff_src"]
            assert np.allclose(got, right["diff_src"], rtol=1e-6, atol=1e-6), pd.impl_name


@pytest.mark.parametrize("name", ["2x2_stride2", "2x2_stride2_nhwc", "2x2_stride2_blocked_padded"])
def test_any_takes_the_format_of_src(target: Target, name):
    problem = PROBLEMS[name]
    op = replace(problem.forward(), dst=problem.dst.with_format("any"))
    assert target.primitive_descs(op)[0].dst_desc == problem.dst
    check(target, op)


@pytest.mark.parametrize("name", ["2x2_stride2_nhwc", "2x2_stride2_blocked_padded"])
def test_any_takes_the_format_of_diff_dst(target: Target, name):
    problem = PROBLEMS[name]
    op = replace(problem.backward(), diff_src=problem.src.with_format("any"))
    assert target.primitive_descs(op)[0].diff_src_desc == problem.src
    check(target, op, inputs=problem.backward_inputs(fill_integers))


def test_from_one_format_to_another(target: Target):
    problem = Problem((2, 13, 8, 6), (2, 2), "nhwc", "nChw8c", **HALVES)
    check(target, problem.forward())
    check(target, problem.backward(), inputs=problem.backward_inputs(fill_integers))
    check(target, problem.forward("avg_exclude_padding"))
    check(target, problem.backward("avg_include_padding"))


def test_the_first_maximum_wins(target: Target):
    problem = Problem((1, 1, 2, 4), (2, 2), strides=(2, 2))
    src = np.array([[[[1, 5, 7, 7], [5, 5, 7, 7]]]], np.float32)
    for pd in target.primitive_descs(problem.forward()):
        got = run(pd, {"src": src})
        assert got["dst"].tolist() == [[[[5, 7]]]], pd.impl_name
        assert got["workspace"].tolist() == [[[[1, 0]]]], pd.impl_name


def test_a_window_without_cells_gives_the_lowest_float_and_place_0(target: Target):
    problem = Problem((1, 1, 1, 1), (1, 1), padding_l=(1, 1))
    for pd in target.primitive_descs(problem.forward()):
        got = run(pd, {"src": np.full((1, 1, 1, 1), -7, np.float32)})
        assert got["dst"].ravel().tolist() == [LOWEST] * 4 + [-7] + [LOWEST] * 4, pd.impl_name
        assert not got["workspace"].any(), pd.impl_name


def test_inf_and_nan_are_values(target: Target):
    """NaN is larger than all; -inf is a maximum where there is nothing else."""
    problem = Problem((1, 1, 1, 8), (1, 2), strides=(1, 2))
    nan, inf = np.nan, np.inf
    src = np.array([nan, 1, 1, nan, -inf, -inf, inf, 2], np.float32).reshape(1, 1, 1, 8)
    check(target, problem.forward(), inputs={"src": src})


@pytest.mark.parametrize("name", ["3x3_stride2_padded", "2x2_stride2_nhwc", "global"])
def test_any_forward_feeds_any_backward(target: Target, name):
    """The reference's workspace is understood by all, and all of theirs by the reference."""
    problem = PROBLEMS[name]
    src, diff_dst = fill_normal(problem.src, 1), fill_normal(problem.dst, 2)
    own = expected_outputs(problem.forward(), dnn.Attributes(), {"src": src})
    inputs = {"diff_dst": diff_dst, "workspace": own["workspace"].values}
    right = expected_outputs(problem.backward(), dnn.Attributes(), inputs)
    for forward in target.primitive_descs(problem.forward()):
        got = run(forward, {"src": src})
        agree(forward, got, own, exact=True)
        for backward in target.primitive_descs(problem.backward(), hint=forward):
            agree(backward, run(backward, {**inputs, "workspace": got["workspace"]}), right)


@pytest.mark.parametrize("tag", ["nchw", "nhwc", "nChw16c"])
def test_a_workspace_may_have_gaps_where_the_gradient_has_none(target: Target, tag):
    """The rows of the workspace are those of a part of a larger tensor."""
    problem = Problem((2, 16, 5, 12), (1, 2), tag, strides=(1, 2))
    part = dnn.MemoryDesc((2, 16, 7, 9), "f32", tag).submemory(problem.dst.dims, (0, 0, 1, 2))
    src, diff_dst = fill_normal(problem.src, 1), fill_normal(problem.dst, 2)
    forward_op = replace(problem.forward(), dst=part)
    own = expected_outputs(forward_op, dnn.Attributes(), {"src": src})["workspace"].values
    inputs = {"diff_dst": diff_dst, "workspace": own}
    right = expected_outputs(problem.backward(), dnn.Attributes(), inputs)
    for forward in target.primitive_descs(forward_op, may_refuse=True):
        for backward in target.primitive_descs(problem.backward(), hint=forward, may_refuse=True):
            agree(backward, run(backward, inputs), right)


@pytest.mark.parametrize("algorithm", [*AVERAGES, "max"])
@pytest.mark.parametrize("largest", [0, -1])
@pytest.mark.parametrize("count", [3, 32])
def test_sums_that_lose_every_small_term_are_right(target: Target, count, largest, algorithm):
    """Each term but one is half a unit in the last place of that one.

    The middle cell of src is seen by `count` windows, twice as many as an average cell.
    """
    problem = Problem((1, 1, 2 * count - 1), (count,))
    terms = np.full((1, 1, count), 2.0**-24, np.float32)
    terms[..., largest] = 1.0
    src = np.zeros(problem.src.dims, np.float32)
    src[..., count - 1] = 9.0
    inputs = {"diff_dst": terms}
    if algorithm == "max":
        inputs |= {"workspace": reference_outputs(problem.forward(), {"src": src})["workspace"]}
    else:
        src[..., :count] = terms
        check(target, problem.forward(algorithm, "forward_inference"), inputs={"src": src})
    check(target, problem.backward(algorithm), inputs=inputs)


# -- the reference itself -------------------------------------------------------------------------


def test_golden():
    problem = Problem((1, 1, 3, 3), (2, 2))
    src = np.array([[[[1, 2, 3], [6, 5, 4], [7, 7, -1]]]])
    got = reference_outputs(problem.forward(), {"src": src})
    assert got["dst"].tolist() == [[[[6, 5], [7, 7]]]]
    assert got["workspace"].tolist() == [[[[2, 2], [2, 2]]]]
    inputs = {"diff_dst": np.array([[[[1.0, 10.0], [100.0, 1000.0]]]]), **got}
    diff_src = reference_outputs(problem.backward(), inputs)["diff_src"]
    assert diff_src.tolist() == [[[[0, 0, 0], [1, 10, 0], [100, 1000, 0]]]]


def test_golden_averages():
    problem = Problem((1, 1, 1, 3), (1, 2), padding_l=(0, 1))
    src = np.array([1.0, 2.0, 4.0]).reshape(1, 1, 1, 3)
    expected = {"avg_include_padding": [0.5, 1.5, 3, 2], "avg_exclude_padding": [1, 1.5, 3, 4]}
    for algorithm, dst in expected.items():
        got = reference_outputs(problem.forward(algorithm), {"src": src})["dst"]
        assert got.ravel().tolist() == dst
    diff_dst = np.array([2.0, 4.0, 8.0, 16.0]).reshape(1, 1, 1, 4)
    expected = {"avg_include_padding": [3, 6, 12], "avg_exclude_padding": [4, 6, 20]}
    for algorithm, diff_src in expected.items():
        got = reference_outputs(problem.backward(algorithm), {"diff_dst": diff_dst})["diff_src"]
        assert got.ravel().tolist() == diff_src


@all_averages
def test_the_gradient_of_an_average_is_adjoint(problem, algorithm):
    src, diff_dst = fill_normal(problem.src, 3), fill_normal(problem.dst, 4)
    dst = reference_outputs(problem.forward(algorithm), {"src": src})["dst"]
    diff_src = reference_outputs(problem.backward(algorithm), {"diff_dst": diff_dst})["diff_src"]
    products = [np.vdot(a.astype(np.float64), b) for a, b in ((dst, diff_dst), (src, diff_src))]
    assert np.isclose(*products, rtol=1e-5, atol=1e-5)


@all_problems
def test_the_gradient_is_adjoint(problem):
    """Along the winners that the workspace names, <pool(x), y> = <x, pool'(y)>."""
    src = fill_integers(problem.src, 3).astype(np.float64)
    got = reference_outputs(problem.forward(), {"src": src})
    diff_dst = fill_integers(problem.dst, 4).astype(np.float64)
    inputs = {"diff_dst": diff_dst, "workspace": got["workspace"]}
    diff_src = reference_outputs(problem.backward(), inputs)["diff_src"]
    dst = np.where(got["dst"] == LOWEST, 0.0, got["dst"])
    assert np.vdot(dst, diff_dst) == np.vdot(src, diff_src)


def test_the_hint_must_keep_a_workspace():
    src, dst = dnn.MemoryDesc((1, 2, 4, 4)), dnn.MemoryDesc((1, 2, 2, 2))
    window = {"kernel": 2, "strides": 2}
    forward = dnn.PoolingForward("forward_inference", "max", src=src, dst=dst, **window)
    hint = dnn.PrimitiveDesc(forward, dnn.engine("cpu"))
    backward = dnn.PoolingBackward("max", diff_src=src, diff_dst=dst, **window)
    with pytest.raises(dnn.DescriptorError, match="of prop_kind forward_training"):
        dnn.PrimitiveDesc(backward, dnn.engine("cpu"), hint=hint)


def test_the_largest_number_of_a_window_is_permitted():
    assert entries("pooling", "kernel", LARGEST, 1) == (LARGEST,)
    with pytest.raises(dnn.DescriptorError, match=f"at most {LARGEST}"):
        entries("pooling", "kernel", LARGEST + 1, 1)
