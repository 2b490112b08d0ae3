"""Eltwise: every algorithm, forward and backward, over layouts, in place, at the edges of float."""

from __future__ import annotations

import numpy as np
import pytest
from checks import Target, agree, check, reference_outputs, run
from problems import PARAMETERS

import dnncore as dnn
from dnncore.algorithms.eltwise import ELTWISE, USE_DST
from dnncore.algorithms.rounding import Noise
from dnncore.comparison.compare import Expected, expected_outputs
from dnncore.comparison.fills import fill_integers, fill_normal

ALGORITHMS = {
    name: dict(zip(("algorithm", "alpha", "beta"), (name, *PARAMETERS[name]), strict=True))
    for name in ELTWISE
}
ALGORITHMS["leaky_relu"] = ALGORITHMS["relu"]
ALGORITHMS["relu"] = {"algorithm": "relu"}
ALGORITHMS["pow_of_2"] = {"algorithm": "pow", "alpha": -1.0, "beta": 2.0}
ALGORITHMS["pow_of_0"] = {"algorithm": "pow", "alpha": 3.0, "beta": 0.0}
ALGORITHMS["reciprocal"] = {"algorithm": "pow", "alpha": 1.0, "beta": -1.0}
ALGORITHMS["logsigmoid"] = {"algorithm": "soft_relu", "alpha": -1.0}
USING_DST = {
    name + USE_DST: {**ALGORITHMS[name], "algorithm": name + USE_DST}
    for name, algorithm in ELTWISE.items()
    if algorithm.slope_of_dst
}

LAYOUTS = {
    "1": dnn.MemoryDesc((1,)),
    "row_major": dnn.MemoryDesc((3, 5)),
    "column_major": dnn.MemoryDesc((13, 70), "f32", "ba"),
    "nchw": dnn.MemoryDesc((2, 7, 3, 5)),
    "nhwc": dnn.MemoryDesc((2, 7, 3, 5), "f32", "nhwc"),
    "blocked": dnn.MemoryDesc((2, 16, 3, 5), "f32", "nChw8c"),
    "blocked_padded": dnn.MemoryDesc((2, 7, 3, 5), "f32", "nChw8c"),
    "blocked_twice": dnn.MemoryDesc((5, 7, 2), "f32", "ABc4a4b"),
    "gaps": dnn.MemoryDesc((4, 3, 5), strides=(40, 10, 2)),
    "part": dnn.MemoryDesc((6, 8, 9)).submemory((3, 4, 5), (1, 2, 3)),
    "3d": dnn.MemoryDesc((2, 3, 4, 3, 2), "f32", "ndhwc"),
    "empty": dnn.MemoryDesc((0, 4, 3, 3)),
    "large": dnn.MemoryDesc((100_003,)),
}

# Every layout with one algorithm, every algorithm on one layout: devices compile each pair.
PAIRS = [(layout, "leaky_relu") for layout in LAYOUTS]
PAIRS += [("blocked_padded", name) for name in ALGORITHMS if name != "leaky_relu"]
all_pairs = pytest.mark.parametrize(("layout", "algorithm"), PAIRS, ids=map("-".join, PAIRS))
all_algorithms = pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
with_gradient = [name for name in ALGORITHMS if name != "round"]
all_gradients = pytest.mark.parametrize(
    "algorithm", [ALGORITHMS[name] for name in with_gradient], ids=with_gradient
)
all_using_dst = pytest.mark.parametrize("algorithm", USING_DST.values(), ids=USING_DST)


def forward(desc, algorithm, dst=None):
    return dnn.EltwiseForward("forward_training", src=desc, dst=dst or desc, **algorithm)


def backward(desc, algorithm):
    return dnn.EltwiseBackward(src=desc, diff_dst=desc, diff_src=desc, **algorithm)


@pytest.mark.in_turn(2)
@all_pairs
def test_forward(target: Target, layout, algorithm):
    check(target, forward(LAYOUTS[layout], ALGORITHMS[algorithm]))


