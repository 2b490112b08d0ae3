"""Products by tensor cores, their instructions told in plain OpenCL C: slow, but on any device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("pyopencl")

from dnncore_opencl.convolution.implementations import BackwardData, BackwardWeights, Forward
from dnncore_opencl.convolution.winograd.gpu import GpuWinogradBackwardWeights
from dnncore_opencl.convolution.winograd.tile import WinogradTile
from dnncore_opencl.gemm.implementation import GemmImplementation
from dnncore_opencl.gemm.mma.family import SPLIT_TF32, Mma
from dnncore_opencl.gemm.mma.launch import MmaProduct, MmaTile
from dnncore_opencl.gemm.mma.view import Unfit, view
from dnncore_opencl.gemm.product import Gemm, Matrix
from dnncore_opencl.inner_product.implementations import BackwardData as InnerProductGradient
from dnncore_opencl.inner_product.implementations import Forward as InnerProduct
from dnncore_opencl.matmul import MatMulImplementation
from opencl_engine import DEVICES
from plain_tensor_cores import HELPER, InParts, Plain, Wide, WideInFlight, computed

import dnncore as dnn
from dnncore.backend import Refused
from dnncore.planning.toom_cook import F23

pytestmark = pytest.mark.skipif(not DEVICES, reason="no OpenCL device")

DTYPES = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}


class Winograd(GpuWinogradBackwardWeights):
    """By tiles of 2x2 outputs, whose transforms are exact."""

    def __init__(self, family: type[Mma]) -> None:
        super().__init__(family, WinogradTile(F23, F23))


Implementation = GemmImplementation | Winograd


def any_of(*dims: int) -> dnn.MemoryDesc:
    return dnn.MemoryDesc(dims, "f32", "any")


def forward(**fields: Any) -> dnn.ConvolutionForward:
    return dnn.ConvolutionForward("forward_training", **fields)


PADDED = {"padding_l": (1, 1), "padding_r": (1, 1)}
STRIDED = {"strides": (2, 2), **PADDED}
PROBLEMS: dict[str, tuple[type[Implementation], Callable[[], dnn.Operation]]] = {
    "3x3 with bias, channels that fill no chunk": (
        Forward,
        lambda: forward(
            src=any_of(2, 3, 5, 5),
            weights=any_of(5, 3, 3, 3),
            bias=dnn.MemoryDesc((5,)),
            dst=any_of(2, 5, 5, 5),
            **PADDED,
        ),
    ),
    "3x3 with a stride": (
        Forward,
        lambda: forward(
            src=any_of(2, 8, 9, 9), weights=any_of(12, 8, 3, 3), dst=any_of(2, 12, 5, 5), **STRIDED
        ),
    ),
    "1x1, rows and columns beyond a tile": (
        Forward,
        lambda: forward(
            src=any_of(1, 40, 9, 9), weights=any_of(68, 40, 1, 1), dst=any_of(1, 68, 9, 9)
        ),
    ),
    "groups": (
        Forward,
        lambda: forward(
            src=any_of(2, 16, 6, 6), weights=any_of(2, 8, 8, 3, 3), dst=any_of(2, 16, 4, 4)
        ),
    ),
    "backward data with a stride": (
        BackwardData,
        lambda: dnn.ConvolutionBackwardData(
            diff_src=any_of(2, 8, 7, 7),
            weights=any_of(12, 8, 3, 3),
            diff_dst=any_of(2, 12, 4, 4),
            **STRIDED,
        ),
    ),
    "backward weights, three channels": (
        BackwardWeights,
        lambda: dnn.ConvolutionBackwardWeights(
            src=any_of(2, 3, 9, 9),
            diff_weights=any_of(8, 3, 3, 3),
            diff_dst=any_of(2, 8, 9, 9),
            **PADDED,
        ),
    ),
    "one channel, a kernel of several chunks": (
        Forward,
        lambda: forward(
            src=any_of(2, 1, 16, 16),
            weights=any_of(16, 1, 8, 8),
            dst=any_of(2, 16, 5, 5),
            strides=(4, 4),
            padding_l=(4, 4),
            padding_r=(4, 4),
        ),
    ),
    "backward data with a window beyond the image, plain": (
        BackwardData,
        lambda: dnn.ConvolutionBackwardData(
            diff_src=dnn.MemoryDesc((1, 8, 8, 8)),
            weights=any_of(16, 8, 3, 1),
            diff_dst=dnn.MemoryDesc((1, 16, 10, 8)),
            padding_l=(2, 0),
            padding_r=(2, 0),
        ),
    ),
    "backward data of pixels that no tap reaches": (
        BackwardData,
        lambda: dnn.ConvolutionBackwardData(
            diff_src=any_of(1, 8, 6, 6),
            weights=any_of(16, 8, 1, 1),
            diff_dst=any_of(1, 16, 3, 3),
            strides=(2, 2),
        ),
    ),
    "backward weights of one channel": (
        BackwardWeights,
        lambda: dnn.ConvolutionBackwardWeights(
            src=any_of(2, 1, 9, 9),
            diff_weights=any_of(8, 1, 3, 3),
            diff_dst=any_of(2, 8, 9, 9),
            **PADDED,
        ),
    ),
    "backward weights by Winograd's algorithm": (
        Winograd,
        lambda: dnn.ConvolutionBackwardWeights(
            src=any_of(3, 8, 13, 13),
            diff_weights=any_of(12, 8, 3, 3),
            diff_dst=any_of(3, 12, 13, 13),
            algorithm="winograd",
            **PADDED,
        ),
    ),
    "inner product": (
        InnerProduct,
        lambda: dnn.InnerProductForward(
            "forward_training",
            src=any_of(9, 12, 2, 2),
            weights=any_of(20, 12, 2, 2),
            bias=dnn.MemoryDesc((20,)),
            dst=dnn.MemoryDesc((9, 20)),
        ),
    ),
    "products of transposed matrices": (
        MatMulImplementation,
        lambda: dnn.MatMul(
            src=dnn.MemoryDesc((3, 36, 80), "f32", "acb"),
            weights=dnn.MemoryDesc((1, 80, 40)),
            dst=dnn.MemoryDesc((3, 36, 40)),
        ),
    ),
}


def whole_numbers(desc: dnn.MemoryDesc) -> np.ndarray:
    """Numbers whose products and sums are exact in any order."""
    return np.random.default_rng(desc.dims).integers(-4, 5, desc.dims).astype(np.float32)


@pytest.fixture(scope="module", autouse=True)
def _end_of_help() -> Iterator[None]:
    yield
    HELPER.stop()


def expected(op: dnn.Operation, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """The reference's result."""
    cpu = dnn.engine("cpu")
    pd = dnn.PrimitiveDesc(op, cpu, impl="reference*")
    memories = {
        a.name: dnn.Memory.from_numpy(arrays[a.name], desc, cpu)
        if a.direction == "in"
        else dnn.Memory(desc, cpu)
        for a, desc in pd.op.tensors()
    }
    pd.primitive().execute(cpu.stream(), **memories)
    (result,) = (memories[a.name] for a, _ in pd.op.tensors() if a.direction == "out")
    return result.numpy()


