"""Softmax: `--softmax --dir=FWD_D --sdt=f32 --stag=abx --dtag=any --alg=SOFTMAX --axis=1 2x10`."""

from __future__ import annotations

from typing import Any

from dnncore.ops import Operation, SoftmaxBackward, SoftmaxForward
from dnncore.problem.directions import direction_text, pair, read_operation
from dnncore.problem.settings import (
    Driver,
    Settings,
    algorithm_text,
    read_algorithm,
    read_integer,
)
from dnncore.problem.shapes import dims_text, read_batched_dims
from dnncore.problem.tensors import write_tensors

__all__ = ["SOFTMAX"]

ALGORITHMS = {"SOFTMAX": "accurate", "LOGSOFTMAX": "log"}
DIRECTIONS = pair(SoftmaxForward, SoftmaxBackward)
DEFAULTS = {
    "dir": "FWD_D", "sdt": "f32", "ddt": "f32", "stag": "abx", "dtag": "any", "strides": "",
    "alg": "SOFTMAX", "axis": "1", "mb": "0", "inplace": "false",
}  # fmt: skip


def read(settings: Settings) -> Operation:
    """All tensors have the dims of the shape.

    A gradient's dst must have a format; where dtag is silent it is stag's, and all others are any.
    """
    dims = read_batched_dims(settings)
    if settings["dir"].upper() == "BWD_D" and settings["dtag"] == "any":
        settings = {**settings, "stag": "any", "dtag": f"{settings['stag']}:any"}
    return read_operation(
        settings,
        DIRECTIONS,
        {"src": dims, "dst": dims},
        algorithm=read_algorithm(settings, ALGORITHMS, "softmax_"),
        axis=read_integer(settings, "axis"),
    )


def write(op: Any) -> Settings:
    """The inverse of `read`."""
    return {
        "dir": direction_text(op, DIRECTIONS),
        **write_tensors(op, DEFAULTS),
        "alg": algorithm_text(op.algorithm, ALGORITHMS),
        "axis": str(int(op.axis)),
        "shape": dims_text(op.result.dims),
    }


SOFTMAX = Driver("softmax", (SoftmaxForward, SoftmaxBackward), DEFAULTS, read, write)
