"""Convolution in three directions, as products whose b is an image read through a window.

forward           dst[g, oc, (n, y, x)] = sum over (ic, r, s) of
                      weights[g, oc, (ic, r, s)] * src[g, (ic, r, s), (n, y, x)]
backward data     the same from diff_dst to diff_src with the weights' channels swapped; one product
                  for each set of pixels to which the same taps contribute
backward weights  diff_weights[g, oc, (ic, r, s)] = sum over (n, y, x) of
                      diff_dst[g, oc, (n, y, x)] * src[g, (n, y, x), (ic, r, s)]
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from dnncore import backend as core
from dnncore.backend import Accepted, Attributes, Convolution, MemoryDesc, Refused
from dnncore.planning.phases import Phase
from dnncore_opencl.convolution.depthwise.family import Depthwise, DepthwiseWeights
from dnncore_opencl.convolution.direct import DirectBackwardData, DirectForward
from dnncore_opencl.convolution.direct_weights import DirectBackwardWeights
from dnncore_opencl.convolution.groups import data as groups
from dnncore_opencl.convolution.groups import mma as groups_mma
from dnncore_opencl.convolution.groups.weights import BACKWARD_WEIGHTS as GROUPS_WEIGHTS
from dnncore_opencl.convolution.views import refuse_phases, spatial_phases
from dnncore_opencl.convolution.winograd import cpu as winograd
from dnncore_opencl.convolution.winograd import gpu as planes
from dnncore_opencl.copies.staging import plain
from dnncore_opencl.elementwise.random import is_random
from dnncore_opencl.gemm.families import FAMILIES
from dnncore_opencl.gemm.family import Family
from dnncore_opencl.gemm.implementation import GemmImplementation, in_lines
from dnncore_opencl.gemm.product import (
    Gemm,
    Matrix,
    Strides,
    Window,
    broadcast_strides,
    chain,
    matrix,
)

Direction = TypeVar("Direction", bound=Convolution)


class _Direct(GemmImplementation[Direction]):
    """The base of all directions: the algorithm and the formats."""

    def formats(self, op: Direction) -> dict[str, str]:
        """Put channels last (input channels in weights) if the family prefers this."""
        tags = super().formats(op)
        if not self.family.channels_last:
            return tags
        grouped = op.weights_role.ndims > op.src_role.ndims
        return {
            name: _channels_last(tag, 2 if grouped and "weights" in name else 1)
            for name, tag in tags.items()
        }

    def aligned(self, op: Direction, name: str, desc: MemoryDesc) -> MemoryDesc:
        """Store channels contiguously. Each pixel or tap begins at a multiple of 16 bytes."""
        if desc.ndims == 1:
            return plain(desc)
        channel = desc.ndims - op.src_role.ndims + 1
        order = [*(dim for dim in range(desc.ndims) if dim != channel), channel]
        return in_lines(desc, order)

    def accept(self, op: Direction, attr: Attributes, engine: Any, hint: Any) -> Accepted | Refused:
        """Accept the direct algorithm in every layout whose elements 32-bit integers can count."""
        if op.algorithm == "winograd":
            reason = "computes by algorithm direct; got winograd; pass algorithm='direct' or 'auto'"
            return Refused("algorithm", reason)
        return super().accept(op, attr, engine, hint)


class Forward(_Direct[core.ConvolutionForward]):
    """m: output channels; n: (image, output pixels); k: (input channel, taps)."""

    def gemms(self, op: core.ConvolutionForward, attr: Attributes) -> Iterator[Gemm]:
        """Return one product."""
        groups, oc, ic, *taps = op.grouped_weights
        w = _weights_strides(op, op.weights.strides)
        image = _Patches.of(op)
        last = len(op.tensors()) - 1

        def result(strides: Sequence[int]) -> Strides:
            return _image_strides(strides, oc)

        def bias(strides: Sequence[int]) -> Strides:
            return Strides(batch=(oc * strides[0],), m=strides[0])

        def of_weights(strides: Sequence[int]) -> Strides:
            group, channel, *_ = _weights_strides(op, strides)
            return Strides(batch=(group,), m=channel)

        patches = Strides(batch=(ic * image.channel,), n=image.pixels, k=image.taps)
        yield Gemm(
            batch=(groups,),
            m=oc,
            n=(op.dst.dims[0], *op.dst.dims[2:]),
            k=(ic, *taps),
            a=matrix(1, op.weights, Strides(batch=w[:1], m=w[1], k=w[2:])),
            b=matrix(0, op.src, patches, image.offset),
            c=matrix(last, op.dst, result(op.dst.strides)),
            window=image.window,
            **chain(op, attr, result, bias, {"weights": of_weights, "src": result}),
        )


class BackwardData(_Direct[core.ConvolutionBackwardData]):
    """m: input channels; n: (image, some pixels of diff_src); k: (output channel, their taps).

    With strides S, the same taps contribute to all pixels whose coordinates have equal remainders
    modulo S. One step among these pixels is a step of one pixel in diff_dst.
    """

    def accept(
        self, op: core.ConvolutionBackwardData, attr: Attributes, engine: Any, hint: Any
    ) -> Accepted | Refused:
        """Accept as the other directions, unless there are very many products."""
        return refuse_phases(op) or super().accept(op, attr, engine, hint)

    def gemms(self, op: core.ConvolutionBackwardData, attr: Attributes) -> Iterator[Gemm]:
        """Yield one product per combination of remainders. Each writes its pixels of diff_src."""
        for chosen in itertools.product(*spatial_phases(op)):
            yield self._gemm(op, attr, chosen)

    def _gemm(
        self, op: core.ConvolutionBackwardData, attr: Attributes, reached: Sequence[Phase]
    ) -> Gemm:
        groups, oc, ic, *_ = op.grouped_weights
        w = _weights_strides(op, op.weights.strides)
        x, y = op.diff_src.strides, op.diff_dst.strides
        pixel = sum(p.pixel * s for p, s in zip(reached, x[2:], strict=True))
        tap = sum(p.tap * s for p, s in zip(reached, w[3:], strict=True))
        start = sum(p.at * s for p, s in zip(reached, y[2:], strict=True))

        def result(strides: Sequence[int]) -> Strides:
            steps = (p.stride * s for p, s in zip(reached, strides[2:], strict=True))
            return Strides(batch=(ic * strides[1],), m=strides[1], n=(strides[0], *steps))

        def moved(operand: Matrix, desc: MemoryDesc) -> Matrix:
            strides = broadcast_strides(desc)
            by = sum(p.pixel * s for p, s in zip(reached, strides[2:], strict=True))
            return replace(operand, offset=operand.offset + by)

        steps = chain(op, attr, result)
        places = [MemoryDesc(op.diff_src.dims)] if is_random(attr) else []
        descs = [*(desc for _, desc in attr.operands()), *places]
        operands = tuple(map(moved, steps["operands"], descs))
        tap_strides = (p.tap_step * s for p, s in zip(reached, w[3:], strict=True))
        back = (-p.shrink * s for p, s in zip(reached, y[2:], strict=True))
        return Gemm(
            batch=(groups,),
            m=ic,
            n=(op.diff_src.dims[0], *(p.pixels for p in reached)),
            k=(oc, *(p.taps for p in reached)),
            a=matrix(1, op.weights, Strides(batch=w[:1], m=w[2], k=(w[1], *tap_strides)), tap),
            b=matrix(
                0,
                op.diff_dst,
                Strides(batch=(oc * y[1],), n=(y[0], *y[2:]), k=(y[1], *back)),
                start,
            ),
            c=matrix(2, op.diff_src, result(x), pixel),
            window=Window(
                at=tuple(p.at for p in reached),
                n=(1,) * len(reached),
                k=tuple(-p.shrink for p in reached),
                size=op.diff_dst.dims[2:],
            ),
            post_ops=steps["post_ops"],
            operands=operands,
            scaling=steps["scaling"],
            fpmath=attr.fpmath,
        )


class BackwardWeights(_Direct[core.ConvolutionBackwardWeights]):
    """m: output channels; n: (input channel, taps); k: (image, output pixels)."""

    def gemms(self, op: core.ConvolutionBackwardWeights, attr: Attributes) -> Iterator[Gemm]:
        """Return one product."""
        groups, oc, ic, *taps = op.grouped_weights
        image = _Patches.of(op, swapped=True)
        y = op.diff_dst.strides

        def result(strides: Sequence[int]) -> Strides:
            w = _weights_strides(op, strides)
            return Strides(batch=w[:1], m=w[1], n=w[2:])

        patches = Strides(batch=(ic * image.channel,), n=image.taps, k=image.pixels)
        yield Gemm(
            batch=(groups,),
            m=oc,
            n=(ic, *taps),
            k=(op.diff_dst.dims[0], *op.diff_dst.dims[2:]),
            a=matrix(1, op.diff_dst, Strides(batch=(oc * y[1],), m=y[1], k=(y[0], *y[2:]))),
            b=matrix(0, op.src, patches, image.offset),
            c=matrix(2, op.diff_weights, result(op.diff_weights.strides)),
            window=image.window,
            **chain(op, attr, result),
        )


@dataclass(frozen=True)
class _Patches:
    """An image as the matrix of its patches: strides per output pixel and per tap."""

    offset: int
    channel: int
    pixels: tuple[int, ...]
    taps: tuple[int, ...]
    window: Window

    @classmethod
    def of(
        cls, op: core.ConvolutionForward | core.ConvolutionBackwardWeights, *, swapped: bool = False
    ) -> _Patches:
        """Return the patches with pixels as n and taps as k; swapped: the other way round."""
        image, channel, *spatial = op.src.strides
        steps = tuple(d + 1 for d in op.dilations)
        n, k = (steps, op.strides) if swapped else (op.strides, steps)
        return cls(
            -sum(p * s for p, s in zip(op.padding_l, spatial, strict=True)),
            channel,
            (image, *(n * s for n, s in zip(op.strides, spatial, strict=True))),
            (channel, *(n * s for n, s in zip(steps, spatial, strict=True))),
            Window(tuple(-p for p in op.padding_l), n, k, op.src.dims[2:]),
        )


def _channels_last(tag: str, channel: int) -> str:
    """Return the format with the channels last. A bias has only channels."""
    return tag[:channel] + tag[channel + 1 :] + tag[channel : channel + 1]


def _weights_strides(op: Convolution, strides: Sequence[int]) -> tuple[int, ...]:
    """Return strides as (group, oc, ic, *taps); the group's is 0 without groups."""
    grouped = op.weights_role.ndims > op.src_role.ndims
    return tuple(strides) if grouped else (0, *strides)


