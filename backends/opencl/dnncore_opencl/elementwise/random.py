"""Dropout and stochastic rounding, as statements in OpenCL C that change x.

`place` is the expression of an element's place in row-major order. The attributes' arguments are
parameters of the kernel with the same names.
"""

from __future__ import annotations

from collections.abc import Iterable

from dnncore.backend import Attributes
from dnncore_opencl.codegen.layout import Parameters
from dnncore_opencl.codegen.vectors import with_lanes
from dnncore_opencl.runtime.launch import template
from dnncore_opencl.runtime.schema import Arg

ROUNDING = "stochastic_rounding"
RANDOM = ("dropout", ROUNDING)
"""The attributes, in the words of `Implementation.attributes`. Kernels use philox.cl."""

CUT = {"f16": 13, "bf16": 16, "f8_e4m3": 20, "f8_e5m2": 21}  # bits of an f32 that are cut off
MASK = "dropout_mask"


def is_random(attr: Attributes) -> bool:
    """Whether results depend on random numbers."""
    return any(word in RANDOM for word in attr.words)


def dropped(attr: Attributes, place: str) -> str:
    """Return the statements of dropout. They define `is_kept_here`, the element of the mask."""
    return (
        f"const int is_kept_here = {is_kept(attr, place)};"
        " x = is_kept_here ? x * reciprocal(1.0f - dropout_probability[0]) : 0.0f;"
    )


def is_kept(attr: Attributes, place: str) -> str:
    """Return the expression of an element of the dropout mask."""
    assert attr.dropout is not None
    offset = "dropout_offset[0]" if attr.dropout.has_offset else "0"
    return f"is_kept(dropout_probability[0], dropout_seed[0], {offset}, {place})"


def rounded(data_type: str, place: str) -> str:
    """Return the statement of stochastic rounding to a type."""
    return f"x = rounded_at_random(x, rounding_seed[0], {CUT[data_type]}, {place});"


def rounded_vector(attr: Attributes, data_type: str, lanes: int, place: str, step: str) -> str:
    """Return the code for `lanes` elements whose places are `step` apart.

    It is empty without stochastic rounding.
    """
    if attr.rounding != "stochastic":
        return ""
    if lanes == 1:
        return rounded(data_type, place)
    values = f"x, rounding_seed[0], {CUT[data_type]}, {place}, {step}"
    return f"x = rounded_at_random{lanes}({values});"


def functions(attr: Attributes, widths: Iterable[int] = ()) -> tuple[str, ...]:
    """Return the functions that the statements use, also for vectors of these widths."""
    if not is_random(attr):
        return ()
    wide = (with_lanes(template("philox_vector"), lanes) for lanes in {*widths} if lanes > 1)
    return (with_lanes(template("reciprocal"), 1), template("philox"), *wide)


def seed(attr: Attributes, parameters: Parameters, place: int) -> None:
    """Add the parameter of stochastic rounding's seed, whose memory is at `place`."""
    if attr.rounding == "stochastic":
        parameters.buffer("rounding_seed", "const int", Arg(place))
