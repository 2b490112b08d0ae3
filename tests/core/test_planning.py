"""Mathematics that backends share: Winograd's matrices, phases of strided gradients, loops."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from dnncore.planning.loops import is_one_loop, merged
from dnncore.planning.phases import phases
from dnncore.planning.taps import taps_of
from dnncore.planning.toom_cook import (
    F23,
    F43,
    TAPS,
    error_factor,
    gradient_error_factor,
    transposed,
)

# -- Winograd --------------------------------------------------------------------------------------


@pytest.mark.parametrize("winograd", [F23, F43], ids=lambda winograd: winograd.name)
def test_the_matrices_compute_a_correlation(winograd):
    """Exactly, in rational numbers, for each pair of unit vectors."""
    pairs = list(zip(winograd.weights, winograd.src, strict=True))
    for i, j in itertools.product(range(winograd.span), range(TAPS)):
        products = [w[j] * s[i] for w, s in pairs]
        outputs = [sum(a * p for a, p in zip(row, products, strict=True)) for row in winograd.dst]
        assert outputs == [int(y + j == i) for y in range(winograd.outputs)]


def test_sizes_of_tiles():
    assert [(w.name, w.outputs, w.span, w.positions) for w in (F23, F43)] == [
        ("2x3", 2, 4, 16),
        ("4x3", 4, 6, 36),
    ]


@pytest.mark.parametrize("winograd", [F23, F43], ids=lambda winograd: winograd.name)
def test_the_transposed_matrices_compute_the_gradient_of_weights(winograd):
    """diff_g[j] is the sum over y of diff_y[y] * d[y + j], for each pair of unit vectors."""
    for i, y in itertools.product(range(winograd.span), range(winograd.outputs)):
        products = [
            d[y] * s[i] for d, s in zip(transposed(winograd.dst), winograd.src, strict=True)
        ]
        gradient = [
            sum(w * p for w, p in zip(row, products, strict=True))
            for row in transposed(winograd.weights)
        ]
        assert gradient == [int(y + j == i) for j in range(TAPS)]


@pytest.mark.parametrize("winograd", [F23, F43], ids=lambda winograd: winograd.name)
def test_a_filter_comes_back_from_its_values_at_the_points(winograd):
    columns = transposed(winograd.weights)
    products = [
        [sum(t * w for t, w in zip(row, column, strict=True)) for column in columns]
        for row in winograd.taps
    ]
    assert products == np.eye(TAPS).tolist()


def test_entries_that_meet_data_are_exact_in_float32():
    entries = [x for matrix in (F43.src, F43.dst) for row in matrix for x in row]
    assert all(float(np.float32(float(x))) == x for x in entries)


def test_only_the_smaller_algorithm_is_exact():
    assert F23.is_exact
    assert not F43.is_exact


TILES = pytest.mark.parametrize(
    ("down", "across"),
    [(F23, F23), (F23, F43), (F43, F43)],
    ids=lambda algorithm: algorithm.name,
)
DEPTHS = pytest.mark.parametrize("depth", [1, 3, 16, 128])


def transformed(down, across, tiles):
    """Both matrices applied to tiles along the first two dims, term by term in float32."""

    def along_first(matrix, values):
        rows = np.array(matrix, np.float32)
        terms = rows[:, :, *[None] * (values.ndim - 1)] * values
        return terms.cumsum(axis=1, dtype=np.float32)[:, -1]

    return along_first(across, along_first(down, tiles).swapaxes(0, 1)).swapaxes(0, 1)


def draw(*dims):
    return np.random.default_rng(dims).standard_normal((*dims, 400)).astype(np.float32)


def relative_errors(products, back, exact, terms):
    """The rms error of each cell in units of the expected one of direct sums of random terms."""
    sums = products.cumsum(axis=2, dtype=np.float32)[:, :, -1]
    errors = transformed(*back, sums).astype(np.float64) - exact
    direct = 2.0**-24 * np.sqrt(0.2 * terms * (terms + 1) / 2)
    return np.sqrt(np.mean(errors**2, axis=-1)) / direct


@TILES
@DEPTHS
def test_errors_of_every_cell_of_a_tile_are_within_the_factor(down, across, depth):
    image, taps = draw(down.span, across.span, depth), draw(TAPS, TAPS, depth)
    products = transformed(down.src, across.src, image)
    products *= transformed(down.weights, across.weights, taps)
    windows = np.lib.stride_tricks.sliding_window_view(image.astype(np.float64), (3, 3), (0, 1))
    exact = np.einsum("yxknrs,rskn->yxn", windows, taps)
    found = relative_errors(products, (down.dst, across.dst), exact, TAPS * TAPS * depth)
    assert found.shape == (down.outputs, across.outputs)
    assert 0.35 < found.max() / error_factor(down, across, depth) < 1.1


@TILES
@DEPTHS
def test_errors_of_every_tap_of_a_gradient_are_within_the_factor(down, across, depth):
    image, diff = draw(down.span, across.span, depth), draw(down.outputs, across.outputs, depth)
    products = transformed(down.src, across.src, image)
    products *= transformed(transposed(down.dst), transposed(across.dst), diff)
    back = transposed(down.weights), transposed(across.weights)
    windows = np.lib.stride_tricks.sliding_window_view(
        image.astype(np.float64), diff.shape[:2], (0, 1)
    )
    exact = np.einsum("rsknyx,yxkn->rsn", windows, diff)
    found = relative_errors(products, back, exact, down.outputs * across.outputs * depth)
    assert found.shape == (TAPS, TAPS)
    assert 0.35 < found.max() / gradient_error_factor(down, across, depth) < 1.1


def test_the_error_factor_of_the_smaller_algorithm():
    """By hand, for one channel. Sums of 2 and 3 numbers have relative variances 5/2 and 3.

    The four points have the variances 2, 3/2, 3/2, 2 and, by the transforms of src and weights, the
    relative errors 5/2, 5/2 + 3, 5/2 + 3, 5/2. An output sums three of them, which adds 3. So along
    one dim size is 5 and rounded is 2 * 11/2 + 3 * 17/2 = 73/2. Both dims give
    73/2 * 5 * 2 + 2 * 25 = 415. A direct sum of 9 products has 9 * 10 / 2 = 45.
    """
    assert error_factor(F23, F23, 1) == pytest.approx((415 / 45) ** 0.5, rel=1e-12)


def test_errors_of_deep_sums_are_those_of_products():
    """(Barabasz et al. 2020): transforms do not count beside long sums; F(2x2) is exact enough."""
    assert error_factor(F43, F43, 10**6) == pytest.approx(2.408, rel=1e-3)
    assert error_factor(F23, F23, 10**6) == 1.0
    assert error_factor(F43, F43, 1) > error_factor(F43, F43, 64) > error_factor(F23, F43, 64)


# -- phases ----------------------------------------------------------------------------------------


def reached(size, kernel, stride, spacing, padding):
    """(pixel, tap, place in diff_dst) of all that meet, by definition; places are unlimited."""
    places = range(-size - kernel * spacing - padding, size + kernel * spacing + padding)
    return {
        (stride * place + tap * spacing - padding, tap, place)
        for place in places
        for tap in range(kernel)
        if 0 <= stride * place + tap * spacing - padding < size
    }


@pytest.mark.parametrize(
    "dim", [*itertools.product((1, 5, 8), (1, 3, 4), (1, 2, 3, 6), (1, 2, 4), (0, 2))], ids=str
)
def test_phases_are_the_places_that_reach_each_pixel(dim):
    found = [
        (phase.pixel + phase.stride * j, phase.tap + phase.tap_step * t,
         phase.at + j - phase.shrink * t)
        for phase in phases(*dim)
        for j in range(phase.pixels)
        for t in range(phase.taps)
    ]  # fmt: skip
    assert len(found) == len(set(found))
    assert set(found) == reached(*dim)
    assert all(0 <= phase.tap < dim[1] for phase in phases(*dim))  # of a phase without taps, too


def test_long_strides_and_spacings_take_no_longer():
    taps = [phase.taps for phase in phases(10, 3, 10**9, 10**9 + 1, 0)]
    assert taps == [1, 1, 1] + [0] * 7  # each tap reaches the pixels after its multiple


def test_every_pixel_is_in_one_phase():
    pixels = [p.pixel + p.stride * j for p in phases(7, 1, 3, 1, 0) for j in range(p.pixels)]
    assert sorted(pixels) == list(range(7))


# -- loops -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outer", "inner", "extent", "expected"),
    [
        ((12, 24), (3, 6), 4, True),
        ((12, 25), (3, 6), 4, False),
        ((0, 0), (0, 0), 4, True),
        ((12, None), (3, 6), 4, False),
        ((12, 24), (3, None), 4, False),
        ((), (), 4, True),
    ],
)
def test_loops_are_one_if_all_strides_continue(outer, inner, extent, expected):
    assert is_one_loop(outer, inner, extent) is expected


def test_merged_loops_reach_the_same_places_in_the_same_order():
    def places(loops):
        loops = list(loops)
        steps = itertools.product(*(range(extent) for extent, _ in loops))
        return [sum(i * s for i, (_, s) in zip(step, loops, strict=True)) for step in steps]

    def join(outer, inner):
        (n, s), (m, t) = outer, inner
        return (n * m, t) if is_one_loop((s,), (t,), m) else None

    loops = [(2, 120), (3, 24), (4, 6), (5, 1)]
    assert merged(loops, join) == ((2, 120), (12, 6), (5, 1))
    assert places(merged(loops, join)) == places(loops)
    assert merged([], join) == ()


# -- tables of resampling --------------------------------------------------------------------------


def coefficients(algorithm: str, inputs: int, outputs: int) -> list[list[Fraction]]:
    """Return what each output takes from each input, by the definition of `Resampling`."""
    rows = []
    for o in range(outputs):
        place = (o + Fraction(1, 2)) * inputs / outputs - Fraction(1, 2)
        place = min(max(place, Fraction(0)), Fraction(inputs - 1))
        if algorithm == "nearest":
            place = Fraction(min(math.floor((o + Fraction(1, 2)) * inputs / outputs), inputs - 1))
        rows.append([max(Fraction(0), 1 - abs(i - place)) for i in range(inputs)])
    return rows


def expanded(taps, inputs: int) -> list[list[float]]:
    rows = [[0.0] * inputs for _ in taps.firsts]
    for row, first, weights in zip(rows, taps.firsts, taps.weights, strict=True):
        row[first : first + len(weights)] = weights
    assert all(len(row) == inputs for row in rows)
    return rows


@pytest.mark.parametrize("algorithm", ["nearest", "linear"])
@pytest.mark.parametrize("inputs", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("outputs", [1, 2, 3, 7, 16])
def test_tables_have_the_coefficients_of_the_definition(algorithm, inputs, outputs):
    taps = taps_of(algorithm, inputs, outputs)
    rows = coefficients(algorithm, inputs, outputs)
    assert expanded(taps, inputs) == [pytest.approx([float(c) for c in row]) for row in rows]
    assert all(0.0 not in weights for weights in taps.weights)
    gradient = expanded(taps.transposed(inputs), outputs)
    assert gradient == [list(column) for column in zip(*expanded(taps, inputs), strict=True)]
