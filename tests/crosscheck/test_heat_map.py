"""Heat maps: characters, folding of dims, and pictures."""

import numpy as np
import pytest

from dnncore.crosschecking.heat_map import MISPLACED, heat_map, ratios, save_picture


def test_errors_are_divided_by_their_bounds():
    got = np.array([1.0, 2.0, 3.0, np.nan, np.nan, np.inf, 1.0])
    expected = np.array([1.0, 2.5, 3.0, np.nan, 1.0, np.inf, -np.inf])
    bound = np.array([0.0, 0.25, 0.0, 1.0, 1.0, 1.0, 1.0])
    assert ratios(got, expected, bound).tolist() == [0, 2, 0, 0, MISPLACED, 0, MISPLACED]


def test_an_error_where_none_is_allowed_is_the_largest():
    assert heat_map(ratios(np.array([[1, 2]]), np.array([[1, 3]]), 0.0))[1:] == [".9"]


@pytest.mark.parametrize(("ratio", "character"), [
    (0, "."), (1, "."), (1.01, "1"), (10, "1"), (11, "2"), (1e8, "8"), (1e30, "9"), (np.inf, "N"),
])  # fmt: skip
def test_characters(ratio, character):
    assert heat_map(np.array([[float(ratio)]]))[1:] == [character]


def test_first_dims_are_rows_and_last_ones_columns():
    errors = np.zeros((2, 3, 2, 4))
    errors[1, 2, 0, 3] = 100
    title, *rows = heat_map(errors)
    assert title.startswith("6 rows along ab, 8 columns along cd")
    assert rows == ["........"] * 5 + ["...2...."]


def test_large_tensors_are_reduced_and_no_error_is_lost():
    errors = np.zeros((300, 1000))
    errors[299, 999] = 5
    _, *rows = heat_map(errors)
    assert len(rows) <= 16
    assert len(rows[0]) <= 64
    assert rows[-1][-1] == "1"
    assert "".join(rows).count("1") == 1


@pytest.mark.parametrize("dims", [(), (0,), (3, 0), (1,), (7,)])
def test_any_dims(dims):
    rows = heat_map(np.zeros(dims))[1:]
    assert "".join(rows) == "." * int(np.prod(dims))


def test_a_picture(tmp_path):
    pytest.importorskip("matplotlib")
    errors = np.zeros((4, 5))
    errors[0, 0] = np.inf
    assert save_picture(tmp_path / "errors.png", errors, "call 1") == ""
    assert (tmp_path / "errors.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_there_is_no_picture(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.colors", None)
    text = save_picture(tmp_path / "errors.png", np.zeros((4, 5)), "call 1")
    assert "install matplotlib" in text
    assert not list(tmp_path.iterdir())
