"""Convolution: `--conv --dir=FWD_B --dt=f32 --stag=any --wtag=any --dtag=any g2mb2ic4oc8ih5kh3`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from dnncore.algorithms.rounding import Array, Noise, summed
from dnncore.ops import (
    ConvolutionBackwardData,
    ConvolutionBackwardWeights,
    ConvolutionForward,
    Operation,
)
from dnncore.ops.convolution import Convolution
from dnncore.ops.window import effective_kernel
from dnncore.planning.toom_cook import F43, error_factor, gradient_error_factor
from dnncore.problem.directions import LAYER_DEFAULTS, layer, layer_text, read_layer
from dnncore.problem.drivers.accumulation import PLAIN, accumulated, weights_errors
from dnncore.problem.drivers.draws import (
    ANY_TAGS,
    LAYER_DIRECTIONS,
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

__all__ = ["CONVOLUTION", "terms_of"]

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
    groups = int(draws.one_of(("1", "1", "2", "3", "8", "9", "17")))
    each = [1, draws.integer(1, 3)] if groups > 3 else [draws.channels(), draws.channels()]
    channels = f"ic{groups * each[0]}oc{groups * each[1]}"
    group = f"g{groups}" if groups > 1 else ""
    return f"{group}mb{draws.batch()}{channels}{draws.window()}"


# -- error bounds ----------------------------------------------------------------------------------

# The number of cells along a dim that Winograd transforms at once, at most. F(6x6, 3x3) is the
# largest in use.
TILE = 8
SHARE = 9
"""A cell's largest share of the error of a tile is the mean of this many cells'."""


def _error_factor(op: Convolution) -> float:
    """Return the factor of the largest tile of `dnncore.planning.toom_cook`; 1 for direct sums."""
    if op.algorithm == "direct":
        return 1.0
    _, oc, ic, *_ = op.grouped_weights
    if not isinstance(op, ConvolutionBackwardWeights):
        return error_factor(F43, F43, ic if isinstance(op, ConvolutionForward) else oc)
    images, _, *pixels = op.diff_dst.dims
    tiles = images * math.prod(-(-size // F43.outputs) for size in pixels)
    return gradient_error_factor(F43, F43, tiles)


def terms_of(op: Convolution) -> Array:
    """Return the number of products of each element of the result, without those of padding."""
    _, oc, ic, *kernel = op.grouped_weights
    forward, backward = isinstance(op, ConvolutionForward), isinstance(op, ConvolutionBackwardData)
    counts = np.ones(())
    for dim, taps in enumerate(kernel):
        size, places = op.src_role.dims[2 + dim], op.dst_role.dims[2 + dim]
        start = np.arange(places)[:, None] * op.strides[dim] - op.padding_l[dim]
        cells = start + np.arange(taps) * (op.dilations[dim] + 1)
        inside = (cells >= 0) & (cells < size)
        along = inside.sum(1) if forward else inside.sum(0)
        if backward:
            along = np.bincount(cells[inside], minlength=size)
        counts = counts[..., None] * along
    return counts * (ic if forward else oc if backward else op.src_role.dims[0])


def _errors(op: Convolution, inputs: Inputs, evaluate: Evaluate) -> dict[str, Noise]:
    """Return the noise. Winograd adds up products of all weights and all cells near a window."""
    if op.algorithm == "direct":
        return accumulated(op, inputs, evaluate, 1.0 + terms_of(op))
    groups, oc, ic, *taps = op.grouped_weights
    power = 2 if evaluate.random_order else 1
    weights = np.abs(inputs["weights"].astype(np.float64)) ** power
    weights = weights.reshape(groups, oc, ic, math.prod(taps)).sum(axis=-1)
    if isinstance(op, ConvolutionForward):
        image = inputs[op.SRC]
    else:
        image, weights = inputs[op.DST], weights.swapaxes(1, 2)
    image = _nearby(op, image, power)
    image = image.reshape(len(image), groups, weights.shape[-1], math.prod(op.result.dims[2:]))
    sizes = (weights @ image).reshape(op.result.dims)
    if "bias" in inputs:
        sizes += np.abs(inputs["bias"]).astype(np.float64).reshape(-1, *[1] * len(taps)) ** power
    terms = 1.0 + weights.shape[-1] * math.prod(taps)
    if not evaluate.random_order:
        return {op.result_name: summed(terms, sizes, sizes)}
    totals = np.square(evaluate(op, PLAIN, inputs)[op.result_name].astype(np.float64))
    axes = tuple(range(2, totals.ndim))
    totals = np.maximum(totals, totals.mean(axes, keepdims=True))
    return {op.result_name: summed(terms, np.sqrt(totals), np.sqrt(sizes))}


def _weights_errors(
    op: ConvolutionBackwardWeights, inputs: Inputs, evaluate: Evaluate
) -> dict[str, Noise]:
    """Return the noise. Winograd adds up, for each tap, products with all cells near a window."""
    errors = weights_errors(op, inputs, evaluate, terms_of(op))
    if op.algorithm == "direct":
        return errors
    groups, oc, ic, *taps = op.grouped_weights
    power = 2 if evaluate.random_order else 1
    images, _, *pixels = op.diff_dst.dims
    count = images * math.prod(pixels)

    def by_channel(image: Array, channels: int) -> Array:
        return np.moveaxis(image, 1, 0).reshape(groups, channels, count)

    gradients = by_channel(np.abs(inputs["diff_dst"].astype(np.float64)) ** power, oc)
    sizes = gradients @ by_channel(_nearby(op, inputs["src"], power), ic).swapaxes(1, 2)
    sizes = np.broadcast_to(sizes.reshape(groups, oc, ic, *[1] * len(taps)), op.grouped_weights)
    sizes = sizes.reshape(op.diff_weights.dims)
    terms = 1.0 + math.prod(taps) + count  # the transforms also round
    if not evaluate.random_order:
        errors["diff_weights"] = summed(terms, sizes, sizes)
        return errors
    totals = np.square(evaluate(op, PLAIN, inputs)["diff_weights"].astype(np.float64))
    axes = tuple(range(totals.ndim - len(taps), totals.ndim))
    totals = np.maximum(totals, totals.mean(axes, keepdims=True))
    errors["diff_weights"] = summed(terms, np.sqrt(totals), np.sqrt(sizes))
    return errors


def _nearby(op: Convolution, image: Array, power: int) -> Array:
    """Return, for each place of the other image, the size of |cells|**power in a tile around it.

    For power 1, the size is the largest cell. For squares, it is their mean, but at least a share
    of the largest square, so that a single large cell has an effect.
    """
    image = np.abs(image.astype(np.float64)) ** power
    largest = _over_tiles(op, image, np.max)
    if power == 1:
        return largest
    cells = _over_tiles(op, np.ones_like(image), np.sum)
    means = _over_tiles(op, image, np.sum) / np.maximum(cells, 1.0)
    return np.maximum(means, largest / SHARE)


def _over_tiles(op: Convolution, image: Array, fold: Callable[..., Array]) -> Array:
    """Return, for each place of the other image, a maximum or a sum over a tile around it."""
    for dim, ranges in enumerate(_ranges(op)):
        image = np.moveaxis(image, 2 + dim, 0)
        folded = [fold(image[cells], axis=0, initial=0.0) for cells in ranges]
        image = np.moveaxis(np.array(folded).reshape(len(ranges), *image.shape[1:]), 0, 2 + dim)
    return image


def _ranges(op: Convolution) -> Iterator[list[slice]]:
    """Return, for each spatial dim and place of the other image, the cells of a tile around it."""
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
    # Results are rounded once from f32, half to even: 2051 is between 2050 and 2052, 259 between
    # 258 and 260.
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
    error_factor=_error_factor,
    has_products=True,
    special_inputs=("src", "diff_dst"),
    linear_in=lambda op: "src" if isinstance(op, ConvolutionForward) else "diff_dst",
    options={
        "dir": LAYER_DIRECTIONS,
        "stag": ANY_TAGS, "dtag": ANY_TAGS, "alg": ("direct", "auto", "wino"),
        "wtag": ("any", "abx", "axb", "xba", "ABx8b8a", "ABx16a16b", "Abx16a"),
    },
    draw_shape=_draw_shape,
)  # fmt: skip
