"""Sum: `--sum --sdt=f32:f32:f32 --ddt=f32 --stag=abx --dtag=any --scales=1:2:-1 16x32`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from dnncore.algorithms.rounding import Noise
from dnncore.ops import Operation, Sum
from dnncore.problem.drivers.accumulation import accumulated
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
    number_text,
    read_list,
    read_number,
    six_digits,
)
from dnncore.problem.shapes import dims_text, read_dims
from dnncore.problem.tensors import joined, read_tensors, write_tensors

__all__ = ["SUM"]

DEFAULTS = {
    "sdt": "f32:f32", "ddt": "f32", "stag": "abx", "dtag": "any", "strides": "", "scales": "1",
    "inplace": "false",
}  # fmt: skip


def read(settings: Settings) -> Operation:
    """Make the operation. sdt has a type per source, and all sources have the dims of the shape.

    The format `undef` of dst is the same as `any`.
    """
    settings = {**settings, "dtag": settings["dtag"].replace("undef", "any")}
    (dims,) = read_dims(settings, 1)
    names = [f"src{i}" for i in range(len(settings["sdt"].split(":")))]
    scales = read_list(settings, "scales", len(names))
    tensors = read_tensors(settings, dict.fromkeys((*names, "dst"), dims))
    return Sum(
        tuple(read_number(settings, "scales", text) for text in scales),
        srcs=tuple(tensors[name] for name in names),
        dst=tensors["dst"],
    )


def write(op: Sum) -> Settings:
    """The inverse of `read`."""
    return {
        **write_tensors(op, DEFAULTS),
        "sdt": ":".join(desc.data_type for desc in op.srcs),
        "scales": joined(map(number_text, op.scales)),
        "shape": dims_text(op.dst.dims),
    }


def _formula(_torch: Any, op: Sum, tensors: Mapping[str, Any]) -> Any:
    return sum(scale * tensors[f"src{i}"] for i, scale in enumerate(op.scales))


def _errors(op: Sum, inputs: Inputs, evaluate: Evaluate) -> dict[str, Noise]:
    """Return the noise. The order of the few sources is given, not random."""
    op = replace(op, scales=tuple(map(abs, op.scales)))
    return accumulated(op, inputs, replace(evaluate, random_order=False))


def _scales(op: Sum) -> Iterator[str]:
    """Yield the scales as words, since oneDNN does not print them."""
    if set(op.scales) != {1.0}:
        yield "scales:" + ":".join(map(six_digits, op.scales))


def _draw_shape(draws: Draws) -> str:
    count = int(draws.one_of(("1", "2", "3", "4", "9", "18")))
    scales = [draws.one_of(("1", "2", "-3", "0.5", "0", "1.2345675")) for _ in range(count)]
    types = ":".join(["f32"] * count)
    return f"--sdt={types} --scales={':'.join(scales)} {shape_text(draws.dims())}"


GOLDEN = (
    Golden(
        "--sum --sdt=f32:f32 --scales=2:-1 1x3",
        {"src0": [[1, 2, 3]], "src1": [[1, 1, 10]]},
        {"dst": [[1, 3, -4]]},
    ),
    Golden(
        "--sum --sdt=f16:f16:f16:f16 --ddt=f16 --scales=1 1",
        {"src0": [2048], "src1": [1], "src2": [1], "src3": [1]},
        {"dst": [2052]},
    ),
)  # fmt: skip

SUM = Driver(
    name="sum",
    operations=(Sum,),
    defaults=DEFAULTS,
    read=read,
    write=write,
    verbose=VerboseLine(words=_scales),
    always_printed=("scales",),
    golden=GOLDEN,
    oracles={Sum: forward(_formula)},
    errors={Sum: _errors},
    keeps_integers=lambda op: all(scale.is_integer() for scale in op.scales),
    linear_in=lambda _op: "src0",
    options={"stag": TAGS, "dtag": ANY_TAGS},
    draw_shape=_draw_shape,
)