def inputs(op: dnn.Operation) -> dict[str, np.ndarray]:
    return {a.name: whole_numbers(d) for a, d in op.tensors() if a.direction == "in"}


def test_in_parts_there_are_two_launches() -> None:
    implementation, make = PROBLEMS["products of transposed matrices"]
    (gemm,) = implementation(InParts).gemms(make(), dnn.Attributes())
    kernels = [launch.kernel for launch in InParts.of(None).plan(gemm).launches]
    assert kernels == ["mma", "gemm_reduce"]


@pytest.mark.parametrize("family", [Plain, InParts])
@pytest.mark.parametrize("name", PROBLEMS)
def test_whole_numbers_come_out_exactly(name: str, family: type[Mma]) -> None:
    implementation, make = PROBLEMS[name]
    op = make()
    arrays = inputs(op)
    np.testing.assert_array_equal(
        computed(implementation(family), op, arrays), expected(op, arrays)
    )


@pytest.mark.parametrize("data_type", ["f16", "bf16"])
@pytest.mark.parametrize("direction", ["forward", "backward data", "backward weights"])
@pytest.mark.parametrize("family", [Plain, Wide, WideInFlight])
def test_whole_numbers_of_half_types_come_out_exactly(
    family: type[Mma], direction: str, data_type: str
) -> None:
    image, filters = (1, 8, 5, 6), (16, 8, 3, 3)
    descs = [dnn.MemoryDesc(dims, data_type, "acdb") for dims in (image, filters, (1, 16, 5, 6))]
    implementation, op = {
        "forward": (
            Forward,
            lambda: forward(src=descs[0], weights=descs[1], dst=descs[2], **PADDED),
        ),
        "backward data": (
            BackwardData,
            lambda: dnn.ConvolutionBackwardData(
                diff_src=descs[0], weights=descs[1], diff_dst=descs[2], **PADDED
            ),
        ),
        "backward weights": (
            BackwardWeights,
            lambda: dnn.ConvolutionBackwardWeights(
                src=descs[0], diff_weights=descs[1], diff_dst=descs[2], **PADDED
            ),
        ),
    }[direction]
    rng = np.random.default_rng(0)  # -1, 0 and 1: all sums are numbers of either type
    arrays = {
        a.name: rng.integers(-1, 2, d.dims).astype(DTYPES[data_type])
        for a, d in op().tensors()
        if a.direction == "in"
    }
    np.testing.assert_array_equal(
        computed(implementation(family), op(), arrays).astype(np.float32),
        expected(op(), arrays).astype(np.float32),
    )


