"""Launches of products on tensor cores: the kernel's parameters and their arguments."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from dnncore.backend import numpy_dtype
from dnncore_opencl.codegen.digits import INT4, LONG4, UINT4, extended, int4, inverses, long4
from dnncore_opencl.codegen.vectors import (
    HALVES,
    INTEGERS,
    TYPES,
    result_defines,
    scalar_functions,
)
from dnncore_opencl.devices.nvidia import register_limit
from dnncore_opencl.elementwise.epilogue import Epilogue, Operand, epilogue
from dnncore_opencl.gemm.arguments import WINDOW, window_arguments
from dnncore_opencl.gemm.mma.view import MmaView, SharedDigit, SharedDigits, count
from dnncore_opencl.gemm.mma.wide import wide_code
from dnncore_opencl.gemm.product import Matrix
from dnncore_opencl.gemm.split_k import part_size
from dnncore_opencl.gemm.tuned import require
from dnncore_opencl.runtime.launch import Launch, Source, template
from dnncore_opencl.runtime.schema import INT, LONG, Arg, Buffer, Schema, Scratch

CHUNK = 16  # bytes that a work-item copies at once
COORDINATES = 8  # of an element of c: three digits of the batch, four of the row, the column
BAND = 8  # tiles along rows, so that concurrent work-groups share rows and columns in the cache
STEP = 2  # chunks of k per instruction
REGISTERS = 1 << 16  # of a multiprocessor
LOCAL_MEMORY = 227 << 10  # bytes per work-group
RESERVED = 1 << 10  # bytes of local memory that NVIDIA's driver reserves per work-group
INT_BYTES = 4
FLAGS = 2  # per work-group, in local memory
MOST_REGISTERS = 255  # of a work-item
MAX_ITEMS = 1024  # of a group
# The most steps of a chain, by the least number of values of k. Tensor cores truncate, so longer
# chains lose more. But fewer chains are added, which loses less. Measured with Winograd's
# convolutions: for 128 values, two steps have 1.03 times the error of one step, in 0.88 of the
# time. For 512 values, two steps have the smallest error; four would have 1.08 times that error, in
# 0.94 of the time.
CHAINS = ((1024, 4), (128, 2), (0, 1))
MOST_SPLIT_SUMS = 64  # per work-item, if operands are split
MOST_WIDE_SUMS = 128  # per work-item, if four warps multiply together
WIDE_ROWS, WIDEST = 64, 256  # rows, and most columns, of the instruction of four warps
WIDE_TARGET = "sm_90a"
PTX = "mma_ptx"  # the template with NVIDIA's instructions
MANY_STAGES = 4  # from this number on, a stage is multiplied while the next one begins

# Strides and offsets of a and b are in chunks, those of c in elements. An inverse belongs to each
# size, see `inverses`.
SCHEMA = Schema(
    a=Buffer("const uint4"),
    b=Buffer("const uint4"),
    c=Buffer("RESULT"),
    batch=INT4,  # sizes of its three digits
    rows=INT,
    columns=INT,
    stages=INT,  # along all of k
    part=INT,  # stages of a part of k
    cover=INT4,  # tiles of a product, tiles of a band, tiles along rows
    cover_inverse=UINT4,  # of the first two, the height of the last band, the chunks of k's inner
    batch_inverse=UINT4,
    k=INT4,  # sizes of its digits
    k_inverse=UINT4,
    inner=INT,  # values of k's last digit, whose last chunk may be partly filled
    a_batch=INT4,  # strides of the batch, then the offset of the first chunk
    a_k=INT4,
    row=INT4,  # sizes of the digits of a row
    row_inverse=UINT4,
    a_row=INT4,
    b_batch=INT4,
    b_k=INT4,
    column=INT4,  # sizes of the digits of a column
    column_inverse=UINT4,
    b_column=INT4,
    inner_columns=INT,  # values of the last digit of the columns in c
    c_batch=LONG4,  # strides of the batch, then the offset of the first element
    c_digits=INT4,  # sizes of the digits of a row in c
    c_inverse=UINT4,
    c_row=LONG4,
    c_part=LONG,  # elements between the sums of consecutive parts of k
)


@dataclass(frozen=True)
class Arithmetic:
    """How numbers of one type are multiplied.

    is_split: whether each number is the sum of two numbers of the tensor cores' type. wide: the
    name of the instruction of four warps, with `{}` for the number of columns and, for bytes, for
    the two types; "" if there is none.
    """

    data_type: str
    element_bytes: int
    shape: str
    is_split: bool = False
    wide: str = ""

    @property
    def per_chunk(self) -> int:
        """Elements per chunk."""
        return CHUNK // self.element_bytes

    @property
    def is_integer(self) -> bool:
        """Whether sums are s32."""
        return self.element_bytes == 1

    @property
    def defines(self) -> dict[str, str | int]:
        """The defines of the kernel that depend only on the arithmetic."""
        kind = self.data_type
        return {
            "ELEMENT_BYTES": self.element_bytes,
            "IS_F16": int(kind == "f16"),
            "SPLIT": int(self.is_split),
            "ROUNDED": int(kind == "tf32" and not self.is_split),
        }


@dataclass(frozen=True)
class MmaTile:
    """The part of c that a work-group computes, and how.

    rows, columns: of c. warp_rows, warp_columns: per warp. chunks: chunks of 16 bytes along k per
    stage. stages: stages in local memory at once. chain: for split operands, the most steps of k
    whose sum stays in the tensor cores. registers: the limit per work-item, 0 for none. wide:
    whether four warps multiply together; then warp_rows and warp_columns are per four warps.
    """

    rows: int
    columns: int
    warp_rows: int
    warp_columns: int
    chunks: int = 8
    stages: int = 3
    chain: int = 4
    registers: int = 0
    wide: bool = False

    def __post_init__(self) -> None:
        is_whole = self.rows % self.warp_rows == 0 == self.columns % self.warp_columns
        require(self, is_whole, "warps must divide rows and columns")
        powers = self.rows & (self.rows - 1) == 0 == self.columns & (self.columns - 1)
        require(self, powers, "rows and columns must be powers of two")
        least = WIDE_ROWS if self.wide else 32
        in_warps = self.warp_rows % least == 0 == self.warp_columns % least
        require(self, in_warps, f"rows and columns of warps must be multiples of {least}")
        sizes = (8,) if self.wide else (4, 8)
        require(self, self.chunks in sizes, f"chunks must be {' or '.join(map(str, sizes))}")
        fits = not self.wide or (self.sums <= MOST_WIDE_SUMS and self.warp_columns <= WIDEST)
        require(self, fits, f"a work-item must have {MOST_WIDE_SUMS} sums at most")
        least = max(16 * self.chunks, max(self.rows, self.columns) // 2)
        in_limits = least <= self.items <= MAX_ITEMS
        require(self, in_limits, f"a group must have {least} to {MAX_ITEMS} work-items")
        sides = (self.rows, self.columns)
        is_shared = not any(side * self.chunks % self.items for side in sides)
        require(self, is_shared, "work-items must copy equal numbers of chunks")
        require(self, self.ahead >= 1, "there must be two stages at least")
        require(self, self.chain in (1, 2, 4), "a chain must have 1, 2 or 4 steps")

    @property
    def items(self) -> int:
        """Work-items per work-group."""
        return self.warp_items * (self.rows // self.warp_rows) * (self.columns // self.warp_columns)

    @property
    def warp_items(self) -> int:
        """Work-items that multiply together."""
        return 128 if self.wide else 32

    @property
    def sums(self) -> int:
        """Elements of c per work-item."""
        return self.warp_rows * self.warp_columns // self.warp_items

    @property
    def in_flight(self) -> int:
        """Stages still being multiplied when the next stage's products begin."""
        return int(self.wide and self.stages >= MANY_STAGES)

    @property
    def ahead(self) -> int:
        """Stages whose copies have begun."""
        return self.stages - 1 - self.in_flight

    @property
    def local_bytes(self) -> int:
        """Local memory per work-group in bytes, without tables."""
        return self.stages * (self.rows + self.columns) * self.chunks * CHUNK

    @property
    def defines(self) -> dict[str, int]:
        """The defines of the kernel that depend on the tile."""
        return {
            "ROWS": self.rows,
            "COLUMNS": self.columns,
            "WARP_ROWS": self.warp_rows,
            "WARP_COLUMNS": self.warp_columns,
            "CHUNKS": self.chunks,
            "STAGES": self.stages,
            "LIMITED": int(self.registers > 0),
            "WIDE": int(self.wide),
            "IN_FLIGHT": self.in_flight,
        }

    @property
    def options(self) -> tuple[str, ...]:
        """Compiler options."""
        return (register_limit(self.registers),) if self.registers else ()

    def groups(self, view: MmaView) -> int:
        """Return the number of work-groups that cover a batch of products."""
        rows = math.ceil(count(view.rows) / self.rows)
        return rows * math.ceil(count(view.columns) / self.columns) * view.gemm.batches


