"""Group normalization: `--gnorm --dir=FWD_D --dt=f32:bf16 --flags=CH g4mb2ic16_ih5iw5eps0.1`."""

from __future__ import annotations

from dnncore.ops import GroupNormalizationBackward, GroupNormalizationForward, Operation
from dnncore.ops.group_normalization import GroupNormalization
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

__all__ = ["GROUP_NORMALIZATION"]

DIRECTIONS = directions(GroupNormalizationForward, GroupNormalizationBackward)
FLAG_LETTERS = "GCH"


def read(settings: Settings) -> Operation:
    """Make the operation."""
    letters = read_letters(settings, f"g mb ic {SIZE_LETTERS}", "eps", needed="ic")
    batch, channels, groups = read_batch(settings, letters), letters["ic"], letters.get("g", 1)
    return read_normalization(
        settings,
        DIRECTIONS,
        FLAG_LETTERS,
        (batch, channels, *read_sizes(letters)),
        (batch, groups),
        channels,
        groups=groups,
        epsilon=letters.get("eps", EPSILON),
    )


def write(op: GroupNormalization) -> Settings:
    """The inverse of `read`."""
    mb, ic, *sizes = op.src.dims
    eps = number_text(op.epsilon)
    return {
        **settings_of(op, DIRECTIONS, DEFAULTS),
        "shape": f"g{op.groups}mb{mb}_ic{ic}{sizes_text(sizes)}_eps{eps}",
    }


def _draw_shape(draws: Draws) -> str:
    groups = int(draws.one_of(("1", "2", "3", "5")))
    channels = groups * draws.channels()
    image = draws.image() or "iw3"
    return f"g{groups}mb{draws.batch()}ic{channels}{image}eps{draws.one_of(EPSILONS)}"


GOLDEN = (
    Golden(  # groups of two channels: mean 2 and 20, variance 1 and 96
        "--gnorm --flags=CH g2mb1ic4_iw1eps4",
        {"src": [[[1], [3], [20], [20]]], "scale": [5, 5, 1, 1], "shift": [1, 1, 7, 8]},
        {
            "dst": [[[-1.236068], [3.236068], [7], [8]]], "mean": [[2, 20]],
            "variance": [[1, 0]],
        },
    ),
    Golden(  # x is -1 / 2 and 1 / 2, g is 4 and 12; averages of g and g * x: 8 and 2
        "--gnorm --dir=BWD_DW --flags=CH g1mb1ic2_iw1eps3",
        {
            "src": [[[1], [3]]], "diff_dst": [[[1], [6]]], "mean": [[2]], "variance": [[1]],
            "scale": [4, 2],
        },
        {"diff_src": [[[-1.5], [1.5]]], "diff_scale": [-0.5, 3], "diff_shift": [1, 6]},
    ),
)  # fmt: skip

GROUP_NORMALIZATION = Driver(
    name="gnorm",
    operations=(GroupNormalizationForward, GroupNormalizationBackward),
    defaults=DEFAULTS,
    read=read,
    write=write,
    verbose=VerboseLine(
        words=words,
        letters="eps",
        spelling=("_", ""),
        onednn={
            GroupNormalizationForward: "src dst",
            GroupNormalizationBackward: "src dst:diff_dst diff_src",
        },
    ),
    printed_shape="g mb ic i* eps",
    golden=GOLDEN,
    oracles={
        GroupNormalizationForward: forward_oracle,
        GroupNormalizationBackward: backward_oracle,
    },
    errors={
        GroupNormalizationForward: forward_errors,
        GroupNormalizationBackward: backward_errors,
    },
    keeps_integers=lambda _op: False,
    smooth=smooth,
    options={"dir": NORM_DIRECTIONS, "tag": TAGS, "flags": FLAGS},
    draw_shape=_draw_shape,
)