@pytest.mark.parametrize("family", [Wide, WideInFlight])
def test_gradients_of_whole_stages_of_channels(family: type[Mma]) -> None:
    op = dnn.ConvolutionBackwardData(
        diff_src=dnn.MemoryDesc((1, 8, 5, 5), "f16", "acdb"),
        weights=dnn.MemoryDesc((128, 8, 3, 3), "f16", "acdb"),
        diff_dst=dnn.MemoryDesc((1, 128, 3, 3), "f16", "acdb"),
        **STRIDED,
    )
    rng = np.random.default_rng(1)
    arrays = {
        a.name: rng.integers(-1, 2, d.dims).astype(np.float16)
        for a, d in op.tensors()
        if a.direction == "in"
    }
    np.testing.assert_array_equal(
        computed(BackwardData(family), op, arrays).astype(np.float32),
        expected(op, arrays).astype(np.float32),
    )


@pytest.mark.parametrize("family", [Wide, WideInFlight])
def test_gradients_of_pixels_beyond_a_stage(family: type[Mma]) -> None:
    """From stage to stage, pixels go on in the next rows and images."""
    op = dnn.ConvolutionBackwardWeights(
        src=dnn.MemoryDesc((5, 8, 9, 7), "f16", "acdb"),
        diff_weights=dnn.MemoryDesc((8, 8, 3, 3), "f32", "acdb"),
        diff_dst=dnn.MemoryDesc((5, 8, 9, 7), "f16", "acdb"),
        **PADDED,
    )
    rng = np.random.default_rng(2)
    arrays = {
        a.name: rng.integers(-2, 3, d.dims).astype(np.float16)
        for a, d in op.tensors()
        if a.direction == "in"
    }
    np.testing.assert_array_equal(
        computed(BackwardWeights(family), op, arrays), expected(op, arrays)
    )


@pytest.mark.parametrize("family", [Wide, WideInFlight])
@pytest.mark.parametrize(
    ("tags", "sizes"),
    [
        (("abc", "abc"), (40, 264, 72)),  # b across k, beyond a tile
        (("abc", "acb"), (72, 200, 136)),  # both along k
        (("acb", "abc"), (136, 72, 72)),  # both across k
        (("acb", "acb"), (72, 72, 200)),
    ],
)
def test_products_by_four_warps(
    family: type[Mma], tags: tuple[str, str], sizes: tuple[int, int, int]
) -> None:
    m, k, n = sizes
    src, weights = (
        dnn.MemoryDesc((2, *dims), "f16", tag)
        for dims, tag in zip(((m, k), (k, n)), tags, strict=True)
    )
    op = dnn.MatMul(src=src, weights=weights, dst=dnn.MemoryDesc((2, m, n), "f32"))
    arrays = {
        name: np.random.default_rng(i).integers(-2, 3, desc.dims).astype(np.float16)
        for i, (name, desc) in enumerate((("src", src), ("weights", weights)))
    }
    np.testing.assert_array_equal(
        computed(MatMulImplementation(family), op, arrays), expected(op, arrays)
    )


