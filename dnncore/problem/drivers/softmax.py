"""Softmax: `--softmax --dir=FWD_D --sdt=f32 --stag=abx --dtag=any --alg=SOFTMAX --axis=1 2x10`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from dnncore.algorithms.rounding import ROUNDOFF, Array, Noise, positive_sum
from dnncore.ops import Operation, SoftmaxBackward, SoftmaxForward
from dnncore.ops.softmax import Softmax
from dnncore.problem.directions import direction_text, pair, read_operation
from dnncore.problem.drivers.accumulation import sum_along
from dnncore.problem.drivers.draws import (
    PAIR_DIRECTIONS,
    TAGS,
    shape_text,
)
from dnncore.problem.drivers.driver import Driver, Evaluate, Golden, Inputs, VerboseLine
from dnncore.problem.settings import (
    Settings,
    algorithm_text,
    misread,
    read_algorithm,
    read_integer,
)
from dnncore.problem.shapes import dims_text, read_batched_dims
from dnncore.problem.tensors import format_text, read_desc, write_tensors

__all__ = ["SOFTMAX"]

ALGORITHMS = {"SOFTMAX": "accurate", "LOGSOFTMAX": "log"}
DIRECTIONS = {
    word: replace(row, absent=("lse",))
    for word, row in pair(SoftmaxForward, SoftmaxBackward).items()
}
DEFAULTS = {
    "dir": "FWD_D", "sdt": "f32", "ddt": "f32", "stag": "abx", "dtag": "any", "strides": "",
    "alg": "SOFTMAX", "axis": "1", "lse": "", "mb": "0", "inplace": "false",
}  # fmt: skip


def read(settings: Settings) -> Operation:
    """Make the operation. All tensors have the dims of the shape.

    dst of a gradient requires a format. If dtag is not set, dst has the format in stag, and all
    other formats are `any`. The setting lse has the format of the statistics, if they are wanted.
    """
    dims = read_batched_dims(settings)
    if settings["dir"].upper() == "BWD_D" and settings["dtag"] == "any":
        settings = {**settings, "stag": "any", "dtag": f"{settings['stag']}:any"}
    op = read_operation(
        settings,
        DIRECTIONS,
        {"src": dims, "dst": dims},
        algorithm=read_algorithm(settings, ALGORITHMS, "softmax_"),
        axis=read_integer(settings, "axis"),
    )
    if not settings["lse"]:
        return op
    if not isinstance(op, SoftmaxForward):
        misread(settings, "lse", "nothing for a gradient, which has no statistics")
    sizes = tuple(1 if dim == op.axis else size for dim, size in enumerate(dims))
    return replace(op, lse=read_desc(settings, "lse", sizes, "f32"))


def write(op: Softmax) -> Settings:
    """The inverse of `read`."""
    lse = None
    if isinstance(op, SoftmaxForward):
        lse, op = op.lse, replace(op, lse=None)
    return {
        "dir": direction_text(op, DIRECTIONS),
        **write_tensors(op, DEFAULTS),
        "lse": "" if lse is None else format_text(lse),
        "alg": algorithm_text(op.algorithm, ALGORITHMS),
        "axis": str(int(op.axis)),
        "shape": dims_text(op.result.dims),
    }


# -- correctness -----------------------------------------------------------------------------------

FUNCTIONS = 16
"""Roundings of exponentials, logarithms and quotients."""


def _forward(torch: Any, op: SoftmaxForward, tensors: Mapping[str, Any]) -> dict[str, Any]:
    name, src = "log_softmax" if op.algorithm == "log" else "softmax", tensors["src"]
    outputs = {"dst": getattr(torch, name)(src, op.axis)}
    if op.lse is not None:  # torch's logsumexp has other results for infinities
        largest = src.amax(op.axis, keepdim=True)
        outputs["lse"] = largest + (src - largest).exp().sum(op.axis, keepdim=True).log()
    return outputs


def _gradient(torch: Any, op: SoftmaxBackward, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Use torch's kernels, which read dst. A rounded dst may not be the softmax of any src."""
    name = f"_{'log_softmax' if op.algorithm == 'log' else 'softmax'}_backward_data"
    kernel = getattr(torch.ops.aten, name)
    return {"diff_src": kernel(tensors["diff_dst"], tensors["dst"], op.axis, torch.float64)}


