"""Problems that are refused because oneDNN's results differ from dnncore's, or it damages memory.

oneDNN accepts all of these problems. dnncore's conformance kit found the rows, on processors
with AVX2 and with AVX-512, and oneDNN 3.2. The names of oneDNN's implementations that generate code
contain `jit`. The others are plain loops, whose names begin with `ref` or `simple`.

With `DNNCORE_ONEDNN_FINITE=1`, the user promises that each number is 0, or has a size from 1e-12 to
1e12. Then problems are not refused if oneDNN's results differ only for other numbers.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dnncore import backend
from dnncore.backend import (
    Attributes,
    DescriptorError,
    MemoryDesc,
    Operation,
    PostOp,
    RefusalKind,
    Refused,
)
from dnncore_onednn.library import default

__all__ = ["is_deterministic", "refusal"]

VARIABLE = "DNNCORE_ONEDNN_FINITE"


def _promise() -> bool:
    """Whether the user promises finite numbers."""
    text = os.environ.get(VARIABLE, "").strip()
    if text not in ("", "0", "1"):
        raise DescriptorError(f"{VARIABLE} must be 0 or 1; got {text!r}; unset it for 0")
    return text == "1"


ONLY_FINITE = _promise()

Operations = tuple[type[Operation], ...]
Rule = Callable[[Any, Attributes], bool]

LAYERS: Operations = (backend.ConvolutionForward, backend.InnerProductForward, backend.MatMul)
GRADIENTS: Operations = (
    backend.ConvolutionBackwardData, backend.ConvolutionBackwardWeights,
    backend.InnerProductBackwardData, backend.InnerProductBackwardWeights,
)  # fmt: skip

NOT_PRODUCTS: Operations = (
    backend.Binary, backend.PoolingForward, backend.PReLUForward, backend.Reduction,
    backend.SoftmaxForward, backend.Sum,
)  # fmt: skip

# One thread computes each element, in a fixed order.
DETERMINISTIC: Operations = (
    backend.Binary, backend.Concat, backend.EltwiseForward, backend.EltwiseBackward,
    backend.LRNForward, backend.PoolingForward, backend.PReLUForward, backend.Reorder,
    backend.ResamplingForward, backend.ShuffleForward, backend.ShuffleBackward,
    backend.SoftmaxForward, backend.SoftmaxBackward, backend.Sum,
)  # fmt: skip

# -- post-ops --------------------------------------------------------------------------------------

# The kinds that oneDNN applies. It ignores other kinds, or fails during execution.
POST_OPS: dict[type[Operation], tuple[str, ...]] = {
    **dict.fromkeys(LAYERS, ("eltwise", "sum", "binary", "prelu")),
    backend.Binary: ("eltwise", "sum", "binary"),
    backend.Reduction: ("eltwise", "sum", "binary"),
    backend.EltwiseForward: ("binary",),
    backend.PoolingForward: ("eltwise",),
}
# Others lose NaN (clip, logistic, relu, max, ge), make NaN of infinity (gelu_erf), have larger
# errors (log, mish), or fail when their code is generated (comparisons).
ELTWISE_POST_OPS: tuple[str, ...] = (
    "abs", "elu", "gelu_tanh", "hardswish", "linear", "round", "sqrt", "square", "tanh",
)  # fmt: skip
BINARY_POST_OPS: tuple[str, ...] = ("add", "sub", "mul", "div")
if ONLY_FINITE:
    ELTWISE_POST_OPS += ("clip", "clip_v2", "gelu_erf", "logistic", "relu")
    BINARY_POST_OPS += ("max", "min")


# Post-ops of products of integers. The others round once where docs/types.md rounds twice (linear,
# sum with a scale, hardswish), which changes some results by one unit.
OF_INTEGERS: tuple[str, ...] = ("abs", "clip", "clip_v2", "relu", "round", "square")


def _is_of_integers(op: Operation) -> bool:
    """Whether an operation is a sum of products of integers."""
    if not isinstance(
        op, backend.ConvolutionForward | backend.InnerProductForward | backend.MatMul
    ):
        return False
    return not _is_float(op.src) and not _is_float(op.weights)


def _is_float(desc: MemoryDesc) -> bool:
    return desc.data_type.startswith(("f", "bf"))


def _post_op_refusal(op: Operation, post_op: PostOp) -> str | None:
    """Why a step is refused, or None."""
    allowed = POST_OPS.get(type(op), ())
    if post_op.kind not in allowed:
        return f"applies {', '.join(allowed) or 'no post-ops'} to {op.KIND}; got {post_op.kind}"
    if _is_of_integers(op):
        if post_op.kind == "sum" and post_op.scale != 1.0:
            return "multiplies and adds in one rounding in a sum post-op with a scale"
        if post_op.kind == "eltwise" and post_op.algorithm not in OF_INTEGERS:
            return f"rounds otherwise in {post_op.algorithm} after products of integers"
        return None if post_op.kind != "prelu" else _prelu_refusal(post_op)
    leaky = post_op.algorithm == "relu" and post_op.alpha != 0.0
    if post_op.kind == "eltwise" and post_op.algorithm not in ELTWISE_POST_OPS and not leaky:
        return f"has another {post_op.algorithm} of NaN, infinity or small numbers as a post-op"
    if post_op.kind == "binary" and post_op.algorithm not in BINARY_POST_OPS:
        return f"has another {post_op.algorithm} of NaN as a post-op"
    return _prelu_refusal(post_op)


def _prelu_refusal(post_op: PostOp) -> str | None:
    weights = post_op.weights
    if weights is not None and (
        weights != weights.with_format(None) or weights.nelems != weights.dims[1]
    ):
        return f"takes one weight per channel in a prelu post-op; got {weights}"
    return None


# -- operations ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Deviation:
    """Problems for which the results of some of oneDNN's implementations differ from dnncore's.

    implementations: a pattern of their names. applies: whether a problem is such a problem.
    """

    operations: Operations
    reason: str
    applies: Rule = lambda _op, _attr: True
    implementations: str = "*"
    kind: RefusalKind = "algorithm"


def _of(*algorithms: str) -> Rule:
    """Whether the algorithm is one of these. Names for gradients from dst count as the same."""
    return lambda op, _attr: op.algorithm.removesuffix(FROM_DST) in algorithms


def _between(sources: str, targets: str) -> Rule:
    return lambda op, _attr: (
        op.src.data_type in sources.split() and (op.dst.data_type in targets.split())
    )


def _makes_integers(op: Any, _attr: Attributes) -> bool:
    """Whether results are integers, converted from numbers that may be NaN, such as 0 / 0."""
    read = [desc for argument, desc in op.tensors() if argument.direction == "in"]
    may_be_nan = any(map(_is_float, read)) or getattr(op, "algorithm", "") == "div"
    return may_be_nan and op.result.data_type in ("s32", "s8", "u8")


def _has_odd_blocks(op: Any, _attr: Attributes) -> bool:
    blocks = (size for _, desc in op.tensors() for _, size in desc.inner_blocks)
    return any(size not in BLOCKS for size in blocks)


def _has_several_formats(op: Any, _attr: Attributes) -> bool:
    return len({desc.order_tag for _, desc in op.tensors() if not desc.is_any}) > 1


def _changes_format(op: Any, _attr: Attributes) -> bool:
    """Whether tensors of src's dims have several formats."""
    same = [desc for _, desc in op.tensors() if desc.dims == op.source.dims and not desc.is_any]
    return len({desc.order_tag for desc in same}) > 1


