"""The noise of sums: its derivation, and simulated sums beside it."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba")

from simulated_sums import KINDS, WAYS, simulate

from dnncore.algorithms.rounding import ROUNDOFF, SUM_LIMIT, Noise, positive_sum, summed


def probability_of_the_integral(x):
    """A bound of P(w > x) by Markov's inequality for exp(t w)."""
    t = np.linspace(1e-3, np.pi**2 / 2 - 1e-4, 5000)
    root = np.sqrt(2 * t)
    return min(1.0, float(np.exp(-t * x + 0.5 * np.log(root / np.sin(root))).min()))


def test_a_false_alarm_is_less_probable_than_one_in_a_billion():
    """2 E exp(-c**2 / (2.4 w)), integrated by parts; w is the integral of a squared bridge."""
    w = np.geomspace(0.02, 100, 4000)
    given = 2 * np.exp(-(SUM_LIMIT**2) / (2.4 * w))
    bound = sum(np.diff(given) * [probability_of_the_integral(x) for x in w[:-1]])
    assert 1e-14 < bound < 1e-9


def test_the_limit_is_at_most_four_times_the_largest_error_of_sequential_sums():
    largest = simulate("zero mean", "unfused", 16, 1_000_000).largest
    assert largest < SUM_LIMIT < 4 * largest


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("terms", "count"), [(2, 50_000), (9, 50_000), (300, 2000), (20_000, 40)])
def test_simulated_sums_are_far_within_their_limits(kind, way, terms, count):
    found = simulate(kind, way, terms, count)
    assert found.share < 0.6
    if (kind, terms) != ("mean 1e4", 20_000):  # nearly equal terms
        assert found.rms < (0.55 if count > 100 else 0.8)


@pytest.mark.parametrize("kind", KINDS)
def test_sums_as_long_as_those_of_gradients_of_weights(kind):
    assert simulate(kind, "fused", 800_000, 3).share < 0.6


def test_one_term_is_rounded_once():
    noise = summed(1, np.array([3.0]), np.array([3.0]))
    assert noise.limit == pytest.approx(SUM_LIMIT * ROUNDOFF * 3.0)


def test_nearly_equal_terms_are_rounded_in_one_direction():
    """As many sums of 0.1 in sequence are off by much more than d."""
    terms = 1_000_000
    total = np.add.accumulate(np.full(terms, 0.1, np.float32))[-1]
    exact = terms * float(np.float32(0.1))
    error = abs(float(total) - exact)
    assert error > positive_sum(terms, np.array([exact])).limit[0]
    norm = np.array([exact / terms**0.5])
    assert error < summed(terms, np.array([exact]), norm).limit[0]


def test_noise_adds_up():
    one = summed(4, np.array([1.0]), np.array([1.0]))
    both = one + one * 2.0
    assert both.limit == pytest.approx(3 * one.limit)
    assert both.rms == pytest.approx(5**0.5 * one.rms)


def test_parts_of_a_noise_change_separately():
    noise = Noise.within(np.zeros(3))
    noise.limit[1] = 2.0
    assert noise.rms[1] == 0.0
