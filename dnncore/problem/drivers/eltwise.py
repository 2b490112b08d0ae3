"""Eltwise: `--eltwise --dir=FWD_D --dt=f32 --tag=axb --alg=relu --alpha=0.1 --beta=0 2x3x4`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dnncore.algorithms import eltwise
from dnncore.algorithms.eltwise import USE_DST
from dnncore.algorithms.rounding import Array, Noise
from dnncore.ops import EltwiseBackward, EltwiseForward, Operation
from dnncore.ops.eltwise import Eltwise
from dnncore.problem.directions import direction_text, pair, read_operation
from dnncore.problem.drivers.accumulation import PLAIN
from dnncore.problem.drivers.draws import (
    PAIR_DIRECTIONS,
    TAGS,
    shape_text,
)
from dnncore.problem.drivers.driver import Driver, Evaluate, Golden, Inputs, VerboseLine
from dnncore.problem.drivers.torch_formulas import forward, gradient
from dnncore.problem.settings import (
    Settings,
    algorithm_text,
    number_text,
    read_algorithm,
    read_number,
)
from dnncore.problem.shapes import dims_text, read_batched_dims
from dnncore.problem.tensors import ONE_TAG, write_tensors

__all__ = ["ELTWISE"]

ALGORITHMS = {
    name.replace(USE_DST, "_dst"): name
    for name in (*eltwise.ELTWISE, *eltwise.eltwise_names(gradient=True))
}
DEFAULTS = {
    "dir": "FWD_D", "dt": "f32", **ONE_TAG, "strides": "",
    "alg": "relu", "alpha": "0", "beta": "0", "mb": "0", "inplace": "false",
}  # fmt: skip


def _directions(algorithm: str) -> Any:
    """Return the directions. A gradient reads src or dst, depending on the algorithm."""
    unread = "src" if algorithm.endswith(USE_DST) else "dst"
    return pair(EltwiseForward, EltwiseBackward, absent=(unread,))


def read(settings: Settings) -> Operation:
    """Make the operation. All tensors have the dims of the shape."""
    algorithm = read_algorithm(settings, ALGORITHMS, "eltwise_")
    dims = read_batched_dims(settings)
    return read_operation(
        settings,
        _directions(algorithm),
        {"src": dims, "dst": dims},
        algorithm=algorithm,
        alpha=read_number(settings, "alpha"),
        beta=read_number(settings, "beta"),
    )


def write(op: Eltwise) -> Settings:
    """The inverse of `read`."""
    return {
        "dir": direction_text(op, _directions(op.algorithm)),
        **write_tensors(op, DEFAULTS),
        "alg": algorithm_text(op.algorithm, ALGORITHMS),
        "alpha": number_text(op.alpha),
        "beta": number_text(op.beta),
        "shape": dims_text(op.result.dims),
    }


# -- correctness -----------------------------------------------------------------------------------


def _formula(torch: Any, op: Eltwise, tensors: Mapping[str, Any]) -> Any:
    return eltwise.ELTWISE[op.function].oracle(torch, tensors["src"], op.alpha, op.beta)


def _gradient(torch: Any, op: EltwiseBackward, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Return the gradient at src, or at the src that gives dst."""
    if op.uses_dst:
        inverse = eltwise.ELTWISE[op.function].inverse
        assert inverse is not None  # each algorithm with slope_of_dst has one
        src = inverse(torch, tensors["dst"], op.alpha, op.beta)
        tensors = {"src": src, "diff_dst": tensors["diff_dst"]}
    return gradient(_formula, "src")(torch, op, tensors)


def _errors(op: EltwiseForward, inputs: Inputs, evaluate: Evaluate) -> dict[str, Noise]:
    src = inputs["src"].astype(np.float64)
    dst = evaluate(op, PLAIN, inputs)["dst"].astype(np.float64)
    error = eltwise.ELTWISE[op.function].error
    return {"dst": Noise.within(error.bound(src, dst, op.alpha, op.beta))}


