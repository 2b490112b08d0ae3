"""Convolution: `--conv --dir=FWD_B --dt=f32 --stag=any --wtag=any --dtag=any g2mb2ic4oc8ih5kh3`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from dnncore.algorithms.rounding import ROUNDOFF, Array, growth
from dnncore.ops import (
    ConvolutionBackwardData,
    ConvolutionBackwardWeights,
    ConvolutionForward,
    Operation,
)
from dnncore.ops.convolution import Convolution
from dnncore.ops.window import effective_kernel
from dnncore.problem.directions import LAYER_DEFAULTS, layer, layer_text, read_layer
from dnncore.problem.drivers.accumulation import accumulated, weights_errors
from dnncore.problem.drivers.draws import (
    ANY_TAGS,
    BIAS_TYPES,
    LAYER_DIRECTIONS,
    LAYER_TYPES,
    Draws,
)
from dnncore.problem.drivers.driver import Driver, Evaluate, Golden, Inputs, VerboseLine
from dnncore.problem.drivers.torch_formulas import forward, gradient, padded
from dnncore.problem.settings import (
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
    """Make the operation. If the shape has g, even g1, weights have a dim of groups."""
    letters = read_letters(settings, f"g mb ic oc {WINDOW_LETTERS}", needed="ic oc")
    algorithm = read_algorithm(settings, ALGORITHMS, "convolution_")
    window = read_spatial(letters, ConvolutionForward)
    mb, ic, oc = read_batch(settings, letters), letters["ic"], letters["oc"]
    groups = letters.get("g", 1)
    if groups < 1 or ic % groups or oc % groups:
        raise Misread("shape", f"g must divide ic and oc; got g{groups}, ic{ic} and oc{oc}")
    kernels = (oc // groups, ic // groups, *window.kernel)
    dims = {
        "src": (mb, ic, *window.src),
        "weights": (groups, *kernels) if "g" in letters else kernels,
        "bias": (oc,),
        "dst": (mb, oc, *window.dst),
    }
    return read_layer(settings, DIRECTIONS, dims, algorithm=algorithm, **window.fields)


def write(op: Convolution) -> Settings:
    """The inverse of `read`. The shape has the order of verbose lines."""
    groups, oc, ic, *kernel = op.grouped_weights
    grouped = op.weights_role.ndims > op.src_role.ndims
    counts = f"mb{op.src_role.dims[0]}_ic{groups * ic}oc{groups * oc}"
    shape = (f"g{groups}" if grouped else "") + counts + spatial_text(op, kernel)
    return {
        **layer_text(op, DIRECTIONS, DEFAULTS),
        "alg": algorithm_text(op.algorithm, ALGORITHMS),
        "shape": shape,
    }


def _formula(torch: Any, op: Convolution, tensors: Mapping[str, Any]) -> Any:
    groups, oc, ic, *kernel = op.grouped_weights
    convolve = getattr(torch.nn.functional, f"conv{len(kernel)}d")
    return convolve(
        padded(torch, op, tensors["src"], 0.0),
        tensors["weights"].reshape(groups * oc, ic, *kernel),
        tensors.get("bias"),
        stride=op.strides,
        dilation=tuple(d + 1 for d in op.dilations),
        groups=groups,
    )


def _draw_shape(draws: Draws) -> str:
    groups = int(draws.one_of(("1", "1", "2", "3", "8")))
    channels = f"ic{groups * draws.channels()}oc{groups * draws.channels()}"
    group = f"g{groups}" if groups > 1 else ""
    return f"{group}mb{draws.batch()}{channels}{draws.window()}"


# -- error bounds ----------------------------------------------------------------------------------

# Cells along a dim that Winograd transforms at once, at most: F(6x6, 3x3) is the largest in use.
TILE = 8


def _errors(op: Convolution, inputs: Inputs, evaluate: Evaluate) -> dict[str, Array]:
    """Winograd adds up products of all cells near a window with all of its weights."""
    if op.algorithm == "direct":
        return accumulated(op, inputs, evaluate)
    groups, oc, ic, *taps = op.grouped_weights
    weights = np.abs(inputs["weights"].astype(np.float64))
    weights = weights.reshape(groups, oc, ic, math.prod(taps)).sum(axis=-1)
    if isinstance(op, ConvolutionForward):
        image = inputs[op.SRC]
    else:
        image, weights = inputs[op.DST], weights.swapaxes(1, 2)
    image = _largest_nearby(op, image)
    image = image.reshape(len(image), groups, weights.shape[-1], math.prod(op.result.dims[2:]))
    sizes = (weights @ image).reshape(op.result.dims)
    if "bias" in inputs:
        sizes += np.abs(inputs["bias"]).reshape(-1, *[1] * len(taps))
    return {op.result_name: growth(1.0 + ic * math.prod(taps)) * ROUNDOFF * sizes}


def _weights_errors(
    op: ConvolutionBackwardWeights, inputs: Inputs, evaluate: Evaluate
) -> dict[str, Array]:
    """Winograd adds up, for each tap, products with all cells near a window."""
    errors = weights_errors(op, inputs, evaluate)
    if op.algorithm == "direct":
        return errors
    groups, oc, ic, *taps = op.grouped_weights
    images, _, *pixels = op.diff_dst.dims
    count = images * math.prod(pixels)

    def by_channel(image: Array, channels: int) -> Array:
        return np.moveaxis(image, 1, 0).reshape(groups, channels, count)

    gradients = by_channel(np.abs(inputs["diff_dst"].astype(np.float64)), oc)
    sizes = gradients @ by_channel(_largest_nearby(op, inputs["src"]), ic).swapaxes(1, 2)
    sizes = np.broadcast_to(sizes.reshape(groups, oc, ic, *[1] * len(taps)), op.grouped_weights)
    terms = 1.0 + math.prod(taps) + count  # the transforms round, too
    errors["diff_weights"] = growth(terms) * ROUNDOFF * sizes.reshape(op.diff_weights.dims)
    return errors


def _largest_nearby(op: Convolution, image: Array) -> Array:
    """For each place of the other image: the largest |cell| of `image` in a tile around it."""
    image = np.abs(image.astype(np.float64))
    for dim, ranges in enumerate(_ranges(op)):
        image = np.moveaxis(image, 2 + dim, 0)
        largest = [image[cells].max(axis=0, initial=0.0) for cells in ranges]
        image = np.moveaxis(np.array(largest).reshape(len(ranges), *image.shape[1:]), 0, 2 + dim)
    return image


def _ranges(op: Convolution) -> Iterator[list[slice]]:
    """For each spatial dim and place of the other image: the cells of a tile around it."""
    backward = isinstance(op, ConvolutionBackwardData)
    places = op.src_role if backward else op.dst_role
    for dim, size in enumerate(places.dims[2:]):
        stride, left = op.strides[dim], op.padding_l[dim]
        span = effective_kernel(op.grouped_weights[3 + dim], op.dilations[dim])
        ends = (
            (-(-(i + left - span + 1) // stride), (i + left) // stride + 1)
            if backward
            else (i * stride - left, i * stride - left + span)
            for i in range(size)
        )
        yield [slice(max(0, first - TILE), max(0, end + TILE)) for first, end in ends]


GOLDEN = (
    Golden(  # 1*1 + 2*0 + 4*0 + 5*-1 + 10 and so on: cross-correlation, the kernel is not flipped
        "--conv --dir=FWD_B mb1ic1ih3oc1oh2kh2ph0",
        {"src": [[[[1, 2, 3], [4, 5, 6], [7, 8, 10]]]], "weights": [[[[1, 0], [0, -1]]]],
         "bias": [10]},
        {"dst": [[[[6, 6], [6, 5]]]]},
    ),
    Golden(  # each diff_dst, times the kernel, at its window
        "--conv --dir=BWD_D mb1ic1ih3oc1oh2kh2ph0",
        {"diff_dst": [[[[1, 2], [3, 4]]]], "weights": [[[[1, 0], [0, -1]]]]},
        {"diff_src": [[[[1, 2, 0], [3, 3, -2], [0, -3, -4]]]]},
    ),
    Golden(
        "--conv --dir=BWD_WB mb1ic1ih3oc1oh2kh2ph0",
        {"diff_dst": [[[[1, 2], [3, 4]]]], "src": [[[[1, 2, 3], [4, 5, 6], [7, 8, 10]]]]},
        {"diff_weights": [[[[37, 47], [67, 81]]]], "diff_bias": [10]},
    ),
    # Rounded once from f32, half to even: 2051 is between 2050 and 2052, 259 between 258 and 260.
    Golden(
        "--conv --dir=FWD_D --dt=f16 mb1ic4ih1oc1oh1kh1ph0",
        {"src": [[[[2048]], [[1]], [[1]], [[1]]]], "weights": [[[[1]], [[1]], [[1]], [[1]]]]},
        {"dst": [[[[2052]]]]},
    ),
    Golden(
        "--conv --dir=BWD_D --dt=bf16 mb1ic1ih1oc4oh1kh1ph0",
        {"diff_dst": [[[[256]], [[1]], [[1]], [[1]]]],
         "weights": [[[[1]]], [[[1]]], [[[1]]], [[[1]]]]},
        {"diff_src": [[[[260]]]]},
    ),
    Golden(
        "--conv --dir=BWD_WB --dt=f16 --bia-dt=f16 mb1ic1ih1iw4oc1oh1ow4kh1kw1ph0pw0",
        {"src": [[[[1, 1, 1, 1]]]], "diff_dst": [[[[2048, 1, 1, 1]]]]},
        {"diff_weights": [[[[2052]]]], "diff_bias": [2052]},
    ),
)  # fmt: skip

CONVOLUTION = Driver(
    name="conv",
    operations=(ConvolutionForward, ConvolutionBackwardData, ConvolutionBackwardWeights),
    defaults=DEFAULTS,
    read=read,
    write=write,
    verbose=VerboseLine(tensors={
            ConvolutionForward: "src wei:weights bia:bias dst",
            ConvolutionBackwardData: "src:diff_src wei:weights bia: dst:diff_dst",
            ConvolutionBackwardWeights: "src wei:diff_weights bia:diff_bias dst:diff_dst",
        }, auxiliary="alg:convolution_{algorithm}", letters="pr[dhw]"),
    printed_shape="g mb ic i* oc o* k* s* p* d*",
    golden=GOLDEN,
    oracles={
        ConvolutionForward: forward(_formula),
        ConvolutionBackwardData: gradient(_formula, "src"),
        ConvolutionBackwardWeights: gradient(_formula, "weights", "bias"),
    },
    errors={
        ConvolutionForward: _errors,
        ConvolutionBackwardData: _errors,
        ConvolutionBackwardWeights: _weights_errors,
    },
    has_products=True,
    linear_in=lambda op: "src" if isinstance(op, ConvolutionForward) else "diff_dst",
    options={
        "dir": LAYER_DIRECTIONS, "dt": LAYER_TYPES, "bia-dt": BIAS_TYPES,
        "stag": ANY_TAGS, "dtag": ANY_TAGS, "alg": ("direct", "auto", "wino"),
        "wtag": ("any", "abx", "axb", "xba", "ABx8b8a", "ABx16a16b", "Abx16a"),
    },
    draw_shape=_draw_shape,
)  # fmt: skip
