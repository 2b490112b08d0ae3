"""Inner product: `--ip --dir=FWD_B --dt=f32 --stag=any --wtag=any mb2ic16_ih5iw5_oc7`."""

from __future__ import annotations

from typing import Any

from dnncore.ops import (
    InnerProductBackwardData,
    InnerProductBackwardWeights,
    InnerProductForward,
    Operation,
)
from dnncore.problem.directions import LAYER_DEFAULTS, layer, layer_text, read_layer
from dnncore.problem.settings import Driver, Settings
from dnncore.problem.shapes import read_batch, read_letters
from dnncore.problem.windows import SIZE_LETTERS, read_sizes, sizes_text

__all__ = ["INNER_PRODUCT"]

DIRECTIONS = layer(InnerProductForward, InnerProductBackwardData, InnerProductBackwardWeights)
DEFAULTS = {**LAYER_DEFAULTS, "mb": "0"}


def read(settings: Settings) -> Operation:
    """Without ih and the like, src has two dims."""
    letters = read_letters(settings, f"mb ic oc {SIZE_LETTERS}", needed="ic oc")
    mb, oc = read_batch(settings, letters), letters["oc"]
    image = (letters["ic"], *read_sizes(letters))
    dims = {"src": (mb, *image), "weights": (oc, *image), "bias": (oc,), "dst": (mb, oc)}
    return read_layer(settings, DIRECTIONS, dims)


def write(op: Any) -> Settings:
    """The shape in the order of verbose lines."""
    mb, ic, *sizes = op.src_role.dims
    shape = f"mb{mb}_ic{ic}{sizes_text(sizes)}_oc{op.dst_role.dims[1]}"
    return {**layer_text(op, DIRECTIONS, DEFAULTS), "shape": shape}


OPERATIONS = (InnerProductForward, InnerProductBackwardData, InnerProductBackwardWeights)
INNER_PRODUCT = Driver("ip", OPERATIONS, DEFAULTS, read, write)