def product_of(src: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A product of matrices as it is computed, and in float64."""
    rows, depth = src.shape
    columns = weights.shape[1]
    op = dnn.MatMul(
        src=dnn.MemoryDesc((rows, depth)),
        weights=dnn.MemoryDesc((depth, columns)),
        dst=dnn.MemoryDesc((rows, columns)),
    )
    arrays = {"src": src, "weights": weights}
    got = computed(MatMulImplementation(Plain), op, arrays)
    return got, src.astype(np.float64) @ weights.astype(np.float64)


def error_of_fma(src: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """How far a product is from float64's that is added up by fused multiply-adds in float32."""
    total = np.zeros((len(src), weights.shape[1]), np.float32)
    for column, row in zip(src.T, weights, strict=True):
        total = (total + column[:, None].astype(np.float64) * row).astype(np.float32)
    return total - src.astype(np.float64) @ weights.astype(np.float64)


@pytest.mark.parametrize("bits", [0x7FFFFFFF, 0xFFFFFFFF, 0x7FC00000, 0x7F800000])
def test_nan_and_infinity_survive_rounding_to_tf32(bits: int) -> None:
    src = np.ones((8, 16), np.float32)
    src[2, 3] = np.array(bits, np.uint32).view(np.float32)
    op = dnn.MatMul(
        src=dnn.MemoryDesc(src.shape), weights=dnn.MemoryDesc((16, 8)), dst=dnn.MemoryDesc((8, 8))
    )
    arrays = {"src": src, "weights": np.ones((16, 8), np.float32)}
    got = computed(MatMulImplementation(Plain), op, arrays, dnn.Attributes(fpmath="tf32"))
    expected = np.full((8, 8), 16, np.float32)
    expected[2] = src[2, 3]
    np.testing.assert_array_equal(got, expected)


def test_a_product_beyond_all_numbers_is_infinite() -> None:
    src, weights = np.zeros((4, 8), np.float32), np.zeros((8, 4), np.float32)
    src[:, 0], weights[0] = 3e38, 2.0
    got, _ = product_of(src, weights)
    np.testing.assert_array_equal(got, np.full((4, 4), np.inf, np.float32))


@pytest.mark.parametrize("exponent", [120, 0, -110])
def test_numbers_of_any_size_are_no_less_exact_than_by_fma(exponent: int) -> None:
    rng = np.random.default_rng(1)
    src = np.ldexp(rng.standard_normal((16, 64), np.float32), exponent)
    weights = rng.standard_normal((64, 16), np.float32)
    got, exact = product_of(src, weights)
    assert np.linalg.norm(got - exact) <= np.linalg.norm(error_of_fma(src, weights))


@pytest.mark.parametrize("exponent", [-115, -120, -126, -135, -143])
@pytest.mark.parametrize("other", [0, 20])
def test_of_the_smallest_numbers_no_bits_are_lost(exponent: int, other: int) -> None:
    rng = np.random.default_rng(2)
    src = np.ldexp(rng.uniform(0.5, 1, (16, 64)).astype(np.float32), exponent)
    weights = np.ldexp(rng.uniform(0.5, 1, (64, 16)).astype(np.float32), other)
    for factors in ((src, weights), (weights.T, src.T)):
        got, exact = product_of(*map(np.ascontiguousarray, factors))
        off = np.linalg.norm(got - exact)
        assert off <= np.linalg.norm(error_of_fma(*factors)) + 16 * 2.0**-149


def test_a_tiny_number_counts_where_others_are_multiplied_by_zero() -> None:
    rng = np.random.default_rng(3)
    src = rng.standard_normal((16, 64), np.float32)
    src[3, 40:] *= np.float32(2.0**-120)
    weights = rng.standard_normal((64, 16), np.float32)
    weights[:40] = 0
    got, exact = product_of(src, weights)
    assert np.linalg.norm((got - exact)[3]) <= 1e-6 * np.linalg.norm(exact[3])


@pytest.mark.parametrize("name", ["3x3 with bias, channels that fill no chunk", "groups",
                                  "backward data with a stride", "products of transposed matrices",
                                  "backward weights, three channels"])  # fmt: skip
def test_tiny_whole_numbers_come_out_exactly(name: str) -> None:
    """Their lower bits would be lost: 2^-140 is a number of f32, and no sum of two of TF32."""
    implementation, make = PROBLEMS[name]
    op = make()
    arrays = inputs(op)
    first = next(iter(arrays))
    arrays[first] *= np.float32(2.0**-140)
    if "bias" in arrays:
        arrays["bias"] *= np.float32(2.0**-140)
    got = computed(implementation(Plain), op, arrays)
    np.testing.assert_array_equal(got, expected(op, arrays))


@pytest.mark.parametrize("depth", [32, 64, 128, 192, 256, 512])
def test_sums_of_any_length_are_no_less_exact_than_by_fma(depth: int) -> None:
    rng = np.random.default_rng(depth)
    src = rng.standard_normal((32, depth), np.float32)
    weights = rng.standard_normal((depth, 32), np.float32)
    got, exact = product_of(src, weights)
    assert np.linalg.norm(got - exact) <= np.linalg.norm(error_of_fma(src, weights))


def test_what_is_not_finite_is_as_in_f32() -> None:
    op = dnn.MatMul(
        src=dnn.MemoryDesc((8, 16)), weights=dnn.MemoryDesc((16, 8)), dst=dnn.MemoryDesc((8, 8))
    )
    arrays = inputs(op)
    arrays["weights"][:] = np.abs(arrays["weights"]) + 1
    arrays["src"][0, 3], arrays["src"][1, 4], arrays["src"][2, 5] = np.inf, -np.inf, np.nan
    arrays["src"][3] = 3.4e38  # its sum is beyond all numbers
    np.testing.assert_array_equal(
        computed(MatMulImplementation(Plain), op, arrays), expected(op, arrays)
    )


def test_ieee_arithmetic_is_refused() -> None:
    square = dnn.MemoryDesc((64, 64))
    op = dnn.MatMul(src=square, weights=square, dst=square)
    attr = dnn.Attributes(fpmath="ieee")
    answer = MatMulImplementation(Plain).accept(op, attr, dnn.engine("opencl"), None)
    assert isinstance(answer, Refused)
    assert answer.kind == "attribute"


@pytest.mark.parametrize(
    ("data_type", "terms", "is_refused"), [("f32", 7, True), ("f32", 8, False), ("f16", 7, False)]
)
def test_short_sums_of_split_numbers_are_refused(
    data_type: str, terms: int, is_refused: bool
) -> None:
    src, weights, dst = (
        dnn.MemoryDesc(dims, data_type) for dims in ((16, terms), (terms, 16), (16, 16))
    )
    op = dnn.MatMul(src=src, weights=weights, dst=dst)
    answer = MatMulImplementation(Plain).accept(op, dnn.Attributes(), dnn.engine("opencl"), None)
    assert (isinstance(answer, Refused) and answer.kind == "shape") == is_refused


def image(channels: int, size: int) -> dnn.MemoryDesc:
    return dnn.MemoryDesc((64, channels, size, size), "f32", "acdb")


def kernels(implementation: GemmImplementation, op: dnn.Operation) -> list[str]:
    """The launches that are planned for an H200."""
    (gemm,) = implementation.gemms(op, dnn.Attributes())
    return [launch.kernel for launch in Mma(132).plan(gemm).launches]


def test_a_product_of_many_tiles_is_one_launch() -> None:
    square = dnn.MemoryDesc((4096, 4096))
    op = dnn.MatMul(src=square, weights=square, dst=square)
    assert kernels(MatMulImplementation(Mma), op) == ["mma"]


@pytest.mark.parametrize(
    ("channels", "size", "kernel"),
    [(64, 56, 1), (512, 7, 3)],
    ids=["groups too few", "groups for a round and a half"],
)
def test_k_is_cut_where_multiprocessors_would_be_idle(
    channels: int, size: int, kernel: int
) -> None:
    op = dnn.ConvolutionBackwardWeights(
        src=image(channels, size),
        diff_weights=dnn.MemoryDesc((channels, channels, kernel, kernel), "f32", "acdb"),
        diff_dst=image(channels, size),
        padding_l=(kernel // 2,) * 2,
        padding_r=(kernel // 2,) * 2,
    )
    assert kernels(BackwardWeights(Mma), op) == ["mma", "gemm_reduce"]


@pytest.mark.parametrize("tags", ["ab", "ba"])
def test_a_product_over_no_values_is_nothing_but_its_steps(tags: str) -> None:
    src, weights = dnn.MemoryDesc((8, 0), "f32", tags), dnn.MemoryDesc((0, 8), "f32", tags)
    op = dnn.MatMul(src=src, weights=weights, dst=dnn.MemoryDesc((8, 8)))
    attr = dnn.Attributes([dnn.PostOp.eltwise("linear", 1.0, 3.0)])
    got = computed(MatMulImplementation(Plain), op, inputs(op), attr)
    np.testing.assert_array_equal(got, np.full((8, 8), 3, np.float32))


def test_parts_that_cannot_lie_in_the_scratchpad_are_not_made() -> None:
    op = dnn.ConvolutionBackwardWeights(
        src=any_of(64, 1, 28, 28),
        diff_weights=any_of(32, 1, 3, 3),
        diff_dst=any_of(64, 32, 28, 28),
        **PADDED,
    )
    answer = BackwardWeights(InParts).accept(op, dnn.Attributes(), dnn.engine("opencl"), None)
    assert not isinstance(answer, Refused), answer


@pytest.mark.parametrize(("local_memory", "is_refused"), [(48 << 10, True), (99 << 10, False)])
def test_a_device_that_has_no_room_for_any_tile_is_refused(
    local_memory: int, is_refused: bool
) -> None:
    limits = {"compute_capability": (8, 6), "local_memory": local_memory}
    engine: Any = SimpleNamespace(device=SimpleNamespace(name="a GPU", limits=limits))
    assert isinstance(Mma.refusal(engine), Refused) == is_refused


def test_tiles_fit_the_local_memory_of_the_device() -> None:
    square = dnn.MemoryDesc((4096, 4096), "f16")
    op = dnn.MatMul(src=square, weights=square, dst=square)
    (gemm,) = MatMulImplementation(Mma).gemms(op, dnn.Attributes())
    large, small = (
        Mma(132, local_memory=size).plan(gemm).launches[0].source.defines
        for size in (227 << 10, 99 << 10)
    )
    elements = [int(tile["ROWS"]) * int(tile["COLUMNS"]) for tile in (large, small)]
    assert elements[0] > elements[1]


def of_matrices(rows: int, depth: int, columns: int, **fields: Any) -> Gemm:
    """A product of row-major matrices."""
    sizes = ((rows, depth), (depth, columns), (rows, columns))
    src, weights, dst = (dnn.MemoryDesc(dims) for dims in sizes)
    op = dnn.MatMul(src=src, weights=weights, dst=dst)
    (gemm,) = MatMulImplementation(Mma).gemms(op, dnn.Attributes(**fields))
    return gemm


def test_a_tile_whose_sums_fill_the_registers_is_left_to_operands_that_are_not_split() -> None:
    large, small = MmaTile(128, 128, 64, 64), MmaTile(64, 64, 32, 32, chunks=4, stages=2)
    family = Mma(4, (large, small))
    chosen = [
        family.plan(of_matrices(2048, 512, 2048, fpmath=mode)).launches[0].source.defines["ROWS"]
        for mode in ("strict", "tf32")
    ]
    assert chosen == [64, 128]


@pytest.mark.parametrize(("registers", "groups"), {0: 3, 255: 2, 64: 6}.items())
def test_limited_registers_leave_room_for_more_groups(registers: int, groups: int) -> None:
    tile = MmaTile(64, 64, 32, 32, stages=2, registers=registers)
    product = MmaProduct(view(of_matrices(64, 64, 64), 4), SPLIT_TF32, tile, "mma_ptx", 227 << 10)
    assert product.resident == groups


def unfit(gemm: Gemm) -> str:
    """Why tensor cores cannot read a product."""
    with pytest.raises(Unfit) as caught:
        view(gemm, 4)
    return str(caught.value)


def test_columns_of_weights_along_k_are_one_digit() -> None:
    """Rows of pixels have gaps in the weights."""
    op = dnn.InnerProductBackwardData(
        diff_src=dnn.MemoryDesc((8, 4, 3, 5)),
        weights=dnn.MemoryDesc((16, 4, 3, 5), strides=(1, 16 * 18, 16 * 6, 16)),
        diff_dst=dnn.MemoryDesc((8, 16)),
    )
    (gemm,) = InnerProductGradient(Mma).gemms(op, dnn.Attributes())
    assert unfit(gemm) == "columns along k must be one digit; got 2"


def test_k_has_four_digits_at_most() -> None:
    k = (3, 3, 3, 3, 8)
    steps = (16 * 9**4, 16 * 9**3, 16 * 9**2, 16 * 9, 1)
    gemm = of_matrices(16, 8, 16)
    a, b = (replace(o, strides=replace(o.strides, k=steps)) for o in (gemm.a, gemm.b))
    b = replace(b, strides=replace(b.strides, n=(8,)))
    assert unfit(replace(gemm, k=k, a=a, b=b)) == "its k must have 4 digits at most; got 5"
    assert view(replace(gemm, k=(3, 3, 8), a=with_k(a, 3), b=with_k(b, 3)), 4)


def with_k(operand: Matrix, digits: int) -> Matrix:
    """An operand with the last digits of k."""
    return replace(operand, strides=replace(operand.strides, k=operand.strides.k[-digits:]))
