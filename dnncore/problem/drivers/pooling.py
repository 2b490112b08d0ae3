"""Pooling: `--pool --dir=FWD_D --dt=f32 --tag=axb --alg=avg_np mb2ic16_ih17kh3sh2ph1`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from ml_dtypes import finfo, iinfo

from dnncore.algorithms.rounding import DIVISION, ROUNDOFF, Array, Noise, summed
from dnncore.ops import Operation, PoolingBackward, PoolingForward
from dnncore.ops.pooling import Pooling
from dnncore.problem.directions import direction_text, pair, read_operation
from dnncore.problem.drivers.accumulation import PLAIN, absolute, norms
from dnncore.problem.drivers.draws import (
    PAIR_DIRECTIONS,
    TAGS,
)
from dnncore.problem.drivers.driver import Driver, Evaluate, Golden, Inputs, VerboseLine
from dnncore.problem.drivers.torch_formulas import forward, gradient, padded
from dnncore.problem.settings import (
    Settings,
    algorithm_text,
    read_algorithm,
)
from dnncore.problem.shapes import read_batch, read_letters
from dnncore.problem.tensors import ONE_TAG, write_tensors
from dnncore.problem.windows import WINDOW_LETTERS, read_spatial, spatial_text
from dnncore.tensors.datatypes import data_type

__all__ = ["POOLING"]

ALGORITHMS = {"max": "max", "avg_np": "avg_exclude_padding", "avg_p": "avg_include_padding"}
DIRECTIONS = pair(PoolingForward, PoolingBackward)
DEFAULTS = {"dir": "FWD_D", "dt": "f32", **ONE_TAG, "alg": "max", "mb": "0"}


def read(settings: Settings) -> Operation:
    """Make the operation. The shape is that of a convolution without g and oc."""
    letters = read_letters(settings, f"mb ic {WINDOW_LETTERS}", needed="ic")
    window = read_spatial(letters, PoolingForward)
    images = (read_batch(settings, letters), letters["ic"])
    return read_operation(
        settings,
        DIRECTIONS,
        {"src": (*images, *window.src), "dst": (*images, *window.dst)},
        algorithm=read_algorithm(settings, ALGORITHMS, "pooling_"),
        kernel=window.kernel,
        **window.fields,
    )


def write(op: Pooling) -> Settings:
    """The inverse of `read`. The shape has the order of verbose lines."""
    mb, ic, *_ = op.src_role.dims
    return {
        "dir": direction_text(op, DIRECTIONS),
        **write_tensors(op, DEFAULTS),
        "alg": algorithm_text(op.algorithm, ALGORITHMS),
        "shape": f"mb{mb}_ic{ic}{spatial_text(op, op.kernel)}",
    }


# -- correctness -----------------------------------------------------------------------------------


def _formula(torch: Any, op: Pooling, tensors: Mapping[str, Any]) -> Any:
    if not op.is_max:
        return _average(torch, op, tensors["src"])
    pool = getattr(torch.nn.functional, f"max_pool{len(op.kernel)}d")
    dilation = tuple(d + 1 for d in op.dilations)

    def maxima(image: Any, outside: float) -> Any:
        return pool(padded(torch, op, image, outside), op.kernel, op.strides, dilation=dilation)

    src = tensors["src"]
    limits = finfo if data_type(op.dst_role.data_type).is_float else iinfo
    least = float(limits(op.dst_role.dtype).min)
    has_cells = maxima(torch.ones_like(src), 0.0) > 0
    return torch.where(has_cells, maxima(src, -torch.inf), least)


def _average(torch: Any, op: Pooling, src: Any) -> Any:
    """Compute a convolution with ones: torch's average has no dilation and no uneven padding."""
    channels = src.shape[1]
    convolve = getattr(torch.nn.functional, f"conv{len(op.kernel)}d")

    def window_sum(image: Any) -> Any:
        ones = torch.ones((channels, 1, *op.kernel), dtype=torch.float64)
        dilation = tuple(d + 1 for d in op.dilations)
        image = padded(torch, op, image, 0.0)
        return convolve(image, ones, None, op.strides, 0, dilation, channels)

    if op.algorithm == "avg_include_padding":
        return window_sum(src) / np.prod(op.kernel)
    return window_sum(src) / window_sum(torch.ones_like(src))


def _errors(op: Pooling, inputs: Inputs, evaluate: Evaluate) -> dict[str, Noise]:
    """Return the noise. Maxima only move values; their gradient adds several values.

    An average of n terms takes n - 1 additions. Each term, or their sum, is divided by the number
    of cells: in one rounding, or in two as a product with a rounded reciprocal. An element of a
    gradient has as many terms as there are windows that contain it.
    """
    if isinstance(op, PoolingForward) and op.is_max:
        return {}
    additions = _terms(op, inputs, evaluate) - 1.0
    total, norm = _norms(op, inputs, evaluate)
    noise = summed(additions, total, norm) * np.where(additions > 0, 1.0, 0.0)
    if not op.is_max:
        size = absolute(op, inputs, evaluate)
        noise += Noise.within((DIVISION + 1.0) * ROUNDOFF * size)
        noise = noise.unknown_beyond(size * (additions + 1.0))
    return {op.result_name: noise}


