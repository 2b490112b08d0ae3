"""Deconvolution: `--deconv --dir=FWD_B --dt=f32 --stag=any --wtag=any --dtag=any mb2ic4oc8ih5kh3`.

The shape has the letters of `--conv`. ih is the size of src and oh that of dst, in which the
windows lie: oh = (ih - 1) * sh + 1 + (kh - 1) * (dh + 1) - 2 * ph.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dnncore.algorithms.rounding import Noise
from dnncore.ops import (
    ConvolutionBackwardData,
    ConvolutionBackwardWeights,
    ConvolutionForward,
    DeconvolutionBackwardData,
    DeconvolutionBackwardWeights,
    DeconvolutionForward,
    Operation,
)
from dnncore.ops.convolution import Convolution
from dnncore.ops.deconvolution import Deconvolution
from dnncore.problem.directions import LAYER_DEFAULTS, layer, layer_text, read_layer
from dnncore.problem.drivers.accumulation import accumulated, weights_errors
from dnncore.problem.drivers.convolution import terms_of
from dnncore.problem.drivers.draws import ANY_TAGS, LAYER_DIRECTIONS, Draws
from dnncore.problem.drivers.driver import Driver, Evaluate, Golden, Inputs, VerboseLine
from dnncore.problem.drivers.torch_formulas import forward, gradient
from dnncore.problem.settings import Misread, Settings, algorithm_text, read_algorithm
from dnncore.problem.shapes import read_batch, read_letters
from dnncore.problem.windows import WINDOW_LETTERS, read_spatial, spatial_text
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["DECONVOLUTION"]

ALGORITHMS = {"direct": "direct"}
DIRECTIONS = layer(DeconvolutionForward, DeconvolutionBackwardData, DeconvolutionBackwardWeights)
DEFAULTS = {**LAYER_DEFAULTS, "strides": "", "alg": "direct", "mb": "0"}


def read(settings: Settings) -> Operation:
    """Make the operation. If the shape has g, even g1, weights have a dim of groups."""
    letters = read_letters(settings, f"g mb ic oc {WINDOW_LETTERS}", needed="ic oc")
    algorithm = read_algorithm(settings, ALGORITHMS, "deconvolution_")
    window = read_spatial(letters, DeconvolutionForward, transposed=True)
    mb, ic, oc = read_batch(settings, letters), letters["ic"], letters["oc"]
    groups = letters.get("g", 1)
    if groups < 1 or ic % groups or oc % groups:
        raise Misread("shape", f"g must divide ic and oc; got g{groups}, ic{ic} and oc{oc}")
    if min(window.dst) < 0:
        raise Misread("shape", f"padding must not exceed dst; got dst of size {min(window.dst)}")
    kernels = (oc // groups, ic // groups, *window.kernel)
    dims = {
        "src": (mb, ic, *window.src),
        "weights": (groups, *kernels) if "g" in letters else kernels,
        "bias": (oc,),
        "dst": (mb, oc, *window.dst),
    }
    return read_layer(settings, DIRECTIONS, dims, algorithm=algorithm, **window.fields)


def write(op: Deconvolution) -> Settings:
    """The inverse of `read`. The shape has the order of verbose lines."""
    groups, oc, ic, *kernel = op.grouped_weights
    grouped = op.weights_role.ndims > op.src_role.ndims
    counts = f"mb{op.src_role.dims[0]}_ic{groups * ic}oc{groups * oc}"
    shape = (f"g{groups}" if grouped else "") + counts + spatial_text(op, kernel, transposed=True)
    return {
        **layer_text(op, DIRECTIONS, DEFAULTS),
        "alg": algorithm_text(op.algorithm, ALGORITHMS),
        "shape": shape,
    }


def _formula(torch: Any, op: Deconvolution, tensors: Mapping[str, Any]) -> Any:
    """Compute torch's result without padding, and cut dst out of it."""
    groups, oc, ic, *kernel = op.grouped_weights
    spread = getattr(torch.nn.functional, f"conv_transpose{len(kernel)}d")
    weights = tensors["weights"].reshape(groups, oc, ic, *kernel).transpose(1, 2)
    whole = spread(
        tensors["src"],
        weights.reshape(groups * ic, oc, *kernel),
        stride=op.strides,
        dilation=tuple(d + 1 for d in op.dilations),
        groups=groups,
    )
    for dim, (left, size) in enumerate(zip(op.padding_l, op.dst_role.dims[2:], strict=True), 2):
        missing = max(0, left + size - whole.shape[dim])
        whole = torch.nn.functional.pad(whole, [0, 0] * (whole.ndim - 1 - dim) + [0, missing])
        whole = whole.narrow(dim, left, size)
    if tensors.get("bias") is not None:
        whole = whole + tensors["bias"].reshape(-1, *[1] * len(kernel))
    return whole


def _convolution(op: Deconvolution) -> Convolution:
    """Return the convolution that adds up the same products."""
    x, y = MemoryDesc(op.dst_role.dims), MemoryDesc(op.src_role.dims)
    *groups, oc, ic = op.weights_role.dims[: 2 + op.weights_role.ndims - x.ndims]
    w = MemoryDesc((*groups, ic, oc, *op.grouped_weights[3:]))
    if isinstance(op, DeconvolutionForward):
        return ConvolutionBackwardData(diff_src=x, weights=w, diff_dst=y, **op.window_fields)
    if isinstance(op, DeconvolutionBackwardData):
        return ConvolutionForward("forward_training", src=x, weights=w, dst=y, **op.window_fields)
    return ConvolutionBackwardWeights(src=x, diff_weights=w, diff_dst=y, **op.window_fields)


