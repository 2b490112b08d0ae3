"""Eltwise: `--eltwise --dir=FWD_D --dt=f32 --tag=axb --alg=relu --alpha=0.1 --beta=0 2x3x4`."""

from __future__ import annotations

from typing import Any

from dnncore.algorithms import eltwise
from dnncore.algorithms.eltwise import USE_DST
from dnncore.ops import EltwiseBackward, EltwiseForward, Operation
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
    name.replace(USE_DST, "_dst"): name
    for name in (*eltwise.ELTWISE, *eltwise.eltwise_names(gradient=True))
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
