"""Products of a few rows with small weights, which are decompressed in registers.

The time is that of reading the weights, whose columns must be contiguous along k. What follows the
sums is a second pass over the few results.
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
from dnncore_cpu_numba.gemm.decompression import Values, decompressed
from dnncore_cpu_numba.gemm.few_rows_kernel import PER_WORD, ColumnKernel, lanes_of
from dnncore_cpu_numba.gemm.few_rows_task import columns_of_weights
from dnncore_cpu_numba.gemm.plan import ProgramPlan
from dnncore_cpu_numba.gemm.quantization import Terms
from dnncore_cpu_numba.runtime.program import Step, Table
from dnncore_cpu_numba.runtime.tensor import Tensor

MOST_ROWS = 4
GRAIN = 16  # columns of a thread's part at least
UNROLLS = (8, 4, 2, 1)


@dataclass(frozen=True, kw_only=True)
class FewRows:
    """A product C = A * B. a: f32. b: small, with zero points and scales."""

    isa: Isa
    a: Tensor
    b: Tensor
    c: Tensor
    terms: Terms
    zero: Values | None
    scale: Values | None

    @property
    def unit(self) -> int:
        """The k with one zero point and one scale."""
        sizes = [own.groups[-2] for own in (self.zero, self.scale) if own and self._varies(own)]
        return math.gcd(self.b.desc.dims[-2], *sizes)

    @staticmethod
    def _varies(own: Values) -> bool:
        return own.tensor.desc.dims[-2] > 1

    @property
    def block(self) -> tuple[int, int] | None:
        """The lanes and the number of vectors of a block, the largest that divides units."""
        unrolls = (PER_WORD,) if self.b.desc.data_type in PACKED else UNROLLS
        fitting = ((lanes, count) for lanes in lanes_of(self.isa) for count in unrolls
                   if self.unit % (lanes * count) == 0)  # fmt: skip
        return max(fitting, key=lambda own: own[0] * own[1], default=None)

    @property
    def serves(self) -> bool:
        """Whether rows are few, columns contiguous, and blocks whole."""
        *batch, rows, _ = self.c.desc.dims
        desc = self.b.desc
        if rows > MOST_ROWS or 0 in (*self.c.desc.dims, desc.dims[-2]) or math.prod(batch) != 1:
            return False
        dense = desc.is_plain and desc.strides[-2] == 1
        whole = not desc.is_packed or (desc.offset0 == 0 and desc.strides[-1] % 2 == 0)
        return dense and whole and self.block is not None

    def append_to(self, plan: ProgramPlan) -> None:
        """Append the steps."""
        block = self.block
        assert block is not None
        lanes, unroll = block
        *_, rows, columns = self.c.desc.dims
        depth = self.b.desc.dims[-2]
        x = self._read_rows(plan, rows, depth, lanes)
        zero = self.zero
        if zero is not None and zero.tensor.desc.data_type in PACKED:
            zero = Values(decompressed(plan, zero.tensor, "s32"), zero.groups)
        y = plan.scratch(MemoryDesc(self.c.desc.dims))
        plan.add(lambda: self._step(x, y, zero, rows, columns, lanes, unroll))
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
        """A as contiguous rows, in the order that the kernel reads."""
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

    def _step(
        self, x: Tensor, y: Tensor, zero: Values | None, rows: int, columns: int, lanes: int,
        unroll: int,
    ) -> Step:  # fmt: skip
        scale, unit, depth = self.scale, self.unit, self.b.desc.dims[-2]
        kernel = ColumnKernel(
            self.isa, self.b.desc.data_type, zero.tensor.desc.data_type if zero else "",
            scale.tensor.desc.data_type if scale else "", rows, lanes, unroll,
        )  # fmt: skip
        values = {
            "kernel": kernel.address, "weights": self.b.address, "x": x.address, "y": y.address,
            "column": self.b.desc.strides[-1] // (2 if self.b.desc.is_packed else 1),
            "x_row": 4 * x.desc.strides[0] if rows > 1 else 0, "y_row": 4 * columns,
            "units": depth // unit, "blocks": unit // (lanes * unroll),
        }  # fmt: skip
        for name, own in (("zero", zero), ("scale", scale)):
            along = np.zeros(depth // unit, np.int64)
            across = np.zeros(columns, np.int64)
            if own is not None:
                ndims, size = self.b.desc.ndims, own.tensor.desc.itemsize
                along = own.places(ndims - 2, depth)[::unit].copy()
                across = size * own.places(ndims - 1, columns)
            values |= {
                name: own.tensor.address if own else 0, f"{name}_places": Table(along),
                f"{name}_columns": Table(across),
            }  # fmt: skip
        return Step(columns_of_weights, values, columns, grain=GRAIN)
