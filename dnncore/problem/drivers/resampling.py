"""Resampling: `--resampling --dir=FWD_D --sdt=f32 --ddt=f32 --tag=axb --alg=linear ic3ih5oh10`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dnncore.algorithms.rounding import DIVISION, ROUNDOFF, Noise
from dnncore.ops import Operation, ResamplingBackward, ResamplingForward
from dnncore.ops.resampling import Resampling
from dnncore.problem.directions import direction_text, pair, read_operation
from dnncore.problem.drivers.accumulation import absolute, accumulated
from dnncore.problem.drivers.draws import PAIR_DIRECTIONS, TAGS, Draws
from dnncore.problem.drivers.driver import Driver, Evaluate, Golden, Inputs, VerboseLine
from dnncore.problem.drivers.torch_formulas import forward, gradient
from dnncore.problem.settings import Settings, algorithm_text, read_algorithm
from dnncore.problem.shapes import read_batch, read_letters
from dnncore.problem.tensors import ONE_TAG, write_tensors
from dnncore.problem.windows import RESIZED_LETTERS, read_resized, resized_text

__all__ = ["RESAMPLING"]

ALGORITHMS = {"nearest": "nearest", "linear": "linear"}
DIRECTIONS = pair(ResamplingForward, ResamplingBackward)
DEFAULTS = {
    "dir": "FWD_D", "sdt": "f32", "ddt": "f32", **ONE_TAG, "alg": "nearest", "mb": "0",
}  # fmt: skip


def read(settings: Settings) -> Operation:
    """Make the operation. The shape has the sizes of src and of dst."""
    letters = read_letters(settings, f"mb ic {RESIZED_LETTERS}", needed="ic")
    src, dst = read_resized(letters)
    images = (read_batch(settings, letters), letters["ic"])
    return read_operation(
        settings,
        DIRECTIONS,
        {"src": (*images, *src), "dst": (*images, *dst)},
        algorithm=read_algorithm(settings, ALGORITHMS, "resampling_"),
    )


def write(op: Resampling) -> Settings:
    """The inverse of `read`."""
    mb, ic, *sizes = op.src_role.dims
    return {
        "dir": direction_text(op, DIRECTIONS),
        **write_tensors(op, DEFAULTS),
        "alg": algorithm_text(op.algorithm, ALGORITHMS),
        "shape": f"mb{mb}_ic{ic}{resized_text(sizes, op.dst_role.dims[2:])}",
    }


# -- correctness -----------------------------------------------------------------------------------

WEIGHT = DIVISION + 1
"""Roundings of a weight along one dim and of its product with the other weights."""


def _formula(torch: Any, op: Resampling, tensors: Mapping[str, Any]) -> Any:
    """Compute one dim after the other. `interpolate` would multiply elements by weights of 0."""
    src = tensors["src"]
    for axis, size in enumerate(op.dst_role.dims[2:], 2):
        doubled = (2 * torch.arange(size) + 1) * src.shape[axis]
        if op.is_nearest:
            src = src.index_select(axis, doubled // (2 * size))
            continue
        places = (doubled - size) // (2 * size)
        shape = [size if dim == axis else 1 for dim in range(src.ndim)]
        weights = ((doubled - size) % (2 * size)).to(src.dtype).reshape(shape) / (2.0 * size)
        low, high = (
            src.index_select(axis, place.clamp(0, src.shape[axis] - 1))
            for place in (places, places + 1)
        )
        src = (1 - weights) * low + torch.where(weights == 0, 0.0, weights * high)
    return src


def _errors(op: Resampling, inputs: Inputs, evaluate: Evaluate) -> dict[str, Noise]:
    """Return the noise of weighted sums; none for copies."""
    if op.is_nearest and isinstance(op, ResamplingForward):
        return {}
    per_element = op.flops / (2.0 * max(1, op.result.nelems))
    errors = accumulated(op, inputs, evaluate, 1.0 + max(per_element, 1.0))
    weights = WEIGHT * (op.result.ndims - 2) * ROUNDOFF * absolute(op, inputs, evaluate)
    return {op.result_name: errors[op.result_name] + Noise.within(weights)}


def _draw_shape(draws: Draws) -> str:
    axes = "dhw"[3 - int(draws.one_of(("2", "1", "3"))) :]
    sizes = ("3", "1", "4", "7", "2", "10")
    text = "".join(f"_i{a}{draws.one_of(sizes)}o{a}{draws.one_of(sizes)}" for a in axes)
    return f"mb{draws.batch()}ic{draws.channels()}{text}"


GOLDEN = (
    Golden(
        "--resampling --alg=nearest ic1iw2ow4", {"src": [[[1, 2]]] * 2},
        {"dst": [[[1, 1, 2, 2]]] * 2},
    ),
    Golden(  # ties: the upper one
        "--resampling --alg=nearest mb1ic1iw4ow2", {"src": [[[1, 2, 3, 4]]]},
        {"dst": [[[2, 4]]]},
    ),
    Golden(
        "--resampling --alg=linear mb1ic1iw2ow4", {"src": [[[4, 8]]]},
        {"dst": [[[4, 5, 7, 8]]]},
    ),
    Golden(
        "--resampling --dir=BWD_D --alg=nearest mb1ic1iw2ow4", {"diff_dst": [[[1, 2, 3, 4]]]},
        {"diff_src": [[[3, 7]]]},
    ),
    Golden(
        "--resampling --dir=BWD_D --alg=linear mb1ic1iw2ow4", {"diff_dst": [[[4, 4, 4, 8]]]},
        {"diff_src": [[[8, 12]]]},
    ),
)  # fmt: skip

RESAMPLING = Driver(
    name="resampling",
    operations=(ResamplingForward, ResamplingBackward),
    defaults=DEFAULTS,
    read=read,
    write=write,
    verbose=VerboseLine(
        tensors={
            ResamplingForward: "src dst",
            ResamplingBackward: "src:diff_src dst:diff_dst",
        },
        auxiliary="alg:resampling_{algorithm}",
        spelling=("_ic", "ic"),
    ),
    printed_shape="mb ic i* o*",
    golden=GOLDEN,
    oracles={ResamplingForward: forward(_formula), ResamplingBackward: gradient(_formula, "src")},
    errors={ResamplingForward: _errors, ResamplingBackward: _errors},
    keeps_integers=lambda op: bool(op.is_nearest),
    linear_in=lambda op: "src" if isinstance(op, ResamplingForward) else "diff_dst",
    options={"dir": PAIR_DIRECTIONS, "tag": TAGS, "alg": ("nearest", "linear")},
    draw_shape=_draw_shape,
)  # fmt: skip
