"""Products of matrices in any layout, for matmul and inner product.

    C[..., m, n] = sum over k of A[..., m, k] * B[..., k, n], then bias and post-ops

A, B, C and the operands are tensors of equal rank. The operation reshapes and permutes them. They
may have leading batch dims, which may be 1 in all tensors but C. The cheaper one of the product and
the transposed product is computed.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass, field
from typing import Literal, cast

from dnncore.backend import MemoryDesc
from dnncore_cpu_numba.codegen.isa import Isa
from dnncore_cpu_numba.copies.interleave_task import interleave_step
from dnncore_cpu_numba.gemm.arithmetic import F32_PRODUCTS, Arithmetic
from dnncore_cpu_numba.gemm.corrections import Term, corrected
from dnncore_cpu_numba.gemm.cover import Rows
from dnncore_cpu_numba.gemm.microkernel import UNROLL
from dnncore_cpu_numba.gemm.plan import ProgramPlan
from dnncore_cpu_numba.gemm.problem import Chunk, Matrix, MatrixProblem, steps
from dnncore_cpu_numba.gemm.quantization import Terms
from dnncore_cpu_numba.gemm.tiles import tile_steps
from dnncore_cpu_numba.gemm.tiling import ONE_TILE, SECOND_LEVEL, STREAMED_ROWS
from dnncore_cpu_numba.runtime.tensor import Tensor

DEPTH = 1024  # most k of a chunk; its panel takes a quarter of a second-level cache
MOST_CHUNKS = 4096  # each is an entry of a table
SHARED_DEPTH = 256  # most k of a chunk if tiles share B; its panel, 48 KB, fits a first-level cache
SHARED_VECTORS = 3  # width, in vectors, of a panel of B that tiles share
IN_PLACE_BYTES = 64 << 10  # a plain B of at most this size is not packed
FEW_ROWS = 16  # a plain B is not packed for at most this number of rows
FAR_BYTES = 256 << 10  # a walk along k over this distance, in steps of rows, misses translations
SHARED_SETS, APART = 256, 16  # elements: distances of rows that share sets, and what is added
WIDE = 16  # lanes of the vectors for which a walk was measured to be no slower than a copy
COPY_COST = 64  # multiply-adds in the time of copying one element; measured


@dataclass(frozen=True, kw_only=True)
class MatrixProduct:
    """A matrix product. `append_to(plan)` appends its steps.

    terms: bias, scales and post-ops; by default none.
    a_zero, b_zero: the zero points of A and of B. Their dims are 1 along k.
    in_place: a plain B is never packed, whatever its size and the distance of its rows.
    arithmetic: the types of A and B.
    """

    isa: Isa
    a: Tensor
    b: Tensor
    c: Tensor
    terms: Terms = field(default_factory=Terms)
    a_zero: Tensor | None = None
    b_zero: Tensor | None = None
    in_place: bool = False
    arithmetic: Arithmetic = F32_PRODUCTS

    def append_to(self, plan: ProgramPlan) -> None:
        """Append copies and the tile loop."""
        swapped = self._swapped()
        serves = swapped.arithmetic.is_native(self.isa) == self.arithmetic.is_native(self.isa)
        product = swapped if serves and swapped._cost() < self._cost() else self
        product._append_to(plan)

    def _cost(self) -> float:
        """Return the number of multiply-adds, with those of empty lanes, plus the copies' cost."""
        rows, columns = self.c.desc.dims[-2:]
        lanes = self._vectors.lanes
        multiply_adds: float = self.c.desc.nelems * self.a.desc.dims[-1]
        if columns:
            multiply_adds *= -(-columns // lanes) * lanes / columns
        copied = self._copies_a() * self.a.desc.nelems
        if not (self._is_in_place(rows) or self._is_panelled(self.b.desc)):
            copied += self.b.desc.nelems
        if self._column_step(self.c.desc) is None:
            copied += self.c.desc.nelems
        return multiply_adds + COPY_COST * copied

    def _swapped(self) -> MatrixProduct:
        """Return the transposed product. Its A is the transpose of B."""
        return dataclasses.replace(
            self, a=transposed(self.b), b=transposed(self.a), c=transposed(self.c),
            terms=self.terms.changed(transposed), in_place=False,
            arithmetic=Arithmetic(self.arithmetic.b, self.arithmetic.a),
            a_zero=self.b_zero and transposed(self.b_zero),
            b_zero=self.a_zero and transposed(self.a_zero),
        )  # fmt: skip

    def _append_to(self, plan: ProgramPlan) -> None:
        *batch, rows, columns = self.c.desc.dims
        depth = self.arithmetic.groups(self.a.desc.dims[-1])
        a, a_k = self._read_a(plan)
        b, b_k = self._read_b(plan, rows)
        operands = self.terms.tensors
        matrices = [self._read_operand(plan, operand) for operand in operands]
        splats = [operand.desc.dims[-1] == 1 for operand in operands]
        types = [operand.desc.data_type for operand in operands]
        b_step = b_k or self.arithmetic.size * self._vectors.lanes
        shared = self.in_place or self._shares_b()
        longest = SHARED_DEPTH if shared else DEPTH
        is_whole = self.terms.attr.reads_dst or self._is_whole(depth)
        chunks = 1 if is_whole else min(MOST_CHUNKS, max(1, -(-depth // longest)))
        length = max(1, -(-depth // (chunks * UNROLL)) * UNROLL)
        target = self._write_c(plan, chunks)
        c = self._with_columns(target)
        edge: Literal["zeroed", "masked"] = "zeroed" if target.desc.has_padding else "masked"

        problem = MatrixProblem(
            isa=self._vectors, outer=tuple(batch), cover=Rows(rows), columns=columns, a=a, b=b, c=c,
            a_k=a_k, b_k=b_k, edge=edge, operands=matrices,
            epilogue=self.terms.epilogue(splats, types, fused=not self.arithmetic.is_integer),
            most_vectors=SHARED_VECTORS if shared else 0, arithmetic=self.arithmetic,
            result=target.desc.data_type,
            chunks=[
                Chunk([(a_k * k, b_step * k)], min(length, depth - k))
                for k in range(0, max(1, depth), length)
            ],
        )  # fmt: skip
        problem = self._corrected(plan, problem)
        plan.add_steps(lambda: tile_steps(problem, plan.blocking))
        plan.written(target)

    @functools.cached_property
    def _vectors(self) -> Isa:
        """The instruction set, with the lanes of this arithmetic."""
        return self.arithmetic.vectors_of(self.isa)

    def _is_flipped(self) -> bool:
        """Whether A is s8 and is multiplied as u8."""
        return self.arithmetic.is_integer and self.a.desc.data_type != self.arithmetic.a

    def _corrected(self, plan: ProgramPlan, problem: MatrixProblem) -> MatrixProblem:
        """Return the problem with the corrections of integer sums in its epilogue."""
        if not self.arithmetic.is_integer:
            return problem
        return corrected(
            plan, problem, self.a.desc.dims[-1], flipped=self._is_flipped(),
            a_zero=self._zero_point(plan, self.a_zero), b_zero=self._zero_point(plan, self.b_zero),
        )  # fmt: skip

    def _zero_point(self, plan: ProgramPlan, tensor: Tensor | None) -> Term | None:
        if tensor is None:
            return None
        splat = tensor.desc.dims[-1] == 1
        return Term(self._read_operand(plan, tensor), splat, tensor.desc.data_type)

    def _read_a(self, plan: ProgramPlan) -> tuple[Matrix, int]:
        """Return A, and its stride from group to group along k in bytes."""
        if self.arithmetic.group > 1:
            return self._read_groups(plan), self.arithmetic.size
        tensor, shared = self.a, self._shares_b()
        if self._copies_a():
            layout = _column_major if shared else _spread
            tensor = plan.read(tensor, layout(tensor.desc))
        *batch, row, k = steps(tensor.desc)
        if not shared and _is_contiguous(tensor.desc, -1):
            return Matrix(tensor.address, tuple(batch), row=row), self.arithmetic.size
        return Matrix(tensor.address, tuple(batch), row=self.arithmetic.size), k

    def _read_groups(self, plan: ProgramPlan) -> Matrix:
        """Return A with contiguous rows of whole groups. The rows of a copy end with zeros."""
        tensor, flipped = self.a, self._is_flipped()
        if flipped or not self._has_groups():
            *dims, k = tensor.desc.dims
            whole = self.arithmetic.group * self.arithmetic.groups(k)
            wanted = MemoryDesc((*dims, whole), self.arithmetic.a)
            tensor = (plan.flipped if flipped else plan.read)(tensor, wanted)
        *batch, row, _ = steps(tensor.desc)
        return Matrix(tensor.address, tuple(batch), row=row)

    def _is_whole(self, depth: int) -> bool:
        """Whether K is not divided. Partial sums would be rounded or need a scratchpad."""
        short = depth <= 2 * DEPTH and self.c.desc.data_type != self.arithmetic.real
        return short or self.arithmetic.is_integer

    def _write_c(self, plan: ProgramPlan, chunks: int) -> Tensor:
        """Return C, or a tensor for it in the scratchpad.

        The scratchpad is used if C's layout is unsuitable, or if several chunks cannot accumulate
        in its type.
        """
        wanted = _row_major(self.c.desc) if self._column_step(self.c.desc) is None else None
        if chunks > 1 and self.c.desc.data_type != self.arithmetic.real:
            wanted = _row_major(self.c.desc).with_data_type(self.arithmetic.real)
        return plan.write(self.c, wanted, old=self.terms.attr.reads_dst)

    def _copies_a(self) -> bool:
        """Whether A is copied. If tiles share B, A needs no copy only if m is contiguous."""
        if self.arithmetic.group > 1:
            return self._is_flipped() or not self._has_groups()
        along_k, along_rows = (_is_contiguous(self.a.desc, dim) for dim in (-1, -2))
        if along_rows and not along_k:
            return self._is_far() and not self._shares_b()
        return not along_rows and (self._shares_b() or not along_k)

    def _is_far(self) -> bool:
        """Whether A is read along k in long steps, and a copy of it pays."""
        step = self.a.desc.itemsize * self.a.desc.strides[-1]
        pays = min(self.c.desc.dims[-2:]) >= 2 * COPY_COST
        return pays and self.isa.lanes < WIDE and step * self.a.desc.dims[-1] >= FAR_BYTES

    def _has_groups(self) -> bool:
        """Whether the rows of A are contiguous and have whole groups."""
        whole = self.a.desc.dims[-1] % self.arithmetic.group == 0
        return whole and _is_contiguous(self.a.desc, -1)

    def _shares_b(self) -> bool:
        """Whether B is read from memory once, for a few tiles. The other data should be in cache.

        A is then stored with contiguous rows for each k. Rows at a large distance would share the
        sets of a cache. This costs one copy of few rows.
        """
        if self.arithmetic.group > 1:
            return False
        rows, columns = self.c.desc.dims[-2:]
        nbytes = self.arithmetic.size * self.a.desc.dims[-1] * columns
        once = math.prod(self.b.desc.dims[:-2]) == math.prod(self.c.desc.dims[:-2])
        wide = columns > SHARED_VECTORS * self._vectors.lanes
        several = ONE_TILE < rows <= STREAMED_ROWS and wide
        return several and once and nbytes > SECOND_LEVEL and not self.terms.attr.reads_dst

    def _read_b(self, plan: ProgramPlan, rows: int) -> tuple[Matrix, int]:
        """Return B, and its stride along k in bytes; 0 for panels."""
        tensor, lanes = self.b, self._vectors.lanes
        vector = self.arithmetic.size * lanes
        if self._is_in_place(rows):
            *batch, k, _ = steps(tensor.desc)
            return Matrix(tensor.address, tuple(batch), block=vector), k or vector
        if not self._is_panelled(tensor.desc):
            tensor = _in_panels(plan, tensor, lanes, self.arithmetic.group)
        *batch, _, block = steps(tensor.desc)
        return Matrix(tensor.address, tuple(batch), block=block), 0

    def _is_in_place(self, rows: int) -> bool:
        """Whether B is a plain matrix that is read without packing."""
        nbytes = self.arithmetic.size * math.prod(self.b.desc.dims[-2:])
        small = nbytes <= IN_PLACE_BYTES or rows <= FEW_ROWS
        if self.arithmetic.group > 1:
            return False
        return (small or self.in_place) and _is_contiguous(self.b.desc, -1)

    def _is_panelled(self, desc: MemoryDesc) -> bool:
        lanes, group = self._vectors.lanes, self.arithmetic.group
        blocks = ((desc.ndims - 1, lanes), (desc.ndims - 2, group))
        dense = desc.dims[-2] <= group or desc.strides[-2:-1] == (lanes * group,)
        return desc.inner_blocks == blocks[: 2 if group > 1 else 1] and dense

    def _read_operand(self, plan: ProgramPlan, tensor: Tensor) -> Matrix:
        if self._column_step(tensor.desc) is None:
            tensor = plan.read(tensor, _row_major(tensor.desc))
        return self._with_columns(tensor)

    def _with_columns(self, tensor: Tensor) -> Matrix:
        *batch, row, _ = steps(tensor.desc)
        block = 0 if tensor.desc.dims[-1] == 1 else self._column_step(tensor.desc)
        return Matrix(tensor.address, tuple(batch), row, cast(int, block))

    def _column_step(self, desc: MemoryDesc) -> int | None:
        """Return the bytes from vector to vector of columns, None if they are not vectors."""
        lanes = self._vectors.lanes
        if desc.inner_blocks == ((desc.ndims - 1, lanes),):
            return desc.itemsize * desc.strides[-1]
        return desc.itemsize * lanes if _is_contiguous(desc, -1) else None


def _in_panels(plan: ProgramPlan, tensor: Tensor, lanes: int, group: int) -> Tensor:
    """Return a copy of B in panels."""
    if group > 1 and (groups := _as_groups(tensor, group)):
        return plan.read(groups, blocked_columns(groups.desc, lanes))
    wanted = blocked_columns(tensor.desc, lanes, group)
    has_rows = _is_contiguous(tensor.desc, -1) and tensor.desc.dims[-1] > 1
    if group == 1 or not has_rows or not tensor.desc.nelems:
        return plan.read(tensor, wanted)
    room = plan.scratch(wanted)
    plan.add(
        lambda: interleave_step(tensor, room, lanes, group), tensor.desc.nbytes + wanted.nbytes
    )
    return room


def _as_groups(tensor: Tensor, group: int) -> Tensor | None:
    """Return a view in which each group of contiguous elements along k is one f32.

    None if the groups are not contiguous.
    """
    desc = tensor.desc
    *batch, k, columns = desc.dims
    *outer, row, column = desc.strides
    if not desc.is_plain or row != 1 or k % group or any(s % group for s in (*outer, column)):
        return None
    strides = (*(stride // group for stride in outer), 1, column // group)
    dims = (*batch, k // group, columns)
    return tensor.seen_as(MemoryDesc(dims, "f32", strides=strides))


def blocked_columns(desc: MemoryDesc, lanes: int, group: int = 1) -> MemoryDesc:
    """Return the layout of a matrix in panels: for each vector of columns, all rows.

    group: the number of neighbouring rows whose elements are contiguous in each column.
    """
    letters = "abcdefghijkl"[: desc.ndims]
    row, column = letters[-2], letters[-1]
    if group > 1:
        tag = f"{letters[:-2]}{column.upper()}{row.upper()}{lanes}{column}{group}{row}"
        return desc.with_format(tag)
    return desc.with_format(f"{letters[:-2]}{column.upper()}{row}{lanes}{column}")


def transposed(tensor: Tensor) -> Tensor:
    """Return a view with the last two dims exchanged."""
    return tensor.seen_as(_transposed(tensor.desc))


def _transposed(desc: MemoryDesc) -> MemoryDesc:
    *batch, m, n = range(desc.ndims)
    return desc.permute_axes((*batch, n, m))


def _row_major(desc: MemoryDesc) -> MemoryDesc:
    return desc.with_format("abcdefghijkl"[: desc.ndims])


def _spread(desc: MemoryDesc) -> MemoryDesc:
    """Return a row-major layout whose rows do not share the sets of a cache."""
    *batch, rows, k = desc.dims
    step = k if k % SHARED_SETS else k + APART
    strides = [step, 1]
    for size in reversed((*batch[1:], rows)):
        strides.insert(0, strides[0] * size)
    return MemoryDesc(desc.dims, desc.data_type, strides=tuple(strides[-desc.ndims :]))


def _column_major(desc: MemoryDesc) -> MemoryDesc:
    return _transposed(_row_major(_transposed(desc)))


def _is_contiguous(desc: MemoryDesc, dim: int) -> bool:
    return desc.is_plain and (desc.dims[dim] == 1 or desc.strides[dim] == 1)
