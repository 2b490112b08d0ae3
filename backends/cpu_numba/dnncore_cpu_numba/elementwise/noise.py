"""Random numbers for dropout and stochastic rounding: Philox4x32-10, defined in docs/types.md.

A chain reads them as a tensor of u32. The number of an element depends on the seed, the offset and
the index of the element in row-major order of the logical dims.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dnncore.backend import MemoryDesc
from dnncore_cpu_numba.codegen.pointers import load_i32, load_i64, store_i32
from dnncore_cpu_numba.codegen.task import device, native_function
from dnncore_cpu_numba.elementwise.tiles import NOISE_CALL
from dnncore_cpu_numba.runtime.program import Table
from dnncore_cpu_numba.runtime.tensor import Tensor

_LOW = 0xFFFFFFFF
_FACTORS = 0xD2511F53, 0xCD9E8D57
_KEYS = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10


class Noise(Tensor):
    """Random numbers for all elements. Its addresses are the row-major indices of elements."""


class Seed(Tensor):
    """A seed or an offset. Only the preceding `Noise` of the chain reads it."""


def noise(dims: Sequence[int], seed: Tensor, offset: Tensor | None = None) -> list[Tensor]:
    """Return the tensors of a chain for random numbers: the numbers, the seed and the offset."""
    places = Noise(0, MemoryDesc(dims, "u8"))
    numbers = (spread(own, dims) for own in (seed, offset or _zero()))
    return [places, *(Seed(own.address, own.desc) for own in numbers)]


def _zero() -> Tensor:
    return Tensor(Table(np.zeros(1, np.int64)), MemoryDesc((1,), "s64"))


def spread(scalar: Tensor, dims: Sequence[int]) -> Tensor:
    """Return a scalar tensor with the rank of `dims`."""
    return scalar.seen_as(MemoryDesc((1,) * len(dims), scalar.desc.data_type))


@native_function(NOISE_CALL)
def random_numbers(target, place, column, row, rows, columns, seed, seed_size, offset):
    """Write the random numbers of a tile."""
    key = load_i64(seed, 0) if seed_size == 8 else load_i32(seed, 0)
    start = load_i64(offset, 0)
    for r in range(rows):
        first, to = place + r * row, target + 4 * r * columns
        head = min(columns, -first % 4) if column == 1 else columns
        for i in range(head):
            at = first + i * column
            words = _philox(at >> 2 << 2, start, key)
            store_i32(to, i, _chosen(words, at % 4))
        quads = (columns - head) // 4
        for q in range(quads):
            words = _philox(first + head + 4 * q, start, key)
            for w in range(4):
                store_i32(to + 4 * head, 4 * q + w, words[w])
        for i in range(head + 4 * quads, columns):
            words = _philox((first + i) >> 2 << 2, start, key)
            store_i32(to, i, _chosen(words, (first + i) % 4))


@device
def _chosen(words, index):
    low = words[0] if index == 0 else words[1]
    high = words[2] if index == 2 else words[3]
    return low if index < 2 else high


@device
def _philox(quad, start, key):
    """Return the four random numbers of a counter."""
    a, b, c, d = start & _LOW, (start >> 32) & _LOW, quad & _LOW, (quad >> 32) & _LOW
    k, m = key & _LOW, (key >> 32) & _LOW
    for _ in range(_ROUNDS):
        first, second = np.uint64(a) * np.uint64(_FACTORS[0]), np.uint64(c) * np.uint64(_FACTORS[1])
        a, b, c, d = (
            np.int64(second >> np.uint64(32)) ^ b ^ k,
            np.int64(second & np.uint64(_LOW)),
            np.int64(first >> np.uint64(32)) ^ d ^ m,
            np.int64(first & np.uint64(_LOW)),
        )
        k, m = (k + _KEYS[0]) & _LOW, (m + _KEYS[1]) & _LOW
    return a, b, c, d
