"""Corrections of integer sums for zero points and shifted factors.

    sum of (a - y) * (b - z) = sum of a * b - y * sum of b - z * sum of a + y * z * number of terms

Sums of a and b over k are products with ones. The same microkernel computes them. All integers wrap
around, so results are exact for any zero points.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dnncore.backend import MemoryDesc
from dnncore_cpu_numba.elementwise.epilogue import Correction
from dnncore_cpu_numba.gemm.cover import Cover, Rows, Windows
from dnncore_cpu_numba.gemm.microkernel import SUMS
from dnncore_cpu_numba.gemm.plan import ProgramPlan
from dnncore_cpu_numba.gemm.problem import Chunk, Matrix, MatrixProblem
from dnncore_cpu_numba.gemm.tiles import tile_steps
from dnncore_cpu_numba.runtime.program import Table


@dataclass(frozen=True)
class Term:
    """A factor of a correction. splat: whether the factor has one value for all columns."""

    matrix: Matrix
    splat: bool = True
    data_type: str = "s32"

    @classmethod
    def constant(cls, value: int) -> Term:
        """Return a factor with one value for all rows and columns."""
        return cls(Matrix(Table(np.array([value], np.int32))))


def corrected(
    plan: ProgramPlan, problem: MatrixProblem, depth: int, *, flipped: bool,
    a_zero: Term | None, b_zero: Term | None,
) -> MatrixProblem:  # fmt: skip
    """Return a problem of one chunk with corrections in its epilogue.

    Appends the steps that compute the sums for the corrections. depth: the elements of k per
    element of the batch; its groups may hold more. flipped: A is the factor plus 128. a_zero,
    b_zero: zero points.
    """
    shifts = [] if a_zero is None else [a_zero]
    shifts += [Term.constant(128)] if flipped else []
    sums = _Sums(plan, problem, depth)
    products: list[tuple[Term, ...]] = []
    if shifts:
        of_b = sums.of_b()
        products += [(of_b, shift) for shift in shifts]
    if b_zero is not None:
        products.append((b_zero, sums.of_a()))
        if shifts:
            terms = b_zero, sums.of_ones(), Term.constant(-1)
            products += [(*terms, shift) for shift in shifts]
    stages = [
        Correction(tuple(t.splat for t in own), tuple(t.data_type for t in own)) for own in products
    ]
    matrices = [term.matrix for own in products for term in own]
    return dataclasses.replace(
        problem, epilogue=(*stages, *problem.epilogue), operands=[*matrices, *problem.operands]
    )


@dataclass(frozen=True)
class _Sums:
    """The sums that the corrections of a problem read."""

    plan: ProgramPlan
    problem: MatrixProblem
    depth: int

    def of_b(self) -> Term:
        """The sums of B per column; if windows leave the image, per pixel and column."""
        return self._product(self._ones_of_a(), self.problem.b, self._windows(), splat=False)

    def of_a(self) -> Term:
        """The sums of A per row."""
        cover = self.problem.cover
        if isinstance(cover, Windows):
            cover = dataclasses.replace(cover, joined=False)
        return self._product(self.problem.a, self._ones_of_b(), cover, splat=True)

    def of_ones(self) -> Term:
        """The number of terms of each sum."""
        return self._product(self._ones_of_a(), self._ones_of_b(), self._windows(), splat=True)

    def _windows(self) -> Cover:
        """Return a cover of one row, or of all pixels if windows differ."""
        cover = self.problem.cover
        if isinstance(cover, Windows) and not cover.is_inside:
            return dataclasses.replace(cover, joined=False)
        return Rows(1)

    def _ones_of_a(self) -> Matrix:
        (chunk,) = self.problem.chunks
        return Matrix(Table(np.ones(4 * max(1, chunk.k), np.uint8)), planes=(0, 0))

    def _ones_of_b(self) -> Matrix:
        """Return panels of ones, with zeros for the channels that only fill a group."""
        (chunk,) = self.problem.chunks
        values = np.zeros((max(1, chunk.k), self.problem.isa.lanes, 4), np.int8)
        elements = np.arange(values.shape[0] * 4).reshape(-1, 1, 4)
        values[:] = elements < self.depth
        return Matrix(Table(values))

    def _product(self, a: Matrix, b: Matrix, cover: Cover, *, splat: bool) -> Term:
        """Append a product of which a factor may be ones. splat: B has one column."""
        problem = self.problem
        (chunk,) = problem.chunks
        is_a, is_b = a is problem.a, b is problem.b
        batch = [(x * is_a, y * is_b) for x, y in chunk.batch]
        steps = zip(_filled(a, problem), _filled(b, problem), problem.outer, strict=True)
        outer = [size if any(own) else 1 for *own, size in steps]
        columns = problem.columns if is_b else 1
        room = self.plan.scratch(MemoryDesc((*outer, cover.count, columns), "s32"))
        *strides, row, _ = (4 * stride for stride in room.desc.strides)
        strides = [step if size > 1 else 0 for size, step in zip(outer, strides, strict=True)]
        planes: tuple[int, ...] = ()
        if isinstance(cover, Windows):
            _, height, width = cover.pixels
            planes = height * width * row, width * row
        c = Matrix(
            room.address, tuple(strides), row if cover.count > 1 else 0,
            4 * problem.isa.lanes if is_b else 0, planes,
        )  # fmt: skip
        sums = dataclasses.replace(
            problem, outer=tuple(outer), columns=columns, a=a, b=b, c=c, cover=cover,
            chunks=[Chunk(batch, chunk.k)], edge="masked", epilogue=(), operands=(), result=SUMS,
            row_bytes=0, most_vectors=0,
        )  # fmt: skip
        self.plan.add_steps(lambda: tile_steps(sums, self.plan.blocking))
        return Term(c, splat)


def _filled(matrix: Matrix, problem: MatrixProblem) -> Sequence[int]:
    return [*matrix.outer, *[0] * (len(problem.outer) - len(matrix.outer))]
