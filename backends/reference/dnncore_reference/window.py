"""Sliding windows over images of one to three spatial dims, as convolution and pooling use them.

Along each dim, output y sees through tap r of its window the cell y * stride - left + r * (dilation
+ 1) of the image. On an image surrounded by its padding, where indices start `left` earlier, tap r
of all windows together is one strided slice; so a sum over taps is a loop over slices.
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
    """The windows of `op` with a kernel of size `kernel` from images `src` to outputs `dst`."""

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
        """Cells up to the image's end or the last window's, whichever is further."""
        last_window = (self.dst[dim] - 1) * self.strides[dim]
        last_tap = (self.kernel[dim] - 1) * self.steps[dim]
        return int(max(left + size, last_window + last_tap + 1))

    def taps(self) -> Iterator[Dims]:
        """Go through every place in the kernel, in row-major order."""
        return np.ndindex(self.kernel)

    def pad(self, image: Array, outside: float = 0.0) -> Array:
        """Surround the image, whose last dims are the spatial ones, by the value `outside`."""
        leading = image.shape[: image.ndim - len(self.padded)]
        padded = np.full((*leading, *self.padded), outside, image.dtype)
        padded[self.inside] = image
        return padded

    def crop(self, padded: Array) -> Array:
        """Give back what `pad` surrounded."""
        image: Array = padded[self.inside]
        return image

    def cells(self, tap: Dims) -> tuple[Any, ...]:
        """Index the cells of a padded image that all windows see through one tap."""
        starts = [r * step for r, step in zip(tap, self.steps, strict=True)]
        return (
            ...,
            *(
                slice(start, start + count * stride, stride)
                for start, count, stride in zip(starts, self.dst, self.strides, strict=True)
            ),
        )
