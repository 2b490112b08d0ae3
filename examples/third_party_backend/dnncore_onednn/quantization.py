"""Scales and zero points, whose values are arguments of an execution.

oneDNN 3.2 describes them by masks alone. Newer versions also permit groups and other types.
"""

from __future__ import annotations

from collections.abc import Iterator

from dnncore.backend import Attributes, MemoryDesc, Operation, Sources
from dnncore_onednn.library import Dims, Library, Owned, Unsupported

__all__ = ["flat", "number_of", "quantization_numbers", "set_quantization"]

# Enumerators of dnnl_types.h: the arguments of an execution.
ARGUMENTS = {
    "src": 1, "src0": 1, "src1": 2, "src2": 3, "dst": 17, "weights": 33, "bias": 41,
    "diff_src": 129, "diff_dst": 145, "diff_weights": 161, "diff_bias": 169,
    "workspace": 64, "mean": 49, "variance": 50, "scale": 51, "shift": 52, "diff_scale": 255,
    "diff_shift": 256, "diff_src1": 130,
    "src_layer": 1, "src_iter": 2, "src_iter_c": 3, "attention": 4,
    "dst_layer": 17, "dst_iter": 18, "dst_iter_c": 19,
    "weights_layer": 33, "weights_iter": 34, "weights_peephole": 35, "weights_projection": 36,
    "diff_src_layer": 129, "diff_src_iter": 130, "diff_src_iter_c": 131, "diff_attention": 132,
    "diff_dst_layer": 145, "diff_dst_iter": 146, "diff_dst_iter_c": 147,
    "diff_weights_layer": 161, "diff_weights_iter": 162, "diff_weights_peephole": 163,
    "diff_weights_projection": 164,
}  # fmt: skip
MULTIPLE_SRC = 1024  # src{i} of a sum or concat: MULTIPLE_SRC + i
QUANTIZATION = {"scales": 4096, "zero_points": 8192}  # + the enumerator of the tensor
DEFAULT_TYPES = {"scales": "f32", "zero_points": "s32"}


def number_of(op: Operation, name: str) -> int:
    """The enumerator of a tensor of the operation."""
    if isinstance(op, Sources) and name.startswith("src"):
        return MULTIPLE_SRC + int(name.removeprefix("src"))
    if name not in ARGUMENTS:
        raise Unsupported(f"oneDNN's {op.KIND} has no argument {name}")
    return ARGUMENTS[name]


def quantization_numbers(op: Operation, attr: Attributes) -> Iterator[tuple[str, int]]:
    """The names and enumerators of the possible arguments of these attributes."""
    for kind, base in QUANTIZATION.items():
        for name in getattr(attr, kind):
            yield f"{name}_{kind}", base + number_of(op, name)


def flat(desc: MemoryDesc) -> MemoryDesc:
    """oneDNN's descriptor of an argument of these attributes, which has one dim."""
    return MemoryDesc((desc.nelems,), desc.data_type)


def set_quantization(library: Library, made: Owned, op: Operation, attr: Attributes) -> None:
    """Set the attributes. Raises `Unsupported`."""
    for kind in QUANTIZATION:
        for name, own in getattr(attr, kind).items():
            given = number_of(op, name), own.mask
            if library.has(f"primitive_attr_set_{kind}"):
                data_type = library.number("dt", own.data_type)
                groups = len(own.groups), Dims(*own.groups), data_type
                library(f"primitive_attr_set_{kind}", made, *given, *groups)
            elif own.groups or own.data_type != DEFAULT_TYPES[kind]:
                raise Unsupported(
                    f"oneDNN {library.version} has neither groups nor types of {kind}"
                )
            else:
                library(f"primitive_attr_set_{kind}_mask", made, *given)