def _image_strides(strides: Sequence[int], channels: int) -> Strides:
    """Return strides of (n, c, *spatial) for groups of `channels` channels."""
    image, channel, *spatial = strides
    return Strides(batch=(channels * channel,), m=channel, n=(image, *spatial))


DATA_FAMILIES: tuple[type[Family], ...] = (Depthwise, *FAMILIES)
WEIGHTS_FAMILIES: tuple[type[Family], ...] = (DepthwiseWeights, *FAMILIES)
FORWARD = (
    winograd.FORWARD,
    DirectForward(),
    groups_mma.FORWARD,
    groups.FORWARD,
    *planes.FORWARD,
    *(Forward(family) for family in DATA_FAMILIES),
    *core.depthwise_fusions("opencl"),
)
BACKWARD_DATA = (
    winograd.BACKWARD_DATA,
    DirectBackwardData(),
    groups_mma.BACKWARD_DATA,
    groups.BACKWARD_DATA,
    *planes.BACKWARD_DATA,
    *(BackwardData(family) for family in DATA_FAMILIES),
)
BACKWARD_WEIGHTS = (
    DirectBackwardWeights(),
    GROUPS_WEIGHTS,
    *planes.BACKWARD_WEIGHTS,
    *(BackwardWeights(family) for family in WEIGHTS_FAMILIES),
)
