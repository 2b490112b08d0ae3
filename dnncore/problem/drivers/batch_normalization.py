"""Batch normalization: `--bnorm --dir=FWD_D --dt=f32 --tag=axb --flags=GCHR mb2ic16_ih5eps0.1`."""

from __future__ import annotations

from dnncore.ops import BatchNormalizationBackward, BatchNormalizationForward, Operation
from dnncore.ops.batch_normalization import BatchNormalization
from dnncore.problem.drivers.draws import TAGS, Draws
from dnncore.problem.drivers.driver import Driver, Golden, VerboseLine
from dnncore.problem.drivers.normalization import (
    DEFAULTS,
    EPSILON,
    EPSILONS,
    FLAGS,
    NORM_DIRECTIONS,
    directions,
    read_normalization,
    settings_of,
    smooth,
    words,
)
from dnncore.problem.drivers.normalization_errors import (
    backward_errors,
    backward_oracle,
    forward_errors,
    forward_oracle,
)
from dnncore.problem.settings import Settings, number_text
from dnncore.problem.shapes import read_batch, read_letters
from dnncore.problem.windows import SIZE_LETTERS, read_sizes, sizes_text

__all__ = ["BATCH_NORMALIZATION"]

DIRECTIONS = directions(BatchNormalizationForward, BatchNormalizationBackward)
FLAG_LETTERS = "GCHRA"


def read(settings: Settings) -> Operation:
    """Make the operation. Without letters of spatial dims, tensors have two dims."""
    letters = read_letters(settings, f"mb ic {SIZE_LETTERS}", "eps", needed="ic")
    channels = letters["ic"]
    dims = (read_batch(settings, letters), channels, *read_sizes(letters))
    epsilon = letters.get("eps", EPSILON)
    return read_normalization(
        settings, DIRECTIONS, FLAG_LETTERS, dims, (channels,), channels, epsilon=epsilon
    )


def write(op: BatchNormalization) -> Settings:
    """The inverse of `read`."""
    mb, ic, *sizes = op.src.dims
    return {
        **settings_of(op, DIRECTIONS, DEFAULTS),
        "shape": f"mb{mb}_ic{ic}{sizes_text(sizes)}_eps{number_text(op.epsilon)}",
    }


def _draw_shape(draws: Draws) -> str:
    return f"mb{draws.batch()}ic{draws.channels()}{draws.image()}eps{draws.one_of(EPSILONS)}"


GOLDEN = (
    Golden(  # mean 2, variance 1; 4 * (src - 2) / sqrt(1 + 3) + 1
        "--bnorm --flags=CH mb2ic1_iw1eps3",
        {"src": [[[1]], [[3]]], "scale": [4], "shift": [1]},
        {"dst": [[[-1]], [[3]]], "mean": [2], "variance": [1]},
    ),
    Golden(
        "--bnorm --flags=R mb1ic1_iw2eps3",
        {"src": [[[1, 3]]]},
        {"dst": [[[0, 0.5]]], "workspace": [[[0, 1]]]},
    ),
    Golden(  # x is -1 / 2 and 1 / 2, g is 4 and 12; averages of g and g * x: 8 and 2
        "--bnorm --dir=BWD_DW --flags=CH mb1ic1_iw2eps3",
        {
            "src": [[[1, 3]]], "diff_dst": [[[1, 3]]], "mean": [2], "variance": [1], "scale": [4],
        },
        {"diff_src": [[[-1.5, 1.5]]], "diff_scale": [1], "diff_shift": [4]},
    ),
)  # fmt: skip

BATCH_NORMALIZATION = Driver(
    name="bnorm",
    operations=(BatchNormalizationForward, BatchNormalizationBackward),
    defaults=DEFAULTS,
    read=read,
    write=write,
    verbose=VerboseLine(
        words=words,
        letters="eps",
        spelling=("_", ""),
        onednn={
            BatchNormalizationForward: "data:src+dst+src1 diff:none",
            BatchNormalizationBackward: "data:src diff:diff_src+diff_dst+diff_src1",
        },
    ),
    printed_shape="mb ic i* eps",
    golden=GOLDEN,
    oracles={
        BatchNormalizationForward: forward_oracle,
        BatchNormalizationBackward: backward_oracle,
    },
    errors={
        BatchNormalizationForward: forward_errors,
        BatchNormalizationBackward: backward_errors,
    },
    keeps_integers=lambda _op: False,
    smooth=smooth,
    options={"dir": NORM_DIRECTIONS, "tag": TAGS, "flags": (*FLAGS, "R", "CHR", "GCHA", "A")},
    draw_shape=_draw_shape,
)
