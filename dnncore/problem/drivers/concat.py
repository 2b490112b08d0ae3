"""Concat: `--concat --sdt=f32 --ddt=f32 --stag=abx:axb --dtag=any --axis=1 2x3x4:2x5x4`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dnncore.ops import Concat, Operation
from dnncore.problem.drivers.accumulation import exact
from dnncore.problem.drivers.draws import ANY_TAGS, TAGS, Draws, shape_text
from dnncore.problem.drivers.driver import Driver, Golden, VerboseLine
from dnncore.problem.drivers.torch_formulas import forward
from dnncore.problem.settings import Misread, Settings, misread, read_integer
from dnncore.problem.shapes import dims_text, read_dims
from dnncore.problem.tensors import read_tensors, write_tensors

__all__ = ["CONCAT"]

DEFAULTS = {
    "sdt": "f32", "ddt": "f32", "stag": "abx", "dtag": "any", "strides": "", "axis": "1",
}  # fmt: skip


def read(settings: Settings) -> Operation:
    """Make the operation. The shape has the dims of each source; dst has the sum along the axis.

    The format `undef` of dst is the same as `any`.
    """
    settings = {**settings, "dtag": settings["dtag"].replace("undef", "any")}
    count = settings["shape"].count(":") + 1
    srcs = read_dims(settings, count)
    axis = read_integer(settings, "axis")
    if any(len(dims) != len(srcs[0]) for dims in srcs):
        misread(settings, "shape", "sources of one rank")
    if not 0 <= axis < len(srcs[0]):
        raise Misread("axis", f"expected an axis from 0 to {len(srcs[0]) - 1}; got {axis}")
    total = sum(dims[axis] for dims in srcs)
    dims = {f"src{i}": each for i, each in enumerate(srcs)}
    dims["dst"] = (*srcs[0][:axis], total, *srcs[0][axis + 1 :])
    tensors = read_tensors(settings, dims)
    dst = tensors.pop("dst")
    return Concat(srcs=tuple(tensors.values()), dst=dst, axis=axis)


def write(op: Concat) -> Settings:
    """The inverse of `read`."""
    return {
        **write_tensors(op, DEFAULTS),
        "axis": str(int(op.axis)),
        "shape": dims_text(*(desc.dims for desc in op.srcs)),
    }


def _formula(torch: Any, op: Concat, tensors: Mapping[str, Any]) -> Any:
    return torch.cat([tensors[name] for name in op.source_names], op.axis)


def _draw_shape(draws: Draws) -> str:
    count = int(draws.one_of(("2", "1", "3", "5", "18")))
    dims = draws.dims(least=1)
    axis = draws.integer(0, len(dims) - 1)
    srcs = []
    for _ in range(count):
        size = int(draws.one_of(("3", "1", "16", "8", "5", "0", "17")))
        srcs.append([*dims[:axis], size, *dims[axis + 1 :]])
    return f"--axis={axis} {shape_text(*srcs)}"


GOLDEN = (
    Golden(
        "--concat --axis=1 2x1:2x2",
        {"src0": [[1], [2]], "src1": [[3, 4], [5, 6]]},
        {"dst": [[1, 3, 4], [2, 5, 6]]},
    ),
    Golden(
        "--concat --axis=0 1:0:2",
        {"src0": [7], "src1": [], "src2": [8, 9]},
        {"dst": [7, 8, 9]},
    ),
)  # fmt: skip

CONCAT = Driver(
    name="concat",
    operations=(Concat,),
    defaults=DEFAULTS,
    read=read,
    write=write,
    verbose=VerboseLine(auxiliary="axis:{axis}"),
    golden=GOLDEN,
    oracles={Concat: forward(_formula)},
    errors={Concat: exact},
    linear_in=lambda _op: "src0",
    options={"stag": TAGS, "dtag": ANY_TAGS},
    draw_shape=_draw_shape,
)
