"""All tensors of a normalization in one shape: that of src or, with groups, (N, G, C / G, ...)."""

from __future__ import annotations

import string
from dataclasses import dataclass
from typing import Any

from dnncore import backend as core
from dnncore.backend import DescriptorError, MemoryDesc
from dnncore_opencl.codegen.layout import Spread

WHOLE = ("src", "src1", "dst", "workspace", "diff_dst", "diff_src", "diff_src1")
VECTORS = ("scale", "shift", "diff_scale", "diff_shift")


@dataclass(frozen=True)
class Views:
    """The common shape. in_set, in_channel: its dims along which elements of a set, or of a
    channel, lie.
    """

    op: core.Normalization

    def of(self, name: str, desc: MemoryDesc) -> Any:
        """Return the tensor with this name in the common shape."""
        if name in WHOLE:
            return self.whole(desc)
        return self.channel(desc) if name in VECTORS else self.statistic(desc)

    def has_whole(self, desc: MemoryDesc) -> bool:
        """Whether a tensor with src's dims has the common shape."""
        try:
            self.whole(desc)
        except DescriptorError:
            return False
        return True

    @property
    def groups(self) -> int:
        """The number of groups of group normalization; 0 for other operations."""
        return self.op.groups if isinstance(self.op, core.GroupNormalization) else 0

    @property
    def dims(self) -> tuple[int, ...]:
        """The common shape."""
        first, channels, *rest = self.op.source.dims
        if not self.groups:
            return self.op.source.dims
        return (first, self.groups, channels // self.groups, *rest)

    @property
    def vector_dims(self) -> tuple[int, ...]:
        """The dims of scale and of shift."""
        if self.groups:
            return (1, 2)
        return (len(self.dims) - 1,) if self._is_layer else (1,)

    @property
    def in_set(self) -> tuple[int, ...]:
        """The dims of a set."""
        if self.groups:
            return tuple(range(2, len(self.dims)))
        if self._is_layer:
            return (len(self.dims) - 1,)
        return (0, *range(2, len(self.dims)))

    @property
    def in_channel(self) -> tuple[int, ...]:
        """The dims of a channel."""
        return tuple(dim for dim in range(len(self.dims)) if dim not in self.vector_dims)

    @property
    def _is_layer(self) -> bool:
        return isinstance(self.op, core.LayerNormalization)

    def whole(self, desc: MemoryDesc) -> MemoryDesc:
        """Return a tensor with src's dims, or 1, in the common shape.

        Raises `DescriptorError` if blocks or padding cross groups.
        """
        if not self.groups:
            return desc
        first, channels, *rest = desc.dims
        split = (self.groups, channels // self.groups) if channels > 1 else (1, 1)
        blocks = [size for dim, size in desc.inner_blocks if dim == 1]
        dims = (first, *split, *rest)
        if not blocks or 1 in split:
            return desc.reshape(dims)
        return _split_blocks(desc, dims)

    def statistic(self, desc: MemoryDesc) -> MemoryDesc:
        """Return mean or variance in the common shape."""
        return self._spread(desc, [dim for dim in range(len(self.dims)) if dim not in self.in_set])

    def statistic_like(self, offset: int) -> Any:
        """Return a row-major statistic in a buffer of floats. offset: its first element."""
        desc = MemoryDesc(self.op.statistics_dims, "f32")
        return self.statistic(desc.with_offset0(offset))

    def channel(self, desc: MemoryDesc) -> MemoryDesc:
        """Return scale or shift in the common shape."""
        if self.groups and _strides(desc):
            desc = desc.reshape(self.dims[1:3])
        return self._spread(desc, self.vector_dims)

    def _spread(self, desc: MemoryDesc, places: list[int] | tuple[int, ...]) -> MemoryDesc:
        """Return a plain descriptor with its dims at `places` of the common shape."""
        dims, strides = [1] * len(self.dims), [1] * len(self.dims)
        for place, size, stride in zip(places, desc.dims, _strides(desc), strict=True):
            dims[place], strides[place] = size, stride
        plain = MemoryDesc(dims, desc.data_type, None, strides=strides)
        return plain.with_offset0(desc.offset0)


@dataclass(frozen=True)
class ApartViews(Views):
    """The tensors of group normalization in src's dims. Channels of a group share a statistic."""

    def whole(self, desc: MemoryDesc) -> MemoryDesc:
        """Return the tensor itself."""
        return desc

    def statistic(self, desc: MemoryDesc) -> Any:
        """Return mean or variance with an element per group of channels."""
        ones = (1,) * (self.op.source.ndims - 2)
        strides = (*_strides(desc), *ones)
        plain = MemoryDesc((*desc.dims, *ones), desc.data_type, None, strides=strides)
        share = self.op.source.dims[1] // self.groups
        return Spread(plain.with_offset0(desc.offset0), (1, share, *ones))

    def channel(self, desc: MemoryDesc) -> MemoryDesc:
        """Return scale or shift."""
        ones = (1,) * (self.op.source.ndims - 2)
        dims, strides = (1, *desc.dims, *ones), (1, *_strides(desc), *ones)
        plain = MemoryDesc(dims, desc.data_type, None, strides=strides)
        return plain.with_offset0(desc.offset0)


def _strides(desc: MemoryDesc) -> tuple[int, ...]:
    """Return the strides of a statistic, scale or shift. Raises `DescriptorError` for blocks."""
    if desc.inner_blocks:
        raise DescriptorError(f"needs statistics and scales without blocks; got {desc.tag}")
    return desc.strides


def _split_blocks(desc: MemoryDesc, dims: tuple[int, ...]) -> MemoryDesc:
    """Divide the channels of a tensor with one block of channels into groups."""
    (block,) = (size for _, size in desc.inner_blocks) if len(desc.inner_blocks) == 1 else (0,)
    share = dims[2]
    letters = string.ascii_lowercase[: len(dims)]
    first, outer, *rest = desc.strides
    if block and share % block == 0:
        steps = (outer * (share // block), outer)
        tag = f"{letters[:2]}{letters[2:].replace('c', 'C')}{block}c"
    elif block and block % share == 0 and desc.dims[1] % block == 0:
        steps = (outer, outer)
        tag = f"{letters.replace('b', 'B').replace('c', 'C')}{block // share}b{share}c"
    else:
        raise DescriptorError(f"needs blocks of channels within groups; got {desc.tag}")
    strides = (first, *steps, *rest)
    return MemoryDesc(dims, desc.data_type, tag, strides=strides).with_offset0(desc.offset0)