def _errors(op: SoftmaxForward, inputs: Inputs, _evaluate: Evaluate) -> dict[str, Noise]:
    """Return the noise. The rounding error of src - max is an absolute error of the exponent.

    That of lse is the mean of such errors, weighted by the exponentials, and that of its own sum.
    """
    src = inputs["src"].astype(np.float64)
    largest = src.max(op.axis, keepdims=True, initial=-np.inf)
    shifted = src - largest
    total = np.exp(shifted).sum(op.axis, keepdims=True)
    if op.algorithm == "log":
        size: Array = 1.0 + np.abs(shifted) + np.abs(np.log(total))
    else:
        shifted = np.maximum(shifted, -1e3)  # where exp is 0, before 0 * inf becomes NaN
        size = np.exp(shifted) / total * (1.0 + np.abs(shifted))
    errors = {"dst": _rounded(op, size)}
    if op.lse is not None:
        below = np.maximum(shifted, -1e3)
        share = (np.exp(below) / total * np.abs(below)).sum(op.axis, keepdims=True)
        errors["lse"] = _rounded(op, 1.0 + share + np.abs(largest) + np.abs(np.log(total)))
    return errors


def _rounded(op: SoftmaxForward, size: Array) -> Noise:
    functions = Noise.within(FUNCTIONS * ROUNDOFF * size)
    return functions + positive_sum(op.src.dims[op.axis], size)


def _gradient_errors(op: SoftmaxBackward, inputs: Inputs, evaluate: Evaluate) -> dict[str, Noise]:
    """Return the noise. If dst is an exponent, its error is proportional to its size."""
    dst, diff = (inputs[name].astype(np.float64) for name in ("dst", "diff_dst"))
    is_log = op.algorithm == "log"
    terms, factor = (diff, np.exp(dst)) if is_log else (diff * dst, np.abs(dst))
    total = np.abs(terms).sum(op.axis, keepdims=True)
    size = (
        np.abs(diff) + factor * (1.0 + np.abs(dst)) * total
        if is_log
        else (factor * (np.abs(diff) + total))
    )
    functions = Noise.within(FUNCTIONS * ROUNDOFF * size)
    noise = sum_along(terms, op.axis, op.dst.dims[op.axis], evaluate, keepdims=True)
    return {"diff_src": functions + noise * factor}


GOLDEN = (
    Golden(
        "--softmax --alg=SOFTMAX --axis=1 1x3",
        {"src": [[0, 0, 0.6931472]]},
        {"dst": [[0.25, 0.25, 0.5]]},
    ),
    Golden(  # log(1 + 1 + 2)
        "--softmax --alg=LOGSOFTMAX --axis=1 --lse=abx 1x3",
        {"src": [[0, 0, 0.6931472]]},
        {"dst": [[-1.3862944, -1.3862944, -0.6931472]], "lse": [[1.3862944]]},
    ),
    Golden(  # dst * (diff_dst - sum(dst * diff_dst))
        "--softmax --dir=BWD_D --alg=SOFTMAX --dtag=ab --axis=1 1x3",
        {"dst": [[0.25, 0.25, 0.5]], "diff_dst": [[4, 0, 2]]},
        {"diff_src": [[0.5, -0.5, 0]]},
    ),
)  # fmt: skip

SOFTMAX = Driver(
    name="softmax",
    operations=(SoftmaxForward, SoftmaxBackward),
    defaults=DEFAULTS,
    read=read,
    write=write,
    verbose=VerboseLine(
        tensors={
            SoftmaxForward: "src dst diff_dst: lse?",
            SoftmaxBackward: "src:diff_src dst diff_dst",
        },
        auxiliary="alg:softmax_{algorithm} axis:{axis}",
    ),
    golden=GOLDEN,
    oracles={SoftmaxForward: _forward, SoftmaxBackward: _gradient},
    errors={SoftmaxForward: _errors, SoftmaxBackward: _gradient_errors},
    keeps_integers=lambda _op: False,
    smooth=lambda _op, src: src,
    options={
        "dir": PAIR_DIRECTIONS, "stag": TAGS, "dtag": TAGS,
        "alg": ("SOFTMAX", "LOGSOFTMAX"), "axis": ("1", "0", "2", "3", "4", "5"),
        "lse": ("", "abx", "any"),
    },
    draw_shape=lambda draws: shape_text(draws.dims(least=2)),
)  # fmt: skip
