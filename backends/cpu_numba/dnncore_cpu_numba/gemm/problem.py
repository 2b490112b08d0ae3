"""Matrix problems: the matrices, the reduction and the epilogue of a batch of products.

A problem is C[i][row][column] = sum over k of A[i][row][k] * B[i][k][column] for each index i of up
to ten outer dims. Columns are the lanes of vectors. A *cover* (`gemm/cover.py`) divides the rows.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np

from dnncore.backend import MemoryDesc
from dnncore_cpu_numba.codegen import vector_ir as vir
from dnncore_cpu_numba.codegen.isa import Isa
from dnncore_cpu_numba.codegen.nontemporal import LINE, STREAM_BYTES
from dnncore_cpu_numba.codegen.type_conversion import STORED
from dnncore_cpu_numba.elementwise.epilogue import Epilogue, Sum
from dnncore_cpu_numba.gemm.arithmetic import F32_PRODUCTS, Arithmetic
from dnncore_cpu_numba.gemm.cover import BatchSegment, Cover, Rows, Windows
from dnncore_cpu_numba.gemm.microkernel import SEGMENT, SUMS
from dnncore_cpu_numba.gemm.tile_loop import OUTER
from dnncore_cpu_numba.runtime.program import Param
from dnncore_cpu_numba.runtime.tensor import moved

# Bytes of C. If B is in place, prefetching a larger C gains 15 %; for a smaller C, it costs time.
LARGE_C = 8 << 20


@dataclass(frozen=True)
class Matrix:
    """A, B, C or an operand of the post-ops: an address and strides in bytes.

    block: from one vector of columns to the next. B has no rows, and A no columns.
    planes: the strides of the coordinates before the row, if places of the cover have several.
    """

    address: Param
    outer: tuple[int, ...] = ()
    row: int = 0
    block: int = 0
    planes: tuple[int, ...] = ()

    def values(self) -> dict[str, Any]:
        """Return the values of the `MATRIX` record."""
        outer = filled(self.outer)
        return {"address": self.address, "row": self.row, "block": self.block, "outer": outer}

    def moved(self, nbytes: int) -> Matrix:
        """Return the matrix that begins `nbytes` bytes later."""
        return dataclasses.replace(self, address=moved(self.address, nbytes))

    @property
    def spatial(self) -> tuple[int, ...]:
        """The strides along the coordinates of a place."""
        return (*self.planes, self.row)

    def step(self, dim: int) -> int:
        """Return the stride along a coordinate of a place; 0 if there is no such coordinate.

        dim: negative, counted from the last coordinate.
        """
        return self.spatial[dim] if len(self.spatial) >= -dim else 0

    def at(self, place: Sequence[int]) -> int:
        """Return the offset of a place in bytes."""
        return sum(map(int.__mul__, place, self.spatial[-len(place) :]))


@dataclass(frozen=True)
class Chunk:
    """A part of the reduction.

    batch: (offset in A, offset in B) of each element, in bytes. k: of each element. The batch is
    repeated for `blocks` places of A and B that are a_advance and b_advance bytes apart.
    """

    batch: Sequence[tuple[int, int]]
    k: int
    blocks: int = 1
    a_advance: int = 0
    b_advance: int = 0

    @property
    def depth(self) -> int:
        """The number of products that are summed for an element of C."""
        return self.blocks * len(self.batch) * self.k

    def table(self, batch: tuple[BatchSegment, ...]) -> np.ndarray[Any, Any]:
        """Return the `SEGMENT` records of the part of the batch that a tile uses."""
        slots: list[Any] = []
        for segment in batch or (BatchSegment(tuple(range(len(self.batch)))),):
            elements = [{"a": a, "b": b} for a, b in map(self.batch.__getitem__, segment.firsts)]
            sizes = {"count": len(elements), "k": segment.length * self.k}
            slots += SEGMENT.pack(sizes | {"elements": elements})
        return np.array(slots, np.int64)


@dataclass(frozen=True, kw_only=True)
class MatrixProblem:
    """A matrix problem. `tiles.tile_steps` returns the steps that compute it.

    a_k: bytes from k to k in A. If this is not the size of a group, neighbouring rows of A are
        that size apart.
    b_k: bytes from k to k in B. 0: B is in panels, and the stride is the size of a vector.
    epilogue, operands: the stages, and the matrix of each `Operand` in them.
    chunks: `Chunk`s, or objects with the same attributes if the cover has other batches. If the
        epilogue reads C, there is only one.
    most_vectors: the most vectors of a panel; 0: the limit of the instruction set.
    continues: C holds the sum of another loop's chunks.
    row_bytes: the bytes of A that are read for each additional row; 0: all that the row reads.
    arithmetic, result: the types of A and B, and of C, as in `Microkernel`. k counts groups.
    """

    isa: Isa
    outer: tuple[int, ...]
    cover: Cover
    columns: int
    a: Matrix
    b: Matrix
    c: Matrix
    chunks: Sequence[Any]
    a_k: int = 4
    b_k: int = 0
    edge: Literal["masked", "zeroed"] = "masked"
    epilogue: Epilogue = ()
    operands: Sequence[Matrix] = ()
    most_vectors: int = 0
    continues: bool = False
    row_bytes: int = 0
    arithmetic: Arithmetic = F32_PRODUCTS
    result: str = "f32"

    @property
    def along(self) -> Literal["k", "rows"]:
        """The direction in which A is contiguous."""
        return "k" if self.a_k == self.arithmetic.size else "rows"

    @property
    def b_is_panel(self) -> bool:
        """Whether all vectors of B are whole, and consecutive k are contiguous."""
        whole = self.columns % self.isa.lanes == 0
        return self.b_k == 0 or (self.b_k == self.vector_bytes and whole)

    @property
    def vector_bytes(self) -> int:
        """The size of a vector of B in bytes."""
        return self.arithmetic.size * self.isa.lanes

    def a_ahead(self) -> Literal["", "block", "tile"]:
        """Return the part of A to prefetch, as in `Microkernel`. Few rows have no next tile."""
        if self.along == "rows":
            return ""
        if self.chunks[0].blocks > 1:
            return "block"
        several = isinstance(self.cover, Rows) and self.cover.count > max(self.isa.rows.values())
        return "tile" if several else ""

    def c_ahead(self) -> bool:
        """Whether to prefetch C. Its rows are far apart, and C is too large for a cache."""
        return self.b_k > 0 and self._c_bytes >= LARGE_C and not self.is_streamed()

    @property
    def _c_bytes(self) -> int:
        size = 4 if self.result == SUMS else vir.bytes_of(STORED[self.result])
        return size * math.prod(self.outer) * self.cover.count * self.columns

    def is_streamed(self) -> bool:
        """Whether C is too large to remain in cache and is written once in whole cache lines."""
        once = len(self.chunks) == 1 and not self.continues
        once = once and self.result == "f32"
        once = once and not any(isinstance(stage, Sum) for stage in self.epilogue)
        return once and self.vector_bytes == LINE and self._c_bytes >= STREAM_BYTES

    def collapsed(self) -> MatrixProblem:
        """Return an equal problem with outer dims joined to the rows where strides allow it."""
        if isinstance(self.cover, Windows) and self.cover.is_inside and self._is_flat():
            depth, height, width = self.cover.pixels
            return self.as_rows(height * width, [depth]).collapsed()
        if not isinstance(self.cover, Rows):
            return self
        rows, matrices = self.cover.count, [self.a, self.b, self.c, *self.operands]
        for dim in reversed(range(len(self.outer))):
            extent = self.outer[dim]
            if extent == 1 or all(filled(m.outer)[dim] == rows * m.row for m in matrices):
                return self._without(dim).collapsed()
        return self

    def _without(self, dim: int) -> MatrixProblem:
        """Return an equal problem with an outer dim joined to the rows."""
        rows, outer = Rows(self.cover.count * self.outer[dim]), _drop(self.outer, dim)
        return self.changed(
            lambda matrix: dataclasses.replace(matrix, outer=_drop(matrix.outer, dim)),
            cover=rows,
            outer=outer,
        )

    def _is_flat(self) -> bool:
        """Whether the rows of an image are contiguous."""
        _, height, width = cast(Windows, self.cover).pixels
        flat = (m.planes[-1:] in ((), (width * m.row,)) for m in (self.a, self.c, *self.operands))
        return height == 1 or all(flat)

    def as_rows(self, count: int, extents: Sequence[int]) -> MatrixProblem:
        """Return an equal problem whose first planes, of these extents, are outer dims.

        count: the number of rows in each. The rows of the other planes must be contiguous.
        """

        def unfolded(matrix: Matrix) -> Matrix:
            outer = (*matrix.outer, *matrix.planes[: len(extents)])
            return dataclasses.replace(matrix, outer=outer, planes=())

        return self.changed(unfolded, cover=Rows(count), outer=(*self.outer, *extents))

    def changed(self, change: Callable[[Matrix], Matrix], **fields: Any) -> MatrixProblem:
        """Return the problem with a function applied to each matrix, and with these fields."""
        a, b, c, *operands = map(change, (self.a, self.b, self.c, *self.operands))
        return dataclasses.replace(self, a=a, b=b, c=c, operands=operands, **fields)


def _drop(values: tuple[int, ...], dim: int) -> tuple[int, ...]:
    return values[:dim] + values[dim + 1 :]


def steps(desc: MemoryDesc) -> list[int]:
    """Return the strides of a tensor in bytes; 0 along dims of size 1, for broadcasting."""
    return [
        0 if size == 1 else desc.itemsize * stride
        for size, stride in zip(desc.dims, desc.strides, strict=True)
    ]


def filled(outer: Sequence[int]) -> list[int]:
    """Return sizes or strides of outer dims, padded with zeros to `OUTER`."""
    return [*outer, *[0] * (OUTER - len(outer))]
