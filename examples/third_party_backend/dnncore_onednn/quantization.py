"""Attributes with values at execution: scales, zero points, dropout, rounding.

oneDNN 3.2 has scales and zero points by mask. Newer versions have groups and types of them, dropout
and stochastic rounding. A version without a function for an attribute does not support it.
"""

from __future__ import annotations

from collections.abc import Iterator

from dnncore.backend import Attributes, MemoryDesc, Operation, Sum
from dnncore_onednn.layouts import Layouts
from dnncore_onednn.library import Dims, Library, Owned, Unsupported

__all__ = ["QUANTIZATION", "flat", "number_of", "quantization_numbers", "set_quantization"]

# Enumerators of dnnl_types.h: the arguments of an execution.
ARGUMENTS = {
    "src": 1, "src0": 1, "src1": 2, "src2": 3, "dst": 17, "weights": 33, "bias": 41,
    "diff_src": 129, "diff_dst": 145, "diff_weights": 161, "diff_bias": 169,
    "workspace": 64,
}  # fmt: skip
MULTIPLE_SRC = 1024  # + i: src{i} of a sum
QUANTIZATION = {"scales": 4096, "zero_points": 8192}  # + the enumerator of the tensor
RANDOM = {
    "dropout_offset": 507, "rounding_seed": 508, "dropout_mask": 509, "dropout_probability": 510,
    "dropout_seed": 511,
}  # fmt: skip
STOCHASTIC = 1  # a rounding mode
DEFAULT_TYPES = {"scales": "f32", "zero_points": "s32"}


def number_of(op: Operation, name: str) -> int:
    """The enumerator of a tensor of the operation."""
    if isinstance(op, Sum) and name.startswith("src"):
        return MULTIPLE_SRC + int(name.removeprefix("src"))
    return ARGUMENTS[name]


def quantization_numbers(op: Operation, attr: Attributes) -> Iterator[tuple[str, int]]:
    """The names and enumerators of the possible arguments of these attributes."""
    for kind, base in QUANTIZATION.items():
        for name in getattr(attr, kind):
            yield f"{name}_{kind}", base + number_of(op, name)
    yield from RANDOM.items()


def flat(name: str, desc: MemoryDesc) -> MemoryDesc:
    """The descriptor of an argument of these attributes: one dim, except for masks of dropout."""
    return desc if name == "dropout_mask" else MemoryDesc((desc.nelems,), desc.data_type)


def set_quantization(layouts: Layouts, made: Owned, op: Operation, attr: Attributes) -> None:
    """Set the attributes. Raises `Unsupported`."""
    library = layouts.library
    for kind in QUANTIZATION:
        for name, own in getattr(attr, kind).items():
            given = number_of(op, name), own.mask
            if library.has(f"primitive_attr_set_{kind}"):
                data_type = library.number("dt", own.data_type)
                groups = len(own.groups), Dims(*own.groups), data_type
                library(f"primitive_attr_set_{kind}", made, *given, *groups)
            elif own.groups or own.data_type != DEFAULT_TYPES[kind]:
                raise Unsupported(f"oneDNN {library.version} has neither groups nor types of {kind}")
            else:
                library(f"primitive_attr_set_{kind}_mask", made, *given)
    if attr.dropout is not None:
        own = attr.dropout
        _need(library, "dropout_v2", "dropout")
        mask = op.result.with_data_type("u8") if own.has_mask else None
        seed = library.number("dt", own.seed_type)
        md = layouts.md(mask) if mask is not None else layouts.absent
        library("primitive_attr_set_dropout_v2", made, md, seed, int(own.has_offset), 0)
    if attr.rounding == "stochastic":
        _need(library, "rounding", "stochastic rounding")
        library("primitive_attr_set_rounding", made, number_of(op, op.result_name), STOCHASTIC)
    if attr.accumulation != "strict" and library.has("primitive_attr_set_accumulation_mode"):
        mode = library.number("accumulation_mode", attr.accumulation)
        library("primitive_attr_set_accumulation_mode", made, mode)


def _need(library: Library, function: str, what: str) -> None:
    if not library.has(f"primitive_attr_set_{function}"):
        raise Unsupported(f"oneDNN {library.version} has no attribute {what}")
