"""Attention of f16 and bf16 on NVIDIA's tensor cores. The scores are never stored.

A work-group keeps a block of queries and its sums in registers. It reads tiles of keys and values.
(T. Dao 2023, "FlashAttention-2".)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from dnncore.backend import MemoryDesc, Refused
from dnncore_opencl.attention.tiled import COORDINATES, Attention
from dnncore_opencl.codegen.layout import Parameters, access
from dnncore_opencl.codegen.vectors import HALVES, half_template, read, scalar_functions
from dnncore_opencl.devices.nvidia import capability
from dnncore_opencl.runtime.launch import Launch, Source, template

LEAST_CAPABILITY = (8, 0)
MOST = 256  # elements of a key or a value
STEP = 16  # elements of a factor per instruction
CHUNK, CHUNK_BYTES = 8, 16  # elements and bytes that a work-item copies at once
WARPS, TILE = 4, 16  # warps of a work-group; rows of a tile
LOG2_E = 1.4426950408889634
LARGEST = 1 << 30  # rows that kernels count, with a margin for rows past the end
NARROW = 128  # with more elements per row, tiles have fewer rows and columns


@dataclass(frozen=True)
class Block:
    """The queries of a work-group, and the keys that it reads at once.

    tiles: of 16 queries per warp. columns: keys. is_held: whether queries stay in registers.
    """

    tiles: int
    columns: int
    is_held: bool

    @property
    def rows(self) -> int:
        """Queries of a work-group."""
        return self.tiles * WARPS * TILE

    @classmethod
    def of(cls, op: Any, units: int) -> Block:
        """Return the fastest block, measured on an H100. units: multiprocessors."""
        n, h, _, q, _, d, v = op.sizes
        if max(d, v) > NARROW:
            return cls(1, 32, is_held=False)
        large = cls(2, 64, is_held=d <= NARROW // 2)
        is_enough = n * h * math.ceil(q / large.rows) >= units
        return large if is_enough else cls(1, 64, is_held=True)


class AttentionMma(Attention):
    """Four warps per block of queries."""

    name = "opencl:mma"
    data_types = HALVES
    notes = ("compiles", "matrix_unit")
    instructions = "mma_ptx"  # the template with the tensor cores' instructions

    def refusal(self, engine: Any) -> Refused | None:
        """Refuse devices that lack the instructions."""
        if capability(engine) >= LEAST_CAPABILITY:
            return None
        reason = "needs NVIDIA's tensor cores of compute capability 8.0"
        return Refused("device", f"{reason}; got {engine.device.name}")

    def refuse(self, op: Any, engine: Any) -> Refused | None:
        """Refuse other devices, and tensors that cannot be copied in chunks of 16 bytes."""
        if refused := self.refusal(engine):
            return refused
        _, _, _, q, k, d, v = op.sizes
        if not 0 < min(d, v) <= max(d, v) <= MOST or max(q, k) > LARGEST:
            return Refused("shape", f"takes 1 to {MOST} elements per key; got {d} and {v}")
        for argument, desc in op.tensors():
            unit = CHUNK if argument.direction == "in" else 2
            if argument.name != "mask" and not _is_in_units(desc, unit):
                rule = f"the last dim of {argument.name} must be dense, and each row must start at"
                return Refused("format", f"{rule} a multiple of {unit} elements; got {desc}")
        return None

    def efficiency(self, op: Any, engine: Any) -> float:
        """Return the share of the peak of multiply-adds."""
        return 4.0

    def block(self, op: Any, engine: Any) -> Block:
        """Return the block of a work-group."""
        return Block.of(op, engine.device.limits["compute_units"])

    def launches(self, op: Any, workspace: MemoryDesc | None, engine: Any) -> list[Launch]:
        """Return the launch; none if there are no queries."""
        n, h, _, q, *_ = op.sizes
        return [self._forward(op, workspace, engine)] if n * h * q else []

    def _forward(self, op: Any, workspace: MemoryDesc | None, engine: Any) -> Launch:
        n, h, g, q, k, d, v = op.sizes
        tensors = {argument.name: desc for argument, desc in op.tensors(workspace)}
        parameters = Parameters.of(tensors, {"dst", "workspace"})
        block = self.block(op, engine)
        blocks = math.ceil(q / block.rows)
        adjusted = op.mask is not None or op.scale <= 0
        kind = op.queries.data_type
        defines = {
            "MMA": f'"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32"',
            "ELEMENT_BYTES": "2",
            "IS_F16": str(int(kind == "f16")),
            "TILES": str(block.tiles),
            "COLUMNS": str(block.columns),
            "DEPTH_STEPS": str(math.ceil(d / STEP)),
            "WIDTH_STEPS": str(math.ceil(v / STEP)),
            "HELD": str(int(block.is_held)),
            "ADJUSTED": str(int(adjusted)),
            "KEY_SIZE": parameters.size(d),
            "VALUE_SIZE": parameters.size(v),
            "QUERIES": parameters.size(q),
            "KEYS": parameters.size(k),
            "QUERY_STEP": parameters.size(op.queries.strides[2] // CHUNK),
            "KEY_STEP": parameters.size(op.keys.strides[2] // CHUNK),
            "VALUE_STEP": parameters.size(op.values.strides[2] // CHUNK),
            "BLOCKS": parameters.divisor(blocks),
            "HEADS": parameters.divisor(h),
            "SHARE": parameters.divisor(h // max(1, g)),
            "SCALE": parameters.real(op.scale),
            "FACTOR": parameters.real(LOG2_E * (1.0 if adjusted else op.scale)),
            "DIAGONAL": parameters.size(k if op.diagonal is None else op.diagonal),
            **({"KEEPS": ""} if workspace else {}),
        }
        for name, desc in tensors.items():
            defines |= access(name.upper(), desc, COORDINATES, COORDINATES, parameters)
        if op.mask is not None:
            place = "mask + MASK_AT(n, h, r, c)"
            defines["READ_MASK(n, h, r, c)"] = read(engine, op.mask.data_type, 1, place)
        snippets = (
            scalar_functions(HALVES, half_template(engine)),
            template(self.instructions),
            template("attention_tiles"),
        )
        defines |= {"ITEMS": str(32 * WARPS), **parameters.defines}
        source = Source("attention_mma", parameters.schema, defines, snippets)
        items = n * h * blocks * WARPS * 32
        return Launch(source, parameters.arguments, (items,), (WARPS * 32,))


def _is_in_units(desc: MemoryDesc, unit: int) -> bool:
    """Whether rows are dense and begin at multiples of `unit` elements."""
    if not desc.is_plain or (desc.strides[-1] != 1 and desc.dims[-1] > 1):
        return False
    rows = zip(desc.dims[:-1], desc.strides[:-1], strict=True)
    return not any(step % unit for step in (desc.offset0, *(s for n, s in rows if n > 1)))
