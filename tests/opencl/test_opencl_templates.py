"""The texts of kernels, as rendered from named parameters, beside the ones that are kept here.

A text that should have changed is kept anew by `python tests/opencl/test_opencl_templates.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("pyopencl")

from dnncore_opencl.convolution.direct import DirectForward
from dnncore_opencl.convolution.implementations import Forward
from dnncore_opencl.convolution.winograd.planes import Image, Planes
from dnncore_opencl.convolution.winograd.tile import WinogradTile
from dnncore_opencl.copies.transpose import TransposedPass
from dnncore_opencl.gemm.cpu import CpuFamily
from dnncore_opencl.gemm.mma.family import Mma
from dnncore_opencl.gemm.tiled.family import Tiled
from dnncore_opencl.matmul import MatMulImplementation
from dnncore_opencl.reduction.implementations import Stages
from dnncore_opencl.reorder import Transpose
from dnncore_opencl.rows.statistics import Output, Statistics, Tensor
from dnncore_opencl.runtime.launch import Source
from dnncore_opencl.runtime.schema import Arg

import dnncore as dnn
from dnncore.backend import Refused
from dnncore.planning.toom_cook import F23

GOLDEN = Path(__file__).parents[1] / "golden"


def convolution(family: type, data_type: str, *post_ops: dnn.PostOp) -> Source:
    """A 3x3 convolution with a window, on 64 images of 56 x 56 in 64 channels."""

    def image(channels: int) -> dnn.MemoryDesc:
        return dnn.MemoryDesc((64, channels, 56, 56), data_type, "acdb")

    op = dnn.ConvolutionForward(
        "forward_inference",
        src=image(64),
        weights=dnn.MemoryDesc((64, 64, 3, 3), data_type, "acdb"),
        dst=image(64),
        padding_l=(1, 1),
        padding_r=(1, 1),
    )
    (gemm,) = Forward(family).gemms(op, dnn.Attributes(post_ops=post_ops))
    return family(132).plan(gemm).launches[0].source


def product(family: type) -> Source:
    """A product of row-major matrices."""
    square = dnn.MemoryDesc((4096, 4096), "f32", "ab")
    op = dnn.MatMul(src=square, weights=square, dst=square)
    (gemm,) = MatMulImplementation(family).gemms(op, dnn.Attributes())
    return family(132).plan(gemm).launches[0].source


def direct() -> Source:
    """A 3x3 convolution with a bias on a CPU of 2 cores and vectors of 16."""

    def image(size: int) -> dnn.MemoryDesc:
        return dnn.MemoryDesc((1, 64, size, size), "f32", "aBcd16b")

    op = dnn.ConvolutionForward(
        "forward_inference",
        src=image(16),
        weights=dnn.MemoryDesc((64, 64, 3, 3), "f32", "ABcd16b16a"),
        bias=dnn.MemoryDesc((64,), "f32", "a"),
        dst=image(14),
    )
    cpu = CpuFamily(units=2, vector=16, has_fetch=True)
    plans = DirectForward().plans(op, dnn.Attributes(), cpu, 0)
    assert not isinstance(plans, Refused)
    (plan,) = plans
    return plan.launches[0].source


def planes() -> Source:
    """The transform of 64 images of 28 x 28 in 64 channels to planes of tiles of 2x2 outputs."""
    size = (28, 28)
    image = Image(0, 0, (28 * 28 * 64, 28 * 64, 64), size)
    return (
        Planes(WinogradTile(F23, F23), 64, 64, 64, image, image, (1, 1), lanes=4)
        .src_launch(0)
        .source
    )


GPU = SimpleNamespace(
    is_cpu=False,
    device=SimpleNamespace(limits={"compute_units": 132, "max_work_group": 1024}),
)


def transposition() -> Source:
    """From nchw to nhwc on a GPU, in vectors both ways."""
    src, dst = (dnn.MemoryDesc((64, 64, 56, 56), "f32", tag) for tag in ("nchw", "nhwc"))
    work = TransposedPass(GPU, [src, dst], 1)
    Transpose().compute(dnn.Reorder(src=src, dst=dst), dnn.Attributes(), work)
    return work.launch().source


def column_sums() -> Source:
    """The first stage of sums over the rows of a matrix on a GPU."""
    op = dnn.Reduction("sum", src=dnn.MemoryDesc((50176, 1024)), dst=dnn.MemoryDesc((1, 1024)))
    return Stages(GPU, op, dnn.Attributes()).launches()[0].source


IMAGES = tuple(Tensor(dnn.MemoryDesc((32, 256, 80, 80), "f32", "acdb"), Arg(i)) for i in (0, 1))
CHANNELS = tuple(Tensor(dnn.MemoryDesc((1, 256, 1, 1)), Arg(i)) for i in (2, 3))


def channel_moments() -> Source:
    """The first stage of mean and variance of channels in nhwc on a GPU."""
    outputs = [Output(CHANNELS[0], "average"), Output(CHANNELS[1], "deviations / total")]
    return Statistics(GPU, IMAGES[:1], outputs, (0, 2, 3)).launches()[0].source


def channel_sums() -> Source:
    """The first stage of sums of a tensor and of products of two tensors on a GPU."""
    outputs = [Output(CHANNELS[0], "total_a"), Output(CHANNELS[1], "total_b")]
    return Statistics(GPU, IMAGES, outputs, (0, 2, 3), ["v0", "v0 * v1"]).launches()[0].source


def joined_moments() -> Source:
    """The second stage of mean and variance."""
    outputs = [Output(CHANNELS[0], "average"), Output(CHANNELS[1], "deviations / total")]
    return Statistics(GPU, IMAGES[:1], outputs, (0, 2, 3)).launches()[1].source


RENDERINGS: dict[str, Callable[[], Source]] = {
    "mma_f32_convolution": lambda: convolution(Mma, "f32", dnn.PostOp.eltwise("relu")),
    "cpu_convolution": direct,
    "tiled_convolution": lambda: convolution(Tiled, "f32", dnn.PostOp.eltwise("relu")),
    "tiled_product": lambda: product(Tiled),
    "winograd_planes_points": planes,
    "transpose_tiled": transposition,
    "reduction_columns": column_sums,
    "moments_channels": channel_moments,
    "sums_channels": channel_sums,
    "parts_channels": joined_moments,
}


@pytest.mark.parametrize("name", RENDERINGS)
def test_a_template_renders_to_the_text_that_is_kept(name: str) -> None:
    assert RENDERINGS[name]().text == (GOLDEN / f"{name}.cl").read_text()


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for name, rendering in RENDERINGS.items():
        (GOLDEN / f"{name}.cl").write_text(rendering().text)