@pytest.mark.in_turn(2)
@all_pairs
def test_backward(target: Target, layout, algorithm):
    if algorithm != "round":
        check(target, backward(LAYOUTS[layout], ALGORITHMS[algorithm]))


@all_using_dst
def test_backward_from_dst(target: Target, algorithm):
    """dst is one that the function gives: its range is not that of all numbers."""
    desc = LAYOUTS["blocked_padded"]
    src = fill_normal(desc, 1)
    dst = reference_outputs(forward(desc, algorithm), {"src": src})["dst"]
    op = dnn.EltwiseBackward(dst=desc, diff_dst=desc, diff_src=desc, **algorithm)
    check(target, op, inputs={"dst": dst, "diff_dst": fill_normal(desc, 2)})


@pytest.mark.in_turn(3)
@all_algorithms
@pytest.mark.parametrize("layout", ["nhwc", "blocked_padded"])
def test_in_place(target: Target, layout, algorithm):
    desc = LAYOUTS[layout]
    check(target, forward(desc, algorithm), in_place=("src", "dst"))
    if algorithm["algorithm"] != "round":
        check(target, backward(desc, algorithm), in_place=("diff_dst", "diff_src"))


@pytest.mark.parametrize("layout", ["nchw", "nhwc", "blocked_padded"])
def test_any_takes_the_format_of_src(target: Target, layout):
    desc = LAYOUTS[layout]
    op = forward(desc, ALGORITHMS["relu"], desc.with_format("any"))
    assert target.primitive_descs(op)[0].dst_desc == desc
    check(target, op)


def test_from_one_format_to_another(target: Target):
    check(target, forward(LAYOUTS["nhwc"], ALGORITHMS["tanh"], LAYOUTS["blocked_padded"]))


SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, 1e30, -1e30, 1e-30, -1e-30, 88.0, -104.0]


@pytest.mark.in_turn(3)
@all_algorithms
@pytest.mark.parametrize("direction", [forward, backward])
def test_special_values(target: Target, direction, algorithm):
    """Infinities only where the formula has a value there: 0 * inf may be given any."""
    if direction is backward and algorithm["algorithm"] == "round":
        return
    src = np.array(SPECIAL, np.float32)
    op = direction(dnn.MemoryDesc(src.shape), algorithm)
    right = reference_outputs(op, {"src": src, "diff_dst": np.ones_like(src)})[op.result_name]
    src[np.isinf(src) & np.isnan(right)] = 1.0
    check(target, op, inputs={"src": src, "diff_dst": np.ones_like(src)})


@pytest.mark.in_turn(3)
@all_algorithms
@pytest.mark.parametrize("direction", [forward, backward])
def test_f64_keeps_its_digits(target: Target, direction, algorithm):
    """A constant with the digits of float32 alone would be off by 1e-8."""
    if direction is backward and algorithm["algorithm"] == "round":
        return
    src = np.linspace(-3.0, 3.0, 101)
    op = direction(dnn.MemoryDesc(src.shape, "f64"), algorithm)
    inputs = {"src": src, "diff_dst": np.ones_like(src)}
    right = reference_outputs(op, inputs)[op.result_name]
    for pd in target.primitive_descs(op):
        got = run(pd, inputs)[op.result_name]
        np.testing.assert_allclose(got, right, rtol=1e-13, atol=1e-14, err_msg=pd.impl_name)


@pytest.mark.parametrize("name", ["tanh", "logistic", "soft_relu", "swish", "mish"])
def test_small_results_keep_their_relative_accuracy(target: Target, name):
    """8 ulp or one smallest normal number, where the formula itself would cancel.

    An ulp of the argument is one of the result for each time that exp makes it greater.
    """
    half = np.geomspace(1e-6, 80.0, 500)
    src = np.concatenate([-half, half]).astype(np.float32)
    op = forward(dnn.MemoryDesc(src.shape), ALGORITHMS[name])
    right = expected_outputs(op, dnn.Attributes(), {"src": src})["dst"].values
    ulp = np.finfo(np.float32).eps * np.abs(right)
    limit = (8 + np.abs(src)) * ulp
    limits = {"dst": Expected(right, Noise(limit, limit))}
    for pd in target.primitive_descs(op):
        agree(pd, run(pd, {"src": src}), limits)


