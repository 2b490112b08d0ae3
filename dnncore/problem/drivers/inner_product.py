"""Inner product: `--ip --dir=FWD_B --dt=f32 --stag=any --wtag=any mb2ic16_ih5iw5_oc7`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dnncore.ops import (
    InnerProductBackwardData,
    InnerProductBackwardWeights,
    InnerProductForward,
    Operation,
)
from dnncore.ops.inner_product import InnerProduct
from dnncore.problem.directions import LAYER_DEFAULTS, layer, layer_text, read_layer
from dnncore.problem.drivers.accumulation import weights_errors
from dnncore.problem.drivers.draws import (
    ANY_TAGS,
    LAYER_DIRECTIONS,
    Draws,
)
from dnncore.problem.drivers.driver import Driver, Golden, VerboseLine
from dnncore.problem.drivers.torch_formulas import forward, gradient
from dnncore.problem.settings import Settings
from dnncore.problem.shapes import read_batch, read_letters
from dnncore.problem.windows import SIZE_LETTERS, read_sizes, sizes_text

__all__ = ["INNER_PRODUCT"]

DIRECTIONS = layer(InnerProductForward, InnerProductBackwardData, InnerProductBackwardWeights)
DEFAULTS = {**LAYER_DEFAULTS, "mb": "0"}


def read(settings: Settings) -> Operation:
    """Make the operation. Without letters of spatial dims, src has two dims."""
    letters = read_letters(settings, f"mb ic oc {SIZE_LETTERS}", needed="ic oc")
    mb, oc = read_batch(settings, letters), letters["oc"]
    image = (letters["ic"], *read_sizes(letters))
    dims = {"src": (mb, *image), "weights": (oc, *image), "bias": (oc,), "dst": (mb, oc)}
    return read_layer(settings, DIRECTIONS, dims)


def write(op: InnerProduct) -> Settings:
    """The inverse of `read`. The shape has the order of verbose lines."""
    mb, ic, *sizes = op.src_role.dims
    shape = f"mb{mb}_ic{ic}{sizes_text(sizes)}_oc{op.dst_role.dims[1]}"
    return {**layer_text(op, DIRECTIONS, DEFAULTS), "shape": shape}


def _formula(torch: Any, _op: InnerProduct, tensors: Mapping[str, Any]) -> Any:
    product = torch.nn.functional.linear(tensors["src"].flatten(1), tensors["weights"].flatten(1))
    return product + tensors["bias"] if "bias" in tensors else product


def _draw_shape(draws: Draws) -> str:
    channels = draws.channels() * (draws.one_of("11110") == "1")  # sums may have no terms
    return f"mb{draws.batch()}ic{channels}{draws.image()}oc{draws.channels()}"


GOLDEN = (
    Golden(
        "--ip --dir=FWD_B mb1ic3oc2",
        {"src": [[1, 2, 3]], "weights": [[1, 0, -1], [2, 2, 2]], "bias": [5, -12]},
        {"dst": [[3, 0]]},
    ),
    Golden(
        "--ip --dir=BWD_D mb1ic3oc2",
        {"diff_dst": [[3, 1]], "weights": [[1, 0, -1], [2, 2, 2]]},
        {"diff_src": [[5, 2, -1]]},
    ),
    Golden(
        "--ip --dir=BWD_WB mb2ic3oc1",
        {"diff_dst": [[1], [-2]], "src": [[1, 2, 3], [4, 5, 6]]},
        {"diff_weights": [[-7, -8, -9]], "diff_bias": [-1]},
    ),
    # Rounded once from f32, half to even: 2051 is between 2050 and 2052, 259 between 258 and 260.
    Golden(
        "--ip --dir=FWD_B --dt=f16 mb1ic3oc1",
        {"src": [[2048, 1, 1]], "weights": [[1, 1, 1]], "bias": [1]},
        {"dst": [[2052]]},
    ),
    Golden(
        "--ip --dir=BWD_D --dt=f16 mb1ic1oc4",
        {"diff_dst": [[2048, 1, 1, 1]], "weights": [[1], [1], [1], [1]]},
        {"diff_src": [[2052]]},
    ),
    Golden(
        "--ip --dir=BWD_W --dt=bf16:f32:bf16 mb4ic1oc1",
        {"diff_dst": [[256], [1], [1], [1]], "src": [[1], [1], [1], [1]]},
        {"diff_weights": [[259]]},
    ),
)  # fmt: skip

INNER_PRODUCT = Driver(
    name="ip",
    operations=(InnerProductForward, InnerProductBackwardData, InnerProductBackwardWeights),
    defaults=DEFAULTS,
    read=read,
    write=write,
    verbose=VerboseLine(tensors={
            InnerProductForward: "src wei:weights bia:bias dst",
            InnerProductBackwardData: "src:diff_src wei:weights bia: dst:diff_dst",
            InnerProductBackwardWeights: "src wei:diff_weights bia:diff_bias dst:diff_dst",
        }, spelling=("_", "")),
    printed_shape="mb ic i* oc",
    golden=GOLDEN,
    oracles={
        InnerProductForward: forward(_formula),
        InnerProductBackwardData: gradient(_formula, "src"),
        InnerProductBackwardWeights: gradient(_formula, "weights", "bias"),
    },
    errors={InnerProductBackwardWeights: weights_errors},
    has_products=True,
    special_inputs=("src", "diff_dst"),
    linear_in=lambda op: "src" if isinstance(op, InnerProductForward) else "diff_dst",
    options={
        "dir": LAYER_DIRECTIONS,
        "stag": ANY_TAGS, "dtag": ("any", "abx", "xba"), "wtag": ("any", "abx", "axb", "bax"),
    },
    draw_shape=_draw_shape,
)  # fmt: skip
