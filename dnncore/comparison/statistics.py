"""Judgement of a whole tensor by its errors relative to their expected root mean square.

Let x be the errors e divided by their expected root mean square, cut off at +-CUT. Two means are
judged, over the whole tensor and over each slice (all elements with one index along one dim):

    mean(x**2)               shows lost precision in many elements
    mean(x * sign(ref))      shows rounding towards zero, or away from it

Correct results have E x**2 <= 1, and the second mean is 0: roundings to nearest have no direction.
The sums of different elements are independent, so their errors are independent. Let n be the number
of elements. Then Bernstein's inequality bounds the probability that a mean exceeds its expectation
by

    sqrt(2 v t / n) + range t / (3 n)                  by exp(-t), where v is the variance

x**2 is at most CUT**2 = 9, and its variance is at most 3. (The errors of sums have the kurtosis
5.4, since partial sums vary as the square of a Brownian bridge; the cut reduces it.) x is at most
CUT and its variance is at most 1. SLACK and BIAS are added to these limits. SLACK is for the
expected errors, which are exact within 10 %. BIAS is for tensor cores. They cut off sums of a few
products; these sums are then rounded and added up. The mean is -0.30 for K = 8 and -0.23 for K =
1024 on an H100, while the rms error is that of f32. Sums that are cut off after each product have a
mean below -1.3 from K = 8 on. t is 16 for a tensor, 21 + log(slices) for a slice: a false alarm has
a probability below 1e-6 for each tensor, and below 1e-9 for all slices.

Errors of Winograd's tiles are not independent. Each tile counts as one element in four.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["ENOUGH", "LEAST", "Errors", "judge", "pooled"]

Array = np.ndarray[Any, Any]

CUT = 3.0
VARIANCE = 3.0
SLACK = 1.25
BIAS = 0.5
SURE, SURER = 16.0, 21.0
LEAST = 64
"""The smallest number of elements that is judged."""

ENOUGH = 512
"""With this number of elements, the loss of any bit is detected that exceeds the errors of sums."""


@dataclass(frozen=True)
class Errors:
    """Errors of the elements of a tensor.

    relative: the errors divided by their expected root mean square and multiplied by the sign of
        the expected value. NaN where an error cannot be judged.
    independent: the share of elements that have independent errors.
    """

    relative: Array
    independent: float = 1.0

    @property
    def count(self) -> int:
        """The number of elements that can be judged."""
        return int(np.isfinite(self.relative).sum())


def judge(errors: Errors) -> str:
    """Describe errors that show lost precision; return "" if there are none."""
    x = np.clip(errors.relative, -CUT, CUT)
    known = np.isfinite(x)
    whole = _verdict(np.where(known, x, 0.0), known, errors.independent)
    return whole or next(_of_slices(x, known, errors.independent), "")


def pooled(parts: list[Errors]) -> Errors:
    """Return the errors of several rounds of a problem as one tensor without slices."""
    return Errors(np.concatenate([part.relative.ravel() for part in parts]), parts[0].independent)


def _verdict(x: Array, known: Array, independent: float) -> str:
    count = int(known.sum())
    if count < LEAST:
        return ""
    square, mean = float(np.square(x).sum() / count), float(x.sum() / count)
    n = count * independent
    if square > _most_square(n, SURE):
        return (
            f"rms error {math.sqrt(square):.2f} times the expected one,"
            f" allowed {math.sqrt(_most_square(n, SURE)):.2f}"
        )
    if abs(mean) > _most_mean(n, SURE):
        return (
            f"errors have the mean {mean:+.2f} along the sign of the results, in units of the"
            f" expected rms error, allowed {_most_mean(n, SURE):.2f}; are sums or results rounded"
            " towards zero?"
        )
    return ""


def _of_slices(x: Array, known: Array, independent: float) -> Iterator[str]:
    """Describe slices that lost precision."""
    if x.ndim < 2 or not x.size:
        return
    sure = SURER + math.log(sum(x.shape))
    x = np.where(known, x, 0.0)
    squares = np.square(x)
    for dim in range(x.ndim):
        axes = tuple(axis for axis in range(x.ndim) if axis != dim)
        counts = np.maximum(known.sum(axes), 1)
        n = counts * independent
        rms, mean = squares.sum(axes) / counts, np.abs(x.sum(axes)) / counts
        over = np.flatnonzero((rms > _most_square(n, sure)) | (mean > _most_mean(n, sure)))
        if over.size:
            letter, at = "abcdefghijkl"[dim], int(over[0])
            yield (
                f"rms error {math.sqrt(rms[at]):.2f} times the expected one, mean {mean[at]:.2f}"
                f" along the sign, at {letter} = {at}; {over.size} of {x.shape[dim]} along"
                f" {letter} lost precision"
            )


def _most_square(n: Any, sure: float) -> Any:
    return SLACK + np.sqrt(2 * VARIANCE * sure / n) + CUT**2 * sure / (3 * n)


def _most_mean(n: Any, sure: float) -> Any:
    return BIAS + np.sqrt(2 * SLACK * sure / n) + CUT * sure / (3 * n)
