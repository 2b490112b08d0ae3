"""Heat maps of errors: a tensor as rows and columns of characters, or as a picture.

    ................
    ..1.............     . is within the bound; a digit n is at most 10**n times the bound;
    ..4N............     N is NaN or infinity instead of another number, or the reverse

The first dims become rows, the last dims become columns. A cell of a large tensor shows the largest
error of its elements.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["MISPLACED", "heat_map", "ratios", "save_picture"]

Array = np.ndarray[Any, Any]

MISPLACED = math.inf
"""The ratio of an element that is NaN or infinite in only one of the arrays."""

ROWS, COLUMNS = 16, 64
LARGEST = 9
WITHOUT_BOUND = 10.0**LARGEST  # the ratio of an error if no error is allowed


def ratios(got: Array, expected: Array, bound: Array | float) -> Array:
    """Return the error of each element divided by its bound."""
    got, expected = (np.asarray(values).astype(np.float64) for values in (got, expected))
    same = (got == expected) | (np.isnan(got) & np.isnan(expected))
    finite = np.isfinite(got) & np.isfinite(expected)
    with np.errstate(all="ignore"):
        difference = np.abs(got - expected)
        share = np.where(np.equal(bound, 0.0), WITHOUT_BOUND, difference / bound)
    share = np.minimum(share, WITHOUT_BOUND)
    return np.where(same, 0.0, np.where(finite, share, MISPLACED))


def heat_map(errors: Array) -> list[str]:
    """Return the lines of a heat map: a title, then at most 16 rows of at most 64 characters."""
    plane, title = _folded(errors)
    if not plane.size:
        return []
    cells = _reduced(_reduced(plane, 0, ROWS), 1, COLUMNS)
    lines = ["".join(map(_character, row)) for row in cells]
    return [f"{title}; . within the bound, n: 10**n times the bound, N: NaN or inf", *lines]


def save_picture(path: Path, errors: Array, title: str) -> str:
    """Write a heat map as a PNG file. Return "", or the reason why no file was written."""
    try:
        from matplotlib.colors import LogNorm
        from matplotlib.figure import Figure
    except ImportError:
        return "install matplotlib for a picture of the errors"
    plane, axes_text = _folded(errors)
    cells = _reduced(_reduced(plane, 0, 1000), 1, 1000)
    figure = Figure(figsize=(8, 6), layout="constrained")
    axes = figure.subplots()
    shown = np.clip(np.where(np.isinf(cells), WITHOUT_BOUND, cells), 0.1, WITHOUT_BOUND)
    image = axes.imshow(shown, norm=LogNorm(0.1, WITHOUT_BOUND), cmap="inferno", aspect="auto",
                        interpolation="nearest")  # fmt: skip
    axes.set_title(title, fontsize=9, wrap=True)
    axes.set_xlabel(axes_text, fontsize=9)
    figure.colorbar(image, label="error divided by the bound")
    figure.savefig(path, dpi=100)
    return ""


def _folded(errors: Array) -> tuple[Array, str]:
    """Return the errors as an array of two dims, and a text about these dims.

    The dims are split so that the numbers of rows and columns are similar.
    """
    dims = errors.shape
    letters = "abcdefghijkl"[: len(dims)]

    def unlike(at: int) -> float:
        rows, columns = math.prod(dims[:at]), math.prod(dims[at:])
        return abs(math.log(max(1, rows)) - math.log(max(1, columns)))

    split = min(range(len(dims) + 1), key=unlike) if len(dims) > 1 else 0
    rows, columns = math.prod(dims[:split]), math.prod(dims[split:])
    title = f"{rows} rows along {letters[:split] or '-'}, {columns} columns along"
    return errors.reshape(rows, columns), f"{title} {letters[split:] or '-'}"


def _reduced(plane: Array, axis: int, most: int) -> Array:
    """Replace neighbours along an axis by their largest error until there are at most `most`."""
    size = plane.shape[axis]
    step = -(-size // most)
    starts = np.arange(0, size, max(1, step))
    reduced: Array = np.maximum.reduceat(plane, starts, axis=axis)
    return reduced


def _character(ratio: float) -> str:
    if ratio <= 1.0:
        return "."
    if ratio == MISPLACED:
        return "N"
    return str(min(LARGEST, max(1, math.ceil(math.log10(ratio)))))