INSTEAD = MmaTile(128, 128, 64, 32)  # used if a driver cannot build wide tiles


@dataclass(frozen=True)
class MmaProduct:
    """A product computed by tiles of one form.

    instructions: the template that has them. local_memory: the limit per work-group in bytes.
    """

    view: MmaView
    arithmetic: Arithmetic
    tile: MmaTile
    instructions: str
    local_memory: int = LOCAL_MEMORY

    @cached_property
    def k(self) -> SharedDigits:
        """k. Its last digit is rounded up to whole chunks if an operand is contiguous along it."""
        *outer, inner = self.view.k
        if self.view.a_along_k or self.view.b_along_k:
            per_chunk = self.arithmetic.per_chunk
            inner = SharedDigit(math.ceil(inner.size / per_chunk) * per_chunk, inner.steps)
        return (*outer, inner)

    @cached_property
    def resident(self) -> int:
        """Work-groups that a multiprocessor runs at once, limited by registers and local memory."""
        tile = self.tile
        needed = (48 if tile.wide else 104) + tile.sums * (2 if self.arithmetic.is_split else 1)
        registers = tile.registers or min(needed, MOST_REGISTERS)
        by_registers = REGISTERS // (registers * tile.items)
        by_memory = (self.local_memory + RESERVED) // (self.local_bytes + RESERVED)
        return max(1, min(by_registers, by_memory))

    @cached_property
    def local_bytes(self) -> int:
        """Local memory per work-group in bytes: tiles, tables of rows, tables of lines across k."""
        v, rows, lines = self.view, self.tile.rows, 2 * self.depth
        is_window_b = v.window is not None and not v.a_along_k
        tables = rows + (rows if v.a_along_k else lines)
        tables += rows if v.window is not None and v.a_along_k else 0
        tables += 0 if v.b_along_k else lines * (4 if is_window_b else 1)
        return self.tile.local_bytes + INT_BYTES * (tables + FLAGS)

    @property
    def spills(self) -> bool:
        """Whether the sums of a work-item, two of each for split operands, exceed its registers."""
        return self.arithmetic.is_split and self.tile.sums > MOST_SPLIT_SUMS

    @cached_property
    def depth(self) -> int:
        """Values of k per stage."""
        return self.tile.chunks * self.arithmetic.per_chunk

    @cached_property
    def stages(self) -> int:
        """Stages for all of k."""
        return math.ceil(count(self.k) / self.depth)

    def launch(self, part: int, parts: int) -> Launch:
        """Return the launch that computes c, or the sums of `parts` parts of `part` stages of k."""
        v, gemm = self.view, self.view.gemm
        c = gemm.c
        steps = self._steps()
        defines = {
            "MMA": self._instruction,
            **self.arithmetic.defines,
            **self._integer_defines,
            **self.tile.defines,
            "CHAIN": self._chain,
            **result_defines(c.data_type),
            "RESULT_BYTES": numpy_dtype(c.data_type).itemsize,
            "INTEGER_RESULT": int(c.data_type == "s32"),
            **({"RESULT_PAIR": f"{c.data_type}_pair"} if c.data_type in HALVES else {}),
            "A_ALONG_K": int(v.a_along_k),
            "B_ALONG_K": int(v.b_along_k),
            "WINDOW": int(v.window is not None),
            "FLAT_K": int(self._is_flat),
            "EVEN_K": int(self._is_even),
            "PADDED_COLUMNS": int(v.inner_columns < v.columns[-1].size),
            "BAND": BAND,
        }
        schema, window = SCHEMA, {}
        if v.window:
            schema, window = schema | WINDOW, window_arguments(v.window)
        snippets = [
            scalar_functions((*HALVES, *(INTEGERS if self.arithmetic.is_integer else ()))),
            steps.code,
            template("digits"),
            template(self.instructions),
        ]
        if self.tile.wide:
            snippets.append(self._wide_code)
        arguments = {
            "a": Arg(v.a.index),
            "b": Arg(v.b.index),
            "c": Arg(c.index) if c.index >= 0 else Scratch(),
            "batch": int4((*extended(gemm.batch, 3, 1), 0)),
            "rows": count(v.rows),
            "columns": count(v.columns),
            "stages": self.stages,
            "part": part,
            **self._cover_arguments(),
            **_sizes("k", "k_inverse", self.k),
            "inner": v.k[-1].size,
            "a_batch": self._batch(v.a),
            "a_k": self._chunks(self.k, 0, is_inner=v.a_along_k),
            **_sizes("row", "row_inverse", v.rows),
            "a_row": self._chunks(v.rows, 0),
            "b_batch": self._batch(v.b),
            "b_k": self._chunks(self.k, 1, is_inner=v.b_along_k),
            **_sizes("column", "column_inverse", v.columns),
            "b_column": self._chunks(v.columns, 0, is_inner=not v.b_along_k),
            "inner_columns": v.inner_columns,
            "c_batch": long4((*extended(c.strides.batch, 3), c.offset)),
            **_sizes("c_digits", "c_inverse", v.results),
            "c_row": long4([digit.steps[0] for digit in v.results]),
            "c_part": part_size(gemm),
            **window,
            **steps.arguments,
        }
        size = self.tile.groups(v) * parts * self.tile.items
        target = WIDE_TARGET if self.tile.wide and self.instructions == PTX else ""
        source = Source(
            "mma",
            schema | steps.schema,
            defines,
            snippets,
            self.tile.options,
            target,
            is_exact=gemm.is_integer,
        )
        instead = replace(self, tile=INSTEAD).launch(part, parts) if self.tile.wide else None
        return Launch(source, arguments, (size,), (self.tile.items,), instead=instead)

    @property
    def _types(self) -> tuple[str, str]:
        """The types of a and b in the names of instructions."""
        if self.arithmetic.is_integer:
            return self.view.a.data_type, self.view.b.data_type
        return self.arithmetic.data_type, self.arithmetic.data_type

    @property
    def _instruction(self) -> str:
        """The name of the instruction of one warp."""
        (a, b), sums = self._types, "s32" if self.arithmetic.is_integer else "f32"
        return f'"mma.sync.aligned.{self.arithmetic.shape}.row.col.{sums}.{a}.{b}.{sums}"'

    @property
    def _integer_defines(self) -> dict[str, str]:
        """The defines for the types of sums and of bytes."""
        if not self.arithmetic.is_integer:
            return {"SUM": "float"}
        a, b = self._types
        return {"SUM": "int", "A_BYTE": TYPES[a], "B_BYTE": TYPES[b]}

    @property
    def _is_flat(self) -> bool:
        """Whether the distance of lines across k is constant."""
        outer = count(self.k[:-1])
        return self.tile.wide and self.view.window is None and outer == 1

    @property
    def _is_even(self) -> bool:
        """Whether b is across k, and the lines within each stage have a constant distance."""
        v = self.view
        is_mixed = v.a_along_k and not v.b_along_k and not self._is_flat
        return self.tile.wide and is_mixed and self.k[-1].size % self.depth == 0

    @property
    def has_tables(self) -> bool:
        """Whether work-groups need tables with the lines of operands across k."""
        is_along = self.view.a_along_k and self.view.b_along_k
        return not (is_along or self._is_flat or self._is_even)

    @property
    def _wide_code(self) -> str:
        """The code of products by four warps."""
        if self.instructions != PTX:
            return template("mma_wide_plain")
        v, tile = self.view, self.tile
        return wide_code(
            self.arithmetic.wide.format("{}", *self._types),
            tile.warp_rows // WIDE_ROWS,
            tile.warp_columns,
            a_along_k=v.a_along_k,
            b_along_k=v.b_along_k,
        )

    @property
    def _chain(self) -> int:
        """The number of steps whose sum stays in the tensor cores."""
        if not self.arithmetic.is_split:
            return 1
        steps = next(steps for least, steps in CHAINS if count(self.k) >= least)
        return min(steps, self.tile.chain, self.tile.chunks // STEP)

    def _steps(self) -> Epilogue:
        v = self.view
        operands = []
        for place, matrix in enumerate(v.gemm.operands, 1):
            rows = extended([digit.steps[place] for digit in v.results], 4)
            strides = (*extended(matrix.strides.batch, 3), *rows, v.column_steps[place])
            operands.append(Operand(matrix.index, matrix.offset, strides))
        exact = v.gemm.is_integer
        return epilogue(v.gemm.post_ops, operands, COORDINATES, v.gemm.scaling, is_exact=exact)

    def _cover_arguments(self) -> dict[str, Any]:
        """Return the arguments by which a work-group finds its tile and its product."""
        v = self.view
        down = math.ceil(count(v.rows) / self.tile.rows)
        across = math.ceil(count(v.columns) / self.tile.columns)
        sizes = (down * across, BAND * across)
        last, chunks = down % BAND, self.k[-1].size // self.arithmetic.per_chunk
        return {
            "cover": int4((*sizes, down, 0)),
            "cover_inverse": inverses((*sizes, last, chunks)),
            "batch_inverse": inverses((*extended(v.gemm.batch, 3, 1), 1)),
        }

    def _chunks(self, digits: SharedDigits, operand: int, *, is_inner: bool = False) -> Any:
        """Return strides in chunks. is_inner: the last digit is within chunks; its stride is 0."""
        steps = [digit.steps[operand] // self.arithmetic.per_chunk for digit in digits]
        return int4((*steps[:-1], 0) if is_inner else steps)

    def _batch(self, matrix: Matrix) -> Any:
        """Return the batch's strides and the offset, in chunks."""
        places: Iterable[int] = (*extended(matrix.strides.batch, 3), matrix.offset)
        return int4([place // self.arithmetic.per_chunk for place in places])


def _sizes(name: str, inverse: str, digits: SharedDigits) -> dict[str, Any]:
    """Return the arguments for the sizes of digits and their inverses."""
    sizes = [digit.size for digit in digits]
    return {name: int4(sizes, 1), inverse: inverses(sizes)}
