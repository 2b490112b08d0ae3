"""Reduction: `--reduction --sdt=f32 --ddt=f32 --stag=abx --dtag=any --alg=sum 2x3x4:2x1x4`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dnncore.algorithms import reduction
from dnncore.algorithms.rounding import LEAST_NORMAL, ROUNDOFF, Array, Noise, positive_sum
from dnncore.ops import Operation, Reduction
from dnncore.problem.drivers.accumulation import PLAIN, absolute, sum_along
from dnncore.problem.drivers.draws import (
    ANY_TAGS,
    TAGS,
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
    if not op.dst.nelems:  # torch refuses a maximum along an empty dim, even without results
        return torch.zeros(op.dst.dims, dtype=torch.float64)
    oracle = reduction.REDUCTION[op.algorithm].oracle
    return oracle(torch, tensors["src"], op.reduced_dims, op.p, op.eps)


def _errors(op: Reduction, inputs: Inputs, evaluate: Evaluate) -> dict[str, Noise]:
    record = reduction.REDUCTION[op.algorithm]
    terms = op.flops / max(1, op.dst.nelems)
    roundings = record.roundings(terms)
    if not (record.is_sum or roundings):
        return {}
    if record.is_linear:
        noise = sum_along(
            inputs["src"].astype(np.float64), op.reduced_dims, terms, evaluate, keepdims=True
        )
        return {"dst": noise * (1.0 / max(1.0, terms) if op.algorithm == "mean" else 1.0)}
    sizes = absolute(op, inputs, evaluate)
    noise = Noise.within((roundings * ROUNDOFF + _error_of_p(op, inputs["src"])) * sizes)
    if record.is_sum:
        lost = _lost_powers(op, terms, sizes) if record.is_norm else 0.0
        has_root = record.is_norm and not op.algorithm.startswith("norm_lp_power")
        powers = sizes**op.p if has_root else sizes
        noise += positive_sum(terms, sizes) + Noise.within(np.asarray(lost))
        return {"dst": noise.unknown_beyond(powers)}
    # A product of some elements may exceed the range of f32 although that of all elements does not.
    factors = {"src": np.maximum(1.0, np.abs(inputs["src"]))}
    reach = evaluate(op, PLAIN, factors)["dst"].astype(np.float64)
    return {"dst": noise + Noise.within(LEAST_NORMAL * reach)}


def _lost_powers(op: Reduction, terms: float, sizes: Array) -> Array:
    """Return the change of a norm if powers of terms below f32's least normal number become 0."""
    lost = terms * LEAST_NORMAL
    if op.algorithm.startswith("norm_lp_power"):
        return np.full_like(sizes, lost)
    return (sizes**op.p + lost) ** (1.0 / op.p) - sizes


def _error_of_p(op: Reduction, src: Array) -> float:
    """Return the largest relative error of a power that is caused by the rounding of p to f32."""
    if not reduction.REDUCTION[op.algorithm].is_norm:
        return 0.0
    sizes = np.abs(src.astype(np.float64))
    logarithms = np.log(sizes[np.isfinite(sizes) & (sizes > 0)])
    return abs(op.p - float(np.float32(op.p))) * float(np.abs(logarithms).max(initial=0.0))


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
        "alg": ("sum", *reduction.REDUCTION),
        "p": ("1", "2", "1.5", "3", "1.2345675"), "eps": ("0", "0.5", "1.2345675"),
        "stag": TAGS, "dtag": ANY_TAGS,
    },
    draw_shape=_draw_shape,
)  # fmt: skip
