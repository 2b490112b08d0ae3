"""A product in the form that GPUs compute: tiles of rows x columns, loads that suit the operands.

    c[z, row, column] = sum over k of a[z, row, k] * b[z, k, column]

c is contiguous along columns. For a convolution on channels-last tensors, rows are pixels, columns
are channels, and channels are the fastest digit of k. If channels are multiples of 4, a load reads
four neighbours along k, or along rows or columns. Nothing is copied into matrix form.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from dnncore.backend import PostOp
from dnncore_opencl.codegen.digits import extended
from dnncore_opencl.codegen.vectors import TYPES
from dnncore_opencl.elementwise.epilogue import NO_SCALING, Scaling
from dnncore_opencl.gemm.product import Decoding, Gemm, Matrix
from dnncore_opencl.gemm.split_k import sum_value

WIDTH = 4  # elements of a vector load, which must be aligned


Steps = list[tuple[int, int]]  # (size, stride) of digits


class Axis(NamedTuple):
    """The rows, columns or k of a product: the sizes of its digits, slowest first.

    channel_last: whether the digits (channel, depth, height, width) of a gemm are in the order
    (depth, height, width, channel).
    """

    sizes: tuple[int, ...]
    channel_last: bool = False

    @classmethod
    def of(cls, sizes: Sequence[int], *strides: Sequence[int]) -> Axis:
        """Return an axis with the channel as fastest digit if an operand is contiguous along it."""
        channel_last = len(sizes) > 1 and sizes[0] > 1 and any(s[0] == 1 for s in strides)
        return cls(_turned(sizes) if channel_last else tuple(sizes), channel_last)

    def order(self, values: Sequence[int]) -> tuple[int, ...]:
        """Return values per digit of the gemm in the order of this axis."""
        return _turned(values) if self.channel_last else tuple(values)

    def steps(self, strides: Sequence[int]) -> Steps:
        """Return pairs of sizes and strides, in the order of the digits."""
        return list(zip(self.sizes, strides, strict=True))


class Side(NamedTuple):
    """Operand a of rows x k, or b; a row of b is a column of the product.

    Strides are in elements, per digit. along_k: whether a load reads neighbours along k; otherwise
    along rows. width: the number of elements per load, 4 or 1.
    """

    index: int  # type: ignore[assignment]  # hides a method of tuples
    offset: int
    batch: tuple[int, ...]
    rows: tuple[int, ...]
    k: tuple[int, ...]
    along_k: bool
    width: int
    data_type: str
    zero_point: Matrix | None


class TiledWindow(NamedTuple):
    """The borders of an image: 0 <= at + rows * digits of row + k * digits of k < size.

    at, size: per dim (depth, height, width). rows, k: per digit in the order of the axis, 0 for
    digits that are not spatial.
    """

    at: tuple[int, ...]
    rows: tuple[int, ...]
    k: tuple[int, ...]
    size: tuple[int, ...]


class Target(NamedTuple):
    """The result, or an operand of its epilogue. Strides are in elements, per digit."""

    index: int  # type: ignore[assignment]  # hides a method of tuples
    offset: int
    batch: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    data_type: str
    shares: tuple[int, int]  # neighbours along rows and columns, last digits, with one element


@dataclass(frozen=True)
class TiledProduct:
    """A gemm as rows x columns. `window` belongs to a or to b. sum_value: as in `split_k.py`.

    real: the type of results before they are stored. decoding: of a if `window_is_a`, else of b.
    sum_bytes: bytes of a number in local memory.
    """

    batch: tuple[int, ...]
    rows: Axis
    columns: Axis
    k: Axis
    a: Side
    b: Side
    c: Target
    window: TiledWindow | None = None
    window_is_a: bool = False
    post_ops: tuple[PostOp, ...] = ()
    operands: tuple[Target, ...] = ()
    scaling: Scaling = NO_SCALING
    is_integer: bool = False
    sum_value: str = "(sum)"
    real: str = "float"
    decoding: Decoding | None = None
    sum_bytes: int = 4

    @classmethod
    def of(cls, gemm: Gemm) -> TiledProduct:
        """Choose rows, columns and the order of digits."""
        m, n = Axis((gemm.m,)), Axis.of(gemm.n, gemm.b.strides.n, gemm.c.strides.n)
        k = Axis.of(gemm.k, gemm.a.strides.k, gemm.b.strides.k)
        by_pixels = gemm.m > 1 and gemm.c.strides.m == 1
        rows, columns = (n, m) if by_pixels else (m, n)
        zero_m, zero_n = gemm.zero_points
        of_m = _side(gemm.a, gemm.batch, m, k, (gemm.a.strides.m,), zero_m)
        of_n = _side(gemm.b, gemm.batch, n, k, gemm.b.strides.n, zero_n)
        of_n = of_n._replace(width=1) if gemm.decoding else of_n
        a, b = (of_n, of_m) if by_pixels else (of_m, of_n)

        def target(matrix: Matrix) -> Target:
            by_m, by_n = (matrix.strides.m,), n.order(matrix.strides.n)
            own_rows, own_columns = (by_n, by_m) if by_pixels else (by_m, by_n)
            batch = extended(matrix.strides.batch, len(gemm.batch))
            own = matrix.shares
            shares = (own.n, own.m) if by_pixels else (own.m, own.n)
            place = (matrix.index, matrix.offset)
            return Target(*place, batch, own_rows, own_columns, matrix.data_type, shares)

        return cls(
            batch=gemm.batch,
            rows=rows,
            columns=columns,
            k=k,
            a=a,
            b=b,
            c=target(gemm.c),
            window=_window(gemm, n, k),
            window_is_a=by_pixels,
            post_ops=gemm.post_ops,
            operands=tuple(map(target, gemm.operands)),
            scaling=gemm.scaling,
            is_integer=gemm.is_integer,
            sum_value=sum_value(gemm),
            real=TYPES[gemm.sum_type],
            decoding=_ordered(gemm.decoding, k),
            sum_bytes=gemm.sum_bytes,
        )

    @property
    def c_width(self) -> int:
        """Neighbours along a row of c per store, 4 or 1."""
        outer = list(zip(self.batch, self.c.batch, strict=True)) + self.rows.steps(self.c.rows)
        return _width(self.columns, self.c.columns, self.c.offset, outer)

    @property
    def k_is_plain(self) -> bool:
        """Whether each operand has one stride for all of k, and no table of k is needed.

        This excludes decoding, because the places of scales and zero points depend on k.
        """
        merge = all(_merges(self.k.steps(side.k)) for side in (self.a, self.b))
        return merge and not self.decoding

    @property
    def size(self) -> int:
        """Elements of c."""
        return math.prod((*self.batch, *self.rows.sizes, *self.columns.sizes))

    @property
    def depth(self) -> int:
        """Values of k."""
        return math.prod(self.k.sizes)


def _ordered(decoding: Decoding | None, k: Axis) -> Decoding | None:
    """Return the scales and zero points with the digits of k in the order of an axis."""

    def own(matrix: Matrix | None) -> Matrix | None:
        if matrix is None:
            return None
        strides = replace(matrix.strides, k=k.order(matrix.strides.k))
        return replace(
            matrix, strides=strides, shares=replace(matrix.shares, k=k.order(matrix.shares.k))
        )

    return decoding and Decoding(own(decoding.scales), own(decoding.zero_points))


def _turned(values: Sequence[int]) -> tuple[int, ...]:
    return (*values[1:], *values[:1])


def _side(
    matrix: Matrix,
    batch: Sequence[int],
    rows: Axis,
    k: Axis,
    row_strides: Sequence[int],
    zero_point: Matrix | None,
) -> Side:
    strides = matrix.strides
    by_row, by_k = rows.order(row_strides), k.order(strides.k)
    by_batch = extended(strides.batch, len(batch))
    outer = list(zip(batch, by_batch, strict=True))
    row_width = _width(rows, by_row, matrix.offset, outer + k.steps(by_k))
    k_width = _width(k, by_k, matrix.offset, outer + rows.steps(by_row))
    nearer = _nearest(k.steps(by_k)) < _nearest(rows.steps(by_row))
    along_k = nearer if row_width == k_width else k_width > row_width
    width = max(row_width, k_width)
    return Side(
        matrix.index,
        matrix.offset,
        by_batch,
        by_row,
        by_k,
        along_k,
        width,
        matrix.data_type,
        zero_point,
    )


def _width(axis: Axis, strides: Sequence[int], offset: int, others: Steps) -> int:
    """Return the neighbours along an axis per load. `others`: steps between loads."""
    *outer, (size, stride) = axis.steps(strides)
    moves = [step for count, step in (*outer, *others) if count > 1]
    fits = all(value % WIDTH == 0 for value in (size, offset, *moves))
    return WIDTH if fits and stride == 1 else 1


def _merges(steps: Steps) -> bool:
    """Whether all digits can be merged into one."""
    reach = steps[-1][1] * steps[-1][0]
    for size, stride in reversed(steps[:-1]):
        if size > 1 and stride != reach:
            return False
        reach *= size
    return True


def _nearest(steps: Steps) -> int:
    """Return the least distance between neighbours; a large number if there are none."""
    return min((abs(stride) for size, stride in steps if size > 1), default=1 << 31)


def _window(gemm: Gemm, n: Axis, k: Axis) -> TiledWindow | None:
    """Return the needed window in the order of the axes."""
    window = gemm.needed_window
    if window is None:
        return None
    return TiledWindow(window.at, n.order((0, *window.n)), k.order((0, *window.k)), window.size)