def _has_no_terms(op: Any, _attr: Attributes) -> bool:
    return bool(op.result.nelems) and not all(desc.nelems for _, desc in op.tensors())


def _is_empty(op: Any, _attr: Attributes) -> bool:
    """Whether a tensor that is read has no elements."""
    return not all(desc.nelems for row, desc in op.tensors() if row.direction == "in")


def _has_bias_with_gaps(op: Any, _attr: Attributes) -> bool:
    return op.bias is not None and not op.bias.is_dense


def _is_finished(op: Any, attr: Attributes) -> bool:
    """Whether bias or post-ops follow the product."""
    return op.bias is not None or bool(attr.post_ops)


def _has_rest_of_bias(op: Any, _attr: Attributes) -> bool:
    """Whether a vector of eight numbers of bias extends beyond its end."""
    return op.bias is not None and op.dst.dims[1] % 8 != 0


def _saturates(op: Any, _attr: Attributes) -> bool:
    """Whether sums of two products of integers may saturate."""
    return not _is_float(op.tensors()[0][1]) and not default().is_exact_for_bytes


def _may_leave_s32(op: Any, attr: Attributes) -> bool:
    """Whether an s32 result is computed in f32 and may exceed the range of s32."""
    if op.result.data_type != "s32":
        return False
    if attr.scales or attr.post_ops:
        return True
    sources = [desc for row, desc in op.tensors() if row.direction == "in"]
    return isinstance(op, ELEMENTWISE) and any(
        desc.data_type not in ("s8", "u8") for desc in sources
    )


