"""Products of integers by tensor cores, their instructions told in plain OpenCL C: equal bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyopencl")

from dnncore_opencl.convolution.implementations import Forward
from dnncore_opencl.gemm.mma.family import Mma
from dnncore_opencl.inner_product.implementations import Forward as InnerProduct
from dnncore_opencl.matmul import MatMulImplementation
from opencl_engine import DEVICES
from plain_tensor_cores import Plain, Wide, WideInFlight, computed

import dnncore as dnn
from dnncore.backend import Refused

pytestmark = pytest.mark.skipif(not DEVICES, reason="no OpenCL device")
families = pytest.mark.parametrize("family", [Plain, Wide, WideInFlight])
S8, U8 = np.iinfo(np.int8), np.iinfo(np.uint8)


def values(desc: dnn.MemoryDesc, seed: int) -> np.ndarray:
    """Any integers; numbers between -2 and 2."""
    rng = np.random.default_rng(seed)
    if desc.data_type in ("s8", "u8"):
        limits = np.iinfo(desc.dtype)
        return rng.integers(limits.min, limits.max, desc.dims, desc.dtype, endpoint=True)
    if desc.data_type == "s32":
        return rng.integers(-100, 100, desc.dims, np.int32)
    return rng.uniform(-2, 2, desc.dims).astype(desc.dtype)


def inputs(op: dnn.Operation, attr: dnn.Attributes) -> dict[str, np.ndarray]:
    rows = [*op.tensors(), *attr.arguments(op)]
    arrays = {a.name: values(d, i) for i, (a, d) in enumerate(rows) if a.direction == "in"}
    for name, given in arrays.items():
        if name.endswith("_scales"):
            small = 1 if name.startswith("dst") else 2**-7
            arrays[name] = (np.abs(given) * small + 2**-9).astype(given.dtype)
    arrays["old"] = values(op.dst, 99)
    return arrays


def expected(op: dnn.Operation, attr: dnn.Attributes, arrays: dict[str, np.ndarray]) -> np.ndarray:
    cpu = dnn.engine("cpu")
    pd = dnn.PrimitiveDesc(op, cpu, attr, impl="reference*")
    memories = {}
    for argument, desc in [*pd.op.tensors(), *attr.arguments(pd.op)]:
        name = argument.name
        given = arrays["old"] if argument.direction == "out" else arrays[name]
        memories[name] = dnn.Memory.from_numpy(given.copy(), desc, cpu)
    pd.primitive().execute(cpu.stream(), **memories)
    return memories["dst"].numpy()


def assert_equal_bits(
    implementation: Any, op: dnn.Operation, attr: dnn.Attributes | None = None
) -> None:
    attr = attr or dnn.Attributes()
    arrays = inputs(op, attr)
    got = computed(implementation, op, arrays, attr)
    np.testing.assert_array_equal(got, expected(op, attr, arrays))


def product(
    m: int, k: int, n: int, types: str = "s8:s8:s32", tags: str = "ab:ab", bias: str = ""
) -> dnn.MatMul:
    (src, weights, dst), (src_tag, weights_tag) = types.split(":"), tags.split(":")
    return dnn.MatMul(
        src=dnn.MemoryDesc((m, k), src, src_tag),
        weights=dnn.MemoryDesc((k, n), weights, weights_tag),
        dst=dnn.MemoryDesc((m, n), dst),
        bias=dnn.MemoryDesc((1, n), bias) if bias else None,
    )


def image(*dims: int, data_type: str = "s8", tag: str = "any") -> dnn.MemoryDesc:
    return dnn.MemoryDesc(dims, data_type, tag)


@families
@pytest.mark.parametrize(
    "types",
    ["s8:s8:s32", "u8:s8:f32", "s8:s8:s8", "u8:s8:u8", "s8:s8:f16", "u8:u8:s32", "s8:u8:bf16"],
)
def test_types(family: type[Mma], types: str) -> None:
    assert_equal_bits(MatMulImplementation(family), product(36, 160, 72, types, "ab:ba"))


@families
@pytest.mark.parametrize("tags", ["ab:ab", "ba:ab", "ab:ba"])
def test_layouts_and_odd_sizes(family: type[Mma], tags: str) -> None:
    assert_equal_bits(MatMulImplementation(family), product(67, 53, 35, tags=tags))


@families
def test_quantization_with_steps(family: type[Mma]) -> None:
    """A product and a sum that a compiler would contract to a fused multiply-add."""
    attr = dnn.Attributes(
        scales={"src": dnn.Scales(), "weights": dnn.Scales(mask=2), "dst": dnn.Scales()},
        zero_points={"dst": dnn.ZeroPoints()},
        post_ops=[
            dnn.PostOp.eltwise("linear", 1.7, 0.3),
            dnn.PostOp.sum(0.7),
            dnn.PostOp.binary("mul", dnn.MemoryDesc((1, 72))),
        ],
    )
    for types in ("u8:s8:s8", "s8:s8:f32"):
        if types.endswith("f32"):
            attr = dnn.Attributes(scales=attr.scales, post_ops=attr.post_ops)
        op = product(40, 160, 72, types, "ab:ba", "f32")
        assert_equal_bits(MatMulImplementation(family), op, attr)


@pytest.mark.parametrize("family", [Plain, Wide])
def test_sums_wrap_around(family: type[Mma]) -> None:
    op = product(8, 66_400, 8, "u8:s8:s32", "ab:ba")
    arrays = {
        "src": np.full(op.src.dims, 255, np.uint8),
        "weights": np.full(op.weights.dims, 127, np.int8),
        "old": np.zeros(op.dst.dims, np.int32),
    }
    got = computed(MatMulImplementation(family), op, arrays)
    wrapped = (255 * 127 * 66_400 + 2**31) % 2**32 - 2**31
    np.testing.assert_array_equal(got, np.float32(wrapped).astype(np.int32))


@families
@pytest.mark.parametrize(
    ("src", "weights", "dst", "fields"),
    [
        ((2, 20, 7, 9), (24, 20, 3, 3), (2, 24, 7, 9), {"padding_l": (1, 1), "padding_r": (1, 1)}),
        ((2, 16, 9, 9), (5, 16, 3, 3), (2, 5, 4, 4), {"strides": (2, 2)}),
        ((1, 32, 6, 6), (2, 8, 16, 1, 1), (1, 16, 6, 6), {}),
    ],
)
def test_convolutions(family: type[Mma], src: Any, weights: Any, dst: Any, fields: Any) -> None:
    op = dnn.ConvolutionForward(
        "forward_inference",
        src=image(*src, data_type="u8"),
        weights=image(*weights),
        bias=dnn.MemoryDesc((dst[1],)),
        dst=image(*dst, data_type="u8"),
        **fields,
    ).resolve_any(src="acdb", weights="acdb" if len(weights) == 4 else "abdec", dst="acdb")
    attr = dnn.Attributes(
        scales={"src": dnn.Scales(), "weights": dnn.Scales(mask=1 if len(weights) == 4 else 3)},
        zero_points={"dst": dnn.ZeroPoints()},
        post_ops=[dnn.PostOp.eltwise("relu")],
    )
    assert_equal_bits(Forward(family), op, attr)


@families
def test_inner_product(family: type[Mma]) -> None:
    op = dnn.InnerProductForward(
        "forward_inference",
        src=image(9, 5, 3, 3, tag="abcd"),
        weights=image(20, 5, 3, 3, tag="abcd"),
        bias=dnn.MemoryDesc((20,), "s32"),
        dst=dnn.MemoryDesc((9, 20), "s8"),
    )
    attr = dnn.Attributes(scales={"src": dnn.Scales(), "weights": dnn.Scales(mask=1)})
    assert_equal_bits(InnerProduct(family), op, attr)


@pytest.mark.parametrize(
    ("attr", "reason"),
    [
        ({"zero_points": {"src": dnn.ZeroPoints()}}, "no zero points of src"),
        ({"zero_points": {"weights": dnn.ZeroPoints()}}, "no zero points of src"),
        ({"scales": {"src": dnn.Scales(mask=2)}}, "must be equal along the sums"),
        ({"scales": {"weights": dnn.Scales(mask=3)}}, "must be equal along the sums"),
    ],
)
def test_what_is_refused(attr: dict[str, Any], reason: str) -> None:
    op = product(16, 32, 16)
    answer = MatMulImplementation(Plain).accept(
        op, dnn.Attributes(**attr), dnn.engine("opencl"), None
    )
    assert isinstance(answer, Refused)
    assert reason in answer.reason


def test_decompressed_weights_are_refused() -> None:
    op = product(16, 32, 16, "f16:s8:f16")
    answer = MatMulImplementation(Plain).accept(op, dnn.Attributes(), dnn.engine("opencl"), None)
    assert isinstance(answer, Refused)
    assert answer.kind == "type"
