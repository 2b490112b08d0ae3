"""The reference's implementations, each with one fault of quantization or of a data type.

`FAULTS` has the faults by name. Each replaces one function of the reference while an implementation
computes. The module is a plugin.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from dnncore_reference import (
    binary,
    convolution,
    definition,
    eltwise,
    inner_product,
    matmul,
    pooling,
    post_ops,
    quantization,
    reduction,
    reorder,
    softmax,
    sum,
)
from subtle_faults import backend_of
from wrong_formulas import AllTypes, Faulty
from wrong_scales import (
    bits_of,
    contracted_bias,
    contracted_zero_point,
    divided,
    first_of_all,
    ignored,
    neighbours,
    of_other,
    of_parts,
    padded_by_zero_points,
    replaced,
    saturated_sums,
    scaled_after_bias,
    scaled_one_by_one,
    shifted_groups,
    zero_point_first,
)
from wrong_types import (
    clamped,
    contracted_linear,
    contracted_sum,
    cut,
    down,
    floats,
    half_away,
    half_up,
    in_half,
    integers,
    inverse,
    largest_for_nan,
    late_dropout,
    least_for_nan,
    narrow,
    of_columns,
    other_places,
    read_as,
    shifted_mask,
    swapped,
    symmetric,
    to_bits,
    to_nearest,
    towards_zero,
    unscaled,
    without_subnormals,
    without_zero_point,
    wrapped,
)

from dnncore import backend

KIND = "quantized"
OPERATIONS = {
    backend.ConvolutionForward: convolution.FORWARD,
    backend.InnerProductForward: inner_product.FORWARD,
    backend.MatMul: matmul.TABLE,
    backend.Reorder: reorder.TABLE,
    backend.EltwiseForward: eltwise.FORWARD,
    backend.Binary: binary.TABLE,
    backend.PoolingForward: pooling.FORWARD,
    backend.SoftmaxForward: softmax.FORWARD,
    backend.Reduction: reduction.TABLE,
    backend.Sum: sum.TABLE,
}


class QuantizedEngine(backend.HostEngine):
    kind = KIND


class QuantizedRight(AllTypes):
    kind = KIND


class QuantizedFaulty(Faulty):
    kind = KIND


@dataclass(frozen=True)
class Fault:
    """A fault, and words that select the problems that show the fault; see `words_of`."""

    words: str
    wrong: Callable[..., None]


def words_of(problem):
    """The words of a problem: operation, types, arguments of attributes, post-ops."""
    op, attr = problem.op, problem.attr
    arguments = [(argument.name, desc) for argument, desc in attr.arguments(op)]
    words = {op.KIND, *attr.words, *(name for name, _ in arguments)}
    words |= {f"{argument.name}:{desc.data_type}" for argument, desc in op.tensors()}
    words |= {argument.name for argument, _ in op.tensors()}
    words |= {step.algorithm or step.kind for step in attr.post_ops}
    words |= {f"several_{kind}" for kind in ("scales", "zero_points")
              for name, desc in arguments if name.endswith(kind) and desc.nelems > 1}  # fmt: skip
    if quantization.is_integer_product(op):
        words.add("product")
    if any(getattr(op, "padding_l", ())):
        words.add("padding")
    return words


product = partial(replaced, quantization, "product")
stored = partial(replaced, quantization, "stored")
step = partial(replaced, post_ops, "_applied")
mask = partial(replaced, definition, "kept")
dropped = partial(replaced, definition, "_dropped")
at_random = partial(replaced, definition, "rounded_at_random")
FAULTS = {
    "scaled_after_bias": Fault("product bias weights_scales", product(of_parts(scaled_after_bias))),
    "contracted_bias": Fault(
        "product bias:f32 weights_scales dst:f32",
        product(of_parts(contracted_bias)),
    ),
    "scaled_one_by_one": Fault(
        "product src_scales weights_scales", product(of_parts(scaled_one_by_one))
    ),
    "padding_of_zero_points": Fault(
        "product padding src_zero_points", product(padded_by_zero_points)
    ),
    "sums_saturate": Fault(
        "product src_zero_points", replaced(quantization, "_wrapped", saturated_sums)
    ),
    "rounds_half_away": Fault("reorder src:f32 dst:s8", integers(half_away)),
    "rounds_half_up": Fault("reorder src:f32 dst:s8", integers(half_up)),
    "cuts_off": Fault("product dst:u8", integers(cut)),
    "wraps": Fault("product dst:s8", integers(wrapped)),
    "saturates_early": Fault("product dst:u8", integers(narrow)),
    "saturates_symmetrically": Fault("product dst:s8", integers(symmetric)),
    "least_for_nan": Fault("reorder src:f32 dst:s8", integers(least_for_nan)),
    "largest_for_nan": Fault("reorder src:f32 dst:u8", integers(largest_for_nan)),
    "u8_as_s8": Fault("product src:u8", read_as(["u8"], lambda x: np.where(x > 127, x - 256, x))),
    "s8_as_u8": Fault("product src:s8", read_as(["s8"], lambda x: np.where(x < 0, x + 256, x))),
    "s4_as_u4": Fault("weights:s4", read_as(["s4"], lambda x: np.where(x < 0, x + 16, x))),
    "nibbles_swapped": Fault("weights:s4", replaced(definition, "_read", swapped)),
    "scale_of_neighbour": Fault("weights_scales several_scales", neighbours("_scales")),
    "scale_of_neighbour_of_dst": Fault(
        "dst_scales several_scales", neighbours("_scales", of=("dst",))
    ),
    "zero_point_of_neighbour": Fault(
        "weights_zero_points several_zero_points", neighbours("_zero_points")
    ),
    "zero_point_of_neighbour_of_dst": Fault(
        "dst_zero_points several_zero_points", neighbours("_zero_points", of=("dst",))
    ),
    "one_scale": Fault("weights_scales several_scales", first_of_all("_scales")),
    "scale_of_src_for_dst": Fault(
        "src_scales dst_scales product", of_other("dst_scales", "src_scales")
    ),
    "scale_of_src_for_weights": Fault(
        "src_scales weights_scales product", of_other("weights_scales", "src_scales")
    ),
    "scale_of_src0_for_src1": Fault(
        "src0_scales src1_scales", of_other("src1_scales", "src0_scales")
    ),
    "zero_point_of_src_for_dst": Fault(
        "src_zero_points dst_zero_points", of_other("dst_zero_points", "src_zero_points")
    ),
    "no_zero_point_of_src": Fault("src_zero_points", ignored("src_zero_points", 0)),
    "no_zero_point_of_weights": Fault("weights_zero_points", ignored("weights_zero_points", 0)),
    "no_zero_point_of_dst": Fault("dst_zero_points", ignored("dst_zero_points", 0)),
    "no_scale_of_dst": Fault("dst_scales", ignored("dst_scales", 1)),
    "shifted_groups": Fault(
        "weights_scales groups", replaced(quantization, "_spread", shifted_groups)
    ),
    "divides": Fault("dst_scales product", stored(divided)),
    "contracted_zero_point": Fault(
        "product dst_scales dst_zero_points",
        stored(contracted_zero_point),
    ),
    "zero_point_before_scale": Fault("dst_scales dst_zero_points", stored(zero_point_first)),
    "bf16_cuts_off": Fault("dst:bf16", floats(["bf16"], towards_zero)),
    "f16_cuts_off": Fault("dst:f16", floats(["f16"], towards_zero)),
    "f16_without_subnormals": Fault("dst:f16 src:f16", floats(["f16"], without_subnormals)),
    "f16_read_without_subnormals": Fault(
        "src:f16", read_as(["f16"], lambda x: np.where(np.abs(x) < 2.0**-14, 0 * x, x))
    ),
    "f16_saturates": Fault("dst:f16", floats(["f16"], clamped)),
    "f32_read_as_tf32": Fault("src:f32 dst:f32 dst_scales", read_as(["f32"], to_bits(11))),
    "f8_cuts_off": Fault("reorder dst:f8_e4m3", floats(["f8_e4m3", "f8_e5m2"], towards_zero)),
    "f8_read_without_subnormals": Fault(
        "weights:f8_e4m3", read_as(["f8_e4m3"], lambda x: np.where(np.abs(x) < 2.0**-6, 0 * x, x))
    ),
    "sums_in_f16": Fault(
        "matmul src:f16 weights:f16", replaced(definition.Definition, "_computed", in_half)
    ),
    "sum_without_zero_point": Fault("sum_zero_point", step(without_zero_point)),
    "contracted_linear": Fault("product linear dst:f32", step(contracted_linear)),
    "contracted_sum": Fault("product sum dst:f32", step(contracted_sum)),
    "shifted_mask": Fault("dropout_seed", mask(shifted_mask)),
    "mask_of_columns": Fault("dropout_seed", mask(of_columns)),
    "dropout_of_inverse": Fault("dropout_seed", dropped(inverse)),
    "dropout_unscaled": Fault("dropout_seed", dropped(unscaled)),
    "dropout_after_post_ops": Fault("dropout_seed linear", late_dropout),
    "dropout_seed_of_32_bits": Fault("dropout_seed", bits_of("dropout_seed", 0xFFFFFFFF)),
    "dropout_without_offset": Fault("dropout_offset", ignored("dropout_offset", 0)),
    "rounds_to_nearest": Fault("rounding_seed", at_random(to_nearest)),
    "rounds_down": Fault("rounding_seed", at_random(down)),
    "rounds_in_other_places": Fault("rounding_seed", at_random(other_places)),
    "rounding_seed_of_16_bits": Fault("rounding_seed", bits_of("rounding_seed", 0xFFFF)),
}
"""The faults by name."""

TABLES = {
    operation.__name__: [
        implementation
        for formula in formulas
        for implementation in (
            QuantizedRight("right", formula),
            *(QuantizedFaulty(name, formula, fault.wrong) for name, fault in FAULTS.items()),
        )
    ]
    for operation, formulas in OPERATIONS.items()
}
globals().update(TABLES)


@backend.hookimpl
def dnncore_backends():
    """The engine "quantized" and all implementations above."""
    return backend_of(__name__, QuantizedEngine, OPERATIONS)
