"""Corrections of integer sums: what zero points and shifted factors add to them.

    sum of (a - z) * b = sum of a * b - z * sum of b

A sum of b over k is a product with ones, which the same microkernel computes. Sums wrap around, so
results are exact for any z.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from dnncore.backend import MemoryDesc
from dnncore_cpu_numba.gemm.cover import Cover, Windows
from dnncore_cpu_numba.gemm.microkernel import SUMS
from dnncore_cpu_numba.gemm.plan import ProgramPlan
from dnncore_cpu_numba.gemm.problem import Matrix, MatrixProblem
from dnncore_cpu_numba.gemm.tiles import tile_steps
from dnncore_cpu_numba.runtime.program import Param, Table

FLIPPED = Table(np.array([128], np.int32))
"""How much larger u8 are than the s8 that were copied to them."""


def scalar(address: Param) -> Matrix:
    """One value for all rows and columns."""
    return Matrix(address)


def ones(groups: int) -> Matrix:
    """An A of ones, whatever the row: groups of them along k."""
    return Matrix(Table(np.ones(4 * groups, np.uint8)), planes=(0, 0))


def sums_of_b(plan: ProgramPlan, problem: MatrixProblem, a: Matrix, cover: Cover) -> Matrix:
    """Append the products of ones with B; they have the rows of a cover.

    problem: that in which B is a factor; its outer dims with an own B are those of the sums. a: of
    ones.
    """
    outer = [
        size if step else 1
        for size, step in zip(problem.outer, _filled(problem.b.outer, problem.outer), strict=True)
    ]
    columns, rows = problem.columns, cover.count
    room = plan.scratch(MemoryDesc((*outer, rows, columns), "s32"))
    *batch, row, _ = (4 * stride for stride in room.desc.strides)
    steps = tuple(step if size > 1 else 0 for size, step in zip(outer, batch, strict=True))
    planes: tuple[int, ...] = ()
    if isinstance(cover, Windows):
        _, height, width = cover.pixels
        planes = height * width * row, width * row
    c = Matrix(room.address, steps, row if rows > 1 else 0, 4 * problem.isa.lanes, planes)
    sums = dataclasses.replace(
        problem, outer=tuple(outer), a=a, c=c, cover=cover, edge="masked", epilogue=(),
        operands=(), result=SUMS, row_bytes=0,
    )  # fmt: skip
    plan.add_steps(lambda: tile_steps(sums, plan.blocking))
    return c


def _filled(steps: Sequence[int], outer: Sequence[int]) -> list[int]:
    return [*steps, *[0] * (len(outer) - len(steps))]
