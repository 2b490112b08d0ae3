"""Dropout and stochastic rounding, as statements in OpenCL C that change x.

`place` is the expression of an element's place in row-major order. The arguments of the attributes
are parameters of the kernel, with their names.
"""

from __future__ import annotations

from dnncore.backend import Attributes

RANDOM = ("dropout", "stochastic_rounding")
"""The attributes, in the words of `Implementation.attributes`. Kernels use philox.cl."""

CUT = {"f16": 13, "bf16": 16, "f8_e4m3": 20, "f8_e5m2": 21}  # last bits of an f32 in each type
MASK = "dropout_mask"


def is_random(attr: Attributes) -> bool:
    """Whether results depend on random numbers."""
    return any(word in RANDOM for word in attr.words)


def dropped(attr: Attributes, place: str) -> str:
    """The statements of dropout; `is_kept_here` is the element of the mask."""
    assert attr.dropout is not None
    offset = "dropout_offset[0]" if attr.dropout.has_offset else "0"
    return (
        "const int is_kept_here = is_kept(dropout_probability[0], dropout_seed[0],"
        f" {offset}, {place});"
        " x = is_kept_here ? x * reciprocal(1.0f - dropout_probability[0]) : 0.0f;"
    )


def rounded(data_type: str, place: str) -> str:
    """The statement of stochastic rounding to a type."""
    return f"x = rounded_at_random(x, rounding_seed[0], {CUT[data_type]}, {place});"
