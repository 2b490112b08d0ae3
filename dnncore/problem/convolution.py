"""Convolution: `--conv --dir=FWD_B --dt=f32 --stag=any --wtag=any --dtag=any g2mb2ic4oc8ih5kh3`."""

from __future__ import annotations

from typing import Any

from dnncore.ops import (
    ConvolutionBackwardData,
    ConvolutionBackwardWeights,
    ConvolutionForward,
    Operation,
)
from dnncore.problem.layers import Layer
from dnncore.problem.settings import Driver, Settings, read_choice, read_letters
from dnncore.problem.windows import read_spatial, spatial_text, window_letters

__all__ = ["CONVOLUTION"]

LETTERS = f"g mb ic oc {window_letters()}"
LAYER = Layer(ConvolutionForward, ConvolutionBackwardData, ConvolutionBackwardWeights)


def read(settings: Settings) -> Operation:
    """Groups become a dim of weights where g is given, 1 or not."""
    letters = read_letters(settings, LETTERS)
    read_choice(settings, "alg", {"direct": "direct", "auto": "auto"})
    window = read_spatial(letters)
    mb, ic, oc = (int(letters.get(name, default)) for name, default in _COUNTS)
    groups = int(letters.get("g", 1))
    filters = (oc // groups, ic // groups, *window.kernel)
    dims = {
        "src": (mb, ic, *window.src),
        "weights": (groups, *filters) if "g" in letters else filters,
        "bias": (oc,),
        "dst": (mb, oc, *window.dst),
    }
    return LAYER.read(settings, dims, **window.fields)


_COUNTS = (("mb", 2), ("ic", 1), ("oc", 1))


def write(op: Any) -> Settings:
    """The shape in the order of verbose lines."""
    groups, oc, ic, *kernel = op.grouped_weights
    grouped = op.weights_role.ndims > op.src_role.ndims
    counts = f"mb{op.src_role.dims[0]}_ic{groups * ic}oc{groups * oc}"
    shape = (f"g{groups}" if grouped else "") + counts + spatial_text(op, kernel)
    return {**LAYER.write(op), "alg": "direct", "shape": shape}


CONVOLUTION = Driver("conv", LAYER.operations, {**LAYER.DEFAULTS, "alg": "direct"}, read, write)