def _norms(op: Pooling, inputs: Inputs, evaluate: Evaluate) -> tuple[Array, Array]:
    """Return the sum and the 2-norm of the terms. A term of an average is divided by the number of
    cells.
    """
    total, norm = norms(op, inputs, evaluate)
    if op.is_max or norm is total:
        return total, norm
    if op.algorithm == "avg_include_padding":
        return total, norm / math.prod(op.kernel) ** 0.5
    if isinstance(op, PoolingForward):
        return total, norm / np.sqrt(_terms(op, inputs, evaluate))
    return total, norm  # no exact count: windows at edges have fewer cells


def _terms(op: Pooling, inputs: Inputs, evaluate: Evaluate) -> Array:
    """Return the number of terms of each element of the result, at least 1."""
    ones = {name: a if name == "workspace" else np.ones_like(a) for name, a in inputs.items()}
    if op.is_max:
        total = evaluate(op, PLAIN, ones)[op.result_name]
    else:
        op = replace(op, algorithm="avg_include_padding")
        total = evaluate(op, PLAIN, ones)[op.result_name] * math.prod(op.kernel)
    return np.maximum(np.rint(total.astype(np.float64)), 1.0)


def _linear_in(op: Pooling) -> str:
    """Return the argument in which the operation is linear. A maximum is not linear: ""."""
    if isinstance(op, PoolingBackward):
        return "diff_dst"
    return "" if op.is_max else "src"


GOLDEN = (
    Golden(
        "--pool --alg=max mb1ic1ih1iw5oh1ow2kh1kw3sh1sw2ph0pw0",
        {"src": [[[[1, 5, 2, 5, 3]]]]},
        {"dst": [[[[5, 5]]]], "workspace": [[[[1, 1]]]]},
    ),
    Golden(  # windows with sums 3 and 6 extend over the border, whose cells count: / 3
        "--pool --alg=avg_p mb1ic1ih1iw3oh1ow3kh1kw3sh1sw1ph0pw1",
        {"src": [[[[1, 2, 3]]]]},
        {"dst": [[[[1, 2, 1.6666667]]]]},
    ),
    Golden(
        "--pool --alg=avg_np mb1ic1ih1iw3oh1ow3kh1kw3sh1sw1ph0pw1",
        {"src": [[[[1, 2, 3]]]]},
        {"dst": [[[[1.5, 2, 2.5]]]]},
    ),
    Golden(  # both windows chose the same element
        "--pool --dir=BWD_D --alg=max mb1ic1ih1iw5oh1ow2kh1kw3sh1sw2ph0pw0",
        {"diff_dst": [[[[10, 7]]]], "workspace": [[[[2, 0]]]]},
        {"diff_src": [[[[0, 0, 17, 0, 0]]]]},
    ),
    Golden(  # 2051 / 4, between 512.5 and 513
        "--pool --alg=avg_p --dt=f16 mb1ic1ih1iw4oh1ow1kh1kw4sh1sw1ph0pw0",
        {"src": [[[[2048, 1, 1, 1]]]]},
        {"dst": [[[[513]]]]},
    ),
    Golden(  # windows without a cell in src
        "--pool --alg=max --dt=f16 mb1ic1ih1iw1oh1ow3kh1kw1sh1sw1ph0pw1",
        {"src": [[[[5]]]]},
        {"dst": [[[[-65504, 5, -65504]]]], "workspace": [[[[0, 0, 0]]]]},
    ),
    Golden(  # two windows of a maximum
        "--pool --dir=BWD_D --alg=max --dt=bf16 mb1ic1ih1iw5oh1ow2kh1kw3sh1sw2ph0pw0",
        {"diff_dst": [[[[256, 3]]]], "workspace": [[[[2, 0]]]]},
        {"diff_src": [[[[0, 0, 260, 0, 0]]]]},
    ),
)  # fmt: skip

POOLING = Driver(
    name="pool",
    operations=(PoolingForward, PoolingBackward),
    defaults=DEFAULTS,
    read=read,
    write=write,
    verbose=VerboseLine(
        tensors={
            PoolingForward: "src dst ws:workspace",
            PoolingBackward: "src:diff_src dst:diff_dst ws:workspace",
        },
        auxiliary="alg:pooling_{algorithm}",
        spelling=("_ic", "ic"),
        letters="pr[dhw]",
    ),
    printed_shape="mb ic i* o* k* s* p* d*",
    golden=GOLDEN,
    oracles={PoolingForward: forward(_formula), PoolingBackward: gradient(_formula, "src")},
    errors={PoolingForward: _errors, PoolingBackward: _errors},
    keeps_integers=lambda op: bool(op.is_max),
    linear_in=_linear_in,
    options={"dir": PAIR_DIRECTIONS, "tag": TAGS, "alg": ("max", "avg_np", "avg_p")},
    draw_shape=lambda draws: f"mb{draws.batch()}ic{draws.channels()}{draws.window()}",
)
