"""Sliding windows over images of one to three spatial dims, for convolution and pooling.

Along each dim, tap r of output y reads cell y * stride - left + r * (dilation + 1) of the image. In
a padded image, indices are larger by `left`, and the cells that tap r of all windows reads are one
strided slice. A sum over taps is therefore a loop over slices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dnncore.backend import Convolution, Pooling

if TYPE_CHECKING:
    from collections.abc import Iterator

Array = np.ndarray[Any, Any]
Dims = tuple[int, ...]


class Windows:
    """The windows of `op`. kernel, src, dst: the spatial dims of kernel, image and output."""

    def __init__(self, op: Convolution | Pooling, kernel: Dims, src: Dims, dst: Dims) -> None:
        self.kernel = kernel
        self.steps = tuple(dilation + 1 for dilation in op.dilations)
        self.strides = op.strides
        self.dst = dst
        self.inside: tuple[Any, ...] = (
            ...,
            *(slice(p, p + n) for p, n in zip(op.padding_l, src, strict=True)),
        )
        self.padded = tuple(map(self._extent, op.padding_l, src, range(len(src))))

    def _extent(self, left: int, size: int, dim: int) -> int:
        """Return the number of cells up to the end of the image or of the last window."""
        last_window = (self.dst[dim] - 1) * self.strides[dim]
        last_tap = (self.kernel[dim] - 1) * self.steps[dim]
        return int(max(left + size, last_window + last_tap + 1))

    def taps(self) -> Iterator[Dims]:
        """Iterate over all places in the kernel, in row-major order."""
        return np.ndindex(self.kernel)

    def pad(self, image: Array, outside: float = 0.0) -> Array:
        """Return the image padded with the value `outside`. The last dims are the spatial dims."""
        leading = image.shape[: image.ndim - len(self.padded)]
        padded = np.full((*leading, *self.padded), outside, image.dtype)
        padded[self.inside] = image
        return padded

    def crop(self, padded: Array) -> Array:
        """Return the image without the padding of `pad`."""
        image: Array = padded[self.inside]
        return image

    def cells(self, tap: Dims) -> tuple[Any, ...]:
        """Return the index of the cells of a padded image that one tap of all windows reads."""
        starts = [r * step for r, step in zip(tap, self.steps, strict=True)]
        return (
            ...,
            *(
                slice(start, start + count * stride, stride)
                for start, count, stride in zip(starts, self.dst, self.strides, strict=True)
            ),
        )
