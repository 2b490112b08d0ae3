"""Grouped convolution by tensor cores. Plain OpenCL C emulates their instructions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("pyopencl")

from checks import run
from dnncore_opencl.convolution.groups.mma import GroupsMma
from opencl_engine import DEVICES
from plain_tensor_cores import HELPER, computed

import dnncore as dnn

pytestmark = pytest.mark.skipif(not DEVICES, reason="no OpenCL device")

DTYPES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}
GEOMETRIES: dict[str, tuple[tuple[int, int], dict[str, Any]]] = {
    "3x3": ((7, 9), {"padding_l": (1, 1), "padding_r": (1, 1)}),
    "strided": ((9, 8), {"strides": (2, 3), "padding_l": (0, 1), "padding_r": (1, 0)}),
    "dilated": ((9, 8), {"dilations": (1, 2), "padding_l": (2, 1), "padding_r": (0, 3)}),
}
CHANNELS = [(3, 4, 5), (2, 16, 8), (2, 20, 12), (2, 3, 24)]  # groups, in, out


class PlainGroups(GroupsMma):
    """The implementation on devices that lack the instructions."""

    instructions = "mma_plain"

    def refusal(self, engine: Any) -> None:
        return None


FORWARD = PlainGroups("src", "dst", is_backward=False)
BACKWARD_DATA = PlainGroups("diff_dst", "diff_src", is_backward=True)


@pytest.fixture(scope="module", autouse=True)
def _end_of_help() -> Iterator[None]:
    yield
    HELPER.stop()


def sizes(image: tuple[int, int], fields: dict[str, Any]) -> tuple[int, ...]:
    """The height and the width of dst for kernels of 3x3."""
    ones, zeros = (1, 1), (0, 0)
    rows = zip(
        image, fields.get("strides", ones), fields.get("dilations", zeros),
        fields.get("padding_l", zeros), fields.get("padding_r", zeros), strict=True,
    )  # fmt: skip
    return tuple((n + left + right - 2 * (d + 1) - 1) // s + 1 for n, s, d, left, right in rows)


def agrees(implementation: GroupsMma, op: dnn.Operation) -> None:
    """The numbers are -1, 0 and 1, so that all sums are numbers of either type."""
    rng = np.random.default_rng(len(repr(op)))
    arrays = {
        a.name: rng.integers(-1, 2, desc.dims).astype(DTYPES[desc.data_type])
        for a, desc in op.tensors()
        if a.direction == "in"
    }
    pd = dnn.PrimitiveDesc(op, dnn.engine("cpu"), impl="reference*")
    np.testing.assert_array_equal(
        computed(implementation, op, arrays).astype(np.float32),
        run(pd, arrays)[op.result_name].astype(np.float32),
    )


@pytest.mark.parametrize("data_type", DTYPES)
@pytest.mark.parametrize("tag", ["nhwc", "nchw"])
@pytest.mark.parametrize("channels", CHANNELS, ids=str)
@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("direction", ["forward", "backward data"])
def test_whole_numbers_come_out_exactly(direction, geometry, channels, tag, data_type):
    image, fields = GEOMETRIES[geometry]
    groups, inner, outer = channels
    src = dnn.MemoryDesc((2, groups * inner, *image), data_type, tag)
    dst = dnn.MemoryDesc((2, groups * outer, *sizes(image, fields)), data_type, tag)
    weights = dnn.MemoryDesc((groups, outer, inner, 3, 3), data_type)
    op: dnn.Operation
    if direction == "forward":
        op = dnn.ConvolutionForward("forward_training", src=src, weights=weights, dst=dst, **fields)
        agrees(FORWARD, op)
    else:
        op = dnn.ConvolutionBackwardData(diff_src=src, weights=weights, diff_dst=dst, **fields)
        agrees(BACKWARD_DATA, op)
