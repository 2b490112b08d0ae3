"""Attention by tensor cores. Plain OpenCL C emulates their instructions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyopencl")

from checks import run
from dnncore_opencl.attention.mma import AttentionMma, Block
from opencl_engine import DEVICES
from plain_tensor_cores import HELPER, results

import dnncore as dnn

pytestmark = pytest.mark.skipif(not DEVICES, reason="no OpenCL device")

ROUNDOFF = {"f16": 2.0**-11, "bf16": 2.0**-8}
# N, H, G, Q, K, D, V
SIZES = [(2, 2, 1, 5, 7, 8, 8), (1, 2, 2, 70, 65, 40, 24), (1, 1, 1, 9, 130, 72, 64)]


class PlainAttention(AttentionMma):
    """The implementation on devices that lack the instructions."""

    instructions = "mma_plain"

    def __init__(self, tiles: int = 1) -> None:
        self.tiles = tiles

    def refusal(self, engine: Any) -> None:
        return None

    def block(self, op: Any, engine: Any) -> Block:
        wide = max(op.sizes[-2:]) > 128
        return Block(self.tiles, 32 if wide else 64, is_held=self.tiles == 1 and not wide)


@pytest.fixture(scope="module", autouse=True)
def _end_of_help() -> Iterator[None]:
    yield
    HELPER.stop()


def operation(
    sizes: tuple[int, ...], data_type: str, mask: tuple[int, ...] | None = None, **fields: Any
) -> dnn.AttentionForward:
    n, h, g, q, k, d, v = sizes
    dims = {"queries": (n, h, q, d), "keys": (n, g, k, d), "values": (n, g, k, v)}
    dims["dst"] = (n, h, q, v)
    descs = {name: dnn.MemoryDesc(own, data_type) for name, own in dims.items()}
    if mask:
        descs["mask"] = dnn.MemoryDesc(mask, "f32")
    return dnn.AttentionForward("forward_training", **descs, **fields)


def agrees(op: dnn.AttentionForward, tiles: int = 1) -> None:
    """The weights are rounded once, and dst once more. All values are at most 4 in size."""
    rng = np.random.default_rng(len(repr(op)))
    arrays = {
        a.name: rng.standard_normal(desc.dims).clip(-4, 4).astype(desc.dtype)
        for a, desc in op.tensors()
        if a.direction == "in"
    }
    if op.mask is not None:
        arrays["mask"][rng.random(op.mask.dims) < 0.2] = -np.inf
    pd = dnn.PrimitiveDesc(op, dnn.engine("cpu"), impl="reference*")
    found, expected = results(PlainAttention(tiles), op, arrays), run(pd, arrays)
    np.testing.assert_allclose(found["workspace"], expected["workspace"], rtol=1e-5, atol=1e-5)
    limit = 4 * 2 * ROUNDOFF[op.queries.data_type]
    got, wanted = (x["dst"].astype(np.float64) for x in (found, expected))
    np.testing.assert_allclose(got, wanted, rtol=0, atol=limit)


@pytest.mark.parametrize("data_type", ROUNDOFF)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_sizes_that_fill_no_tile(sizes, data_type):
    agrees(operation(sizes, data_type))


def test_long_values():
    agrees(operation((1, 1, 1, 9, 33, 16, 136), "f16"))


@pytest.mark.parametrize("causal", ["top_left", "bottom_right"])
@pytest.mark.parametrize("sizes", [(1, 2, 1, 70, 65, 40, 24), (1, 1, 1, 140, 70, 40, 24)], ids=str)
def test_queries_see_the_keys_before_them(sizes, causal):
    agrees(operation(sizes, "f16", causal=causal))


@pytest.mark.parametrize("mask", [(1, 2, 70, 65), (2, 1, 1, 65)], ids=str)
def test_masks_are_added_to_scaled_scores(mask):
    agrees(operation((2, 2, 1, 70, 65, 40, 24), "f16", mask, scale=0.25))


def test_a_negative_scale():
    agrees(operation((1, 2, 2, 70, 65, 40, 24), "f16", scale=-0.5))


def test_blocks_of_two_tiles_per_warp():
    agrees(operation((1, 1, 1, 150, 80, 40, 24), "bf16"), tiles=2)


def test_tensors_that_are_not_in_chunks_are_refused():
    op = operation((1, 1, 1, 5, 7, 12, 8), "f16")
    refused = PlainAttention().accept(op, dnn.Attributes(), dnn.engine("opencl"), None)
    assert "the last dim of queries must be dense" in str(refused)
