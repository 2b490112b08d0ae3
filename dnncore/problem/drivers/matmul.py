"""Matrix multiplication: `--matmul --dt=f32 --bia-dt=f32 --bia_mask=2 12x128x64:12x64x128`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dnncore.ops import MatMul, Operation
from dnncore.problem import options
from dnncore.problem.drivers.draws import (
    Draws,
    shape_text,
)
from dnncore.problem.drivers.driver import Driver, Golden, VerboseLine
from dnncore.problem.drivers.torch_formulas import forward
from dnncore.problem.settings import (
    Misread,
    Settings,
    Unsupported,
    read_integer,
)
from dnncore.problem.shapes import broadcast, dims_text, mask_of, masked, read_dims
from dnncore.problem.tensors import read_tensors, write_tensors

__all__ = ["MATMUL"]

DEFAULTS = {
    "dt": "f32", "bia-dt": "undef", "bia_mask": "2",
    "stag": "any", "wtag": "any", "btag": "abx", "dtag": "any", "strides": "", **options.MATMUL,
}  # fmt: skip


def read(settings: Settings) -> Operation:
    """Make the operation. It has a bias if bia-dt is set."""
    src, weights, *given = read_dims(settings, 2, 3)
    if settings["grouped"]:  # dims have another meaning with this option
        raise Unsupported(["grouped encoding"])
    if min(len(src), len(weights)) < 2:
        raise Misread("shape", f"expected MxK:KxN, with batch dims before; got {settings['shape']}")
    batch = broadcast(src[:-2], weights[:-2])
    dst = given[0] if given else (*batch, src[-2], weights[-1])
    dims = {"src": src, "weights": weights, "dst": dst}
    if settings["bia-dt"] != "undef":
        mask = read_integer(settings, "bia_mask")
        dims["bias"] = masked(settings, "bia_mask", mask, dst)
    return MatMul(**read_tensors(settings, dims))


def write(op: MatMul) -> Settings:
    """The inverse of `read`. The shape does not contain dst."""
    bias = {} if op.bias is None else {"bia_mask": str(mask_of(op.bias.dims))}
    shape = dims_text(op.src.dims, op.weights.dims)
    return {**write_tensors(op, DEFAULTS), **bias, "shape": shape}


def _formula(torch: Any, _op: MatMul, tensors: Mapping[str, Any]) -> Any:
    return torch.matmul(tensors["src"], tensors["weights"]) + tensors.get("bias", 0.0)


def _draw_shape(draws: Draws) -> str:
    m, k, n = (draws.channels() for _ in "mkn")
    k *= draws.one_of("11110") == "1"  # a product may have no terms
    batch = [draws.integer(1, 3) for _ in range(draws.integer(0, 5))]
    return shape_text([*draws.some_ones(batch), m, k], [*draws.some_ones(batch), k, n])


GOLDEN = (
    Golden(
        "--matmul 2x2:2x2",
        {"src": [[1, 2], [3, 4]], "weights": [[0, 1], [1, 1]]},
        {"dst": [[2, 3], [4, 7]]},
    ),
    # Rounded once from f32, half to even: 2051 is between 2050 and 2052, 259 between 258 and 260.
    Golden("--matmul --dt=f16 1x4:4x1", {"src": [[2048, 1, 1, 1]], "weights": [[1]] * 4},
           {"dst": [[2052]]}),
    Golden("--matmul --dt=bf16 1x4:4x1", {"src": [[256, 1, 1, 1]], "weights": [[1]] * 4},
           {"dst": [[260]]}),
    Golden("--matmul --dt=bf16:bf16:f32 1x4:4x1", {"src": [[256, 1, 1, 1]], "weights": [[1]] * 4},
           {"dst": [[259]]}),
)  # fmt: skip

MATMUL = Driver(
    name="matmul",
    operations=(MatMul,),
    defaults=DEFAULTS,
    read=read,
    write=write,
    verbose=VerboseLine(tensors={MatMul: "src wei:weights bia?:bias dst"}),
    golden=GOLDEN,
    oracles={MatMul: forward(_formula)},
    has_products=True,
    special_inputs=("src", "diff_dst"),
    linear_in=lambda _op: "src",
    options={
        "stag": ("any", "abx", "xba", "aBx8b"), "wtag": ("any", "abx", "xba", "aBx8b"),
        "dtag": ("any", "abx", "xba"), "bia-dt": ("undef", "f32"),
        "bia_mask": ("2", "0", "1", "3", "4", "6", "7"),
    },
    draw_shape=_draw_shape,
)  # fmt: skip