def _errors(op: Deconvolution, inputs: Inputs, evaluate: Evaluate) -> dict[str, Noise]:
    return accumulated(op, inputs, evaluate, 1.0 + terms_of(_convolution(op)))


def _weights_errors(
    op: DeconvolutionBackwardWeights, inputs: Inputs, evaluate: Evaluate
) -> dict[str, Noise]:
    """Return the noise. Each tap adds up products with the cells that it reaches."""
    return weights_errors(op, inputs, evaluate, terms_of(_convolution(op)))


def _draw_shape(draws: Draws) -> str:
    groups = int(draws.one_of(("1", "1", "2", "3", "9")))
    each = [1, draws.integer(1, 3)] if groups > 3 else [draws.channels(), draws.channels()]
    channels = f"ic{groups * each[0]}oc{groups * each[1]}"
    group = f"g{groups}" if groups > 1 else ""
    axes = [_exchanged(axis) for axis in draws.window().split("_")]
    return f"{group}mb{draws.batch()}{channels}{'_'.join(axes)}"


def _exchanged(axis: str) -> str:
    """Exchange the sizes of src and dst in the text of one axis, if it has both."""
    if not re.search("o[dhw]", axis):
        return axis
    return re.sub("[io](?=[dhw])", lambda found: {"i": "o", "o": "i"}[found[0]], axis)


GOLDEN = (
    Golden(  # each cell of src times the kernel at its window, and the bias
        "--deconv --dir=FWD_B mb1ic1ih2oc1oh3kh2ph0",
        {"src": [[[[1, 2], [3, 4]]]], "weights": [[[[1, 0], [0, -1]]]], "bias": [10]},
        {"dst": [[[[11, 12, 10], [13, 13, 8], [10, 7, 6]]]]},
    ),
    Golden(  # strides of 2 leave gaps between the taps; padding cuts the first place off
        "--deconv --dir=FWD_D mb1ic1iw3oc2ow4kw1sw2pw1",
        {"src": [[[1, 2, 3]]], "weights": [[[10]], [[-1]]]},
        {"dst": [[[0, 20, 0, 30], [0, -2, 0, -3]]]},
    ),
    Golden(  # 1*1 + 2*0 + 4*0 + 5*-1 and so on
        "--deconv --dir=BWD_D mb1ic1ih2oc1oh3kh2ph0",
        {"diff_dst": [[[[1, 2, 3], [4, 5, 6], [7, 8, 10]]]], "weights": [[[[1, 0], [0, -1]]]]},
        {"diff_src": [[[[-4, -4], [-4, -5]]]]},
    ),
    Golden(
        "--deconv --dir=BWD_WB mb1ic1ih2oc1oh3kh2ph0",
        {"src": [[[[1, 2], [3, 4]]]], "diff_dst": [[[[1, 2, 3], [4, 5, 6], [7, 8, 10]]]]},
        {"diff_weights": [[[[37, 47], [67, 81]]]], "diff_bias": [46]},
    ),
    # Results are rounded once from f32, half to even: 2051 is between 2050 and 2052.
    Golden(
        "--deconv --dir=FWD_D --dt=f16 mb1ic4ih1oc1oh1kh1ph0",
        {"src": [[[[2048]], [[1]], [[1]], [[1]]]], "weights": [[[[1]], [[1]], [[1]], [[1]]]]},
        {"dst": [[[[2052]]]]},
    ),
)  # fmt: skip

DECONVOLUTION = Driver(
    name="deconv",
    operations=(DeconvolutionForward, DeconvolutionBackwardData, DeconvolutionBackwardWeights),
    defaults=DEFAULTS,
    read=read,
    write=write,
    verbose=VerboseLine(tensors={
            DeconvolutionForward: "src wei:weights bia:bias dst",
            DeconvolutionBackwardData: "src:diff_src wei:weights bia: dst:diff_dst",
            DeconvolutionBackwardWeights: "src wei:diff_weights bia:diff_bias dst:diff_dst",
        }, auxiliary="alg:deconvolution_{algorithm}", letters="pr[dhw]"),
    printed_shape="g mb ic i* oc o* k* s* p* d*",
    is_transposed=True,
    golden=GOLDEN,
    oracles={
        DeconvolutionForward: forward(_formula),
        DeconvolutionBackwardData: gradient(_formula, "src"),
        DeconvolutionBackwardWeights: gradient(_formula, "weights", "bias"),
    },
    errors={
        DeconvolutionForward: _errors,
        DeconvolutionBackwardData: _errors,
        DeconvolutionBackwardWeights: _weights_errors,
    },
    has_products=True,
    special_inputs=("diff_dst", "src"),
    linear_in=lambda op: "src" if isinstance(op, DeconvolutionForward) else "diff_dst",
    options={
        "dir": LAYER_DIRECTIONS,
        "stag": ANY_TAGS, "dtag": ANY_TAGS,
        "wtag": ("any", "abx", "axb", "xba", "ABx8b8a", "ABx16a16b", "Abx16a"),
    },
    draw_shape=_draw_shape,
)  # fmt: skip
