"""The depthwise convolution that follows a 1x1 convolution as a post-op, oneDNN's `append_dw`.

With the result x (N, C, H, W) of the convolution, before it is stored, and a kernel (KH, KW),

    dst[n, c, y, x'] = bias[c] + sum over r, s of
        x[n, c, y*S - P + r, x'*S - P + s] * weights[c, 0, 0, r, s]

with zeros outside x. S is the stride, and P the padding on each side. x is rounded to the type of
the convolution's dst. (A. Howard et al. 2017, "MobileNets".)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dnncore.errors import DataTypeError, DescriptorError
from dnncore.ops.convolution import ConvolutionForward
from dnncore.ops.operation import Operation
from dnncore.tensors.datatypes import data_type
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["check_fusion", "depthwise_of", "stored"]


def stored(step: Any, dst: MemoryDesc) -> MemoryDesc:
    """Return the descriptor of the stored result: dst's format with the dims after the step."""
    kernel, sizes = step.weights.dims[3:], dst.dims[2:]
    each = zip(sizes, kernel, strict=False)
    after = [(n + 2 * step.padding - k) // step.stride + 1 for n, k in each]
    dims = (*dst.dims[:2], *(max(0, n) for n in after))
    return MemoryDesc(dims, step.dst_type, dst.order_tag if dst.format_kind == "blocked" else "any")


def depthwise_of(step: Any, src: MemoryDesc, dst: MemoryDesc | None = None) -> ConvolutionForward:
    """Return the step as an operation. dst: by default that of `stored`."""
    return ConvolutionForward(
        "forward_inference",
        src=src,
        weights=step.weights,
        bias=step.bias,
        dst=stored(step, src) if dst is None else dst,
        strides=step.stride,
        padding_l=step.padding,
        padding_r=step.padding,
    )


def check_fusion(op: Operation, chain: Sequence[Any], place: int) -> None:
    """Raise `DescriptorError` unless the step at this place of the chain may follow `op`."""
    step, name = chain[place], f"post_op_{place}"
    if not isinstance(op, ConvolutionForward):
        raise DescriptorError(
            f"{op.KIND}: the post-op depthwise follows only a convolution forward; execute the"
            " depthwise convolution separately"
        )
    if not all(data_type(t).is_float for t in (op.src.data_type, op.dst.data_type, step.dst_type)):
        raise DataTypeError(
            "convolution: with the post-op depthwise, tensors must be of floating-point types; got"
            f" {op.src.data_type}, {op.dst.data_type} and {step.dst_type}",
            "depthwise post-op of integers",
        )
    groups, _, _, *kernel = op.grouped_weights
    if any(n != 1 for n in (*kernel, groups)):
        raise DescriptorError(
            "convolution: the post-op depthwise follows only a kernel of size 1 without groups; got"
            f" kernel {tuple(kernel)} and {groups} groups"
        )
    if sum(other.kind == "depthwise" for other in chain) > 1:
        raise DescriptorError("convolution: there may be only one post-op depthwise")
    if any(other.kind == "sum" for other in chain[:place]):
        raise DescriptorError(
            f"convolution: a sum must follow the post-op depthwise, {name}, because the old values"
            " of dst have the dims after it"
        )
    channels, sizes, kernel = op.dst.dims[1], op.dst.dims[2:], list(step.weights.dims[3:])
    first, rank = step.weights.dims[:3], op.dst.ndims + 1
    if step.weights.ndims != rank or first != (channels, 1, 1) or len(set(kernel)) > 1:
        raise DescriptorError(
            f"convolution: {name}_weights must be ({channels}, 1, 1, kernel) with {rank} dims and a"
            f" kernel of equal sizes; got {step.weights.dims}"
        )
    if any(n + 2 * step.padding < k for n, k in zip(sizes, kernel, strict=True)):
        raise DescriptorError(
            f"convolution: the kernel of {name}_weights, {tuple(kernel)}, must fit into the"
            f" result {sizes} with the padding {step.padding} on each side"
        )
    if op.dst.format_kind == "opaque" or (op.dst.format_kind == "blocked" and op.dst.tag is None):
        raise DescriptorError(
            f"convolution: dst must be dense or 'any' if a post-op depthwise follows, because the"
            f" stored result has its format; got {op.dst!r}"
        )
    depthwise_of(step, op.dst)
