"""The division of channels and pixels among the work-items of a work-group."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from dnncore.backend import Convolution, MemoryDesc
from dnncore_opencl.codegen.grid import power_of_two_within
from dnncore_opencl.codegen.layout import digits
from dnncore_opencl.codegen.vectors import most_lanes
from dnncore_opencl.copies.staging import plain
from dnncore_opencl.runtime.launch import padded

GROUP = 128  # work-items
MOST_SLOTS = 32  # vectors per work-group along channels
MOST_LANES = 4
MOST_CHANNELS = 32  # per group, on either side
CHANNELS = 1  # the dim of channels
REGISTERS = 72  # for weights, per work-item


@dataclass(frozen=True)
class Channels:
    """The channels of a convolution and of a work-item.

    groups: number of groups of channels. columns, depth: channels of the result and of the image
    per group. along: whether neighbouring work-items are neighbours along channels, else along
    pixels. results: channels of the result per work-item; they belong to one group, except if
    groups have one channel. reads: channels of the image per read. is_wide: whether a work-item
    writes all its channels at once. slots: vectors of channels per work-group.
    """

    groups: int
    columns: int
    depth: int
    along: bool
    results: int
    reads: int
    is_wide: bool
    slots: int
    for_weights: bool = False

    @classmethod
    def of(
        cls,
        engine: Any,
        sizes: tuple[int, int, int],
        taps: int,
        image: MemoryDesc,
        result: MemoryDesc,
        *,
        for_weights: bool = False,
    ) -> Channels:
        """Choose for the numbers (groups, columns, depth) in `sizes` and `taps` taps at once."""
        groups, columns, depth = sizes
        along = all(is_along(desc) for desc in (image, result))
        reads = 1
        if columns == depth == 1:
            results = _lanes(engine, [groups], [image, result]) if along else 1
            while results * taps > REGISTERS:
                results //= 2
            is_wide = results > 1
        else:
            most = MOST_LANES if along or for_weights else 2 * MOST_LANES
            fits = (n for n in (8, 4, 2, 1) if n <= most and (n == 1 or n * taps <= REGISTERS))
            results = min(fits, key=lambda n: (padded(columns, n), -n))
            is_wide = along and 1 < results <= _lanes(engine, [columns], [result])
            if along and not for_weights:
                reads = _lanes(engine, [depth], [image])
        channels = cls(groups, columns, depth, along, results, reads, is_wide, 1, for_weights)
        return replace(channels, slots=_slots(channels.vectors)) if along else channels

    def with_slots_within(self, most: int) -> Channels:
        """Return the same with at most `most` slots, a power of two."""
        return replace(self, slots=power_of_two_within(self.slots, most))

    @property
    def is_depthwise(self) -> bool:
        """Whether groups have one channel, so that a work-item has several groups."""
        return self.columns == self.depth == 1

    @property
    def vectors_of_group(self) -> int:
        """Vectors of a group's columns."""
        return math.ceil(self.columns / self.results)

    @property
    def vectors(self) -> int:
        """Vectors of all channels."""
        if self.is_depthwise:
            return self.groups // self.results
        return self.groups * self.vectors_of_group * (self.depth if self.for_weights else 1)

    @property
    def values(self) -> int:
        """Channels of the image in registers at once."""
        return self.results if self.is_depthwise else self.reads

    @property
    def values_read(self) -> int:
        """Channels of the image that one channel of the result depends on, per work-item."""
        return 1 if self.for_weights else self.depth

    @property
    def blocks(self) -> int:
        """Work-groups along channels."""
        return math.ceil(self.vectors / self.slots)

    @property
    def others(self) -> int:
        """Tiles per work-group."""
        return GROUP // self.slots


def wanted_image(desc: MemoryDesc) -> MemoryDesc:
    """Return the layout of an image that kernels can access.

    The tensor's own layout is kept unless it has padding or blocks of other dims than channels.
    """
    is_padded = desc.padded_dims != desc.dims
    is_fit = not is_padded and all(dim == CHANNELS for dim, _ in desc.inner_blocks)
    return desc if is_fit else plain(desc)


def is_along(desc: MemoryDesc) -> bool:
    """Whether channels are contiguous."""
    size, stride = digits(desc, CHANNELS)[-1]
    return stride == 1 and size > 1


def _lanes(engine: Any, counts: Iterable[int], descs: Iterable[MemoryDesc]) -> int:
    """Return the channels per access of tensors in which channels are contiguous."""
    sizes, steps, itemsize = list(counts), [], MOST_LANES
    for desc in descs:
        *blocks, last = digits(desc, CHANNELS)
        sizes.append(last.size)
        others = [digits(desc, dim) for dim in range(desc.ndims) if dim != CHANNELS]
        steps += [desc.offset0, *(d.stride for c in (blocks, *others) for d in c if d.size > 1)]
        itemsize = min(itemsize, desc.itemsize)
    return min(MOST_LANES, most_lanes(engine, sizes, steps, itemsize))


def _slots(vectors: int) -> int:
    """Return a power of two that leaves few slots without a vector."""
    choices = [1 << i for i in range(MOST_SLOTS.bit_length())]
    return min(choices, key=lambda slots: padded(vectors, slots) * (1 + 1 / slots))


def sizes_of(op: Convolution, *, is_backward: bool) -> tuple[int, int, int]:
    """Return groups, channels of the result per group, and channels of the image per group."""
    groups, outputs, inputs, *_ = op.grouped_weights
    return (groups, inputs, outputs) if is_backward else (groups, outputs, inputs)
