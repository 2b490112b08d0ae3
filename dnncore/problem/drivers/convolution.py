"""Convolution: `--conv --dir=FWD_B --dt=f32 --stag=any --wtag=any --dtag=any g2mb2ic4oc8ih5kh3`."""

from __future__ import annotations

from typing import Any

from dnncore.ops import (
    ConvolutionBackwardData,
    ConvolutionBackwardWeights,
    ConvolutionForward,
    Operation,
)
from dnncore.problem.directions import LAYER_DEFAULTS, layer, layer_text, read_layer
from dnncore.problem.settings import (
    Driver,
    Misread,
    Settings,
    algorithm_text,
    read_algorithm,
)
from dnncore.problem.shapes import read_batch, read_letters
from dnncore.problem.windows import WINDOW_LETTERS, read_spatial, spatial_text

__all__ = ["CONVOLUTION"]

ALGORITHMS = {"direct": "direct", "wino": "winograd", "auto": "auto"}
DIRECTIONS = layer(ConvolutionForward, ConvolutionBackwardData, ConvolutionBackwardWeights)
DEFAULTS = {**LAYER_DEFAULTS, "strides": "", "alg": "direct", "mb": "0"}


def read(settings: Settings) -> Operation:
    """Groups become a dim of weights where g is given, 1 or not."""
    letters = read_letters(settings, f"g mb ic oc {WINDOW_LETTERS}", needed="ic oc")
    algorithm = read_algorithm(settings, ALGORITHMS, "convolution_")
    window = read_spatial(letters, ConvolutionForward)
    mb, ic, oc = read_batch(settings, letters), letters["ic"], letters["oc"]
    groups = letters.get("g", 1)
    if groups < 1 or ic % groups or oc % groups:
        raise Misread("shape", f"g must divide ic and oc; got g{groups}, ic{ic} and oc{oc}")
    filters = (oc // groups, ic // groups, *window.kernel)
    dims = {
        "src": (mb, ic, *window.src),
        "weights": (groups, *filters) if "g" in letters else filters,
        "bias": (oc,),
        "dst": (mb, oc, *window.dst),
    }
    return read_layer(settings, DIRECTIONS, dims, algorithm=algorithm, **window.fields)


def write(op: Any) -> Settings:
    """The shape in the order of verbose lines."""
    groups, oc, ic, *kernel = op.grouped_weights
    grouped = op.weights_role.ndims > op.src_role.ndims
    counts = f"mb{op.src_role.dims[0]}_ic{groups * ic}oc{groups * oc}"
    shape = (f"g{groups}" if grouped else "") + counts + spatial_text(op, kernel)
    return {
        **layer_text(op, DIRECTIONS, DEFAULTS),
        "alg": algorithm_text(op.algorithm, ALGORITHMS),
        "shape": shape,
    }


OPERATIONS = (ConvolutionForward, ConvolutionBackwardData, ConvolutionBackwardWeights)
CONVOLUTION = Driver("conv", OPERATIONS, DEFAULTS, read, write)
