"""Views of activations (N, C, D, H, W) with runs of contiguous channels. Nothing is copied."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import cast

from dnncore_cpu_numba.gemm.problem import Matrix, steps
from dnncore_cpu_numba.runtime.program import Param
from dnncore_cpu_numba.runtime.tensor import Tensor


@dataclass(frozen=True)
class Image:
    """An address and strides in bytes. Strides are 0 along dims of size 1, for broadcasting.

    run: the number of contiguous channels: the block size, all channels, or 1. block: bytes from
    run to run. size: bytes of an element.
    """

    address: Param
    dims: tuple[int, ...]
    batch: int
    spatial: tuple[int, ...]
    run: int
    block: int
    size: int = 4

    @classmethod
    def chosen(cls, tensor: Tensor) -> Image:
        """Return a tensor whose format was chosen by this backend as an image."""
        return cast(Image, cls.of(tensor))

    @classmethod
    def of(cls, tensor: Tensor) -> Image | None:
        """Return a 5-D tensor as an image, None if dims other than channels are blocked.

        If the channels of a plain tensor are not contiguous, runs have one channel.
        """
        desc = tensor.desc
        batch, channel, *spatial = steps(desc)
        match desc.inner_blocks:
            case ():
                run, block = max(1, desc.dims[1]), desc.itemsize * desc.dims[1]
                if channel not in (0, desc.itemsize):
                    run, block = 1, channel
            case ((1, run),):
                block = channel
            case _:
                return None
        return cls(
            tensor.address, desc.dims, batch, tuple(spatial), run, block, desc.itemsize
        )  # fmt: skip

    @property
    def is_channels_last(self) -> bool:
        """Whether all channels of a pixel are contiguous."""
        return self.run == max(1, self.dims[1])

    @property
    def tag(self) -> str:
        """The tag of a dense image with runs of this length."""
        if self.is_channels_last:
            return "acdeb"
        return "abcde" if self.run == 1 else f"aBcde{self.run}b"

    def channel(self, index: int) -> int:
        """Return the offset of a channel in bytes."""
        return index // self.run * self.block + index % self.run * self.size

    def vector_step(self, lanes: int, per_group: int) -> int | None:
        """Return the bytes from vector to vector of channels, None if groups are not vectors."""
        if self.is_channels_last:
            return self.size * lanes
        whole = self.dims[1] == per_group or per_group % lanes == 0
        return self.block if self.run == lanes and whole else None

    def matrix(self, lanes: int, per_group: int) -> Matrix:
        """Return the image as a matrix: rows are pixels, columns channels, outer dims N and G."""
        splat = self.dims[1] == 1
        step = 0 if splat else self.vector_step(lanes, per_group)
        assert step is not None
        group = 0 if splat else self.channel(per_group)
        *planes, row = self.spatial
        return Matrix(self.address, (self.batch, group), row, step, tuple(planes))


@functools.lru_cache(1024)  # all instruction sets call it with the same arguments
def as_5d(tensor: Tensor) -> Tensor:
    """Return an activation as (N, C, D, H, W). Missing spatial dims have size 1."""
    n, c, *spatial = tensor.desc.dims
    return tensor.seen_as(tensor.desc.reshape((n, c, *[1] * (3 - len(spatial)), *spatial)))


def spatial_tag(ndims: int) -> str:
    """Return the letters of an activation's spatial dims: "w", "hw" or "dhw"."""
    return "dhw"[5 - ndims :]