def test_soft_relu_is_right_to_four_ulp_near_zero(target: Target):
    """There the last terms of the series for log(1 + exp(s)) count."""
    src = np.linspace(-0.5, 0.5, 2001, dtype=np.float32)
    right = np.log1p(np.exp(src.astype(np.float64)))
    op = forward(dnn.MemoryDesc(src.shape), ALGORITHMS["soft_relu"] | {"alpha": 1.0})
    for pd in target.primitive_descs(op):
        errors = np.abs(run(pd, {"src": src})["dst"] - right) / np.spacing(right.astype(np.float32))
        assert errors.max() < 4, pd.impl_name


# -- the reference itself -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "src", "dst"),
    [
        ("relu", [-2.0, 0.0, 3.0], [0.0, 0.0, 3.0]),
        ("leaky_relu", [-2.0, 0.0, 3.0], [-0.5, 0.0, 3.0]),
        ("tanh", [0.0, 0.5, -40.0], [0.0, 0.46211716, -1.0]),
        ("logistic", [0.0, 2.0, -200.0], [0.5, 0.88079708, 0.0]),
        ("linear", [-2.0, 0.0, 3.0], [-7.0, -3.0, 3.0]),
        ("abs", [-2.0, 0.0, 3.0], [2.0, 0.0, 3.0]),
        ("clip", [-2.0, 0.25, 3.0], [-1.0, 0.25, 0.5]),
        ("clip_v2", [-2.0, 0.25, 3.0], [-1.0, 0.25, 0.5]),
        ("elu", [-1.0, 0.0, 3.0], [-0.15803014, 0.0, 3.0]),
        ("exp", [-1.0, 0.0, 1.0], [0.36787944, 1.0, 2.71828183]),
        ("gelu_erf", [-1.0, 0.0, 1.0], [-0.15865525, 0.0, 0.84134475]),
        ("gelu_tanh", [-1.0, 0.0, 1.0], [-0.15880801, 0.0, 0.84119199]),
        ("hardsigmoid", [-3.0, 1.0, 3.0], [0.0, 0.75, 1.0]),
        ("hardswish", [-3.0, 1.0, 3.0], [0.0, 0.75, 3.0]),
        ("log", [1.0, 2.0, 10.0], [0.0, 0.69314718, 2.30258509]),
        ("mish", [-1.0, 0.0, 1.0], [-0.30340146, 0.0, 0.86509839]),
        ("pow", [1.0, 4.0, 0.0], [2.0, 16.0, 0.0]),
        ("reciprocal", [1.0, 4.0, -0.5], [1.0, 0.25, -2.0]),
        ("round", [0.5, 1.5, -2.5], [0.0, 2.0, -2.0]),
        ("soft_relu", [-2.0, 0.0, 2.0], [0.62652338, 1.38629436, 2.62652338]),
        ("logsigmoid", [-2.0, 0.0, 2.0], [-2.12692801, -0.69314718, -0.12692801]),
        ("sqrt", [0.0, 4.0, 2.0], [0.0, 2.0, 1.41421356]),
        ("square", [-2.0, 0.0, 3.0], [4.0, 0.0, 9.0]),
        ("swish", [-2.0, 0.0, 2.0], [-0.53788284, 0.0, 1.46211716]),
    ],
)
def test_golden_forward(algorithm, src, dst):
    op = forward(dnn.MemoryDesc((3,)), ALGORITHMS[algorithm])
    got = reference_outputs(op, {"src": np.array(src)})["dst"]
    assert np.allclose(got, dst, rtol=1e-7, atol=1e-8)


def test_the_lower_tail_of_gelu_tanh_keeps_its_digits():
    """1 + tanh(g) would cancel. The numbers are those of 60 decimal digits."""
    op = forward(dnn.MemoryDesc((2,), "f64"), ALGORITHMS["gelu_tanh"])
    got = reference_outputs(op, {"src": np.array([-6.0, -8.0])})["dst"]
    assert np.allclose(got, [-8.43964670076e-11, -3.10778293750e-21], rtol=1e-9, atol=0)


