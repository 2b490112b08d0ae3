"""Random numbers that depend only on a seed and a place: dropout and stochastic rounding.

The generator is Philox4x32-10 (J. K. Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2,
3"). Its counter is (offset, offset >> 32, q, q >> 32) with q = 4 * (place // 4), its key the two
halves of the seed. Word place % 4 of the result belongs to the element at this place in row-major
order.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

LOW = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)
FACTORS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
STEPS = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10


def philox(count: int, seed: int, offset: int = 0) -> Array:
    """A random u32 for each place from 0 to count - 1."""
    quads = np.arange(-(-count // 4), dtype=np.uint64) * np.uint64(4)
    start, key = (np.uint64(number % 2**64) for number in (offset, seed))
    zero = np.zeros_like(quads)
    words = [zero + (start & LOW), zero + (start >> HALF), quads & LOW, quads >> HALF]
    keys = [int(key & LOW), int(key >> HALF)]
    for _ in range(ROUNDS):
        first, second = words[0] * FACTORS[0], words[2] * FACTORS[1]
        words = [
            (second >> HALF) ^ words[1] ^ np.uint64(keys[0]),
            second & LOW,
            (first >> HALF) ^ words[3] ^ np.uint64(keys[1]),
            first & LOW,
        ]
        keys = [(own + step) % 2**32 for own, step in zip(keys, STEPS, strict=True)]
    return np.stack(words, axis=-1).astype(np.uint32).ravel()[:count]


def kept(dims: tuple[int, ...], probability: float, seed: int, offset: int) -> Array:
    """The mask of dropout: 1 where a random number is at least probability * 2**32, else 0.

    Below a probability of 0, and for NaN, all are kept. From 1 on, none is.
    """
    share = min(max(0.0, probability), 1.0)  # the first operand where the other one is NaN
    least = np.uint64(int(np.float32(share) * np.float32(2.0**32)))
    numbers = philox(int(np.prod(dims)), seed, offset).astype(np.uint64)
    return (numbers >= least).reshape(dims)


def rounded_at_random(values: Array, mantissa: int, seed: int) -> Array:
    """float32 with `mantissa` bits behind the point: random bits are added to those cut off."""
    values = values.astype(np.float32)
    cut = np.uint32((1 << (23 - mantissa)) - 1)
    numbers = philox(values.size, seed).reshape(values.shape) & cut
    moved = ((values.view(np.uint32) + numbers) & ~cut).view(np.float32)
    return np.where(np.isfinite(values), moved, values)
