"""Deconvolution as convolutions.

The gradient of a convolution by its src is a deconvolution, and the reverse. So each direction is a
convolution whose src is the deconvolution's dst. The two dims of channels of the weights are
exchanged, which is a view.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from dnncore.attributes import Attributes
from dnncore.backend import Refused
from dnncore.composition.composition import Composition
from dnncore.composition.steps import CannotCompose, Room, Steps
from dnncore.ops import (
    ConvolutionBackwardData,
    ConvolutionBackwardWeights,
    ConvolutionForward,
    DeconvolutionBackwardData,
    DeconvolutionBackwardWeights,
    DeconvolutionForward,
    Reduction,
    Reorder,
)
from dnncore.ops.convolution import Convolution
from dnncore.ops.deconvolution import Deconvolution
from dnncore.ops.types import INTEGER_TYPES, PACKED_TYPES
from dnncore.planning.phases import Phase, phases
from dnncore.post_op import PostOp
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["deconvolutions"]

PLAIN = Attributes()
MOST_COPIES = 128  # steps that copy taps; each takes 0.1 ms to plan
OTHER_TYPES = {"f64", *INTEGER_TYPES, *PACKED_TYPES}
"""Types that a convolution's gradient lacks, of tensors or of a post-op that adds the bias."""


def _swapped(desc: MemoryDesc, images: MemoryDesc) -> MemoryDesc:
    """Return weights with the two dims of channels exchanged."""
    first = desc.ndims - images.ndims
    order = [*range(first), first + 1, first, *range(first + 2, desc.ndims)]
    return desc.permute_axes(order)


def _resolved(op: Deconvolution, formats: Mapping[str, MemoryDesc]) -> Deconvolution:
    """Replace `any` by the formats of descriptors by role, and by row-major for the bias."""
    named: dict[str, str | MemoryDesc] = {
        {"src": op.SRC, "weights": op.WEIGHTS, "dst": op.DST}[role]: desc
        for role, desc in formats.items()
    }
    if op.bias_role is not None:
        named[op.BIAS] = "a"
    return op.resolve_any(**named)


def _like_convolution(op: Deconvolution, attr: Attributes, steps: Steps) -> Deconvolution:
    """Return the deconvolution with the formats that the convolution's implementation prefers.

    Weights become row-major if the convolution prefers an opaque format, which has no view.
    """
    if not any(desc.is_any for _, desc in op.tensors()):
        return op
    chosen = steps.chosen(_convolution(op), attr)
    weights = chosen.weights_role
    if weights.format_kind == "opaque":
        op = op.resolve_any(**{op.WEIGHTS: op.weights_role.with_format(None)})
        return _like_convolution(op, attr, steps)
    return _resolved(
        op,
        {
            "src": chosen.dst_role,
            "weights": _swapped(weights, chosen.src_role),
            "dst": chosen.src_role,
        },
    )


def _convolution(op: Deconvolution) -> Convolution:
    """Return the convolution that computes the same products."""
    x, y = op.dst_role, op.src_role
    w = _swapped(op.weights_role, x)
    if isinstance(op, DeconvolutionForward):
        return ConvolutionBackwardData(diff_src=x, weights=w, diff_dst=y, **op.window_fields)
    if isinstance(op, DeconvolutionBackwardData):
        return ConvolutionForward("forward_training", src=x, weights=w, dst=y, **op.window_fields)
    return ConvolutionBackwardWeights(src=x, diff_weights=w, diff_dst=y, **op.window_fields)


class _ByConvolution(Composition[Deconvolution]):
    """The convolution of the same products, without further steps."""

    STEM: ClassVar[str] = "convolution"

    def compose(self, op: Deconvolution, attr: Attributes, steps: Steps) -> Deconvolution:
        """Compute gradients by data."""
        op = _like_convolution(op, attr, steps)
        assert isinstance(op, DeconvolutionBackwardData)
        steps.add(_convolution(op), attr, src="diff_dst", weights="weights", dst="diff_src")
        return op


class _ForwardByConvolution(_ByConvolution):
    """A convolution's gradient by data. Its first post-op adds the bias."""

    def compose(self, op: Deconvolution, attr: Attributes, steps: Steps) -> Deconvolution:
        """Compute results without scales and zero points, of floating-point types."""
        if attr.scales or attr.zero_points:
            reason = "takes no scales and no zero points, which a convolution's gradient lacks"
            raise CannotCompose(Refused("attribute", reason))
        if (own := op.bias_role) is None:
            op = _like_convolution(op, attr, steps)
            names = {name: name for name, _ in attr.operands()}
        else:
            op = _resolved(op, {})
            own = own.with_format("a") if own.is_any else own
            bias = PostOp.binary("add", _per_channel(own, op.dst_role.ndims))
            names = {"post_op_0_src": "bias"}
            for name, _ in attr.operands():
                place, field = name.removeprefix("post_op_").split("_", 1)
                names[f"post_op_{int(place) + 1}_{field}"] = name
            attr = replace(attr, post_ops=(bias, *attr.post_ops))
            op = _like_convolution(op, attr, steps)
        tensors = {"diff_dst": "src", "weights": "weights", "diff_src": "dst"}
        steps.add(_convolution(op), attr, **tensors, **names)
        return op


