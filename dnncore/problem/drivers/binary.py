"""Binary: `--binary --sdt=f32:f32 --ddt=f32 --stag=abx:axb --dtag=any --alg=ADD 2x3:2x1`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dnncore.algorithms import binary
from dnncore.algorithms.rounding import ROUNDOFF, VARIANCE, Noise
from dnncore.ops import Binary, Operation
from dnncore.problem.drivers.accumulation import PLAIN
from dnncore.problem.drivers.draws import (
    ANY_TAGS,
    TAGS,
    Draws,
    shape_text,
)
from dnncore.problem.drivers.driver import Driver, Evaluate, Golden, Inputs, VerboseLine
from dnncore.problem.drivers.torch_formulas import forward
from dnncore.problem.settings import (
    Dims,
    Settings,
    algorithm_text,
    read_algorithm,
)
from dnncore.problem.shapes import broadcast, dims_text, read_dims
from dnncore.problem.tensors import read_tensors, write_tensors

__all__ = ["BINARY"]

ROUNDED_ONCE = ("add", "sub", "mul")
ALGORITHMS = {name.upper(): name for name in binary.BINARY}
DEFAULTS = {
    "sdt": "f32", "ddt": "f32", "stag": "abx", "dtag": "any", "strides": "", "alg": "ADD",
    "inplace": "false",
}  # fmt: skip


def read(settings: Settings) -> Operation:
    """Make the operation. It has two sources; select has a third source, the condition.

    If a source has fewer dims than src0, its last dims are 1. If its format is `any`, it has the
    format of src0. By default, the condition has the dims and format of src0 and the type s8.
    """
    algorithm = read_algorithm(settings, ALGORITHMS, "binary_")
    is_select = algorithm == "select"
    sources = _completed(read_dims(settings, 2, *([3] if is_select else [])))
    types, formats = settings["sdt"].split(":"), settings["stag"].split(":")
    if is_select:
        sources += [sources[0]] * (3 - len(sources))
        types = types if len(types) > 2 else [*(types * 2)[:2], "s8"]
        formats += formats[:1] if len(formats) == 2 else []
    formats = [formats[0] if text == "any" else text for text in formats]
    dims = {f"src{i}": source for i, source in enumerate(sources)}
    dims["dst"] = broadcast(*sources[:2])
    settings = {**settings, "sdt": ":".join(types), "stag": ":".join(formats)}
    return Binary(algorithm, **read_tensors(settings, dims))


def _completed(sources: list[Dims]) -> list[Dims]:
    return [(*dims, *(1,) * (len(sources[0]) - len(dims))) for dims in sources]


def write(op: Binary) -> Settings:
    """The inverse of `read`. The shape omits dst, which the sources determine."""
    sources = [desc for row, desc in op.tensors() if row.direction == "in"]
    return {
        **write_tensors(op, DEFAULTS),
        "alg": algorithm_text(op.algorithm, ALGORITHMS),
        "shape": dims_text(*(desc.dims for desc in sources)),
    }


def _formula(torch: Any, op: Binary, tensors: Mapping[str, Any]) -> Any:
    sources = [tensors[name] for name in ("src0", "src1", "src2") if name in tensors]
    return binary.BINARY[op.algorithm].oracle(torch, *sources).to(torch.float64)


def _errors(op: Binary, inputs: Inputs, evaluate: Evaluate) -> dict[str, Noise]:
    roundings = binary.BINARY[op.algorithm].roundings
    if not roundings:
        return {}
    size = np.abs(evaluate(op, PLAIN, inputs)["dst"].astype(np.float64))
    if op.algorithm in ROUNDED_ONCE:
        return {"dst": Noise(roundings * ROUNDOFF * size, VARIANCE**0.5 * ROUNDOFF * size)}
    return {"dst": Noise.within(roundings * ROUNDOFF * size)}


def _draw_shape(draws: Draws) -> str:
    dims = draws.dims()
    sources = [draws.some_ones(dims), dims, dims]
    return shape_text(*sources[: draws.integer(2, 3)])


GOLDEN = (
    Golden(
        "--binary --alg=sub 2x2:1x2",
        {"src0": [[1, 2], [3, 4]], "src1": [[1, -1]]},
        {"dst": [[0, 3], [2, 5]]},
    ),
    Golden(  # 1 + 3/256 lies between 1 + 2/256 and 1 + 4/256
        "--binary --alg=add --sdt=bf16:f32 --ddt=bf16 2:2",
        {"src0": [1, 1], "src1": [0.00390625, 0.01171875]},
        {"dst": [1, 1.015625]},
    ),
)  # fmt: skip

BINARY = Driver(
    name="binary",
    operations=(Binary,),
    defaults=DEFAULTS,
    read=read,
    write=write,
    verbose=VerboseLine(auxiliary="alg:binary_{algorithm}"),
    golden=GOLDEN,
    oracles={Binary: forward(_formula)},
    errors={Binary: _errors},
    keeps_integers=lambda op: binary.BINARY[op.algorithm].keeps_integers,
    options={
        "alg": [*binary.BINARY],
        "stag": TAGS, "dtag": ANY_TAGS,
    },
    draw_shape=_draw_shape,
)  # fmt: skip
