"""Fills, comparisons, error bounds, and the check of a primitive against the reference."""

import os
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

import dnncore as dnn
from dnncore.comparison.compare import Expected, against_reference, compare, expected_outputs
from dnncore.comparison.fills import fill_integers, fill_normal


def desc(*dims, data_type="f32", tag=None):
    return dnn.MemoryDesc(dims, data_type, tag)


# -- fills ----------------------------------------------------------------------------------------


def test_integer_fill_is_seeded_whole_and_within_its_range():
    a, b = fill_integers(desc(50, 40), 7), fill_integers(desc(50, 40), 7)
    assert np.array_equal(a, b)
    assert a.dtype == np.float32
    assert set(np.unique(a)) == set(range(-4, 5))
    assert not np.array_equal(a, fill_integers(desc(50, 40), 8))


def test_integer_fill_of_an_unsigned_type_starts_at_zero():
    values = fill_integers(desc(100, data_type="u8"), 0)
    assert values.dtype == np.uint8
    assert values.max() <= 4


def test_integer_fill_has_the_density_asked_for():
    values = fill_integers(desc(100, 100), 0, low=1, high=1, density=0.25)
    assert 0.2 < values.mean() < 0.3


def test_normal_fill_is_seeded_and_scaled():
    values = fill_normal(desc(100, 100), [1, 2], scale=3.0)
    assert np.array_equal(values, fill_normal(desc(100, 100), [1, 2], scale=3.0))
    assert 2.8 < values.std() < 3.2


# -- comparing ------------------------------------------------------------------------------------


def test_equal_arrays_compare_well():
    values = np.array([[1.0, np.nan], [np.inf, -2.0]], np.float32)
    result = compare(values, values.copy())
    assert result.ok
    assert (result.error, result.max_error, result.misplaced) == (0.0, 0.0, 0)
    assert str(result).startswith("ok: norm-wise error 0")


def test_the_worst_element_is_the_one_furthest_above_its_bound():
    expected = np.array([[100.0, 1.0], [1.0, 3.0]])
    got = np.array([[100.5, 1.0], [1.25, 3.0]])
    result = compare(got, expected, bound=np.array([[1.0, 0.1], [0.1, 0.1]]))
    assert not result.ok
    assert result.index == (1, 0)
    assert (result.got, result.expected, result.bound) == (1.25, 1.0, 0.1)
    assert result.max_error == 0.5
    assert result.error == pytest.approx(np.hypot(0.5, 0.25) / np.linalg.norm(expected))
    assert str(result) == (
        "WRONG: norm-wise error 0.0056, largest 0.5; worst at [1, 0]: got 1.25, expected 1,"
        " bound 0.1, off by 0.25, 2.5 times the bound; 1 wrong, 25.0%, only there"
    )


def test_the_worst_element_within_the_bounds_has_the_largest_share_of_its_bound():
    bound = np.array([0.0, 1e-6, 0.4])
    result = compare(np.array([0.0, 1.0, 7.1]), np.array([0.0, 1.0, 7.0]), bound)
    assert result.ok
    assert (result.index, result.of_bound) == ((2,), pytest.approx(0.25))


def test_lost_nans_are_reported_before_the_other_errors():
    expected = np.array([np.nan, 1.0, 2.0])
    only = compare(np.array([7.0, 1.0, 2.0]), expected, bound=0.5)
    assert str(only) == (
        "WRONG: NaN or inf differ in 1 place(s); worst at [0]: got 7, expected nan;"
        " 1 wrong, 33.3%, only there"
    )
    both = str(compare(np.array([7.0, 1.0, 4.0]), expected, bound=0.5))
    assert both.startswith("WRONG: NaN or inf differ in 1 place(s); norm-wise error 0.89, largest")


def test_wrong_elements_are_counted_and_measured_in_bounds():
    expected = np.array([1.0, 2.0, 3.0, 4.0], np.float32)
    got = expected.copy()
    got[1:3] = np.nextafter(got[1:3], np.float32(9.0))
    result = compare(got, expected)
    assert (result.wrong, result.share, result.of_bound) == (2, 0.5, np.inf)
    assert "where no error is allowed; 2 wrong" in str(result)
    assert compare(expected, expected).wrong == 0
    assert compare(np.array([7]), np.array([5]), bound=0.5).of_bound == 4.0


