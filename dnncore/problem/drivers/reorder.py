"""Reorder: `--reorder --sdt=f32 --ddt=s8 --stag=abx --dtag=axb 2x3x4`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dnncore.ops import Operation, Reorder
from dnncore.problem import options
from dnncore.problem.drivers.accumulation import exact
from dnncore.problem.drivers.draws import (
    TAGS,
    shape_text,
)
from dnncore.problem.drivers.driver import Driver, Golden
from dnncore.problem.drivers.torch_formulas import forward
from dnncore.problem.settings import Settings
from dnncore.problem.shapes import dims_text, read_dims
from dnncore.problem.tensors import read_tensors, write_tensors

__all__ = ["REORDER"]

DEFAULTS = {
    "sdt": "f32", "ddt": "f32", "stag": "abx", "dtag": "abx", "strides": "", **options.REORDER,
}  # fmt: skip


def read(settings: Settings) -> Operation:
    """Make the operation. Both tensors have the dims of the shape."""
    (dims,) = read_dims(settings, 1)
    return Reorder(**read_tensors(settings, {"src": dims, "dst": dims}))


def write(op: Reorder) -> Settings:
    """The inverse of `read`."""
    return {**write_tensors(op, DEFAULTS), "shape": dims_text(op.src.dims)}


def _formula(_torch: Any, _op: Reorder, tensors: Mapping[str, Any]) -> Any:
    return tensors["src"]


GOLDEN = (
    Golden(  # half to even, then saturated
        "--reorder --sdt=f32 --ddt=s8 6",
        {"src": [0.5, 1.5, -2.5, 200, -200, 3]},
        {"dst": [0, 2, -2, 127, -128, 3]},
    ),
    Golden(
        "--reorder --stag=ab --dtag=ba 2x3",
        {"src": [[1, 2, 3], [4, 5, 6]]},
        {"dst": [[1, 2, 3], [4, 5, 6]]},
    ),
)  # fmt: skip

REORDER = Driver(
    name="reorder",
    operations=(Reorder,),
    defaults=DEFAULTS,
    read=read,
    write=write,
    always_printed=("sdt", "ddt", "stag", "dtag"),
    golden=GOLDEN,
    oracles={Reorder: forward(_formula)},
    errors={Reorder: exact},
    options={
        "stag": TAGS,
        "dtag": TAGS,
    },
    draw_shape=lambda draws: shape_text(draws.dims()),
)
