"""Concat of channels-last images: short rows that share cache lines are copied together."""

from __future__ import annotations

import numpy as np
import pytest

import dnncore as dnn

IMPL = "cpu_numba:rows"


def concat(channels, images, *, types=("f32", "f32"), side=5):
    """Return the result of a concat of channels-last images, and the expected one."""
    engine = dnn.engine("cpu")
    own, wanted = types
    rng = np.random.default_rng(1)
    arrays = [rng.integers(-9, 9, (images, c, side, side)).astype(np.float32) for c in channels]
    descs = [dnn.MemoryDesc(a.shape, own).with_format("acdb") for a in arrays]
    dims = (images, sum(channels), side, side)
    dst = dnn.Memory(dnn.MemoryDesc(dims, wanted).with_format("acdb"), engine)
    pd = dnn.PrimitiveDesc(dnn.Concat(srcs=descs, dst=dst.desc, axis=1), engine, impl=IMPL)
    sources = {}
    for n, (array, desc) in enumerate(zip(arrays, descs, strict=True)):
        plain = dnn.Memory.from_numpy(array, engine=engine)
        sources[f"src{n}"] = dnn.reorder(plain, desc)
    primitive = pd.primitive()
    stream = engine.stream()
    primitive.execute(stream, **sources, dst=dst)
    stream.wait()
    found = dnn.reorder(dst, dnn.MemoryDesc(dims)).numpy()
    return found, np.concatenate(arrays, 1)


@pytest.mark.parametrize("images", [1, 3, 97], ids=["few rows", "rows", "tiles and a rest"])
@pytest.mark.parametrize(
    ("channels", "types"),
    [
        ((5, 7, 1), ("f32", "f32")),
        ((24, 24), ("bf16", "bf16")),
        ((3, 12, 2, 9), ("bf16", "f32")),
        ((16, 16), ("f32", "f32")),  # rows of whole lines
        ((40, 100), ("f32", "f32")),  # a long row
        ((0, 6, 3), ("f32", "f32")),
    ],
    ids=str,
)
def test_short_rows(channels, types, images):
    found, expected = concat(channels, images, types=types)
    np.testing.assert_array_equal(found, expected)