@pytest.mark.parametrize(
    ("algorithm", "src", "diff_src"),
    [
        ("relu", [-2.0, 0.0, 3.0], [0.0, 0.0, 10.0]),
        ("leaky_relu", [-2.0, 0.0, 3.0], [2.5, 2.5, 10.0]),
        ("tanh", [0.0, 0.5, -400.0], [10.0, 7.8644773, 0.0]),
        ("logistic", [0.0, 2.0, -400.0], [2.5, 1.0499359, 0.0]),
        ("linear", [-2.0, 0.0, 3.0], [20.0, 20.0, 20.0]),
    ],
)
def test_golden_backward(algorithm, src, diff_src):
    op = backward(dnn.MemoryDesc((3,)), ALGORITHMS[algorithm])
    got = reference_outputs(op, {"src": np.array(src), "diff_dst": np.full(3, 10.0)})["diff_src"]
    assert np.allclose(got, diff_src, rtol=1e-7, atol=0)


EXPONENTS = sorted({numerator / n for n in (1, 2, 3, 4, 10) for numerator in range(-5, 6)})


def test_powers_of_negative_numbers_and_zeros(target: Target):
    """NaN unless the exponent is whole, also for thirds, whose roots exist."""
    src = np.array([-8, -2.5, -1, -0.5, -0.0, 0, 0.5, 1, 2.5, 8], np.float32)
    desc = dnn.MemoryDesc(src.shape)
    for exponent in EXPONENTS:
        op = forward(desc, {"algorithm": "pow", "alpha": 1.0, "beta": exponent})
        rounded = float(np.float32(exponent))
        with np.errstate(all="ignore"):
            right = np.power(src.astype(np.float64), rounded)
        for pd in target.primitive_descs(op):
            got = run(pd, {"src": src})["dst"]
            np.testing.assert_allclose(got, right, 2e-6, err_msg=f"{pd.impl_name} {exponent}")


@all_gradients
def test_the_slope_is_that_of_the_function(algorithm):
    desc = dnn.MemoryDesc((40,), "f32")
    positive = algorithm["algorithm"] in ("log", "pow", "sqrt")
    src = np.linspace(1.03, 4.0, 40) if positive else np.linspace(-4.1, 4.03, 40)
    step = 1e-2
    high, low = (
        reference_outputs(forward(desc, algorithm), {"src": src + s})["dst"] for s in (step, -step)
    )
    inputs = {"src": src, "diff_dst": np.ones(40)}
    slope = reference_outputs(backward(desc, algorithm), inputs)["diff_src"]
    assert np.allclose(slope, (high - low) / (2 * step), rtol=1e-4, atol=3e-4)


@all_using_dst
def test_the_slope_from_dst_is_that_from_src(algorithm):
    desc = dnn.MemoryDesc((41,), "f32")
    src = np.linspace(0.1 if "sqrt" in algorithm["algorithm"] else -4.1, 4.0, 41)
    dst = reference_outputs(forward(desc, algorithm), {"src": src})["dst"]
    plain = {**algorithm, "algorithm": algorithm["algorithm"].removesuffix(USE_DST)}
    ones = np.ones(41)
    from_src = reference_outputs(backward(desc, plain), {"src": src, "diff_dst": ones})
    op = dnn.EltwiseBackward(dst=desc, diff_dst=desc, diff_src=desc, **algorithm)
    from_dst = reference_outputs(op, {"dst": dst, "diff_dst": ones})
    assert np.allclose(from_src["diff_src"], from_dst["diff_src"], rtol=1e-4, atol=1e-6)


def test_integers_stay_integers():
    desc = dnn.MemoryDesc((50,))
    src = fill_integers(desc, 0)
    got = reference_outputs(forward(desc, ALGORITHMS["linear"]), {"src": src})["dst"]
    assert np.array_equal(got, 2 * src - 3)
