"""Shuffle: `--shuffle --dir=FWD_D --dt=f32 --tag=abx --axis=1 --group=2 2x8x3`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dnncore.ops import Operation, ShuffleBackward, ShuffleForward
from dnncore.ops.shuffle import Shuffle
from dnncore.problem.directions import direction_text, pair, read_operation
from dnncore.problem.drivers.accumulation import exact
from dnncore.problem.drivers.draws import PAIR_DIRECTIONS, TAGS, Draws, shape_text
from dnncore.problem.drivers.driver import Driver, Golden, VerboseLine
from dnncore.problem.drivers.torch_formulas import forward, gradient
from dnncore.problem.settings import Settings, read_integer
from dnncore.problem.shapes import dims_text, read_dims
from dnncore.problem.tensors import ONE_TAG, write_tensors

__all__ = ["SHUFFLE"]

DIRECTIONS = pair(ShuffleForward, ShuffleBackward)
DEFAULTS = {"dir": "FWD_D", "dt": "f32", **ONE_TAG, "axis": "1", "group": "1"}


def read(settings: Settings) -> Operation:
    """Make the operation. Both tensors have the dims of the shape."""
    (dims,) = read_dims(settings, 1)
    return read_operation(
        settings,
        DIRECTIONS,
        {"src": dims, "dst": dims},
        axis=read_integer(settings, "axis"),
        group_size=read_integer(settings, "group"),
    )


def write(op: Shuffle) -> Settings:
    """The inverse of `read`."""
    return {
        "dir": direction_text(op, DIRECTIONS),
        **write_tensors(op, DEFAULTS),
        "axis": str(int(op.axis)),
        "group": str(int(op.group_size)),
        "shape": dims_text(op.result.dims),
    }


def _formula(_torch: Any, op: Shuffle, tensors: Mapping[str, Any]) -> Any:
    src = tensors["src"]
    matrix = src.unflatten(op.axis, (src.shape[op.axis] // op.group_size, op.group_size))
    return matrix.transpose(op.axis, op.axis + 1).flatten(op.axis, op.axis + 1)


def _draw_shape(draws: Draws) -> str:
    dims = draws.dims()
    axis = draws.integer(0, len(dims) - 1)
    group = int(draws.one_of(("2", "1", "3", "4", "16", "5")))
    dims[axis] = group * int(draws.one_of(("3", "1", "2", "8", "5")))
    return f"--axis={axis} --group={group} {shape_text(dims)}"


GOLDEN = (
    Golden(
        "--shuffle --axis=0 --group=2 6",
        {"src": [1, 2, 3, 4, 5, 6]},
        {"dst": [1, 3, 5, 2, 4, 6]},
    ),
    Golden(
        "--shuffle --dir=BWD_D --axis=0 --group=2 6",
        {"diff_dst": [1, 3, 5, 2, 4, 6]},
        {"diff_src": [1, 2, 3, 4, 5, 6]},
    ),
)  # fmt: skip

SHUFFLE = Driver(
    name="shuffle",
    operations=(ShuffleForward, ShuffleBackward),
    defaults=DEFAULTS,
    read=read,
    write=write,
    verbose=VerboseLine(
        auxiliary="axis:{axis} group:{group_size}",
        onednn={ShuffleForward: "data:src+dst", ShuffleBackward: "data:diff_dst+diff_src"},
    ),
    golden=GOLDEN,
    oracles={ShuffleForward: forward(_formula), ShuffleBackward: gradient(_formula, "src")},
    errors={ShuffleForward: exact, ShuffleBackward: exact},
    linear_in=lambda op: "src" if isinstance(op, ShuffleForward) else "diff_dst",
    options={"dir": PAIR_DIRECTIONS, "tag": TAGS},
    draw_shape=_draw_shape,
)
