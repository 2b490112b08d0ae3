"""Binary: `--binary --sdt=f32:f32 --ddt=f32 --stag=abx:axb --dtag=any --alg=ADD 2x3:2x1`."""

from __future__ import annotations

from typing import Any

from dnncore.algorithms import binary
from dnncore.ops import Binary, Operation
from dnncore.problem.settings import (
    Dims,
    Driver,
    Settings,
    algorithm_text,
    read_algorithm,
)
from dnncore.problem.shapes import broadcast, dims_text, read_dims
from dnncore.problem.tensors import read_tensors, write_tensors

__all__ = ["BINARY"]

ALGORITHMS = {name.upper(): name for name in binary.BINARY}
DEFAULTS = {
    "sdt": "f32", "ddt": "f32", "stag": "abx", "dtag": "any", "strides": "", "alg": "ADD",
    "inplace": "false",
}  # fmt: skip


def read(settings: Settings) -> Operation:
    """Two sources, and a third for select: the condition.

    A source with fewer dims than src0 lacks its last ones, which are 1; one whose format is any has
    src0's. Where the text is silent, the condition is like src0, and of type s8.
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


def write(op: Any) -> Settings:
    """The shape without dst, which follows."""
    sources = [desc for row, desc in op.tensors() if row.direction == "in"]
    return {
        **write_tensors(op, DEFAULTS),
        "alg": algorithm_text(op.algorithm, ALGORITHMS),
        "shape": dims_text(*(desc.dims for desc in sources)),
    }


BINARY = Driver("binary", (Binary,), DEFAULTS, read, write)