def _subtracts_from_s32(op: Any, attr: Attributes) -> bool:
    return op.src.data_type == "s32" and "src" in attr.zero_points


def _may_have_nan(op: Any, attr: Attributes) -> bool:
    """Whether a product of integers has an integer result and an operand that may be NaN."""
    if not _is_of_integers(op) or _is_float(op.dst):
        return False
    bias = [] if op.bias is None else [op.bias]
    operands = [*bias, *(desc for _, desc in attr.operands())]
    return bool(attr.scales) or any(_is_float(desc) for desc in operands)


def _has_many_dims(op: Any, _attr: Attributes) -> bool:
    return bool(op.result.ndims > 5)


def _has_gaps(op: Any, _attr: Attributes) -> bool:
    return op.diff_src.format_kind == "blocked" and not op.diff_src.is_dense


def _has_extreme_k(op: Any, _attr: Attributes) -> bool:
    least, most = RANGE_OF_K
    return not least <= op.k <= most


def _has_large_windows(op: Any, _attr: Attributes) -> bool:
    window = op.local_size ** len(op.window_dims)
    return bool(op.src.nelems * window**2 > MOST_TERMS)


def _is_bf16(op: Any, _attr: Attributes) -> bool:
    return bool(op.data_type == "bf16")


def _has_f16(op: Any, _attr: Attributes) -> bool:
    return bool("f16" in (op.src.data_type, op.dst.data_type))


def _converts_bf16(op: Any, _attr: Attributes) -> bool:
    return _is_float(op.src) and "bf16" in (op.src.data_type, op.dst.data_type)


def _has_many_terms(op: Any, _attr: Attributes) -> bool:
    return not op.use_global_stats and op.count > MOST_EXACT_TERMS


def _loses_subnormals(op: Any, _attr: Attributes) -> bool:
    """Whether a concat converts to bf16."""
    return bool(op.dst.data_type == "bf16")


def _is_relu(op: Any, _attr: Attributes) -> bool:
    return bool(op.algorithm.removesuffix(FROM_DST) == "relu" and op.alpha == 0.0)


FROM_DST = "_use_dst_for_bwd"
RANGE_OF_K = 1e-10, 1e20
MOST_TERMS = 1e8
MOST_EXACT_TERMS = 1e4
BLOCKS = (2, 4, 8, 16, 32, 48, 64)

ALL: Operations = (Operation,)
CONVOLUTION: Operations = (backend.ConvolutionForward, *GRADIENTS[:2])
DECONVOLUTION: Operations = (
    backend.DeconvolutionForward, backend.DeconvolutionBackwardData,
    backend.DeconvolutionBackwardWeights,
)  # fmt: skip
FORWARD: Operations = (backend.EltwiseForward,)
BACKWARD: Operations = (backend.EltwiseBackward,)
LRN: Operations = (backend.LRNForward, backend.LRNBackward)
SOFTMAX: Operations = (backend.SoftmaxForward,)
ELEMENTWISE: Operations = (
    backend.Binary, backend.EltwiseForward, backend.PReLUForward, backend.Reduction, backend.Sum,
)  # fmt: skip

BATCH: Operations = (backend.BatchNormalizationForward, backend.BatchNormalizationBackward)
LAYER: Operations = (backend.LayerNormalizationForward, backend.LayerNormalizationBackward)
GROUP: Operations = (backend.GroupNormalizationForward, backend.GroupNormalizationBackward)
PRELU: Operations = (backend.PReLUForward, backend.PReLUBackward)
RNN: Operations = (backend.RNNForward, backend.RNNBackward)
RESAMPLING: Operations = (backend.ResamplingForward, backend.ResamplingBackward)

