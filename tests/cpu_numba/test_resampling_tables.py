"""The tables of taps of cpu_numba's resampling."""

import numpy as np
import pytest
from dnncore_cpu_numba.resampling.tables import Padded, Tables

from dnncore.planning.taps import Taps, taps_of


def products(table, inputs):
    """Return the matrix of padded taps."""
    found = np.zeros((table.outputs, inputs))
    for places, weights in zip(table.places, table.weights, strict=True):
        np.add.at(found, (np.arange(table.outputs), places), weights)
    return found


def matrix(taps, inputs):
    """Return the matrix of taps."""
    found = np.zeros((len(taps.firsts), inputs))
    for row, first, weights in zip(found, taps.firsts, taps.weights, strict=True):
        row[first : first + len(weights)] = weights
    return found


@pytest.mark.parametrize("sizes", [(4, 8), (5, 12), (3, 10), (7, 3)])
def test_padded_gradient(sizes):
    """Missing taps repeat the last one with parts of its weight, whose sum is exact."""
    taps = taps_of("linear", *sizes).transposed(sizes[0])
    table = Tables(taps).padded()
    assert (products(table, sizes[1]) == matrix(taps, sizes[1]).astype(np.float32)).all()
    assert (table.weights != 0).all(0).tolist() == [len(own) > 0 for own in taps.weights]


def test_result_without_taps():
    table = Tables(Taps((0, 1), ((1.0,), ()))).padded()
    assert table.weights.tolist() == [[1, 0]]


def test_joined_dims():
    rows, pixels = (taps_of("linear", *sizes) for sizes in ((2, 4), (3, 5)))
    joined = Tables(rows).padded().joined(Tables(pixels).padded(), 3)
    expected = np.kron(matrix(rows, 2), matrix(pixels, 3))
    np.testing.assert_allclose(products(joined, 6), expected, rtol=1e-6)


def test_repeated_rows():
    table = Tables(taps_of("nearest", 4, 8)).padded()
    assert [table.step(count) for count in (1, 2, 3, 4, 8)] == [0, 1, 0, 2, 0]
    assert Padded.same(6).step(2) == 2
    assert Tables(taps_of("linear", 4, 8)).padded().step(2) == 0  # the ends differ
