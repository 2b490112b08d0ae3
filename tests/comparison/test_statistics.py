"""Judgement of tensors: lost bits, cut off sums, slices, and no false alarms."""

from __future__ import annotations

import re

import numpy as np
import pytest

from dnncore.comparison.statistics import LEAST, Errors, judge, pooled


def normal(*dims, scale=1.0, shift=0.0, seed=0):
    return Errors(scale * np.random.default_rng(seed).standard_normal(dims) + shift)


@pytest.mark.parametrize("dims", [(64,), (8, 8), (3, 1, 500), (100, 1000)])
def test_expected_errors_are_no_alarm(dims):
    assert not any(judge(normal(*dims, seed=seed)) for seed in range(50))


def test_errors_of_sums_are_no_alarm():
    """Heavy tails, as the square of a Brownian bridge has."""
    rng = np.random.default_rng(0)
    steps = rng.standard_normal((19_200, 50))
    bridge = steps.cumsum(1) - steps.sum(1, keepdims=True) * np.arange(1, 51) / 50
    size = np.sqrt(np.mean(bridge**2, axis=1) / (50 / 6))
    errors = size * rng.standard_normal(19_200)
    assert np.var(np.minimum(errors**2, 9)) < 3
    assert not any(judge(Errors(part)) for part in errors.reshape(-1, 64)[:300])


@pytest.mark.parametrize(
    ("errors", "text"),
    [
        (normal(64, scale=3.0), "rms error .* times the expected one, allowed 1"),
        (normal(64, shift=-2.2), "rms error"),
        (normal(10_000, scale=0.5, shift=-0.8), "mean -0.80 along the sign of the results"),
        (normal(10_000, scale=1.25), "times the expected one, allowed 1.1"),
    ],
)
def test_lost_precision_is_described(errors, text):
    assert re.search(text, judge(errors))


@pytest.mark.parametrize("place", [np.s_[-1], np.s_[:, 7], np.s_[:, :, 3:5]])
def test_slices_are_judged(place):
    errors = normal(40, 30, 20)
    errors.relative[place] *= 3
    assert judge(errors)


def test_a_slice_is_located():
    errors = normal(40, 300)
    errors.relative[:, 17] *= 5
    assert "at b = 17; 1 of 300 along b" in judge(errors)


def test_a_slice_that_is_rounded_towards_zero_is_found_beside_its_opposite():
    """Its rms error is small, and the whole tensor's mean is 0."""
    errors = normal(16, 10_000, scale=0.5)
    errors.relative[3] = 0.3 * errors.relative[3] + 0.6
    errors.relative[5] = 0.3 * errors.relative[5] - 0.6
    assert re.search(r"mean 0\.60 along the sign, at a = 3; 2 of 16", judge(errors))


def test_unknown_errors_do_not_count():
    errors = normal(100, scale=9.0)
    errors.relative[LEAST - 1 :] = np.nan
    assert errors.count == LEAST - 1
    assert not judge(errors)


@pytest.mark.parametrize("dims", [(0,), (0, 0), (0, 3)])
def test_a_tensor_without_elements_has_lost_nothing(dims):
    assert not judge(normal(*dims))


def test_rounds_are_pooled():
    parts = [normal(5, 2, scale=4.0, seed=seed) for seed in range(7)]
    assert not judge(parts[0])
    assert judge(pooled(parts))
    assert pooled(parts).count == 70
