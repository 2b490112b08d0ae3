"""Products of integers: scales, zero points and post-ops by the steps of docs/types.md, bit by bit.

The oracle computes them in numpy: int64 for sums, then one f32 operation after the other.
"""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("pyopencl")

from conftest import TARGETS

import dnncore as dnn

DTYPES = {
    "f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16,
    "s32": np.int32, "s8": np.int8, "u8": np.uint8,
}  # fmt: skip
INTEGERS = ("s32", "s8", "u8")
FAMILIES = ("opencl:simd", "opencl:tiled")
DEVICES = [target for target in TARGETS if target.engine_name.startswith("opencl")]
SIZES = [(1, 1, 1), (5, 7, 3), (37, 141, 53), (3, 300, 65), (2, 5000, 9)]

F32 = np.float32


def integers(rng: Any, shape: tuple[int, ...], data_type: str) -> Any:
    """All values of an 8-bit type."""
    limits = np.iinfo(DTYPES[data_type])
    return rng.integers(limits.min, limits.max, shape, DTYPES[data_type], endpoint=True)


def stored(x: Any, data_type: str) -> Any:
    """f32 numbers as another type: rounded half to even, saturated."""
    if np.issubdtype(DTYPES[data_type], np.integer):
        limits = np.iinfo(DTYPES[data_type])
        whole = np.clip(np.rint(x.astype(np.float64)), limits.min, limits.max)
        return whole.astype(DTYPES[data_type])
    with np.errstate(over="ignore"):
        return x.astype(DTYPES[data_type])


def run(target: Any, impl: str, op: Any, attr: Any, result: Any, **values: Any) -> Any:
    """The result of an implementation for arrays by argument; result: what dst holds before."""
    engine = target.engine
    stream = engine.stream()
    pd = dnn.PrimitiveDesc(op, engine, attr, impl=impl)
    descs = {argument.name: desc for argument, desc in pd.arguments}
    memories = {n: dnn.Memory.from_numpy(v, descs[n], engine) for n, v in values.items()}
    dst = dnn.Memory.from_numpy(result, descs["dst"], engine)
    pd.primitive().execute(stream, dst=dst, **memories).wait()
    return dst.numpy().copy()


@pytest.mark.parametrize("target", DEVICES, ids=str)
@pytest.mark.parametrize("impl", FAMILIES)
@pytest.mark.parametrize("src_type", ["u8", "s8"])
def test_each_step_of_a_product_is_rounded(target, impl, src_type):
    """Sizes, types of dst and attributes are drawn together, so that few programs are built."""
    rng = np.random.default_rng(7)
    kinds = itertools.cycle(["s8", "f32", "u8", "s32", "bf16", "f16"])
    for (m, k, n), dst_type, has_zero_points in zip(SIZES, kinds, (True, False) * 3, strict=False):
        op = dnn.MatMul(
            src=dnn.MemoryDesc((m, k), src_type, "ab"),
            weights=dnn.MemoryDesc((k, n), "s8", "ba"),
            bias=dnn.MemoryDesc((1, n), "f32", "ab"),
            dst=dnn.MemoryDesc((m, n), dst_type, "ab"),
        )
        src, weights = integers(rng, (m, k), src_type), integers(rng, (k, n), "s8")
        old = integers(rng, (m, n), "s8").astype(DTYPES[dst_type])
        own, per_column, divisor = (
            rng.uniform(1e-3, 0.1, shape).astype(F32) for shape in ((1, 1), (1, n), (1, 1))
        )
        bias = rng.normal(0, 30, (1, n)).astype(F32)
        values = {"src_scales": own, "weights_scales": per_column, "dst_scales": divisor}
        zero_points = {}
        shifts: dict[str, Any] = dict.fromkeys(
            ("src", "weights", "dst"), np.zeros((1, 1), np.int32)
        )
        if has_zero_points:
            names = ("src", "weights", *(("dst",) if dst_type in INTEGERS else ()))
            shifts |= {name: rng.integers(-200, 200, (1, 1), np.int32) for name in names}
            zero_points = {name: dnn.ZeroPoints() for name in names}
            values |= {f"{name}_zero_points": shifts[name] for name in names}
        attr = dnn.Attributes(
            post_ops=[
                dnn.PostOp.sum(0.3),
                dnn.PostOp.eltwise("linear", 0.7, 0.1),
                dnn.PostOp.eltwise("relu", 0.3),
            ],
            scales={"src": dnn.Scales(), "weights": dnn.Scales(mask=2), "dst": dnn.Scales()},
            zero_points=zero_points,
        )
        got = run(target, impl, op, attr, old, src=src, weights=weights, bias=bias, **values)
        wide = (src.astype(np.int64) - shifts["src"]) @ (
            weights.astype(np.int64) - shifts["weights"]
        )
        x = wide.astype(np.int32).astype(F32) * (own * per_column)
        x = x + bias
        x = x + F32(0.3) * old.astype(F32)
        x = F32(0.7) * x + F32(0.1)
        x = np.where(x > 0, x, F32(0.3) * x)
        x = x * (F32(1) / divisor)
        if dst_type in INTEGERS:
            x = x + shifts["dst"].astype(F32)
        expected = stored(x, dst_type)
        np.testing.assert_array_equal(got, expected, err_msg=f"{(m, k, n)} to {dst_type}")


@pytest.mark.parametrize("target", DEVICES, ids=str)
@pytest.mark.parametrize("impl", FAMILIES)
def test_padding_of_convolutions_adds_nothing(target, impl):
    """Although src has a zero point; and sums wrap around."""
    rng = np.random.default_rng(3)
    src, weights = integers(rng, (2, 6, 5, 7), "u8"), integers(rng, (2, 4, 3, 3, 3), "s8")
    op = dnn.ConvolutionForward(
        "forward_inference",
        src=dnn.MemoryDesc(src.shape, "u8", "acdb"),
        weights=dnn.MemoryDesc(weights.shape, "s8", "abcde"),
        dst=dnn.MemoryDesc((2, 8, 5, 7), "s32", "abcd"),
        padding_l=(1, 1),
        padding_r=(1, 1),
    )
    for shift in (-77, 2**31 - 1):
        attr = dnn.Attributes(zero_points={"src": dnn.ZeroPoints()})
        shifts = np.full((1, 1, 1, 1), shift, np.int32)
        old = np.zeros((2, 8, 5, 7), np.int32)
        got = run(target, impl, op, attr, old, src=src, weights=weights, src_zero_points=shifts)
        padded = np.zeros((2, 6, 7, 9), np.int64)
        padded[:, :, 1:-1, 1:-1] = src.astype(np.int64) - shift
        expected = np.zeros((2, 8, 5, 7), np.int64)
        for oc, ic, y, x in itertools.product(range(8), range(3), range(3), range(3)):
            group = oc // 4
            patch = padded[:, group * 3 + ic, y : y + 5, x : x + 7]
            expected[:, oc] += patch * int(weights[group, oc % 4, ic, y, x])
        expected = (expected & 0xFFFFFFFF).astype(np.uint32).view(np.int32)
        np.testing.assert_array_equal(got, stored(expected.astype(F32), "s32"))
