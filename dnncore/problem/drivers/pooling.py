"""Pooling: `--pool --dir=FWD_D --dt=f32 --tag=axb --alg=avg_np mb2ic16_ih17kh3sh2ph1`."""

from __future__ import annotations

from typing import Any

from dnncore.ops import Operation, PoolingBackward, PoolingForward
from dnncore.problem.directions import direction_text, pair, read_operation
from dnncore.problem.settings import (
    Driver,
    Settings,
    algorithm_text,
    read_algorithm,
)
from dnncore.problem.shapes import read_batch, read_letters
from dnncore.problem.tensors import ONE_TAG, write_tensors
from dnncore.problem.windows import WINDOW_LETTERS, read_spatial, spatial_text

__all__ = ["POOLING"]

ALGORITHMS = {"max": "max", "avg_np": "avg_exclude_padding", "avg_p": "avg_include_padding"}
DIRECTIONS = pair(PoolingForward, PoolingBackward)
DEFAULTS = {"dir": "FWD_D", "dt": "f32", **ONE_TAG, "alg": "max", "mb": "0"}


def read(settings: Settings) -> Operation:
    """The shape of a convolution without g and oc."""
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


def write(op: Any) -> Settings:
    """The shape in the order of verbose lines."""
    mb, ic, *_ = op.src_role.dims
    return {
        "dir": direction_text(op, DIRECTIONS),
        **write_tensors(op, DEFAULTS),
        "alg": algorithm_text(op.algorithm, ALGORITHMS),
        "shape": f"mb{mb}_ic{ic}{spatial_text(op, op.kernel)}",
    }


POOLING = Driver("pool", (PoolingForward, PoolingBackward), DEFAULTS, read, write)
