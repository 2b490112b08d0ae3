"""Reduction: `--reduction --sdt=f32 --ddt=f32 --stag=abx --dtag=any --alg=sum 2x3x4:2x1x4`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dnncore.algorithms import reduction
from dnncore.algorithms.rounding import ROUNDOFF, Array
from dnncore.ops import Operation, Reduction
from dnncore.problem.drivers.accumulation import PLAIN
from dnncore.problem.drivers.draws import (
    ANY_TAGS,
    TAGS,
    TYPES,
    Draws,
    shape_text,
)
from dnncore.problem.drivers.driver import Driver, Evaluate, Golden, Inputs, VerboseLine
from dnncore.problem.drivers.torch_formulas import forward
from dnncore.problem.settings import (
    Settings,
    algorithm_text,
    number_text,
    read_algorithm,
    read_number,
)
from dnncore.problem.shapes import dims_text, read_dims
from dnncore.problem.tensors import read_tensors, write_tensors

__all__ = ["REDUCTION"]

ALGORITHMS = {name: name for name in reduction.REDUCTION}
DEFAULTS = {
    "sdt": "f32", "ddt": "f32", "stag": "abx", "dtag": "any", "strides": "",
    "alg": "sum", "p": "1", "eps": "0",
}  # fmt: skip


def read(settings: Settings) -> Operation:
    """Make the operation. The shape contains the dims of src and dst."""
    src, dst = read_dims(settings, 2)
    return Reduction(
        read_algorithm(settings, ALGORITHMS, "reduction_"),
        **read_tensors(settings, {"src": src, "dst": dst}),
        p=read_number(settings, "p"),
        eps=read_number(settings, "eps"),
    )


def write(op: Reduction) -> Settings:
    """The inverse of `read`."""
    return {
        **write_tensors(op, DEFAULTS),
        "alg": algorithm_text(op.algorithm, ALGORITHMS),
        "p": number_text(op.p),
        "eps": number_text(op.eps),
        "shape": dims_text(op.src.dims, op.dst.dims),
    }


def _formula(torch: Any, op: Reduction, tensors: Mapping[str, Any]) -> Any:
    if not op.dst.nelems:  # torch refuses the maximum along an empty dim, even of no results
        return torch.zeros(op.dst.dims, dtype=torch.float64)
    oracle = reduction.REDUCTION[op.algorithm].oracle
    return oracle(torch, tensors["src"], op.reduced_dims, op.p, op.eps)


def _errors(op: Reduction, inputs: Inputs, evaluate: Evaluate) -> dict[str, Array]:
    roundings = reduction.REDUCTION[op.algorithm].roundings(op.flops / max(1, op.dst.nelems))
    if not roundings:
        return {}
    sizes = evaluate(op, PLAIN, {"src": np.abs(inputs["src"])})["dst"].astype(np.float64)
    return {"dst": roundings * ROUNDOFF * sizes}


def _draw_shape(draws: Draws) -> str:
    dims = draws.dims()
    return shape_text(dims, draws.some_ones(dims))


GOLDEN = (
    Golden("--reduction --alg=sum 2x3:2x1", {"src": [[1, 2, 3], [4, 5, 6]]}, {"dst": [[6], [15]]}),
    Golden("--reduction --alg=max 2x3:1x3", {"src": [[1, 9, 3], [4, 5, 6]]}, {"dst": [[4, 9, 6]]}),
    Golden("--reduction --alg=sum --sdt=f16 --ddt=f16 1x4:1x1", {"src": [[2048, 1, 1, 1]]},
           {"dst": [[2052]]}),
)  # fmt: skip

REDUCTION = Driver(
    name="reduction",
    operations=(Reduction,),
    defaults=DEFAULTS,
    read=read,
    write=write,
    verbose=VerboseLine(auxiliary="alg:reduction_{algorithm} p:{p} eps:{eps}"),
    golden=GOLDEN,
    oracles={Reduction: forward(_formula)},
    errors={Reduction: _errors},
    keeps_integers=lambda op: reduction.REDUCTION[op.algorithm].keeps_integers,
    linear_in=lambda op: "src" if reduction.REDUCTION[op.algorithm].is_linear else "",
    options={
        "sdt": TYPES, "ddt": TYPES, "alg": ("sum", *reduction.REDUCTION),
        "p": ("1", "2", "1.5", "3"), "eps": ("0", "0.5"), "stag": TAGS, "dtag": ANY_TAGS,
    },
    draw_shape=_draw_shape,
)  # fmt: skip
