"""Simulated f32 sums of random products beside their error bounds.

    python tests/support/simulated_sums.py              the whole simulation: 1e9 elements, minutes
    python tests/support/simulated_sums.py 1e6          a thousandth of it

Each line of output contains a kind of values, a way to add up, the number K of products, the number
of elements, the rms error and the largest error in units of d (see
`dnncore/algorithms/rounding.py`), and the largest error in units of an element's bound.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numba  # noqa: TID251 - sums in native code
import numpy as np

from dnncore.algorithms.rounding import ROUNDOFF, summed

# The means of both factors.
KINDS = {
    "zero mean": (0.0, 0.0),
    "positive": (3.0, 3.0),
    "cancellation": (1e4, 0.0),
    "mean 1e4": (1e4, 1e4),
    "bias": (0.0, 0.0),
}
WAYS = ("unfused", "fused", "blocked")
BLOCK = 32  # number of terms in a block; each block is added up first

# K, and the share of elements that have this K. 1e9 elements with K = 800,000 would take weeks.
SIZES = (
    (1, 0.1), (2, 0.1), (4, 0.2), (8, 0.3), (16, 0.2), (32, 0.08), (100, 0.02), (1000, 1e-3),
    (20_000, 2e-5), (800_000, 4e-7),
)  # fmt: skip
COUNT = 1e9


@dataclass(frozen=True)
class Found:
    """Errors of simulated sums: in units of d, and the largest in units of the bound."""

    count: int
    rms: float
    largest: float
    share: float


@numba.njit(inline="always")
def _random(state):
    state ^= state << np.uint64(13)
    state ^= state >> np.uint64(7)
    state ^= state << np.uint64(17)
    return state


@numba.njit(inline="always")
def _value(bits, mean):
    """A nearly normal value: the sum of four uniform numbers. It uses all 24 bits of a float32."""
    mask = np.uint64(0xFFFF)
    total = (bits & mask) + ((bits >> np.uint64(16)) & mask)
    total += ((bits >> np.uint64(32)) & mask) + (bits >> np.uint64(48))
    return np.float32(np.float64(np.int64(total) - 131070) * 2.6428e-5 + mean)


@numba.njit
def _sums(got, exact, norm, terms, means, way, with_bias, seed):
    """Fill arrays with f32 sums, exact sums and 2-norms of the terms."""
    state = np.uint64(seed * 2654435761 + 88172645463325252)
    zero = np.float32(0)
    for i in range(got.size):
        total, block, right, square = zero, zero, 0.0, 0.0
        for k in range(terms):
            state = _random(state)
            a = _value(state, means[0])
            state = _random(state)
            b = _value(state, means[1])
            if with_bias and k == 0:
                b = np.float32(1)
            product = np.float64(a) * np.float64(b)
            right += product
            square += product * product
            if way == 1:
                total = np.float32(np.float64(total) + product)  # nearly a fused multiply-add
            elif way == 0:
                total += a * b
            else:
                block += a * b
                if k % BLOCK == BLOCK - 1:
                    total += block
                    block = zero
        got[i], exact[i], norm[i] = total + block, right, np.sqrt(square)


def simulate(kind: str, way: str, terms: int, count: int, seed: int = 1) -> Found:
    """Simulate `count` sums of `terms` products."""
    got = np.empty(count, np.float32)
    exact, norm = np.empty(count), np.empty(count)
    _sums(got, exact, norm, terms, KINDS[kind], WAYS.index(way), kind == "bias", seed)
    error = np.abs(got - exact)
    d = ROUNDOFF * np.sqrt((terms + 1.0) * (exact**2 / 3 + norm**2 / 6))
    bound = summed(terms, exact, norm).limit + 2 * ROUNDOFF * np.abs(exact)
    relative = np.divide(error, d, out=np.zeros(count), where=error > 0)
    return Found(
        count,
        float(np.sqrt(np.mean(relative**2))),
        float(relative.max()),
        float(np.max(np.divide(error, bound, out=np.zeros(count), where=error > 0))),
    )


def joined(parts: list[Found]) -> Found:
    """Return the errors of several simulations together."""
    counts = np.array([part.count for part in parts])
    squares = np.array([part.rms for part in parts]) ** 2
    return Found(
        int(counts.sum()),
        float(np.sqrt(np.average(squares, weights=counts))),
        max(part.largest for part in parts),
        max(part.share for part in parts),
    )


def main(count: float = COUNT) -> None:
    """Print a line for each kind, way and K, and a line for all together."""
    parts = []
    each = count / (len(KINDS) * len(WAYS))
    for kind in KINDS:
        for way in WAYS:
            for terms, share in SIZES:
                left, found = max(1, round(share * each)), []
                while left:
                    found.append(simulate(kind, way, terms, min(left, 1 << 20), len(parts) + 1))
                    left -= found[-1].count
                    parts.append(found[-1])
                print(_line(f"{kind}, {way}, K = {terms}", joined(found)), flush=True)
    print(_line("all", joined(parts)))


def _line(what: str, found: Found) -> str:
    return (
        f"{what}: {found.count} sums, rms {found.rms:.3f} d, largest {found.largest:.2f} d,"
        f" {found.share:.3f} of the bound"
    )


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
