"""PReLU: `--prelu --dir=FWD_D --sdt=f32:f32 --stag=abx:any --dtag=any 2x3x4:1x3x1`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dnncore.algorithms.rounding import ROUNDOFF, VARIANCE, Array, Noise
from dnncore.ops import Operation, PReLUBackward, PReLUForward
from dnncore.ops.prelu import PReLU
from dnncore.problem.directions import Direction, direction_text, read_operation
from dnncore.problem.drivers.accumulation import sum_along
from dnncore.problem.drivers.draws import ANY_TAGS, TAGS, Draws, shape_text
from dnncore.problem.drivers.driver import Driver, Evaluate, Golden, Inputs, VerboseLine
from dnncore.problem.drivers.torch_formulas import forward
from dnncore.problem.settings import Settings, read_list
from dnncore.problem.shapes import dims_text, read_dims
from dnncore.problem.tensors import joined, write_tensors

__all__ = ["PRELU"]

DIRECTIONS = {
    "FWD_D": Direction(PReLUForward, "forward_training"),
    "FWD_I": Direction(PReLUForward, "forward_inference"),
    "BWD_DW": Direction(PReLUBackward),
}
DEFAULTS = {
    "dir": "FWD_D", "sdt": "f32", "stag": "abx:any", "dtag": "any", "inplace": "false",
}  # fmt: skip
_WRITTEN = {"dt": "", "stag": "", "wtag": "", "dtag": ""}


def read(settings: Settings) -> Operation:
    """Make the operation. The shape contains the dims of src and weights.

    sdt has the types of src and weights. All other tensors have the type of one of these. stag has
    the formats of src and weights. Their gradients have the same formats, unless stag has four
    parts: src, weights, diff_src, diff_weights. A single part is valid for all.
    """
    src, weights = read_dims(settings, 2)
    own, slope = read_list(settings, "sdt", 2)
    count = 4 if settings["stag"].count(":") == 3 else 2
    tags = read_list(settings, "stag", count)
    tensors = {
        "dt": f"{own}:{slope}:{own}", "stag": ":".join(tags[::2]), "wtag": ":".join(tags[1::2]),
    }  # fmt: skip
    dims = {"src": src, "weights": weights, "dst": src}
    return read_operation({**settings, **tensors}, DIRECTIONS, dims)


def write(op: PReLU) -> Settings:
    """The inverse of `read`."""
    written = write_tensors(op, _WRITTEN)
    tags = [written["stag"], written["wtag"]]
    if any(":" in tag for tag in tags):
        pairs = [(tag.split(":") * 2)[:2] for tag in tags]
        tags = [pair[i] for i in range(2) for pair in pairs]
    return {
        "dir": direction_text(op, DIRECTIONS),
        "sdt": joined((op.src.data_type, op.weights.data_type)),
        "stag": joined(tags),
        "dtag": written["dtag"],
        "shape": dims_text(op.src.dims, op.weights.dims),
    }


# -- correctness -----------------------------------------------------------------------------------


def _formula(torch: Any, op: PReLUForward, tensors: Mapping[str, Any]) -> Any:
    """Return dst. Numbers of s32 are rounded to f32 when they are read."""
    src, weights = (
        tensors[name].float().double() if desc.data_type == "s32" else tensors[name]
        for name, desc in (("src", op.src), ("weights", op.weights))
    )
    return torch.where(src > 0, src, weights * src)


def _gradient(torch: Any, op: PReLUBackward, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Return the gradients. torch's differentiation would give NaN where src is infinite."""
    src, diff = tensors["src"], tensors["diff_dst"]
    products = torch.where(src > 0, 0.0, src * diff)
    shared = op.shared_dims
    return {
        "diff_src": torch.where(src > 0, diff, tensors["weights"] * diff),
        "diff_weights": products.sum(shared, keepdim=True) if shared else products,
    }


def _rounded(scaled: Array) -> Noise:
    """Return the noise of products that are rounded once; other elements are exact."""
    size = ROUNDOFF * np.abs(scaled)
    return Noise(size, VARIANCE**0.5 * size)


def _errors(_op: PReLUForward, inputs: Inputs, _evaluate: Evaluate) -> dict[str, Noise]:
    src, weights = (inputs[name].astype(np.float64) for name in ("src", "weights"))
    return {"dst": _rounded(np.where(src > 0, 0.0, weights * src))}


def _gradient_errors(op: PReLUBackward, inputs: Inputs, evaluate: Evaluate) -> dict[str, Noise]:
    """Return the noise. A gradient of a weight is a sum of products."""
    names = ("src", "weights", "diff_dst")
    src, weights, diff = (inputs[name].astype(np.float64) for name in names)
    products = np.where(src > 0, 0.0, src * diff)
    terms = op.src.nelems / max(1, op.weights.nelems)
    return {
        "diff_src": _rounded(np.where(src > 0, 0.0, weights * diff)),
        "diff_weights": sum_along(products, op.shared_dims, terms, evaluate, keepdims=True),
    }


def _smooth(_op: PReLU, src: Array) -> Array:
    """Return values that are not within a few steps of the corner at 0."""
    return np.where(np.abs(src) < 2.0**-6, 2.0**-5, src)


def _draw_shape(draws: Draws) -> str:
    dims = draws.dims()
    return shape_text(dims, draws.some_ones(dims))


GOLDEN = (
    Golden(
        "--prelu 2x3:1x3",
        {"src": [[-1, 0, 2], [4, -3, -0.5]], "weights": [[0.5, 7, -2]]},
        {"dst": [[-0.5, 0, 2], [4, -21, 1]]},
    ),
    Golden(  # at 0 the slope is the weight
        "--prelu --dir=BWD_DW 2x3:1x3",
        {
            "src": [[-1, 0, 2], [4, -3, -0.5]],
            "weights": [[0.5, 7, -2]],
            "diff_dst": [[2, 3, 5], [7, 11, 4]],
        },
        {"diff_src": [[1, 21, 5], [7, 77, -8]], "diff_weights": [[-2, -33, -2]]},
    ),
    Golden(  # -0.4 * 7 is -2.8, which becomes -3; u8 has no negative numbers
        "--prelu --sdt=s8:f32 3:1", {"src": [-7, 0, 5], "weights": [0.4]}, {"dst": [-3, 0, 5]}
    ),
)  # fmt: skip

PRELU = Driver(
    name="prelu",
    operations=(PReLUForward, PReLUBackward),
    defaults=DEFAULTS,
    read=read,
    write=write,
    verbose=VerboseLine(
        tensors={
            PReLUForward: "data:src wei:weights dst=src",
            PReLUBackward: "data:src wei:weights diff:diff_dst diff_data=diff_dst:diff_src"
            " diff_wei=weights:diff_weights",
        },
        onednn={
            PReLUForward: "data:src+dst wei:weights diff:none diff_wei:none",
            PReLUBackward: "data:src wei:weights diff:diff_dst+diff_src diff_wei:diff_weights",
        },
    ),
    golden=GOLDEN,
    oracles={
        PReLUForward: forward(_formula),
        PReLUBackward: _gradient,
    },
    errors={PReLUForward: _errors, PReLUBackward: _gradient_errors},
    linear_in=lambda op: "weights" if isinstance(op, PReLUForward) else "",
    smooth=_smooth,
    options={
        "dir": tuple(DIRECTIONS), "dtag": ANY_TAGS,
        "stag": ("abx:any", *TAGS, "abx:axb", "axb:abx", "abx", "aBx8b:abx"),
    },
    draw_shape=_draw_shape,
)  # fmt: skip
