"""LRN: `--lrn --dir=FWD_D --dt=f32 --tag=axb --alg=WITHIN mb2ic16_ih5iw5_ls5alpha0.1beta0.75k1`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from dnncore.algorithms.rounding import Array, Noise, positive_sum, power_error
from dnncore.ops import LRNBackward, LRNForward, Operation, lrn
from dnncore.problem.directions import direction_text, pair, read_operation
from dnncore.problem.drivers.accumulation import PLAIN
from dnncore.problem.drivers.draws import (
    PAIR_DIRECTIONS,
    TAGS,
    Draws,
)
from dnncore.problem.drivers.driver import Driver, Evaluate, Golden, Inputs, VerboseLine
from dnncore.problem.drivers.torch_formulas import gradient
from dnncore.problem.settings import (
    Settings,
    Unsupported,
    algorithm_text,
    number_text,
    read_algorithm,
)
from dnncore.problem.shapes import read_batch, read_letters
from dnncore.problem.tensors import ONE_TAG, write_tensors
from dnncore.problem.windows import SIZE_LETTERS, read_sizes, sizes_text

__all__ = ["LRN"]

ALGORITHMS = {"ACROSS": "across_channels", "WITHIN": "within_channel"}
DIRECTIONS = pair(LRNForward, LRNBackward)
DEFAULTS = {"dir": "FWD_D", "dt": "f32", **ONE_TAG, "alg": "ACROSS", "mb": "0"}

# benchdnn's defaults
NUMBERS = {"alpha": 1 / 8192, "beta": 0.75, "k": 1.0}


def read(settings: Settings) -> Operation:
    """Make the operation. Without letters of spatial dims, tensors have two dims."""
    letters = read_letters(settings, f"mb ic {SIZE_LETTERS} ls", " ".join(NUMBERS), needed="ic")
    dims = (read_batch(settings, letters), letters["ic"], *read_sizes(letters))
    algorithm = read_algorithm(settings, ALGORITHMS, "lrn_")
    if algorithm == "within_channel" and len(dims) == 2:
        raise Unsupported(["lrn within channels of one pixel"])
    return read_operation(
        settings,
        DIRECTIONS,
        {"src": dims, "dst": dims},
        algorithm=algorithm,
        local_size=letters.get("ls", 5),
        **{name: letters.get(name, default) for name, default in NUMBERS.items()},
    )


def write(op: lrn.LRN) -> Settings:
    """The inverse of `read`. The shape has all numbers."""
    mb, ic, *sizes = op.src.dims
    numbers = "".join(name + number_text(getattr(op, name)) for name in NUMBERS)
    return {
        "dir": direction_text(op, DIRECTIONS),
        **write_tensors(op, DEFAULTS),
        "alg": algorithm_text(op.algorithm, ALGORITHMS),
        "shape": f"mb{mb}_ic{ic}{sizes_text(sizes)}_ls{int(op.local_size)}{numbers}",
    }


# -- correctness -----------------------------------------------------------------------------------


def _formula(torch: Any, op: lrn.LRN, tensors: Mapping[str, Any]) -> Any:
    src = tensors["src"]
    if op.algorithm == "across_channels" and op.local_size % 2 and src.ndim > 2:
        norm = torch.nn.functional.local_response_norm
        return norm(src, op.local_size, op.alpha, op.beta, op.k)
    return src * _base(torch, op, src) ** -op.beta


def _base(torch: Any, op: lrn.LRN, src: Any) -> Any:
    """Return k + alpha / n * sum of squares, also for even and square windows, which torch lacks.

    The geometry is computed here, not taken from the operation, so that it checks the reference
    independently.
    """
    dims = [1] if op.algorithm == "across_channels" else list(range(2, src.ndim))
    total, half = src * src, (op.local_size - 1) // 2
    for dim in dims:
        moved = torch.nn.functional.pad(total.movedim(dim, -1), (half, half))
        total = moved.unfold(-1, 2 * half + 1, 1).sum(-1).movedim(-1, dim)
    return op.k + op.alpha / op.local_size ** len(dims) * total


def _forward_oracle(torch: Any, op: LRNForward, tensors: Mapping[str, Any]) -> dict[str, Any]:
    return {"dst": _formula(torch, op, tensors), "workspace": _base(torch, op, tensors["src"])}


def _errors(op: LRNForward, inputs: Inputs, evaluate: Evaluate) -> dict[str, Noise]:
    """Return the noise. The base is a sum; the power multiplies its relative error by beta."""
    training = replace(op, prop_kind="forward_training")
    values = evaluate(training, PLAIN, inputs)
    positive = replace(training, alpha=abs(op.alpha), k=abs(op.k))
    sums = evaluate(positive, PLAIN, inputs)["workspace"].astype(np.float64)
    terms = 3.0 + op.flops / (2.0 * max(1, op.dst.nelems))
    base_error = positive_sum(terms, sums)
    base, dst = (values[name].astype(np.float64) for name in ("workspace", "dst"))
    relative = base_error * np.abs(op.beta / base) + Noise.within(power_error(base, op.beta))
    errors = {"dst": relative * np.abs(dst), "workspace": base_error}
    return errors if op.prop_kind == "forward_training" else {"dst": errors["dst"]}


def _gradient_errors(op: LRNBackward, inputs: Inputs, evaluate: Evaluate) -> dict[str, Noise]:
    base = np.abs(inputs["workspace"].astype(np.float64))
    terms = 4.0 + op.flops / (2.0 * max(1, op.src.nelems))
    power = float(power_error(base, op.beta + 1).max(initial=0.0))
    own, shared = _terms(op, inputs, evaluate)
    size = own + shared
    return {"diff_src": Noise.within(power * size) + positive_sum(terms, size)}


def _workspace_errors(
    op: LRNBackward, inputs: Inputs, error: Array, evaluate: Evaluate
) -> dict[str, Array]:
    """Return the error that an error of the workspace adds to the gradient.

    Each term multiplies the relative error of a base by the exponent of the base.
    """
    relative = error / np.abs(inputs["workspace"].astype(np.float64))
    scaled = {**inputs, "diff_dst": relative * inputs["diff_dst"]}
    own, shared = _terms(op, scaled, evaluate)
    return {"diff_src": abs(op.beta) * own + abs(op.beta + 1) * shared}


def _terms(op: LRNBackward, inputs: Inputs, evaluate: Evaluate) -> tuple[Array, Array]:
    """Return both terms of the gradient, computed from absolute values.

    The reference returns their sum if alpha * beta is negative. With another sign of beta, or with
    differences, numbers could exceed f32's range or cancel although the gradient does not.
    """
    sizes = {name: np.abs(array) for name, array in inputs.items()}
    own = sizes["diff_dst"] * sizes["workspace"].astype(np.float64) ** -op.beta
    negative = replace(op, alpha=-math.copysign(op.alpha, op.beta))
    total = evaluate(negative, PLAIN, sizes)["diff_src"].astype(np.float64)
    return own, np.maximum(total - own, 0.0)


SIZES = ("5", "1", "2", "3", "4", "7", "8", "11", "17", "33", "35", "64", "65")  # of windows


def _draw_shape(draws: Draws) -> str:
    size = f"mb{draws.batch()}ic{draws.channels()}{draws.image()}ls{draws.one_of(SIZES)}"
    alpha = draws.one_of(("0.5", "1", "0.001", "0", "1.2345675"))
    beta = draws.one_of(("0.75", "1", "0.5", "0.25", "0.3", "1.5", "2", "0.7345675"))
    return f"{size}alpha{alpha}beta{beta}k{draws.one_of(('1', '2', '1.2345675'))}"


GOLDEN = (
    Golden(  # base 1 + 3 / 3 * (squares of two neighbours and its own), to the power of -1
        "--lrn --alg=across ls3alpha3beta1k1mb1ic3ih1",
        {"src": [[[[1]], [[2]], [[0]]]]},
        {"dst": [[[[0.16666667]], [[0.33333333]], [[0]]]], "workspace": [[[[6]], [[6]], [[5]]]]},
    ),
    Golden(  # diff_dst / base - 2 * alpha * beta / n * src * sum(diff_dst * src / base**2)
        "--lrn --dir=BWD_D --alg=across ls1alpha1beta1k1mb1ic1ih1",
        {"src": [[[[2]]]], "diff_dst": [[[[25]]]], "workspace": [[[[5]]]]},
        {"diff_src": [[[[-3]]]]},
    ),
    Golden(  # the tensor kept for the gradient stays f32
        "--lrn --alg=across --dt=f16 ls1alpha1beta1k1mb1ic1ih1",
        {"src": [[[[64.0625]]]]},
        {"dst": [[[[0.015605927]]]], "workspace": [[[[4105.00390625]]]]},
    ),
)  # fmt: skip

LRN = Driver(
    name="lrn",
    operations=(LRNForward, LRNBackward),
    defaults=DEFAULTS,
    read=read,
    write=write,
    verbose=VerboseLine(
        tensors={
            LRNForward: "data:src diff: dst=src",
            LRNBackward: "data:src diff:diff_dst diff_src=diff_dst",
        },
        auxiliary="alg:lrn_{algorithm}",
        spelling=("_", ""),
        letters="alpha|k",
    ),
    printed_shape="mb ic i* ls alpha beta k",
    golden=GOLDEN,
    oracles={LRNForward: _forward_oracle, LRNBackward: gradient(_formula, "src")},
    errors={LRNForward: _errors, LRNBackward: _gradient_errors},
    workspace_errors=_workspace_errors,
    keeps_integers=lambda _op: False,
    smooth=lambda _op, src: src,
    options={"dir": PAIR_DIRECTIONS, "tag": TAGS, "alg": ("ACROSS", "WITHIN")},
    draw_shape=_draw_shape,
)