def _gradient_errors(op: EltwiseBackward, inputs: Inputs, evaluate: Evaluate) -> dict[str, Noise]:
    kept = inputs["dst" if op.uses_dst else "src"]
    ones = {"diff_dst": np.ones(kept.shape), **{k: v for k, v in inputs.items() if v is kept}}
    slope = evaluate(op, PLAIN, ones)["diff_src"].astype(np.float64)
    record = eltwise.ELTWISE[op.function]
    error = record.slope_of_dst_error if op.uses_dst else record.slope_error
    assert error is not None  # each algorithm with a gradient has one
    errors = error.bound(kept.astype(np.float64), slope, op.alpha, op.beta)
    return {"diff_src": Noise.within(errors * np.abs(inputs["diff_dst"].astype(np.float64)))}


def _keeps_integers(op: Eltwise) -> bool:
    whole = op.alpha.is_integer() and op.beta.is_integer()
    return bool(eltwise.ELTWISE[op.function].keeps_integers and whole)


def _smooth(op: Eltwise, src: Array) -> Array:
    """Return values for which f is defined, none within a few steps of a corner."""
    record = eltwise.ELTWISE[op.function]
    src = np.abs(src) + 0.5 if record.is_positive else src
    for corner in record.corners(op.alpha, op.beta):
        src = np.where(np.abs(src - corner) < 2.0**-6, corner + 2.0**-5, src)
    return src


NUMBERS = ("0", "1", "0.5", "2", "-1", "-0.25", "0.2345675", "1.2345675")


GOLDEN = (
    Golden(
        "--eltwise --alg=relu --alpha=0.25 5",
        {"src": [-4, -1, 0, 1, 3]},
        {"dst": [-1, -0.25, 0, 1, 3]},
    ),
    Golden(
        "--eltwise --alg=tanh 3",
        {"src": [-1, 0, 2]},
        {"dst": [-0.7615942, 0, 0.9640276]},
    ),
    Golden(  # computed as C's pow, not as sqrt
        "--eltwise --alg=pow --alpha=3 --beta=0.5 4",
        {"src": [-np.inf, np.inf, 4, 0]},
        {"dst": [np.inf, np.inf, 6, 0]},
    ),
    Golden(
        "--eltwise --alg=pow --alpha=3 --beta=-0.5 4",
        {"src": [-np.inf, np.inf, 4, -0.0]},
        {"dst": [0, 0, 1.5, np.inf]},
    ),
    Golden(  # at 0 the slope is alpha
        "--eltwise --dir=BWD_D --alg=relu --alpha=0.25 5",
        {"src": [-4, -1, 0, 1, 3], "diff_dst": [4, 8, 12, 16, 20]},
        {"diff_src": [1, 2, 3, 16, 20]},
    ),
    Golden(  # too large for f16; and its smallest number, which is a normal f32 number
        "--eltwise --alg=square --dt=f16 3",
        {"src": [300, -255.875, 0.000244140625]},
        {"dst": [np.inf, 65472, 5.9604644775390625e-08]},
    ),
)  # fmt: skip

ELTWISE = Driver(
    name="eltwise",
    operations=(EltwiseForward, EltwiseBackward),
    defaults=DEFAULTS,
    read=read,
    write=write,
    verbose=VerboseLine(
        tensors={
            EltwiseForward: "data:src diff: dst=src",
            EltwiseBackward: "data:kept diff:diff_dst diff_src=diff_dst",
        },
        auxiliary="alg:eltwise_{algorithm} alpha:{alpha} beta:{beta}",
    ),
    always_printed=("alg", "alpha", "beta"),
    golden=GOLDEN,
    oracles={EltwiseForward: forward(_formula), EltwiseBackward: _gradient},
    errors={EltwiseForward: _errors, EltwiseBackward: _gradient_errors},
    keeps_integers=_keeps_integers,
    smooth=_smooth,
    options={
        "dir": PAIR_DIRECTIONS, "tag": TAGS, "alpha": NUMBERS, "beta": NUMBERS,
        "alg": ("relu", *ALGORITHMS),
    },
    draw_shape=lambda draws: shape_text(draws.dims()),
)  # fmt: skip
