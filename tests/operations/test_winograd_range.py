"""Winograd's convolution where its intermediate values leave the range of f32, on every engine."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from checks import run
from conftest import TARGETS

import dnncore as dnn
from dnncore.problem import read

FAST = [replace(t, impl="*:winograd:*") for t in TARGETS if t.role != "reference"]
engines = pytest.mark.parametrize("target", FAST, ids=str)
LARGE = 5e37


def problem(text):
    ((found,)) = read(f"--conv --stag=any --dtag=any --alg=wino {text}")
    return found


def inputs_of(op, seed=0):
    rng = np.random.default_rng(seed)
    return {
        a.name: rng.uniform(-1, 1, desc.dims).astype(np.float32)
        for a, desc in op.tensors()
        if a.direction == "in"
    }


def results(target, found, inputs):
    """The results of all implementations by Winograd, and the reference's."""
    (reference,) = dnn.primitive_descs(found.op, dnn.engine("cpu"), found.attr, impl="reference*")
    made = [
        run(pd, inputs)
        for pd in dnn.primitive_descs(found.op, target.engine, found.attr, impl=target.impl)
    ]
    assert made
    (name,) = made[0]
    return [one[name].astype(np.float64) for one in made], run(reference, inputs)[name]


def assert_like(got, expected):
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(np.isfinite(got), finite)
    np.testing.assert_array_equal(got[~finite], expected[~finite])
    scale = np.abs(expected[finite].astype(np.float64)).max()
    assert np.abs(got[finite] - expected[finite]).max() <= 2e-6 * scale


@engines
@pytest.mark.parametrize(
    ("direction", "weights", "shape"),
    [
        ("FWD_D", "any", "mb1ic8ih6oc4kh3ph1"),
        ("BWD_D", "abx", "mb2ic5ih7oc3kh3ph0_iw9ow9kw3pw1"),
        ("BWD_W", "abx", "mb2ic5ih7oc3kh3ph0_iw9ow9kw3pw1"),
    ],
)
def test_results_are_finite_where_direct_sums_are(target, direction, weights, shape):
    if direction == "BWD_W" and target.engine_name == "cpu":
        return  # it has no gradient of weights by Winograd's algorithm
    found = problem(f"--dir={direction} --wtag={weights} {shape}")
    inputs = inputs_of(found.op)
    large = "diff_dst" if direction == "BWD_D" else "src"
    inputs[large] *= np.float32(LARGE)
    made, expected = results(target, found, inputs)
    for got in made:
        assert_like(got, expected)


@engines
def test_small_results_beside_large_ones_keep_their_bits(target):
    """One pixel overflows, so all of its tile is summed up again."""
    found = problem("--dir=FWD_D --wtag=any mb1ic4ih8oc5kh3ph1")
    inputs = inputs_of(found.op)
    inputs["src"] *= np.float32(1e-30)
    inputs["src"][0, :, 0, 0] = 3e38
    inputs["weights"] *= np.float32(0.2)
    made, expected = results(target, found, inputs)
    far = (slice(None), slice(None), slice(2, None), slice(None))
    for got in made:
        np.testing.assert_allclose(got[far], expected[far], atol=2e-6 * np.abs(expected[far]).max())
        np.testing.assert_allclose(got[:, :, :2, :2], expected[:, :, :2, :2], rtol=1e-5)


@engines
def test_steps_see_the_replaced_sums(target):
    found = problem("--dir=FWD_B --wtag=any --attr-post-ops=clip:-1e38:1e38+sum:0.5 "
                    "mb1ic8ih6oc20kh3ph1")  # fmt: skip
    inputs = inputs_of(found.op)
    inputs["src"] *= np.float32(LARGE)
    inputs["bias"] *= np.float32(LARGE)
    inputs["dst"] = np.full(found.op.dst.dims, 1e37, np.float32)
    made, expected = results(target, found, inputs)
    for got in made:
        assert_like(got, expected)


@engines
@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_odd_pixels_do_not_spread_over_a_tile(target, odd):
    found = problem("--dir=FWD_D --wtag=any mb1ic4ih9oc5kh3ph1")
    inputs = inputs_of(found.op)
    inputs["src"][0, 1, 4, 4] = odd
    made, expected = results(target, found, inputs)
    for got in made:
        assert_like(got, expected)