@pytest.mark.parametrize(
    ("where", "place"),
    [
        (np.s_[:], "everywhere"),
        (np.s_[1, 2, 3], "only there"),
        (np.s_[:, 3], "only at b = 3"),
        (np.s_[:, :, 16:], "only in the last 3 of 19 along c"),
        (np.s_[:, :, :16], "only in the first 16 of 19 along c"),
        (np.s_[:, :, 2:5], "only in 2 to 4 of 19 along c"),
        (np.s_[:, 1, ::4], "only at b = 1 and at c = 0 to 16 in steps of 4"),
        (np.s_[:, :, [1, 2, 7]], "only at 3 of 19 along c"),
        ((np.arange(19) % 2, np.arange(19) % 5, np.arange(19)), "scattered over all dims"),
    ],
)
def test_the_place_of_wrong_elements_is_told_in_words(where, place):
    expected = np.zeros((2, 5, 19), np.float32)
    got = expected.copy()
    got[where] = 1.0
    assert compare(got, expected).place == place


def test_one_bound_serves_all_elements():
    assert compare(np.array([1.0, 2.1]), np.array([1.0, 2.0]), bound=0.2).ok
    assert not compare(np.array([1.0, 2.1]), np.array([1.0, 2.0])).ok


@pytest.mark.parametrize(
    ("got", "expected"),
    [(np.nan, 1.0), (1.0, np.nan), (np.inf, 1.0), (np.inf, -np.inf), (np.nan, np.inf)],
)
def test_a_misplaced_nan_or_inf_is_wrong_whatever_the_bound(got, expected):
    result = compare(np.array([0.0, got]), np.array([0.0, expected]), bound=np.inf)
    assert not result.ok
    assert (result.misplaced, result.index) == (1, (1,))
    assert "NaN or inf differ in 1 place(s)" in str(result)
    assert "off by" not in str(result)


def test_an_error_where_nothing_is_expected_is_infinite():
    assert compare(np.array([1.0]), np.array([0.0])).error == np.inf


def test_empty_arrays_are_equal():
    result = compare(np.zeros((0, 3)), np.zeros((0, 3)))
    assert result.ok
    assert str(result) == "ok: no elements"
    assert (result.misplaced, result.of_bound, result.wrong, result.share) == (0, 0.0, 0, 0.0)
    assert (result.error_factor, result.beside) == (1.0, 0)
    numbers = (result.error, result.max_error, result.got, result.expected, result.bound)
    assert (result.ok, result.index, *numbers) == (True, None, 0, 0, 0, 0, 0)


def test_arrays_of_different_shapes_are_refused():
    with pytest.raises(dnn.DescriptorError, match=r"equal shapes; got \(2,\) and \(3,\)"):
        compare(np.zeros(2), np.zeros(3))
    with pytest.raises(dnn.DescriptorError, match=r"bound must be a number or .*; got \(3,\)"):
        compare([1, 2], [1, 2], np.ones(3))


def test_a_missing_memory_is_told_before_anything_runs(cpu):
    op = dnn.EltwiseForward("forward_training", "relu", src=desc(4), dst=desc(4))
    pd = dnn.PrimitiveDesc(op, cpu, impl="reference:*")
    with pytest.raises(dnn.DescriptorError, match="src"):
        against_reference(pd, {"dst": dnn.Memory(desc(4), cpu)}, cpu.stream())


# -- bounds ---------------------------------------------------------------------------------------


def product(k):
    return dnn.MatMul(src=desc(4, k), weights=desc(k, 4), dst=desc(4, 4))


@pytest.mark.parametrize("k", [1, 10, 300, 4608])
def test_the_bound_of_a_product_holds_float32_sums_but_not_a_lost_term(k):
    op = product(k)
    inputs = {"src": fill_normal(op.src, 1), "weights": fill_normal(op.weights, 2)}
    right = expected_outputs(op, dnn.Attributes(), inputs)["dst"]
    sequential = np.zeros((4, 4), np.float32)
    for i in range(k):
        sequential += inputs["src"][:, i : i + 1] * inputs["weights"][i : i + 1]
    assert right.check(sequential).ok
    lost = right.values - inputs["src"][:, :1] @ inputs["weights"][:1]
    assert not right.check(lost).ok


def test_an_error_factor_widens_the_bound():
    op = product(16)
    inputs = {"src": fill_normal(op.src, 1), "weights": fill_normal(op.weights, 2)}
    right = expected_outputs(op, dnn.Attributes(), inputs)["dst"]
    off = right.values + 3 * right.noise.limit
    assert not right.check(off).ok
    assert right.check(off, error_factor=4.0).ok


