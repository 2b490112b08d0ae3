"""The sum of the parts into which a product's k was cut, on a scratchpad that is filled by hand."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("pyopencl")

from dnncore_opencl.gemm.product import Gemm, Matrix, Strides
from dnncore_opencl.gemm.split_k import FLOAT, part_size, partial, reduction
from dnncore_opencl.runtime.program import LaunchProgram
from opencl_engine import DEVICES

import dnncore as dnn

pytestmark = pytest.mark.skipif(not DEVICES, reason="no OpenCL device")

DTYPES = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
NOTHING = Matrix(0, 0, Strides())
PLACES = {  # batch, m, n; c's strides of them; its offset
    "row-major": ((3,), 5, (12,), Strides((60,), 12, (1,)), 0),
    "column-major": ((), 8, (7, 3), Strides((), 1, (24, 8)), 4),
    "with gaps": ((2,), 4, (8,), Strides((100,), 20, (1,)), 8),
    "lines with room": ((), 6, (5, 3), Strides((), 20, (4, 1)), 0),
    "offset of no vector": ((), 4, (8,), Strides((), 8, (1,)), 3),
    "channels last": ((2,), 16, (3, 2, 2), Strides((192,), 1, (64, 32, 16)), 0),
    "nothing side by side": ((), 3, (4,), Strides((), 8, (2,)), 0),
    "one element": ((), 1, (1,), Strides((), 1, (1,)), 0),
}


def places(gemm: Gemm, matrix: Matrix) -> np.ndarray:
    """Where each element (batch..., m, n...) is in a matrix."""
    shape = (*gemm.batch, gemm.m, *gemm.n)
    strides = (*matrix.strides.batch, matrix.strides.m, *matrix.strides.n)
    index = np.indices(shape)
    return matrix.offset + sum(s * i for s, i in zip(strides, index, strict=True))


def reduced(
    gemm: Gemm, parts: np.ndarray, old: np.ndarray, items: int, *operands: np.ndarray
) -> np.ndarray:
    """What becomes of c's memory, from parts of (batch..., m, n...) behind some other scratch."""
    first = 3 * FLOAT
    engine = dnn.engine(DEVICES[0])
    scratch = np.full(first + len(parts) * part_size(gemm), np.nan, np.float32)
    at = places(gemm, partial(gemm, first).c)
    for place, part in enumerate(parts):
        scratch[at + place * part_size(gemm)] = part
    memories = [
        dnn.Memory.from_numpy(array, dnn.MemoryDesc(array.shape, gemm.c.data_type), engine)
        for array in (old, *operands)
    ]
    scratchpad = dnn.Memory.from_numpy(scratch, engine=engine)
    program = LaunchProgram(engine, [reduction(gemm, len(parts), first, items)])
    stream = engine.stream()
    program.bind(memories, scratchpad.buffer)(stream)
    stream.wait()
    return memories[0].numpy()


@pytest.mark.parametrize("items", [0, 1, 1 << 16], ids=["cpu", "gpu", "gpu with ways"])
@pytest.mark.parametrize(
    ("name", "data_type", "count"),
    [(name, data_type, 7) for name in PLACES for data_type in ("f32", "f16")]
    + [("row-major", "bf16", 7), ("row-major", "f32", 1)],
)
def test_parts_are_added(name: str, data_type: str, items: int, count: int) -> None:
    batch, m, n, strides, offset = PLACES[name]
    c = Matrix(0, offset, strides, data_type=data_type)
    gemm = Gemm(m, n, (1,), NOTHING, NOTHING, c, batch=batch)
    at = places(gemm, c)
    rng = np.random.default_rng(math.prod(at.shape))
    parts = rng.integers(-4, 5, (count, *at.shape)).astype(np.float32)
    old = np.full(at.max() + 3, 9, DTYPES[data_type])
    expected = old.copy()
    expected[at] = parts.sum(axis=0)
    found = reduced(gemm, parts, old, items)
    np.testing.assert_array_equal(found.astype(np.float32), expected.astype(np.float32))


@pytest.mark.parametrize("items", [0, 1 << 16], ids=["cpu", "gpu"])
@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("data_type", ["f32", "f16"])
def test_steps_know_the_old_value_and_the_place(name: str, data_type: str, items: int) -> None:
    batch, m, n, strides, offset = PLACES[name]
    c = Matrix(0, offset, strides, data_type=data_type)
    steps = (dnn.PostOp.sum(), dnn.PostOp.binary("add", dnn.MemoryDesc((m,), data_type)))
    of_m = Matrix(1, 0, Strides((0,) * len(batch), 1, (0,) * len(n)), data_type=data_type)
    gemm = Gemm(m, n, (1,), NOTHING, NOTHING, c, batch=batch, post_ops=steps, operands=(of_m,))
    at = places(gemm, c)
    rng = np.random.default_rng(math.prod(at.shape))
    parts = rng.integers(-4, 5, (5, *at.shape)).astype(np.float32)
    old = rng.integers(-9, 9, at.max() + 3).astype(DTYPES[data_type])
    added = rng.integers(-9, 9, m).astype(DTYPES[data_type])
    by_m = added.astype(np.float32).reshape(-1, *(1,) * len(n))
    expected = old.copy()
    expected[at] = parts.sum(axis=0) + old[at].astype(np.float32) + by_m
    found = reduced(gemm, parts, old, items, added)
    np.testing.assert_array_equal(found.astype(np.float32), expected.astype(np.float32))
