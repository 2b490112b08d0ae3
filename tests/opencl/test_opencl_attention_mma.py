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


def gradients(op: dnn.AttentionForward) -> dnn.AttentionBackward:
    names = ("queries", "keys", "values", "dst", "mask")
    descs = {name: getattr(op, name) for name in names}
    diffs = {f"diff_{name}": descs[name] for name in names[:-1]}
    return dnn.AttentionBackward(**descs, **diffs, causal=op.causal, scale=op.scale)


def agrees(op: dnn.AttentionForward, tiles: int = 1) -> None:
    """Weights, diff_score and results are rounded once each. Most errors cancel in a norm."""
    rng = np.random.default_rng(len(repr(op)))
    dims = {a.name: desc for a, desc in op.tensors() if a.direction == "in"} | {"diff_dst": op.dst}
    arrays = {
        name: rng.standard_normal(desc.dims).astype(desc.dtype) for name, desc in dims.items()
    }
    if op.mask is not None:
        arrays["mask"][rng.random(op.mask.dims) < 0.2] = -np.inf
    expected = {}
    for one in (op, gradients(op)):
        pd = dnn.PrimitiveDesc(one, dnn.engine("cpu"), impl="reference*")
        given = {a.name for a, _ in pd.arguments if a.direction == "in"}
        expected |= run(pd, {name: x for name, x in (arrays | expected).items() if name in given})
        found = results(PlainAttention(tiles), one, arrays | expected)
        for name, got in found.items():
            wanted = expected[name].astype(np.float64)
            if name == "workspace":
                np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
            else:
                error = np.linalg.norm(got.astype(np.float64) - wanted) / np.linalg.norm(wanted)
                assert error < 1.5 * ROUNDOFF[op.queries.data_type], (name, error)


@pytest.mark.parametrize("rows", [(5, 7), (70, 65), (3, 130)], ids=str)
def test_rows_that_fill_no_tile(rows):
    agrees(operation((2, 2, 1, *rows, 40, 24), "f16"))


@pytest.mark.parametrize("causal", ["top_left", "bottom_right"])
@pytest.mark.parametrize("rows", [(70, 65), (140, 70)], ids=str)
def test_queries_see_the_keys_before_them(rows, causal):
    agrees(operation((1, 2, 1, *rows, 40, 24), "f16", causal=causal))


def test_masks_are_added_to_scaled_scores():
    agrees(operation((2, 2, 1, 9, 65, 8, 8), "f16", (2, 1, 1, 65), scale=-0.25))


def test_blocks_of_two_tiles_per_warp():
    agrees(operation((1, 1, 1, 150, 40, 24, 40), "bf16"), tiles=2)


def test_long_rows():
    agrees(operation((1, 1, 1, 9, 33, 16, 136), "bf16"))


def test_tensors_that_are_not_in_chunks_are_refused():
    op = operation((1, 1, 1, 5, 7, 12, 8), "f16")
    refused = PlainAttention().accept(op, dnn.Attributes(), dnn.engine("opencl"), None)
    assert "the last dim of queries must be dense" in str(refused)
