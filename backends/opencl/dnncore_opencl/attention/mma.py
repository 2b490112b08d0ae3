"""Attention of f16 and bf16 on NVIDIA's tensor cores. The scores are never stored.

A work-group keeps a block of rows of one side, such as queries, and their sums in registers. It
reads the rows of the other side in tiles. Gradients take three launches: the sums of diff_dst *
dst, the gradient of queries, and those of keys and values. (T. Dao 2023, "FlashAttention-2".)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from dnncore.backend import AttentionBackward, MemoryDesc, Refused
from dnncore_opencl.attention.tiled import Attention, element
from dnncore_opencl.codegen.grid import Grid
from dnncore_opencl.codegen.layout import Parameters
from dnncore_opencl.codegen.vectors import (
    HALVES,
    half_template,
    read,
    scalar_functions,
    value,
)
from dnncore_opencl.devices.nvidia import capability
from dnncore_opencl.runtime.launch import Launch, Source, template
from dnncore_opencl.runtime.schema import Arg, Scratch

LEAST_CAPABILITY = (8, 0)
MOST = 256  # elements of a key or a value
STEP = 16  # elements of a factor per instruction
CHUNK, CHUNK_BYTES = 8, 16  # elements and bytes that a work-item copies at once
LINES = (4, 8, 16, 32)  # chunks of a row in local memory
WARPS, TILE = 4, 16  # warps of a work-group; rows of a tile
ITEMS = 32 * WARPS
LOG2_E = 1.4426950408889634
FLOAT = 4  # bytes
LARGEST = 1 << 30  # rows that kernels count, with a margin for rows past the end
NARROW = 128  # with more elements per row, tiles have fewer rows and columns
MEANS_GROUP, MEANS_LANES = 256, 8  # work-items of the launch of sums; of a row


@dataclass(frozen=True)
class Block:
    """The rows of a work-group, and the rows of the other side that it reads at once.

    tiles: of 16 own rows per warp. columns: other rows. is_held: whether queries stay in registers
    (forward).
    """

    tiles: int
    columns: int
    is_held: bool = False

    @property
    def rows(self) -> int:
        """Own rows of a work-group."""
        return self.tiles * WARPS * TILE


@dataclass(frozen=True)
class Side:
    """The tensors of a launch of gradients.

    own, other: the names of x and y of the rows of the work-group, and of those that it reads.
    results: of the gradients of own x and y; "" if the launch does not compute it.
    """

    own: tuple[str, str]
    other: tuple[str, str]
    results: tuple[str, str]

    @property
    def is_keys(self) -> bool:
        """Whether own rows are keys and values."""
        return self.own[0] == "keys"

    def defines(self, tensors: dict[str, MemoryDesc], parameters: Parameters) -> dict[str, str]:
        """Return the defines of the kernel that depend on the names."""
        defines = {"BY_KEYS": str(int(self.is_keys))}
        for prefix, names in (("OWN_", self.own), ("", self.other)):
            for letter, name in zip("XY", names, strict=True):
                defines[f"{prefix}{letter}_ROWS(n, h)"] = (
                    f"({name} + {name.upper()}_AT(n, h, 0, 0))"
                )
                defines[f"{prefix}{letter}_STEP"] = _step(tensors[name], parameters)
        for letter, name in zip("XY", self.results, strict=True):
            defines[f"WITH_{letter}"] = str(int(bool(name)))
            defines[f"D{letter}_ROW(n, h, r)"] = f"({name} + {name.upper()}_AT(n, h, r, 0))"
        return defines


QUERIES = Side(("queries", "diff_dst"), ("keys", "values"), ("diff_queries", ""))
KEYS = Side(("keys", "values"), ("queries", "diff_dst"), ("diff_keys", "diff_values"))
APART = (  # for long rows, whose sums do not fit in registers together
    Side(KEYS.own, KEYS.other, ("diff_keys", "")),
    Side(KEYS.own, KEYS.other, ("", "diff_values")),
)


class AttentionMma(Attention):
    """Four warps per block of rows."""

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
        needs, has = self._local_bytes(op, engine), engine.device.limits["local_memory"]
        if needs > has:
            return Refused("resources", f"needs {needs} bytes of local memory; got {has}")
        return None

    def efficiency(self, op: Any, engine: Any) -> float:
        """Return the share of the peak of multiply-adds, which is that of vector units."""
        return 4.0

    def block(self, op: Any, engine: Any) -> Block:
        """Return the fastest block, measured on an H200 with 2048 rows and 64 or 128 elements."""
        n, h, g, q, k, d, v = op.sizes
        is_backward, is_short = isinstance(op, AttentionBackward), max(d, v) <= NARROW // 2
        if max(d, v) > NARROW:
            return Block(1, 32)
        if is_backward and not is_short:
            return Block(1, 64)
        large = Block(2, 32) if is_backward else Block(2, 64, is_held=is_short)
        blocks = n * h * math.ceil(q / large.rows)
        if is_backward:
            blocks = min(blocks, n * g * math.ceil(k / large.rows))
        small = Block(1, 64, is_held=not is_backward)
        return large if blocks >= engine.device.limits["compute_units"] else small

    def _local_bytes(self, op: Any, engine: Any) -> int:
        """Return the local memory of a work-group, without few numbers per row."""
        block = self.block(op, engine)
        *_, d, v = op.sizes
        own, other = _line(d), _line(d) + _line(v)
        if isinstance(op, AttentionBackward):
            own = other
        return (block.rows * own + 2 * block.columns * other) * CHUNK_BYTES

    def scratchpad_bytes(self, op: Any) -> int:
        """Return the bytes of the sums of diff_dst * dst."""
        n, h, _, q, *_ = op.sizes
        return FLOAT * n * h * q if isinstance(op, AttentionBackward) else 0

    def launches(self, op: Any, workspace: MemoryDesc | None, engine: Any) -> list[Launch]:
        """Return the launches. Without results there is none."""
        tensors = {argument.name: desc for argument, desc in op.tensors(workspace)}
        n, h, g, q, k, d, v = op.sizes
        if not isinstance(op, AttentionBackward):
            return [self._forward(op, tensors, engine)] if n * h * q else []
        keys = APART if max(d, v) > NARROW else (KEYS,)
        return [
            *([self._means(op, tensors, engine)] if n * h * q else []),
            *([self._gradients(op, tensors, engine, QUERIES)] if n * h * q else []),
            *(self._gradients(op, tensors, engine, side) for side in keys if n * g * k),
        ]

    def _forward(self, op: Any, tensors: dict[str, MemoryDesc], engine: Any) -> Launch:
        block = self.block(op, engine)
        parameters = Parameters.of(tensors, {"dst", "workspace"})
        n, h, _, q, *_ = op.sizes
        blocks = math.ceil(q / block.rows)
        defines = self._common(op, tensors, engine, parameters) | {
            "HELD": str(int(block.is_held)),
            "BLOCKS": parameters.divisor(blocks),
            "QUERY_STEP": _step(op.queries, parameters),
            "KEY_STEP": _step(op.keys, parameters),
            "VALUE_STEP": _step(op.values, parameters),
            **({"KEEPS": ""} if "workspace" in tensors else {}),
        }
        return self._launch("attention_mma", parameters, defines, engine, n * h * blocks)

    def _means(self, op: Any, tensors: dict[str, MemoryDesc], engine: Any) -> Launch:
        n, h, _, q, _, _, v = op.sizes
        own = {name: tensors[name] for name in ("dst", "diff_dst")}
        parameters = Parameters(max(desc.nbytes for desc in own.values()))
        places = list(tensors)
        for name in own:
            parameters.buffer(name, "const ushort", Arg(places.index(name)))
        parameters.buffer("mean", "float", Scratch())
        defines = {
            "GROUP": str(MEANS_GROUP),
            "ROWS": parameters.size(n * h * q),
            "QUERIES": parameters.size(q),
            "HEADS": parameters.divisor(h),
            "VALUE_SIZE": parameters.size(v),
            "NUMBER_OF(x)": value(op.dst.data_type, 1, "x"),
        }
        for name, desc in own.items():
            defines |= element(name, desc, parameters)
        groups = math.ceil(n * h * q * MEANS_LANES / MEANS_GROUP)
        halves = (scalar_functions(HALVES, half_template(engine)),)
        grid = Grid.of_groups(groups, MEANS_GROUP)
        return grid.launch("attention_means", parameters, defines, halves)

    def _gradients(
        self, op: Any, tensors: dict[str, MemoryDesc], engine: Any, side: Side
    ) -> Launch:
        block = self.block(op, engine)
        outputs = {name for name in tensors if name.startswith("diff_") and name != "diff_dst"}
        parameters = Parameters.of(tensors, outputs)
        parameters.buffer("mean", "const float", Scratch())
        n, h, g, q, k, *_ = op.sizes
        heads, own, others = (g, k, q) if side.is_keys else (h, q, k)
        blocks = math.ceil(own / block.rows)
        defines = self._common(op, tensors, engine, parameters) | {
            "BLOCKS": parameters.divisor(blocks),
            "OWN_HEADS": parameters.divisor(heads),
            "OWN": parameters.size(own),
            "OTHERS": parameters.size(others),
            **side.defines(tensors, parameters),
        }
        name = "attention_mma_backward"
        return self._launch(name, parameters, defines, engine, n * heads * blocks)

    def _common(
        self, op: Any, tensors: dict[str, MemoryDesc], engine: Any, parameters: Parameters
    ) -> dict[str, str]:
        """Return the defines of both directions."""
        block = self.block(op, engine)
        _, h, g, q, k, d, v = op.sizes
        is_adjusted = op.mask is not None or op.scale <= 0
        kind = op.queries.data_type
        defines = {
            "MMA": f'"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32"',
            "ELEMENT_BYTES": "2",
            "IS_F16": str(int(kind == "f16")),
            "ITEMS": str(ITEMS),
            "TILES": str(block.tiles),
            "COLUMNS": str(block.columns),
            "DEPTH_STEPS": str(math.ceil(d / STEP)),
            "WIDTH_STEPS": str(math.ceil(v / STEP)),
            "ADJUSTED": str(int(is_adjusted)),
            "KEY_SIZE": parameters.size(d),
            "VALUE_SIZE": parameters.size(v),
            "QUERIES": parameters.size(q),
            "KEYS": parameters.size(k),
            "HEADS": parameters.divisor(h),
            "SHARE": parameters.divisor(h // max(1, g)),
            "SCALE": parameters.real(op.scale),
            "FACTOR": parameters.real(LOG2_E * (1.0 if is_adjusted else op.scale)),
            "DIAGONAL": parameters.size(k if op.diagonal is None else op.diagonal),
        }
        for name, desc in tensors.items():
            defines |= element(name, desc, parameters)
        if op.mask is not None:
            place = "mask + MASK_AT(n, h, r, c)"
            defines["READ_MASK(n, h, r, c)"] = read(engine, op.mask.data_type, 1, place)
        return defines

    def _launch(
        self, kernel: str, parameters: Parameters, defines: dict[str, str], engine: Any, groups: int
    ) -> Launch:
        snippets = (
            scalar_functions(HALVES, half_template(engine)),
            template(self.instructions),
            template("attention_tiles"),
        )
        defines = defines | parameters.defines
        source = Source(kernel, parameters.schema, defines, snippets)
        return Launch(source, parameters.arguments, (groups * ITEMS,), (ITEMS,))


def _step(desc: MemoryDesc, parameters: Parameters) -> str:
    """Return the parameter for the chunks from row to row."""
    return parameters.size(desc.strides[2] // CHUNK)


def _line(size: int) -> int:
    """Return the chunks of a row in local memory, as LINE in the kernels."""
    chunks = math.ceil(size / STEP) * STEP // CHUNK
    return next(line for line in LINES if chunks <= line)


def _is_in_units(desc: MemoryDesc, unit: int) -> bool:
    """Whether rows are dense and begin at multiples of `unit` elements."""
    if not desc.is_plain or (desc.strides[-1] != 1 and desc.dims[-1] > 1):
        return False
    rows = zip(desc.dims[:-1], desc.strides[:-1], strict=True)
    return not any(step % unit for step in (desc.offset0, *(s for n, s in rows if n > 1)))
