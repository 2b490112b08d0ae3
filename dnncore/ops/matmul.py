"""Matrix multiplication, 2D or batched.

    dst[..., m, n] = bias[..., m, n] + sum over k of src[..., m, k] * weights[..., k, n]

Shapes: src (..., M, K), weights (..., K, N), bias broadcast to dst, dst (..., M, N), all of the
same rank. A leading (batch) dim may be 1 in src or weights; the matrix is then used for every batch
index.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from dnncore.ops.operation import Argument, Operation, reads, writes
from dnncore.ops.types import Rows, product_rows
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["MatMul"]


@dataclass(frozen=True, eq=False, kw_only=True)
class MatMul(Operation):
    """dst = src @ weights + bias, with numpy's `@`.

    src: (..., M, K), with two or more dims.
    weights: (..., K, N), with as many dims. A batch dim may be 1 in src or in weights; this matrix
        is then used for every index of the batch dim.
    bias: of dst's rank, with dims that are 1 or dst's, such as (1, N); or None.
    dst: (..., M, N), with as many dims.

    Every format may be `any`. Raises `DescriptorError`.
    """

    KIND: ClassVar[str] = "matmul"
    ARGUMENTS: ClassVar[tuple[Argument, ...]] = reads("src", "weights", "bias") + writes("dst")
    TYPES: ClassVar[Rows] = product_rows(decompressed=True)
    GROUPED: ClassVar[tuple[str, ...]] = ("src", "weights")
    HAS_DROPOUT: ClassVar[bool] = True

    src: MemoryDesc
    weights: MemoryDesc
    bias: MemoryDesc | None = None
    dst: MemoryDesc

    def __post_init__(self) -> None:
        self._check_descs()
        self._check_types()
        a, b, c = self.src, self.weights, self.dst
        if a.ndims < 2 or not a.ndims == b.ndims == c.ndims:
            self._fail(
                "src (..., M, K), weights (..., K, N) and dst (..., M, N) must have one rank, at"
                f" least 2; got {a.dims}, {b.dims} and {c.dims}"
            )
        if a.dims[-1] != b.dims[-2]:
            self._fail(
                f"src has K = {a.dims[-1]} columns but weights have {b.dims[-2]} rows"
                " (src's last dim must equal weights' last but one)"
            )
        batch = tuple(map(_broadcast, a.dims[:-2], b.dims[:-2]))
        if None in batch:
            self._fail(
                "each batch dim of src and weights must be equal or 1;"
                f" got {a.dims[:-2]} and {b.dims[:-2]}"
            )
        expected = (*batch, a.dims[-2], b.dims[-1])
        self._check_dims("dst", expected, "batch, src's rows, weights' columns")  # type: ignore[arg-type]
        if self.bias is not None and not self.bias.broadcasts_to(c.dims):
            self._fail(
                f"bias must have dst's rank and each dim be 1 or dst's; got {self.bias.dims}"
                f" for dst {c.dims}"
            )

    @property
    def scale_masks(self) -> Mapping[str, Sequence[int]]:
        """src: 0, the bits of M, K or both, or all bits; weights: any; dst: 0, the bits of M, N or
        both, or all bits.
        """
        last = 1 << (self.src.ndims - 1)
        row, every = last >> 1, 2 * last - 1
        ends = (0, last, row, row | last, every)
        return {"src": ends, "weights": range(every + 1), "dst": ends}

    @property
    def zero_point_masks(self) -> Mapping[str, Sequence[int]]:
        """src: 0, the bit of K, the bits of M and K, or all bits; weights: any; dst: 0 or the bit
        of N.
        """
        last = 1 << (self.src.ndims - 1)
        every = 2 * last - 1
        src = (0, last, last | last >> 1, every)
        return {"src": src, "weights": range(every + 1), "dst": (0, last)}

    @property
    def flops(self) -> float:
        """Two per multiply-add."""
        return 2.0 * math.prod(self.dst.dims) * self.src.dims[-1]


def _broadcast(a: int, b: int) -> int | None:
    if a == b or b == 1:
        return a
    return b if a == 1 else None
