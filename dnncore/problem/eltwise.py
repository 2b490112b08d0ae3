"""Eltwise: `--eltwise --dir=FWD_D --dt=f32 --tag=axb --alg=relu --alpha=0.1 --beta=0 2x3x4`."""

from __future__ import annotations

from typing import Any

from dnncore.ops import EltwiseBackward, EltwiseForward, Operation
from dnncore.ops.algorithms import ELTWISE_ALGORITHMS, USE_DST, USE_DST_ALGORITHMS
from dnncore.problem.directions import direction_text, pair, read_operation
from dnncore.problem.settings import (
    Driver,
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
    **{name: name for name in ELTWISE_ALGORITHMS},
    **{f"{name}_dst": name + USE_DST for name in USE_DST_ALGORITHMS},
}
DEFAULTS = {
    "dir": "FWD_D", "dt": "f32", **ONE_TAG, "strides": "",
    "alg": "relu", "alpha": "0", "beta": "0", "mb": "0", "inplace": "false",
}  # fmt: skip


def _directions(algorithm: str) -> Any:
    """A gradient has src or dst, whichever the algorithm computes it from."""
    unread = "src" if algorithm.endswith(USE_DST) else "dst"
    return pair(EltwiseForward, EltwiseBackward, absent=(unread,))


def read(settings: Settings) -> Operation:
    """All tensors have the dims of the shape."""
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


def write(op: Any) -> Settings:
    """The inverse of `read`."""
    return {
        "dir": direction_text(op, _directions(op.algorithm)),
        **write_tensors(op, DEFAULTS),
        "alg": algorithm_text(op.algorithm, ALGORITHMS),
        "alpha": number_text(op.alpha),
        "beta": number_text(op.beta),
        "shape": dims_text(op.result.dims),
    }


ELTWISE = Driver("eltwise", (EltwiseForward, EltwiseBackward), DEFAULTS, read, write)
