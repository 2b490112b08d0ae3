"""Random numbers for dropout and stochastic rounding. They depend only on a seed and a place.

The generator is Philox4x32-10 (J. K. Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2,
3"). The counter is (offset, offset >> 32, q, q >> 32) with q = 4 * (place // 4). The key is the two
halves of the seed. The place of an element is its index in row-major order. Its random number is
word place % 4 of the result.
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
    """Return a random u32 for each place from 0 to count - 1."""
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
    """Return the mask of dropout: whether a random number is at least probability * 2**32.

    If the probability is at most 0 or NaN, all elements are kept. If it is at least 1, none is.
    """
    share = min(max(0.0, probability), 1.0)  # max and min return the first operand for NaN
    least = np.uint64(int(np.float32(share) * np.float32(2.0**32)))
    numbers = philox(int(np.prod(dims)), seed, offset).astype(np.uint64)
    return (numbers >= least).reshape(dims)


def rounded_at_random(values: Array, mantissa: int, seed: int) -> Array:
    """Round float32 to `mantissa` fraction bits: add random bits below them, then truncate."""
    values = values.astype(np.float32)
    cut = np.uint32((1 << (23 - mantissa)) - 1)
    numbers = philox(values.size, seed).reshape(values.shape) & cut
    moved = ((values.view(np.uint32) + numbers) & ~cut).view(np.float32)
    return np.where(np.isfinite(values), moved, values)
