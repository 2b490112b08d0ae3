"""The family for CPUs: a work-group is one work-item, with its tile in registers and no barrier."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from dnncore import backend as core
from dnncore.backend import Knob, KnobValue, Refused
from dnncore_opencl.codegen.vectors import CONVERTED, F8, PACKED, TYPES, WITH_F64, vector
from dnncore_opencl.gemm.elements import Elements, one_element
from dnncore_opencl.gemm.family import DECOMPRESSION
from dnncore_opencl.gemm.product import Gemm
from dnncore_opencl.gemm.split_k import sum_value
from dnncore_opencl.gemm.strided import TASKS_PER_CORE, Cover, Strided
from dnncore_opencl.runtime.engine import OpenCLEngine
from dnncore_opencl.runtime.launch import padded, template

MAX_ROWS = 256  # x 32 columns of sums: 32 KB, with the panel's 16 KB in the second-level cache
PANEL_DEPTH = 128  # x 32 columns: the panel fills a third of a 48 KB first-level cache
ELEMENTS = Elements(is_aligned=False)
COMPILED_BY_CLANG = ("Portable Computing Language", "Intel(R) OpenCL")
TILE_ROWS = {16: (8, 12, 4, 1), 8: (4, 6, 2, 1), 4: (4, 6, 2, 1)}  # in registers, by vector
LINE_BITS = 512  # of a cache line
WIDE_TILES = {16: {1: 8, 2: 8, 3: 4, 4: 4}, 8: {1: 8, 2: 4}, 4: {1: 8, 2: 4}}  # vectors by rows


@dataclass(frozen=True)
class CpuFamily(Strided):
    """The CPU family, on `units` cores whose registers hold `vector` floats.

    is_rolled: whether compilers must not unroll. NVIDIA's would take seconds per program.
    tile_rows: rows of a tile in registers; 0 lets a rule choose.
    """

    name: ClassVar[str] = "simd"
    columns_last: ClassVar[bool] = True
    decodes: ClassVar[bool] = True
    data_types: ClassVar[tuple[str, ...]] = (*WITH_F64, *F8, *PACKED)
    attributes: ClassVar[tuple[str, ...]] = DECOMPRESSION
    efficiency: ClassVar[Mapping[str, float]] = {"cpu": 0.5, "gpu": 0.005, "accelerator": 0.005}

    units: int
    vector: int
    has_fetch: bool
    is_rolled: bool = False
    tile_rows: int = 0

    @classmethod
    def of(cls, engine: OpenCLEngine) -> CpuFamily:
        """Return the family for an engine's device."""
        device = engine.native.device
        width = device.native_vector_width_float
        vector = 16 if width >= 16 else 8 if width >= 8 else 4
        has_fetch = engine.is_cpu and engine.native.platform.name in COMPILED_BY_CLANG
        return cls(device.max_compute_units, vector, has_fetch, not engine.is_cpu)

    @property
    def knobs(self) -> tuple[Knob, ...]:
        """The number of rows of a tile."""
        rows = (0, *sorted(TILE_ROWS[self.vector]))
        return (Knob("tile_rows", 0, rows, "rows of a tile in registers; 0: chosen by a rule"),)

    def with_knobs(self, values: Mapping[str, KnobValue]) -> CpuFamily | Refused:
        """Return the family with this number of rows. No value is refused."""
        return replace(self, tile_rows=int(values["tile_rows"]))

    def cover(self, gemm: Gemm) -> Cover:
        """Choose the tile that wastes the fewest rows, and enough work-groups for all cores."""
        lanes = max(self.vector // 2, 4) if gemm.is_wide else self.vector
        tile, vectors = self._tile(gemm, lanes)
        columns = vectors * lanes
        n_blocks = math.ceil(gemm.columns / columns)
        wanted = math.ceil(TASKS_PER_CORE * self.units / (n_blocks * gemm.batches))
        rows = min(padded(math.ceil(gemm.m / wanted), tile), MAX_ROWS // tile * tile)
        defines: dict[str, str | int] = {
            "VECTOR": lanes,
            "TILE_ROWS": tile,
            "VECTORS": vectors,
            "DEPTH": padded(PANEL_DEPTH * 2 // vectors, lanes),
            "MAX_ROWS": MAX_ROWS if vectors == 2 else tile,
            **({"HAS_FETCH": 1} if self.has_fetch else {}),
            **({"IS_ROLLED": 1} if self.is_rolled else {}),
            "EACH_ROW(DO)": " ".join(f"DO({row})" for row in range(tile)),
            "EACH_VECTOR(DO)": " ".join(f"DO({v})" for v in range(vectors)),
            "EACH(DO)": " ".join(f"DO({r}, {v})" for r in range(tile) for v in range(vectors)),
        }
        groups = (n_blocks * gemm.batches, math.ceil(gemm.m / rows))
        defines |= _types(gemm, lanes)
        types = (gemm.a.data_type, gemm.b.data_type, gemm.c.data_type)
        widths = [(data_type, width) for data_type in types for width in (1, lanes)]
        if gemm.decoding:
            codes = (gemm.decoding.scales, gemm.decoding.zero_points)
            widths += [(own.data_type, 1) for own in codes if own]
        snippets, conversions = (template("fetch"),), ELEMENTS.snippets(widths)
        return Cover("gemm_cpu", defines, groups, 1, PANEL_DEPTH, rows, snippets, conversions)

    def _tile(self, gemm: Gemm, lanes: int) -> tuple[int, int]:
        """Return the rows and the vectors of the tile that wastes the fewest rows.

        If c has few rows, the tile is wide, so that whole cache lines of b are read.
        """
        vectors = WIDE_TILES[lanes].get(gemm.m, 2)
        if not self.tile_rows and gemm.columns >= vectors * lanes > 2 * lanes:
            return gemm.m, vectors
        heights = (self.tile_rows,) if self.tile_rows else TILE_ROWS[lanes]
        return min(heights, key=lambda rows: (padded(gemm.m, rows), -rows)), 2


def _types(gemm: Gemm, lanes: int) -> dict[str, str | int]:
    """Return the functions that access the operands, and the types of products and sums."""
    has_zero_points = gemm.zero_points != (None, None)
    is_wide = has_zero_points or "s32" in (gemm.a.data_type, gemm.b.data_type)
    real = TYPES[gemm.sum_type]
    number = "uint" if gemm.is_integer and is_wide else real
    to_sum = "(x)" if number == "uint" else f"as_uint{lanes}(convert_int{lanes}(x))"
    defines: dict[str, str | int] = {
        "NUMBER": number,
        "REAL": real,
        "AS_REAL(x)": f"as_{real}(x)",
        "AS_REALS(x)": f"as_{vector(real, lanes)}(x)",
        "MASK(x)": f"convert_long{lanes}(x)" if gemm.is_wide else "(x)",
        "SUM": "uint" if gemm.is_integer else real,
        "TO_SUM(x)": to_sum if gemm.is_integer else "(x)",
        "SUM_VALUE(sum)": sum_value(gemm),
        "KEPT(x)": "as_uint(x)" if gemm.is_integer else "(x)",
    }
    sides = zip(("A", "B"), (gemm.a, gemm.b), gemm.zero_points, strict=True)
    for name, matrix, zero_point in sides:
        data_type = matrix.data_type
        defines |= ELEMENTS.factor(name, data_type, 1, number)
        defines |= ELEMENTS.factor(f"{name}_VECTOR", data_type, lanes, number)
        if zero_point:
            values, zero = f"{name}_VECTOR_VALUE(bits)", f"{name.lower()}_zero[0]"
            defines[values] = f"({defines[values]} - ({number})({zero}))"
        defines |= {f"{name}_CONVERTS": 1} if data_type in CONVERTED else {}
    defines |= _reads(gemm.b.data_type, lanes) | _decoding(gemm)
    defines |= ELEMENTS.defines("C", gemm.c.data_type, 1)
    return defines | ELEMENTS.defines("C_VECTOR", gemm.c.data_type, lanes)


def _reads(data_type: str, lanes: int) -> dict[str, str | int]:
    """Return how b is read, one element or a vector. B_FETCHED: elements per cache line."""
    fetched = LINE_BITS // core.data_type(data_type).bits
    if data_type not in PACKED:
        return {
            "B_FETCHED": fetched,
            "B_AT(at)": "b[at]",
            "B_RUN(at)": "B_VECTOR_VALUE(B_VECTOR_READ(b + (at)))",
            "B_BEGINS(at)": 1,
            "B_POINTER(at)": "b + (at)",
        }
    return {
        "B_FETCHED": fetched,
        "B_AT(at)": f"load_{data_type}(b, at)",
        "B_RUN(at)": f"B_VECTOR_VALUE(load_{data_type}{lanes}(b, at))",
        "B_BEGINS(at)": "((at) % 2 == 0)",
        "B_POINTER(at)": "b + ((at) >> 1)",
    }


def _decoding(gemm: Gemm) -> dict[str, str | int]:
    """Return how b is decoded: the functions that read scales and zero points, and DECODED."""
    decoding = gemm.decoding
    if not decoding:
        return {"DECODED(x, v)": "(x)"}
    defines: dict[str, str | int] = {}
    value = "(x)"
    for name, own, step in (("zero", decoding.zero_points, "-"), ("scale", decoding.scales, "*")):
        if own:
            defines[f"HAS_{name.upper()}"] = 1
            defines[f"{name.upper()}_AT(at)"] = one_element(own.data_type, name, "at")
            value = f"({value} {step} {name}s[v])"
    return {**defines, "DECODED(x, v)": value}