def test_a_comparison_prints_its_error_factor_and_what_was_lost():
    op = product(16)
    inputs = {"src": fill_normal(op.src, 1), "weights": fill_normal(op.weights, 2)}
    right = expected_outputs(op, dnn.Attributes(), inputs)["dst"]
    assert "error factor" not in str(right.check(right.values))
    assert str(right.check(right.values, error_factor=4.0)).endswith("; error factor 4")
    op = dnn.MatMul(src=desc(64, 64), weights=desc(64, 64), dst=desc(64, 64))
    inputs = {"src": fill_normal(op.src, 1), "weights": fill_normal(op.weights, 2)}
    right = replace(expected_outputs(op, dnn.Attributes(), inputs)["dst"], judged=True)
    errors = 3 * right.noise.rms * np.random.default_rng(3).standard_normal((64, 64))
    limit = 0.5 * right.bound()
    coarse = (right.values + np.clip(errors, -limit, limit)).astype(np.float32)
    assert re.search("^WRONG.*; lost precision: rms error", str(right.check(coarse)))


def test_exact_results_have_no_errors_to_judge():
    op = dnn.Reorder(src=desc(4), dst=desc(4))
    right = expected_outputs(op, dnn.Attributes(), {"src": fill_normal(op.src, 1)})["dst"]
    assert right.noise is None
    assert replace(right, judged=True).errors(right.values) is None


def test_rounded_factors_count_for_f32_alone():
    """With fpmath, an implementation may round f32 to a shorter type, and leaves f16."""
    attr = dnn.Attributes(fpmath="bf16")
    widened = {}
    for data_type in ("f32", "f16"):
        tensor = dnn.MemoryDesc((8, 8), data_type)
        op = dnn.MatMul(src=tensor, weights=tensor, dst=tensor)
        inputs = {"src": fill_normal(op.src, 1), "weights": fill_normal(op.weights, 2)}
        strict, loose = (
            expected_outputs(op, a, inputs)["dst"].noise.limit for a in (dnn.Attributes(), attr)
        )
        widened[data_type] = bool((loose > 2 * strict).all())
    assert widened == {"f32": True, "f16": False}


@pytest.mark.parametrize("backend", ["cpu_numba", "opencl"])
def test_without_a_reference_the_error_says_so(backend):
    program = (
        "import dnncore as dnn, numpy as np\n"
        "from dnncore.comparison.compare import expected_outputs\n"
        "desc = dnn.MemoryDesc((4,))\n"
        "op = dnn.EltwiseForward('forward_training', 'abs', src=desc, dst=desc)\n"
        "expected_outputs(op, dnn.Attributes(), {'src': np.ones(4, np.float32)})"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], check=False, text=True, capture_output=True,
        env={**os.environ, "DNNCORE_BACKENDS": backend},
    )  # fmt: skip
    assert "BackendNotFound: eltwise: a check needs a backend with role 'reference'" in found.stderr


def test_the_bound_of_winograds_gradients_holds_what_other_taps_see():
    fields = {"src": desc(1, 2, 1, 1), "diff_weights": desc(3, 2, 3, 3)}
    fields |= {"diff_dst": desc(1, 3, 1, 1), "padding_l": (1, 1), "padding_r": (1, 1)}
    inputs = {name: fill_normal(fields[name], 1) for name in ("src", "diff_dst")}
    direct, winograd = (
        expected_outputs(
            dnn.ConvolutionBackwardWeights(algorithm=algorithm, **fields), dnn.Attributes(), inputs
        )["diff_weights"].noise.limit
        for algorithm in ("direct", "winograd")
    )
    assert np.all(winograd >= direct)
    assert np.count_nonzero(direct) == 6 < np.count_nonzero(winograd) == winograd.size


def test_a_bound_follows_the_post_op_chain():
    op = product(64)
    inputs = {"src": fill_normal(op.src, 1), "weights": fill_normal(op.weights, 2)}
    attr = dnn.Attributes([dnn.PostOp.eltwise("linear", alpha=-100.0)])
    plain = expected_outputs(op, dnn.Attributes(), inputs)["dst"]
    scaled = expected_outputs(op, attr, inputs)["dst"]
    assert np.all(scaled.noise.limit > 99 * plain.noise.limit)


def test_a_bound_follows_steep_and_flat_steps():
    """exp(x) turns an error e into exp(x) * e; a comparison that cannot flip leaves none."""
    op = product(64)
    inputs = {"src": fill_normal(op.src, 1), "weights": fill_normal(op.weights, 2)}
    plain = expected_outputs(op, dnn.Attributes(), inputs)["dst"]
    grown = expected_outputs(op, dnn.Attributes([dnn.PostOp.eltwise("exp")]), inputs)["dst"]
    finite = np.isfinite(grown.values) & (grown.values > 0)
    ratio = grown.noise.limit[finite] / (plain.noise.limit * grown.values)[finite]
    assert np.all((ratio > 0.9) & (ratio < 2.0))
    far = dnn.PostOp.binary("lt", desc(1, 1))
    inputs["post_op_0_src"] = np.full((1, 1), 1e6)
    assert not np.any(expected_outputs(op, dnn.Attributes([far]), inputs)["dst"].noise.limit)


