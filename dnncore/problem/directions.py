"""Directions: `--dir=FWD_D` is forward_training, and `--dir=BWD_D` is a gradient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dnncore.ops import Operation
from dnncore.problem.settings import Dims, Settings, read_choice
from dnncore.problem.tensors import read_tensors, role_of, write_tensors

__all__ = ["LAYER_DEFAULTS", "Direction", "Directions", "direction_text", "layer", "layer_text",
           "pair", "read_layer", "read_operation"]  # fmt: skip


@dataclass(frozen=True)
class Direction:
    """A direction: the operation type, its prop kind if forward, and the absent tensors."""

    kind: type[Operation]
    prop_kind: str = ""
    absent: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """The arguments with descriptors in the operation."""
        absent = (*self.absent, "workspace")
        return [row.name for row in self.kind.ARGUMENTS if row.name not in absent]


Directions = Mapping[str, Direction]


def pair(
    forward: type[Operation], backward: type[Operation], *, absent: tuple[str, ...] = ()
) -> Directions:
    """Return the directions of an operation with one gradient, which lacks the tensors `absent`."""
    return {
        "FWD_D": Direction(forward, "forward_training"),
        "FWD_I": Direction(forward, "forward_inference"),
        "BWD_D": Direction(backward, absent=absent),
    }


def layer(forward: type[Operation], data: type[Operation], weights: type[Operation]) -> Directions:
    """Return the directions of an operation with weights. Directions with a bias end in B."""
    bias = ("bias", "diff_bias")
    return {
        "FWD_B": Direction(forward, "forward_training"),
        "FWD_D": Direction(forward, "forward_training", bias),
        "FWD_I": Direction(forward, "forward_inference", bias),
        "FWD_IB": Direction(forward, "forward_inference"),
        "BWD_D": Direction(data),
        "BWD_W": Direction(weights, absent=bias),
        "BWD_WB": Direction(weights),
    }


def read_operation(
    settings: Settings, directions: Directions, dims: Mapping[str, Dims], **fields: Any
) -> Operation:
    """Return the operation with the direction in the setting `dir`.

    dims: role in the forward operation -> dims of the tensors.
    fields: the other fields of the operation.
    """
    settings = {**settings, "dir": settings["dir"].upper()}
    direction: Direction = read_choice(settings, "dir", directions)
    tensors = read_tensors(settings, {name: dims[role_of(name)] for name in direction.names})
    if direction.prop_kind:
        fields["prop_kind"] = direction.prop_kind
    kind: Any = direction.kind
    operation: Operation = kind(**tensors, **fields)
    return operation


def direction_text(op: Operation, directions: Directions) -> str:
    """Return the word for an operation's direction."""
    names = [row.name for row, _ in op.tensors()]
    at = (type(op), getattr(op, "prop_kind", ""), names)
    return next(
        word for word, row in directions.items() if (row.kind, row.prop_kind, row.names) == at
    )


# -- layers ----------------------------------------------------------------------------------------

LAYER_DEFAULTS: Settings = {
    "dir": "FWD_B", "dt": "f32", "bia-dt": "undef",
    "stag": "any", "wtag": "any", "btag": "abx", "dtag": "any",
}  # fmt: skip
BIASED = {"FWD_D": "FWD_B", "FWD_I": "FWD_IB", "BWD_W": "BWD_WB"}


def read_layer(
    settings: Settings, directions: Directions, dims: Mapping[str, Dims], **fields: Any
) -> Operation:
    """Do `read_operation` for a layer. It has a bias if bia-dt is set. Its default is f32."""
    if settings["bia-dt"] == "undef":
        return read_operation({**settings, "bia-dt": "f32"}, directions, dims, **fields)
    word = settings["dir"].upper()
    settings = {**settings, "dir": BIASED.get(word, word)}
    return read_operation(settings, directions, dims, **fields)


def layer_text(op: Operation, directions: Directions, defaults: Settings) -> Settings:
    """Return the settings of a layer's direction and tensors."""
    tensors = write_tensors(op, defaults)
    if tensors.get("bia-dt") == "f32":
        del tensors["bia-dt"]
    return {"dir": direction_text(op, directions), **tensors}
