"""Products by kernels that count through strides: their arguments, and how k is cut into parts.

Where m x n is too small to keep a device busy, k is cut into parts whose sums are added in order,
so that results do not depend on timing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from dnncore_opencl.codegen.digits import extended, int4
from dnncore_opencl.elementwise.epilogue import Epilogue
from dnncore_opencl.gemm.arguments import gemm_epilogue, window_args
from dnncore_opencl.gemm.family import Family, Plan
from dnncore_opencl.gemm.product import Gemm, Matrix
from dnncore_opencl.gemm.split_k import FLOAT, part_size, partial, reduction
from dnncore_opencl.runtime.program import Arg, Launch, Scratch, Source, padded, template

TASKS_PER_CORE = 4  # groups, so that cores of different speed end together


@dataclass(frozen=True)
class Cover:
    """How work-groups cover a batch of products.

    groups: along n, for each product of the batch, and along m. items: work-items of a group.
    rows: of c per group, where the kernel asks. least_part: the fewest values of k that are worth
    a group of their own; parts are multiples of it. snippets: code that the kernel needs.
    """

    kernel: str
    defines: Mapping[str, str | int]
    groups: tuple[int, int]
    items: int
    least_part: int
    rows: int = 0
    snippets: tuple[str, ...] = ()


class Strided(Family, Protocol):
    """A family whose kernels count through strides, digit by digit, on `units` cores."""

    units: int

    def cover(self, gemm: Gemm) -> Cover:
        """Choose the kernel for a product that has elements."""

    def plan(self, gemm: Gemm, start: int = 0) -> Plan:
        """Return one launch, or two where k is cut into parts."""
        cover = self.cover(gemm)
        part = _part(gemm, cover, self.units)
        parts = math.ceil(gemm.depth / part) if gemm.depth else 1
        if parts == 1:
            return Plan((_product(gemm, cover, part),))
        first = start // FLOAT
        return Plan(
            (_product(partial(gemm, first), cover, part), reduction(gemm, parts, first, 0)),
            parts * part_size(gemm) * FLOAT,
        )


def _part(gemm: Gemm, cover: Cover, units: int) -> int:
    """The length of the parts into which k is cut: all of it unless groups are too few."""
    groups = math.prod(cover.groups)
    parts = min(units // groups, gemm.depth // cover.least_part)
    if parts < 2:
        return max(gemm.depth, 1)
    return padded(math.ceil(gemm.depth / parts), cover.least_part)


def _product(gemm: Gemm, cover: Cover, part: int) -> Launch:
    """Multiply into c, parts of k one behind the other."""
    steps = gemm_epilogue(gemm)
    defines = {**cover.defines, **({"WINDOW": 1} if gemm.window else {})}
    source = Source(cover.kernel, defines, (*_snippets(steps), *cover.snippets))
    parts = math.ceil(gemm.depth / part) if gemm.depth else 1
    size = (cover.groups[0] * parts * cover.items, cover.groups[1])
    args = (
        Arg(gemm.a.index),
        Arg(gemm.b.index),
        Arg(gemm.c.index) if gemm.c.index >= 0 else Scratch(),
        np.int32(cover.rows),
        np.int32(gemm.a.end),
        np.int32(gemm.b.end),
        *_sizes(gemm),
        *_a_args(gemm.a),
        *_b_args(gemm.b),
        *_c_args(gemm.c),
        np.int32(part_size(gemm)),
        np.int32(part),
        *window_args(gemm.window),
        *steps.args,
    )
    return Launch(source, cover.kernel, args, size, (cover.items, 1))


def _snippets(steps: Epilogue) -> tuple[str, ...]:
    return steps.code, template("digits"), template("gemm")


# The arguments of GEMM_PARAMS in `gemm/gemm.cl`, by group.


def _sizes(gemm: Gemm) -> tuple[Any, ...]:
    batch = (*extended(gemm.batch, 3, 1), 0)
    return int4(batch), np.int32(gemm.m), int4(gemm.n, 1), int4(gemm.k, 1)


def _a_args(a: Matrix) -> tuple[Any, ...]:
    return _batch(a), np.int32(a.strides.m), int4(a.strides.k)


def _b_args(b: Matrix) -> tuple[Any, ...]:
    return _batch(b), int4(b.strides.k), int4(b.strides.n)


def _c_args(c: Matrix) -> tuple[Any, ...]:
    return _batch(c), np.int32(c.strides.m), int4(c.strides.n)


def _batch(matrix: Matrix) -> Any:
    """The batch's strides, then the offset of the first element."""
    return int4((*extended(matrix.strides.batch, 3), matrix.offset))
