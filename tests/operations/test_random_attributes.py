"""Dropout and stochastic rounding, bit for bit, beside Philox4x32-10 in Python's integers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import ml_dtypes
import numpy as np
import pytest
from checks import Target, run

import dnncore as dnn

SIZE = (7, 13)
SEEDS = [(0, 0), (12345, 0), ((1 << 40) + 3, (1 << 33) + 5), (-1, 7)]
BEHIND_THE_POINT = {"bf16": 7, "f16": 10}  # bits
DTYPES = {"bf16": ml_dtypes.bfloat16, "f16": np.float16}


def words(seed: int, offset: int) -> Iterator[int]:
    """The generator's words, by the formulas of its paper (J. K. Salmon et al. 2011)."""
    low = 0xFFFFFFFF
    start, key = offset % 2**64, seed % 2**64
    for q in range(0, 1 << 62, 4):
        c = [start & low, start >> 32, q & low, q >> 32]
        k = [key & low, key >> 32]
        for _ in range(10):
            first, second = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
            c = [second >> 32 ^ c[1] ^ k[0], second & low, first >> 32 ^ c[3] ^ k[1], first & low]
            k = [(k[0] + 0x9E3779B9) & low, (k[1] + 0xBB67AE85) & low]
        yield from c


def numbers(seed: int, offset: int = 0) -> np.ndarray:
    """A number for each element of `SIZE`."""
    count = SIZE[0] * SIZE[1]
    return np.array(list(islice(words(seed, offset), count)), np.uint64).reshape(SIZE)


def test_the_generator_gives_the_published_numbers():
    """Those of counter 0 and key 0 in the tests of the library Random123."""
    assert [hex(word) for word in islice(words(0, 0), 4)] == [
        "0x6627e8d5", "0xe169c58d", "0xbc57ac4c", "0x9b00dbd8",
    ]  # fmt: skip


def operation(kind: str) -> tuple[dnn.Operation, np.ndarray, dict[str, np.ndarray]]:
    """An operation, its result without dropout, and its inputs."""
    x = np.random.default_rng(1).integers(-8, 9, SIZE).astype(np.float32)
    desc = dnn.MemoryDesc(SIZE)
    if kind == "eltwise":
        op: dnn.Operation = dnn.EltwiseForward(
            "forward_training", "linear", src=desc, dst=desc, alpha=0.5
        )
        return op, x / 2, {"src": x}
    if kind == "softmax":
        op = dnn.SoftmaxForward("forward_training", "accurate", src=desc, dst=desc, axis=1)
        return op, np.full(SIZE, 1 / SIZE[1], np.float32), {"src": np.zeros_like(x)}
    square = dnn.MemoryDesc((SIZE[1], SIZE[1]))
    op = dnn.MatMul(src=desc, weights=square, dst=desc)
    return op, x, {"src": x, "weights": np.eye(SIZE[1], dtype=np.float32)}


@pytest.mark.parametrize("probability", [0.0, 0.25, 0.4, 0.999])
@pytest.mark.parametrize(("seed", "offset"), SEEDS)
@pytest.mark.parametrize("kind", ["eltwise", "softmax", "matmul"])
def test_dropout(target: Target, kind, seed, offset, probability):
    op, expected, inputs = operation(kind)
    attr = dnn.Attributes(dropout=dnn.Dropout("s64", has_offset=True, has_mask=True))
    inputs |= {
        "dropout_probability": np.array([probability], np.float32),
        "dropout_seed": np.array([seed]),
        "dropout_offset": np.array([offset]),
    }
    share = np.float32(probability)
    is_kept = numbers(seed, offset) >= np.uint64(int(float(share) * 2**32))
    scaled = np.where(is_kept, expected * (np.float32(1) / (np.float32(1) - share)), 0)
    for pd in target.primitive_descs(op, attr, may_refuse=True):
        got = run(pd, inputs)
        np.testing.assert_array_equal(got["dropout_mask"], is_kept, err_msg=pd.impl_name)
        np.testing.assert_allclose(got["dst"], scaled, rtol=1e-6, err_msg=pd.impl_name)


@pytest.mark.parametrize("data_type", BEHIND_THE_POINT)
@pytest.mark.parametrize("seed", [0, 7, -1])
def test_stochastic_rounding(target: Target, seed, data_type):
    """Random bits are added to those that are cut off. Infinity and NaN stay."""
    src = np.random.default_rng(2).standard_normal(SIZE).astype(np.float32)
    src[0, :3] = np.inf, -np.inf, np.nan
    desc = dnn.MemoryDesc(SIZE)
    op = dnn.Reorder(src=desc, dst=desc.with_data_type(data_type))
    cut = (1 << (23 - BEHIND_THE_POINT[data_type])) - 1
    bits = src.view(np.uint32).astype(np.uint64) + (numbers(seed) & np.uint64(cut))
    moved = (bits & np.uint64(0xFFFFFFFF ^ cut)).astype(np.uint32).view(np.float32)
    expected = np.where(np.isfinite(src), moved, src).astype(DTYPES[data_type])
    inputs = {"src": src, "rounding_seed": np.array([seed], np.int32)}
    for pd in target.primitive_descs(op, dnn.Attributes(rounding="stochastic")):
        got = run(pd, inputs)["dst"]
        np.testing.assert_array_equal(
            got.astype(np.float32), expected.astype(np.float32), err_msg=pd.impl_name
        )