DEVIATIONS = (
    Deviation(ALL, "is wrong or fails for layouts with other blocks than "
              + ", ".join(map(str, BLOCKS)), _has_odd_blocks, kind="format"),
    Deviation((*LAYERS, *GRADIENTS, *DECONVOLUTION, backend.Reduction),
              "returns NaN for sums without terms", _has_no_terms, kind="shape"),
    Deviation((*LAYERS, backend.DeconvolutionForward), "ignores the stride of bias",
              _has_bias_with_gaps, kind="format"),
    Deviation((backend.DeconvolutionForward,), "rounds products of integers in another way",
              lambda op, _attr: not _is_float(op.src), kind="type"),
    Deviation((backend.ConvolutionForward,), "crashes if dst begins at an odd address",
              _is_finished, "*gemm*"),
    Deviation((backend.ConvolutionForward,), "reads beyond the end of bias", _has_rest_of_bias,
              "jit:avx2", kind="shape"),
    Deviation(ALL, "saturates s32 at 2147483520", _may_leave_s32, kind="type"),
    Deviation((backend.Reorder,), "rounds s32 before it subtracts the zero point",
              _subtracts_from_s32, kind="type"),
    Deviation((*FORWARD, *BACKWARD), "computes a part of tensors of more than 5 dims",
              _has_many_dims, "ref*", kind="shape"),
    Deviation(FORWARD, "has large errors", _of("log", "mish", "soft_relu"), "*jit*"),
    Deviation(BACKWARD, "has large errors", _of("tanh", "logistic")),
    Deviation(SOFTMAX, "loses NaN and has large errors", _of("log"), "*jit*"),
    Deviation(SOFTMAX, "has no statistics", lambda op, _attr: op.lse is not None),
    Deviation((backend.SoftmaxBackward,), "reads and writes at wrong places if formats differ",
              _has_several_formats, kind="format"),
    Deviation((backend.LRNForward,), "returns 0 for numbers of 1e8", implementations="*jit*"),
    Deviation(LRN, "overflows or underflows unless k is from {:g} to {:g}".format(*RANGE_OF_K),
              _has_extreme_k),
    Deviation((backend.LRNBackward,), "sums a window for each element of each window",
              _has_large_windows, kind="resources"),
    Deviation((backend.PoolingBackward,), "overwrites the gaps of diff_src", _has_gaps,
              kind="format"),
    Deviation((*BATCH, *LAYER, *GROUP, *RNN, backend.PReLUBackward),
              "returns NaN or fails for empty tensors", _is_empty, kind="shape"),
    Deviation(BATCH[:1], "has large errors in sums of more than 10000 terms", _has_many_terms,
              kind="shape"),
    Deviation(BATCH[:1], "saturates large numbers to the wrong end",
              lambda op, _attr: op.data_type == "s8", kind="type"),
    Deviation(LAYER, "reads and writes at wrong places if formats differ", _changes_format,
              kind="format"),
    Deviation(LAYER[:1], "applies scales in another way", lambda _op, attr: bool(attr.scales),
              kind="attribute"),
    Deviation(RNN[:1], "adds integers of both directions without their shift",
              lambda op, _attr: op.is_integer and op.direction == "bidirectional_sum"),
    Deviation((backend.RNNBackward,), "has another gradient of AUGRU",
              lambda op, _attr: op.has_attention),
    Deviation(RESAMPLING, "has large errors", _of("linear")),
    Deviation((backend.PoolingBackward,), "rounds partial sums", _is_bf16, kind="type"),
)  # fmt: skip