def test_a_wrong_function_exceeds_the_bound():
    src = desc(500)
    inputs = {"src": fill_normal(src, 1)}
    for name, impostor in [("gelu_erf", "gelu_tanh"), ("mish", "swish"), ("tanh", "hardswish")]:
        fields = {"alpha": 1.0, "beta": 0.0}
        right, wrong = (
            dnn.EltwiseForward("forward_training", n, src=src, dst=src, **fields)
            for n in (name, impostor)
        )
        got = expected_outputs(wrong, dnn.Attributes(), inputs)["dst"].values
        assert not expected_outputs(right, dnn.Attributes(), inputs)["dst"].check(got).ok


def test_what_only_moves_values_has_no_tolerance():
    op = dnn.Reorder(src=desc(3, 4, tag="ab"), dst=desc(3, 4, tag="ba"))
    right = expected_outputs(op, dnn.Attributes(), {"src": fill_normal(op.src, 0)})["dst"]
    assert right.bound() == 0.0


def test_infinite_inputs_leave_a_usable_bound():
    op = product(3)
    src = np.ones((4, 3), np.float32)
    src[1, 1] = np.inf
    inputs = {"src": src, "weights": np.ones((3, 4), np.float32)}
    right = expected_outputs(op, dnn.Attributes(), inputs)["dst"]
    assert right.check(right.values).ok


# -- the reference --------------------------------------------------------------------------------


def memories(pd, **arrays):
    return {
        argument.name: dnn.Memory.from_numpy(arrays[argument.name].astype(d.dtype), d, pd.engine)
        if argument.name in arrays
        else dnn.Memory(d, pd.engine)
        for argument, d in pd.arguments
    }


def test_a_primitive_agrees_with_the_reference_on_every_engine(target):
    src = desc(2, 5, 4, 4, tag="nhwc")
    op = dnn.EltwiseForward("forward_training", "tanh", src=src, dst=src)
    stream = target.engine.stream()
    for pd in target.primitive_descs(op):
        arguments = memories(pd, src=fill_normal(src, 3))
        (result,) = against_reference(pd, arguments, stream).values()
        assert result.ok, f"{pd.impl_name}: {result}"
        assert np.allclose(arguments["dst"].numpy(stream), np.tanh(fill_normal(src, 3)), atol=1e-6)


def test_the_old_value_of_dst_reaches_the_reference(cpu):
    src = desc(6)
    op = dnn.EltwiseForward("forward_training", "relu", src=src, dst=src)
    attr = dnn.Attributes([dnn.PostOp.sum(2.0)])
    pd = dnn.PrimitiveDesc(op, cpu, attr, impl="reference:*")
    arguments = memories(pd, src=fill_integers(src, 1), dst=fill_integers(src, 2))
    assert against_reference(pd, arguments, cpu.stream(), exact=True)["dst"].ok
    expected = np.maximum(fill_integers(src, 1), 0) + 2 * fill_integers(src, 2)
    assert np.array_equal(arguments["dst"].numpy(), expected)


def test_a_workspace_of_another_layout_is_understood(target):
    src, dst = desc(2, 3, 6, 6, tag="nhwc"), desc(2, 3, 3, 3, tag="nhwc")
    forward = dnn.PoolingForward(
        "forward_training", "max", src=src, dst=dst, kernel=(2, 2), strides=(2, 2)
    )
    backward = dnn.PoolingBackward("max", diff_src=src, diff_dst=dst, kernel=(2, 2), strides=(2, 2))
    stream = target.engine.stream()
    for pd in target.primitive_descs(forward):
        arguments = memories(pd, src=fill_normal(src, 5))
        results = against_reference(pd, arguments, stream)
        assert set(results) == {"dst", "workspace"}
        assert all(r.ok for r in results.values()), results
        workspace = arguments["workspace"].numpy(stream)
        for pd_back in target.primitive_descs(backward, hint=pd):
            arguments_back = memories(pd_back, diff_dst=fill_normal(dst, 6), workspace=workspace)
            (result,) = against_reference(pd_back, arguments_back, stream).values()
            assert result.ok, f"{pd_back.impl_name}: {result}"


