"""Layer normalization: `--lnorm --dir=FWD_D --dt=f32:bf16 --tag=abx --flags=CH --eps=0.1 4x64`."""

from __future__ import annotations

from collections.abc import Iterator

from dnncore.ops import LayerNormalizationBackward, LayerNormalizationForward, Operation
from dnncore.ops.layer_normalization import LayerNormalization
from dnncore.problem.drivers.draws import TAGS, Draws, shape_text
from dnncore.problem.drivers.driver import Driver, Golden, VerboseLine
from dnncore.problem.drivers.normalization import (
    DEFAULTS,
    EPSILON,
    EPSILONS,
    FLAGS,
    NORM_DIRECTIONS,
    directions,
    flags_of,
    read_normalization,
    settings_of,
    smooth,
)
from dnncore.problem.drivers.normalization_errors import (
    backward_errors,
    backward_oracle,
    forward_errors,
    forward_oracle,
)
from dnncore.problem.settings import Misread, Settings, number_text, read_number
from dnncore.problem.shapes import dims_text, read_batched_dims
from dnncore.problem.tensors import write_tensors

__all__ = ["LAYER_NORMALIZATION"]

DIRECTIONS = directions(LayerNormalizationForward, LayerNormalizationBackward)
OWN_DEFAULTS = {**DEFAULTS, "ss_dt": "f32", "eps": number_text(EPSILON)}
FLAG_LETTERS = "GCHM"


def read(settings: Settings) -> Operation:
    """Make the operation. The last dim of the shape is normalized."""
    dims = read_batched_dims(settings)
    if len(dims) < 2:
        given = dims_text(dims)
        raise Misread("shape", f"expected 2 to 5 dims, such as 4x64; got {given!r}")
    return read_normalization(
        settings,
        DIRECTIONS,
        FLAG_LETTERS,
        dims,
        dims[:-1],
        dims[-1],
        epsilon=read_number(settings, "eps"),
    )


def write(op: LayerNormalization) -> Settings:
    """The inverse of `read`."""
    return {
        **settings_of(op, DIRECTIONS, OWN_DEFAULTS),
        "eps": number_text(op.epsilon),
        "shape": dims_text(op.src.dims),
    }


def _words(op: LayerNormalization) -> Iterator[str]:
    yield f"flags:{flags_of(op)}"
    if op.epsilon != EPSILON:
        yield f"eps:{number_text(op.epsilon)}"
    types = write_tensors(op, OWN_DEFAULTS)
    if types.get("ss_dt", "f32") != "f32":
        yield f"ss_dt:{types['ss_dt']}"


def _draw_shape(draws: Draws) -> str:
    dims = draws.dims(least=2)[:5]
    return f"--eps={draws.one_of(EPSILONS)} {shape_text(dims)}"


GOLDEN = (
    Golden(  # mean 2, variance 1; scale * (src - 2) / sqrt(1 + 3) + shift
        "--lnorm --flags=CH --eps=3 1x2",
        {"src": [[1, 3]], "scale": [4, 2], "shift": [1, 5]},
        {"dst": [[-1, 6]], "mean": [2], "variance": [1]},
    ),
    Golden(  # the average of squares is 5; src / sqrt(5 + 4)
        "--lnorm --flags=M --eps=4 1x2",
        {"src": [[1, 3]]},
        {"dst": [[0.33333333, 1]], "variance": [5]},
    ),
    Golden(  # x is -1 / 2 and 1 / 2, g is 4 and 12; averages of g and g * x: 8 and 2
        "--lnorm --dir=BWD_DW --flags=CH --eps=3 1x2",
        {"src": [[1, 3]], "diff_dst": [[1, 6]], "mean": [2], "variance": [1], "scale": [4, 2]},
        {"diff_src": [[-1.5, 1.5]], "diff_scale": [-0.5, 3], "diff_shift": [1, 6]},
    ),
)

LAYER_NORMALIZATION = Driver(
    name="lnorm",
    operations=(LayerNormalizationForward, LayerNormalizationBackward),
    defaults=OWN_DEFAULTS,
    read=read,
    write=write,
    verbose=VerboseLine(
        words=_words,
        onednn={
            LayerNormalizationForward: "src dst stats:mean+variance scale shift",
            LayerNormalizationBackward: "src dst:diff_dst stats:mean+variance scale shift diff_src"
            " diff_scale diff_shift",
        },
    ),
    golden=GOLDEN,
    oracles={
        LayerNormalizationForward: forward_oracle,
        LayerNormalizationBackward: backward_oracle,
    },
    errors={
        LayerNormalizationForward: forward_errors,
        LayerNormalizationBackward: backward_errors,
    },
    keeps_integers=lambda _op: False,
    smooth=smooth,
    options={"dir": NORM_DIRECTIONS, "tag": TAGS, "flags": (*FLAGS, "M", "CHM", "GM")},
    draw_shape=_draw_shape,
)
