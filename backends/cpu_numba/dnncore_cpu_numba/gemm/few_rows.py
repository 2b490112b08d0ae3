"""Products of a few rows with weights of few bits, which are decompressed in registers.

Reading the weights determines the time. Their columns must be contiguous along k. Bias, scales and
post-ops are a second pass over the few results.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dnncore.backend import MemoryDesc
from dnncore_cpu_numba.codegen.isa import Isa
from dnncore_cpu_numba.codegen.type_conversion import PACKED
from dnncore_cpu_numba.elementwise import algorithms
from dnncore_cpu_numba.elementwise.post_ops import Stage, binary, stages_of
from dnncore_cpu_numba.gemm.decompression import Values
from dnncore_cpu_numba.gemm.few_rows_kernel import PER_WORD, ColumnsKernel
from dnncore_cpu_numba.gemm.few_rows_task import groups_of_columns
from dnncore_cpu_numba.gemm.plan import ProgramPlan
from dnncore_cpu_numba.gemm.quantization import Terms
from dnncore_cpu_numba.runtime.program import Step, Table
from dnncore_cpu_numba.runtime.tensor import Tensor, moved

MOST_ROWS = 4
GRAIN = 16  # least columns of a thread's part
UNROLLS = (8, 4, 2, 1)
LANES = (16, 8, 4)
COLUMNS = 4  # columns that a kernel computes together; it reads x once for them


@dataclass(frozen=True)
class Block:
    """The elements of k that one iteration of the kernel reads. values: as in `ColumnsKernel`."""

    lanes: int
    unroll: int
    values: int

    @property
    def size(self) -> int:
        """The number of elements of a block."""
        return self.lanes * self.unroll


@dataclass(frozen=True, kw_only=True)
class FewRows:
    """A product C = A * B. a: f32. b: weights of few bits with zero points and scales."""

    isa: Isa
    a: Tensor
    b: Tensor
    c: Tensor
    terms: Terms
    zero: Values | None
    scale: Values | None

    @property
    def unit(self) -> int:
        """The number of elements along k that share one zero point and one scale."""
        sizes = [own.groups[-2] for own in (self.zero, self.scale) if own and self._varies(own)]
        return math.gcd(self.b.desc.dims[-2], *sizes)

    @staticmethod
    def _varies(own: Values) -> bool:
        return own.tensor.desc.dims[-2] > 1

    @property
    def block(self) -> Block | None:
        """The largest block that divides a unit. Blocks of 4-bit weights may hold several units."""
        packed, depth = self.b.desc.is_packed, self.b.desc.dims[-2]
        unrolls = (PER_WORD,) if packed else UNROLLS
        blocks = [
            Block(lanes, unroll, max(1, lanes * unroll // self.unit))
            for lanes in LANES
            for unroll in unrolls
            if lanes <= max(LANES[-1], self.isa.lanes) and depth % (lanes * unroll) == 0
        ]
        fitting = (
            own
            for own in blocks
            if self.unit % own.size == 0
            or (packed and own.size % self.unit == 0 and self.unit % PER_WORD == 0)
        )
        return max(fitting, key=lambda own: own.size, default=None)

    @property
    def serves(self) -> bool:
        """Whether there are few rows, columns are contiguous, and blocks are whole."""
        *batch, rows, _ = self.c.desc.dims
        desc = self.b.desc
        if rows > MOST_ROWS or 0 in (*self.c.desc.dims, desc.dims[-2]) or math.prod(batch) != 1:
            return False
        dense = desc.is_plain and desc.strides[-2] == 1
        whole = not desc.is_packed or (desc.offset0 == 0 and desc.strides[-1] % 2 == 0)
        return dense and whole and self.block is not None

    def append_to(self, plan: ProgramPlan) -> None:
        """Append the steps of the product and of its second pass."""
        block = self.block
        assert block is not None
        *_, rows, _ = self.c.desc.dims
        x = self._read_rows(plan, rows, self.b.desc.dims[-2], block.lanes)
        y = plan.scratch(MemoryDesc(self.c.desc.dims))
        plan.add_steps(lambda: self._steps(x, y, self.zero, block))
        stages, first = [], 2
        for algorithm, count in self.terms.before:
            name = "mul" if algorithm == "scale" else algorithm
            stages += [binary(name, first + i) for i in range(count)]
            first += count
        stages += stages_of(self.terms.attr.post_ops, first)
        first += len(self.terms.attr.operands())
        for algorithm, count in self.terms.after:
            if algorithm == "descale":
                stages.append(Stage(algorithms.DESCALE, operand=first))
            else:
                stages.append(binary(algorithm, first))
            first += count
        plan.chain([self.c, y, *self.terms.tensors], stages)

    def _read_rows(self, plan: ProgramPlan, rows: int, depth: int, lanes: int) -> Tensor:
        """Return A as contiguous rows in the order that the kernel reads."""
        tensor = self.a
        if not tensor.desc.is_plain:
            tensor = plan.read(tensor, MemoryDesc(tensor.desc.dims))
        row, k = tensor.desc.strides[-2:]
        if self.b.desc.data_type not in PACKED:
            flat = tensor.seen_as(MemoryDesc((rows, depth), "f32", strides=(row, k)))
            return flat if k == 1 else plan.read(flat, MemoryDesc((rows, depth)))
        words = depth // PER_WORD
        dims = (rows, words // lanes, PER_WORD, lanes)
        strides = (row, PER_WORD * lanes * k, k, PER_WORD * k)
        parts = tensor.seen_as(MemoryDesc(dims, "f32", strides=strides))
        return plan.read(parts, MemoryDesc(dims)).seen_as(MemoryDesc((rows, depth)))

    def _steps(self, x: Tensor, y: Tensor, zero: Values | None, block: Block) -> list[Step]:
        """Return a step for whole groups of columns, then a step for the remaining columns."""
        *_, rows, columns = self.c.desc.dims
        group = COLUMNS if rows <= COLUMNS // 2 or self.isa.lanes == LANES[0] else COLUMNS // 2
        whole = columns // group * group
        parts = ((0, whole, group), (whole, columns - whole, 1))
        return [self._part(x, y, zero, block, *part) for part in parts if part[1]]

    def _part(
        self, x: Tensor, y: Tensor, zero: Values | None, block: Block, first: int, count: int,
        group: int,
    ) -> Step:  # fmt: skip
        scale, depth, desc = self.scale, self.b.desc.dims[-2], self.b.desc
        *_, rows, columns = self.c.desc.dims
        kernel = ColumnsKernel(
            self.isa, desc.data_type, zero.tensor.desc.data_type if zero else "",
            scale.tensor.desc.data_type if scale else "", rows, group, block.lanes, block.unroll,
            block.values,
        )  # fmt: skip
        column = desc.strides[-1] // (2 if desc.is_packed else 1)
        unit = max(self.unit, block.size)
        values = {
            "kernel": kernel.address, "weights": moved(self.b.address, first * column),
            "x": x.address, "y": moved(y.address, 4 * first), "columns": group, "column": column,
            "x_row": 4 * x.desc.strides[0] if rows > 1 else 0, "y_row": 4 * columns,
            "units": depth // unit, "blocks": unit // block.size,
        }  # fmt: skip
        for name, own in (("zero", zero), ("scale", scale)):
            along = np.zeros(depth // unit * block.values, np.int64)
            across = np.zeros(columns, np.int64)
            if own is not None:
                ndims, size = desc.ndims, own.tensor.desc.itemsize
                along = size * own.places(ndims - 2, depth)[:: unit // block.values]
                across = size * own.places(ndims - 1, columns)
            values |= {
                name: own.tensor.address if own else 0, f"{name}_places": Table(along),
                f"{name}_columns": Table(across[first:].copy()),
            }  # fmt: skip
        return Step(groups_of_columns, values, count // group, grain=max(1, GRAIN // group))