def test_a_wrong_result_is_found(cpu):
    src = desc(4)
    op = dnn.EltwiseForward("forward_training", "relu", src=src, dst=src)
    pd = dnn.PrimitiveDesc(op, cpu, impl="reference:*")
    arguments = memories(pd, src=np.array([1.0, 2.0, -3.0, 4.0]))
    right = expected_outputs(op, dnn.Attributes(), {"src": arguments["src"].numpy()})["dst"]
    wrong = right.values.copy()
    wrong[2] = 1e-5
    assert right.check(wrong).index == (2,)
    assert not right.check(wrong).ok


def test_results_that_devices_may_replace_by_zero_are_no_lost_precision():
    """They are denormal, so zeros are within the least normal number of float32."""
    from dnncore.algorithms.rounding import Noise

    values = np.float32(1e-39) * np.random.default_rng(0).standard_normal(500, np.float32)
    noise = Noise(np.full(500, 1e-44), np.full(500, 1e-46))
    assert Expected(values, noise, judged=True).check(np.zeros_like(values)).ok


def test_errors_of_a_direct_sum_are_independent_and_those_of_a_tile_are_not():
    expected = []
    for algorithm in ("direct", "winograd"):
        op = dnn.ConvolutionForward(
            "forward_inference", src=desc(1, 2, 6, 6), weights=desc(3, 2, 3, 3),
            dst=desc(1, 3, 4, 4), algorithm=algorithm,
        )  # fmt: skip
        inputs = {"src": fill_normal(op.src, 1), "weights": fill_normal(op.weights, 2)}
        expected.append(expected_outputs(op, dnn.Attributes(), inputs)["dst"].independent)
    assert expected == [1.0, 0.25]


def test_results_of_no_terms_are_not_judged_as_a_tensor():
    """All are the bias, and all have the same error."""
    op = dnn.MatMul(
        src=desc(30, 0), weights=desc(0, 40), bias=desc(1, 1), dst=desc(30, 40)
    )  # fmt: skip
    inputs = {"src": np.ones((30, 0)), "weights": np.ones((0, 40)), "bias": np.full((1, 1), 0.7)}
    attr = dnn.Attributes((dnn.PostOp.eltwise("linear", 0.2345675, -1.2345675),))
    right = expected_outputs(op, attr, inputs, random_order=True, judged=True)["dst"]
    assert right.check(right.values + 2 * np.spacing(right.values)).ok


def test_every_result_is_right_behind_an_overflow():
    """(2**100)**2 leaves f32's range: minus infinity makes it -inf in float64, and NaN in f32."""
    steps = (dnn.PostOp.eltwise("square"), dnn.PostOp.binary("add", desc(1, 3)))
    op = dnn.EltwiseForward("forward_inference", "abs", src=desc(1, 3), dst=desc(1, 3))
    inputs = {
        "src": np.array([[2.0**100, 3.0, np.inf]], np.float32),
        "post_op_1_src": np.array([[-np.inf, -np.inf, 1.0]], np.float32),
    }
    right = expected_outputs(op, dnn.Attributes(steps), inputs)["dst"]
    assert right.values.tolist() == [[-np.inf, -np.inf, np.inf]]
    assert right.check(np.array([[np.nan, -np.inf, np.inf]], np.float32)).ok
    assert not right.check(np.array([[np.nan, np.nan, np.inf]], np.float32)).ok
    assert not right.check(np.array([[-np.inf, -np.inf, np.nan]], np.float32)).ok


def test_bounds_of_halves_are_computed_in_float32():
    """300 * 300 exceeds float16, in which an infinite bound would permit everything."""
    narrow = desc(4, 4, data_type="f16")
    op = dnn.MatMul(src=narrow, weights=narrow, bias=desc(1, 4), dst=desc(4, 4))
    inputs = {name: np.full((4, 4), 300, np.float16) for name in ("src", "weights")}
    right = expected_outputs(op, dnn.Attributes(), {**inputs, "bias": np.zeros((1, 4), "f")})["dst"]
    assert np.all(right.bound() < 1.0)
    assert not right.check(np.full((4, 4), 360_002, np.float32)).ok


def test_bounds_of_halves_with_a_bias_in_f32_do_not_overflow():
    """All arrays are widened if one of them is of a half type."""
    half, bias = dnn.MemoryDesc((8, 8), "f16"), dnn.MemoryDesc((1, 8))
    op = dnn.MatMul(src=half, weights=half, bias=bias, dst=dnn.MemoryDesc((8, 8)))
    inputs = {name: np.full((8, 8), 400, np.float16) for name in ("src", "weights")}
    inputs["bias"] = np.ones((1, 8), np.float32)
    right = expected_outputs(op, dnn.Attributes(), inputs)["dst"]
    np.testing.assert_array_equal(right.values, 8 * 400 * 400 + 1)
    assert np.isfinite(right.bound()).all()