def _with_operands(step: PostOp, change: Callable[[MemoryDesc], MemoryDesc]) -> PostOp:
    """Return the post-op with `change` applied to the descriptors of its operands."""
    changed: dict[str, Any] = {name: change(desc) for name, desc in step.operands}
    return replace(step, **changed)


def _per_channel(desc: MemoryDesc, ndims: int) -> MemoryDesc:
    return desc.reshape((1, desc.dims[0], *[1] * (ndims - 2)))


class _WeightsByConvolution(_ByConvolution):
    """A convolution's gradient by weights, and a sum for the bias."""

    def compose(self, op: Deconvolution, attr: Attributes, steps: Steps) -> Deconvolution:
        """Compute the gradients of weights and bias."""
        assert isinstance(op, DeconvolutionBackwardWeights)
        images = op.src
        if attr.rounding == "stochastic":
            reason = "takes no stochastic rounding: its random numbers have another order"
            raise CannotCompose(Refused("attribute", reason))
        post_ops = [
            _with_operands(step, lambda desc: _swapped(desc, images)) for step in attr.post_ops
        ]
        own = replace(attr, post_ops=post_ops)
        found = _like_convolution(op, own, steps)
        assert isinstance(found, DeconvolutionBackwardWeights)
        steps.add(
            _convolution(found), own, src="diff_dst", diff_dst="src", diff_weights="diff_weights"
        )
        if found.diff_bias is not None:
            _add_bias_gradient(steps, found.diff_bias, found.diff_dst)
        return found


def _add_bias_gradient(steps: Steps, diff_bias: MemoryDesc, diff_dst: MemoryDesc) -> None:
    """Append the sum of diff_dst over all dims except the channels."""
    per_channel = _per_channel(diff_bias, diff_dst.ndims)
    if diff_dst.dims == per_channel.dims:
        steps.add(Reorder(src=diff_dst, dst=per_channel), PLAIN, src="diff_dst", dst="diff_bias")
        return
    op = Reduction("sum", src=diff_dst, dst=per_channel)
    steps.add(op, PLAIN, src="diff_dst", dst="diff_bias")


# -- forward by phases -----------------------------------------------------------------------------


class _Phases(Composition[Deconvolution]):
    """A convolution forward per phase of the strides, for scales, zero points, integers and f64.

    The pixels of dst whose places have equal remainders modulo the strides are the result of a
    convolution with strides of 1 and the reversed taps that reach them. The taps are copied.
    """

    STEM: ClassVar[str] = "phases"

    def compose(self, op: Deconvolution, attr: Attributes, steps: Steps) -> Deconvolution:
        """Copy the taps of each phase and compute its pixels."""
        assert isinstance(op, DeconvolutionForward)
        types = {desc.data_type for _, desc in op.tensors()}
        if not (attr.scales or attr.zero_points or types & OTHER_TYPES):
            reason = (
                "takes scales, zero points, integers and f64; a convolution's gradient is faster"
            )
            raise CannotCompose(Refused("attribute", reason))
        if attr.rounding == "stochastic":
            reason = "takes no stochastic rounding: its random numbers have another order"
            raise CannotCompose(Refused("attribute", reason))
        copies = sum(op.grouped_weights[3:])
        if copies > MOST_COPIES:
            reason = f"copies up to {MOST_COPIES} taps; got {copies}"
            raise CannotCompose(Refused("shape", reason))
        last = "nwc", "nhwc", "ndhwc"
        formats: dict[str, str | MemoryDesc] = dict.fromkeys(("src", "dst"), last[op.src.ndims - 3])
        formats |= {"weights": op.weights.with_format(None), "bias": "a"}
        found = op.resolve_any(**formats)
        dims = zip(
            found.dst.dims[2:], found.grouped_weights[3:], found.strides,
            (d + 1 for d in found.dilations), found.padding_l, strict=True,
        )  # fmt: skip
        for chosen in itertools.product(*(phases(*dim) for dim in dims)):
            _add_phase(steps, found, attr, chosen)
        return found


@dataclass(frozen=True)
class _Axis:
    """One spatial dim of the convolution of a phase: the cells of src that it reads, its window."""

    start: int
    cells: int
    stride: int
    dilation: int
    left: int
    right: int

    @classmethod
    def of(cls, phase: Phase, size: int) -> _Axis | None:
        """Return the axis for a src of this size; None if no tap reaches a cell."""
        if not phase.taps:
            return None
        reach = phase.shrink * (phase.taps - 1)
        left = reach - phase.at
        start, left = max(0, -left), max(0, left)
        needed = phase.pixels + reach - left
        cells = min(size - start, needed)
        dilation = phase.shrink - 1 if phase.taps > 1 else 0
        return cls(start, cells, 1, dilation, left, needed - cells) if cells > 0 else None

    @classmethod
    def of_zeros(cls, phase: Phase, size: int) -> _Axis:
        """Return an axis whose windows of one tap lie in the padding."""
        cells = min(size, 1)
        stride = cells + phase.pixels
        return cls(0, cells, stride, 0, 1, (phase.pixels - 1) * stride - cells)