# Only results of NaN, infinity, numbers below 1e-12 or above 1e12, or -0 differ.
OF_SPECIAL_NUMBERS = (
    Deviation(CONVOLUTION, "makes NaN of numbers beside NaN or infinity", _is_bf16, kind="type"),
    Deviation(LAYERS, "makes another integer of NaN and infinity in scales, bias or operands",
              _may_have_nan, kind="type"),
    Deviation(FORWARD, "loses NaN", _of("clip", "clip_v2")),
    Deviation(FORWARD, "loses NaN, or makes NaN of infinity", _is_relu),
    Deviation(FORWARD, "makes another number of NaN", _of("exp", "hardsigmoid"), "*jit*"),
    Deviation(FORWARD, "makes NaN of infinity", _of("gelu_erf", "pow"), "*jit*"),
    Deviation(FORWARD, "loses NaN", _of("logistic"), "ref*"),
    Deviation(FORWARD, "loses small numbers", _of("swish")),
    Deviation(BACKWARD, "loses NaN", _of("abs", "hardswish", "pow")),
    Deviation(BACKWARD, "loses NaN", lambda op, _attr: op.algorithm == "elu" + FROM_DST),
    Deviation(BACKWARD, "loses NaN or small numbers", _of("elu", "exp", "relu"), "*jit*"),
    Deviation(BACKWARD, "loses NaN", _of("hardsigmoid"), "ref*"),
    Deviation(BACKWARD, "loses NaN or small numbers", _of("soft_relu")),
    Deviation((backend.Binary,), "loses NaN", _of("max", "min")),
    Deviation((backend.Binary,), "takes NaN for the larger number", _of("ge", "gt"), "*jit*"),
    Deviation((backend.Reduction,), "loses NaN",
              _of("max", "min", "norm_lp_max", "norm_lp_power_p_max")),
    Deviation((backend.PoolingForward,), "loses NaN, and infinity in a window of it", _of("max")),
    Deviation(SOFTMAX, "returns 0 where all numbers are -infinity", _of("accurate")),
    Deviation((backend.SoftmaxBackward,), "loses NaN", _of("log"), "*jit*"),
    Deviation((backend.InnerProductBackwardWeights,), "makes NaN of infinity", _is_bf16,
              kind="type"),
    Deviation(PRELU, "makes NaN of positive numbers whose weight is NaN or infinity",
              implementations="*jit*"),
    Deviation((backend.Concat,), "makes 0 of subnormal numbers", _loses_subnormals, kind="type"),
    Deviation((*NOT_PRODUCTS, backend.Reorder), "makes another integer of NaN and infinity",
              _makes_integers, kind="type"),
    Deviation((backend.Reorder,), "loses the sign of 0 if there are more than 6 dims",
              lambda op, _attr: op.src.ndims > 6, "simple*", kind="shape"),
    Deviation((backend.Reorder,), "loses the sign of 0", _has_f16, kind="type"),
    Deviation((backend.Reorder,), "loses the sign of 0", _converts_bf16, "simple*", kind="type"),
    Deviation((backend.Reorder,), "makes 0 of subnormal numbers", _between("f32 bf16", "bf16"),
              kind="type"),
)  # fmt: skip

# Sums of two products that exceed 16 bits differ, on some processors. This row is the last one: the
# other rows hold on all processors.
OF_LARGE_INTEGERS = Deviation(
    (*LAYERS, backend.RNNForward), "saturates sums of integers without VNNI", _saturates,
    kind="type",
)  # fmt: skip

ROWS = (*DEVIATIONS, *(() if ONLY_FINITE else OF_SPECIAL_NUMBERS), OF_LARGE_INTEGERS)


def refusal(op: Operation, attr: Attributes, impl_name: str = "") -> Refused | None:
    """The refusal by the first deviation that applies to all implementations, or to `name`."""
    for post_op in attr.post_ops:
        text = _post_op_refusal(op, post_op)
        if text is not None:
            return Refused("attribute", f"oneDNN {text}")
    for row in ROWS:
        if _concerns(row, impl_name) and isinstance(op, row.operations) and row.applies(op, attr):
            return Refused(row.kind, f"oneDNN {row.reason}; got {_cause(op, row.kind)}")
    return None


def _cause(op: Operation, kind: RefusalKind) -> str:
    """The part of the problem that causes a refusal of this kind."""
    descs = [(argument.name, desc) for argument, desc in op.tensors()]
    if kind == "type":
        return ", ".join(f"{name} of {desc.data_type}" for name, desc in descs)
    if kind == "algorithm":
        return f"{op.KIND} {getattr(op, 'algorithm', '')}".rstrip()
    return ", ".join(f"{name} {desc}" for name, desc in descs)


def _concerns(row: Deviation, impl_name: str) -> bool:
    return row.implementations == "*" or fnmatch.fnmatchcase(impl_name, row.implementations)


def is_deterministic(op: Operation) -> bool:
    """Whether the result does not depend on the timing of threads."""
    return isinstance(op, DETERMINISTIC)