def _add_phase(
    steps: Steps, op: DeconvolutionForward, attr: Attributes, chosen: Sequence[Phase]
) -> None:
    """Append the steps that compute the pixels of one phase."""
    sizes = op.src.dims[2:]
    found = [_Axis.of(phase, size) for phase, size in zip(chosen, sizes, strict=True)]
    if None in found:
        chosen = [replace(phase, taps=1) for phase in chosen]
        found = [_Axis.of_zeros(phase, size) for phase, size in zip(chosen, sizes, strict=True)]
    axes = [axis for axis in found if axis is not None]
    taps = [_reversed(phase) for phase in chosen]
    kernel = tuple(map(len, taps))
    first = op.weights.ndims - len(kernel)
    own_tap = MemoryDesc((*op.weights.dims[:first], *kernel), op.weights.data_type, "any")
    conv = ConvolutionForward(
        op.prop_kind,
        src=op.src.submemory(
            (*op.src.dims[:2], *(axis.cells for axis in axes)),
            (0, 0, *(axis.start for axis in axes)),
        ),
        weights=own_tap,
        bias=op.bias,
        dst=_pixels(op.dst, chosen),
        strides=tuple(axis.stride for axis in axes),
        dilations=tuple(axis.dilation for axis in axes),
        padding_l=tuple(axis.left for axis in axes),
        padding_r=tuple(axis.right for axis in axes),
    )
    post_ops = [_with_operands(step, lambda desc: _pixels(desc, chosen)) for step in attr.post_ops]
    attr = replace(attr, post_ops=post_ops)
    conv, weights = _with_taps(steps, op, conv, attr, taps)
    tensors: dict[str, str | Room] = {"src": "src", "weights": weights, "dst": "dst"}
    if op.bias is not None:
        tensors["bias"] = "bias"
    steps.add(conv, attr, **tensors)


def _reversed(phase: Phase) -> list[int]:
    """Return the taps of a phase in the order of the cells that they read."""
    return [phase.tap + phase.tap_step * t for t in reversed(range(phase.taps))]


def _pixels(desc: MemoryDesc, chosen: Sequence[Phase]) -> MemoryDesc:
    """Return the part of dst, or of an operand with dims of 1 or dst's, that a phase computes."""
    for dim, phase in enumerate(chosen, start=2):
        if desc.dims[dim] > 1:
            desc = desc.every(dim, phase.pixel, phase.stride)
    return desc


def _with_taps(
    steps: Steps, op: DeconvolutionForward, conv: ConvolutionForward, attr: Attributes,
    taps: Sequence[Sequence[int]],
) -> tuple[ConvolutionForward, str | Room]:  # fmt: skip
    """Return the convolution with a format of weights, and the weights.

    Taps are reversed along one dim after the other, in copies. The last copy has the format that
    the convolution prefers. A dim with one tap is a view.
    """
    first = op.weights.ndims - len(taps)
    source = op.weights
    tensor: str | Room = "weights"
    moved = {dim: own for dim, own in enumerate(taps, first) if len(own) > 1}
    for dim, own in enumerate(taps, first):
        if dim not in moved:
            source = _slab(source, dim, own[0])
    if not moved:
        return conv.with_descs(weights=source), tensor
    wanted = steps.chosen(conv, attr).weights
    if wanted.format_kind != "blocked":
        wanted = wanted.with_format(None)
    for dim, own in moved.items():
        dims = (*source.dims[:dim], len(own), *source.dims[dim + 1 :])
        is_last = dim == max(moved)
        room = steps.room(wanted if is_last else MemoryDesc(dims, source.data_type))
        for place, tap in enumerate(own):
            copy = Reorder(src=_slab(source, dim, tap), dst=_slab(room.desc, dim, place))
            steps.add(copy, PLAIN, src=tensor, dst=room)
        source, tensor = room.desc, room
    return conv.with_descs(weights=source), tensor


def _slab(desc: MemoryDesc, dim: int, place: int) -> MemoryDesc:
    """Return the part of a tensor at one place of a dim."""
    places = [0] * desc.ndims
    places[dim] = place
    return desc.submemory((*desc.dims[:dim], 1, *desc.dims[dim + 1 :]), tuple(places))


def deconvolutions(
    backend: str,
) -> dict[type[Deconvolution], tuple[Composition[Deconvolution], ...]]:
    """Return the implementations of the three directions by the convolutions of a backend."""
    return {
        DeconvolutionForward: (_ForwardByConvolution(backend), _Phases(backend)),
        DeconvolutionBackwardData: (_ByConvolution(backend),),
        DeconvolutionBackwardWeights: (_WeightsByConvolution(backend),),
    }
