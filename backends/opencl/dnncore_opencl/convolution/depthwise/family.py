"""Depthwise convolutions on CPUs: products of one row, which have no reuse to block for.

A channel is one product of the batch. Vectors are along channels if these are contiguous, otherwise
along the lines of an image. Other layouts are gathered element by element.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from dnncore.backend import Refused
from dnncore_opencl.codegen.vectors import HALVES
from dnncore_opencl.gemm.cpu import ELEMENTS, CpuFamily
from dnncore_opencl.gemm.product import Gemm, Matrix
from dnncore_opencl.gemm.strided import TASKS_PER_CORE, Cover, Strided
from dnncore_opencl.runtime.engine import OpenCLEngine
from dnncore_opencl.runtime.launch import template

STRIP = 4  # pixels in registers per tap load
MAX_TAPS = 1024  # vectors of taps per work-item: 64 KB, of which only the needed part is used
TAPS = 64  # sums per work-item: 4 KB, with two lines in the first-level cache


@dataclass(frozen=True)
class Depthwise(Strided):
    """Forward and backward data, on `units` cores whose vectors have `vector` floats."""

    name: ClassVar[str] = "depthwise"
    data_types: ClassVar[tuple[str, ...]] = ("f32", *HALVES)
    efficiency: ClassVar[Mapping[str, float]] = {"cpu": 0.6}

    units: int
    vector: int

    @classmethod
    def of(cls, engine: OpenCLEngine) -> Depthwise:
        """Return the family for an engine's device."""
        cpu = CpuFamily.of(engine)
        return cls(cpu.units, cpu.vector)

    @classmethod
    def refusal(cls, engine: OpenCLEngine) -> Refused | None:
        """Refuse devices other than CPUs."""
        if engine.is_cpu:
            return None
        return Refused("device", f"computes on CPUs; got {engine.device.name}")

    def refusal_of(self, gemm: Gemm) -> Refused | None:
        """Refuse groups of several channels, and kernels with more than `MAX_TAPS` taps."""
        if gemm.depth > MAX_TAPS:
            return Refused("shape", f"kernels must have {MAX_TAPS} taps at most; got {gemm.depth}")
        return _refusal_of_channels(gemm.m, gemm.k[0])

    def cover(self, gemm: Gemm) -> Cover:
        """Choose the direction of vectors, and enough work-items for all cores."""
        channels = self.channels(gemm, gemm.b)
        lanes = channels or self.lanes_for(gemm.n[-1])
        blocks = math.ceil(gemm.batches / channels) if channels else gemm.batches
        images, lines = _images_and_lines(gemm.n)
        rows = min(math.ceil(lines * blocks * images / (TASKS_PER_CORE * self.units)), lines)
        items = blocks * images * math.ceil(lines / rows)
        defines: dict[str, int | str] = {"LANES": lanes}
        kernel = "depthwise_channels" if channels else "depthwise_pixels"
        if channels:
            defines |= {"STRIP": STRIP, "MAX_TAPS": MAX_TAPS}
        return self.of_items(gemm, kernel, defines, items, gemm.depth + 1, rows)

    def of_items(
        self,
        gemm: Gemm,
        kernel: str,
        defines: dict[str, int | str],
        items: int,
        least_part: int,
        rows: int,
    ) -> Cover:
        """Return the cover by `items` work-groups of one work-item."""
        lanes = int(defines["LANES"])
        types = {"A": gemm.a.data_type, "B": gemm.b.data_type, "C": gemm.c.data_type}
        for name, data_type in types.items():
            defines |= ELEMENTS.defines(name, data_type, 1)
            defines |= ELEMENTS.defines(f"{name}_VECTOR", data_type, lanes)
        widths = [(data_type, count) for data_type in types.values() for count in (1, lanes)]
        snippets, conversions = (template("depthwise"),), ELEMENTS.snippets(widths)
        return Cover(kernel, defines, (items, 1), 1, least_part, rows, snippets, conversions)

    def channels(self, gemm: Gemm, *images: Matrix) -> int:
        """Return the channels per vector; 0 if channels are not contiguous in all images."""
        if gemm.batches == 1 or any(image.strides.batch != (1,) for image in images):
            return 0
        return min(self.vector, 1 << gemm.batches.bit_length() - 1)

    def lanes_for(self, pixels: int) -> int:
        """Return the lanes of the shortest vector that holds a line, or of the longest vector."""
        return min(self.vector, 1 << (pixels - 1).bit_length())


class DepthwiseWeights(Depthwise):
    """Backward weights."""

    def refusal_of(self, gemm: Gemm) -> Refused | None:
        """Refuse groups of several channels."""
        return _refusal_of_channels(gemm.m, gemm.n[0])

    def cover(self, gemm: Gemm) -> Cover:
        """Choose the direction of vectors. k is split between lines."""
        channels = self.channels(gemm, gemm.a, gemm.b)
        lanes = channels or self.lanes_for(max(gemm.k[-1], 1))
        blocks = math.ceil(gemm.batches / channels) if channels else gemm.batches
        taps = min(TAPS, gemm.columns)
        defines: dict[str, int | str] = {"LANES": lanes, "MAX_TAPS": TAPS}
        defines["ALONG_CHANNELS"] = int(channels > 0)
        items = blocks * math.ceil(gemm.columns / taps)
        return self.of_items(gemm, "depthwise_weights", defines, items, max(gemm.k[-1], 1), taps)


def _refusal_of_channels(*channels: int) -> Refused | None:
    if channels == (1, 1):
        return None
    return Refused("shape", f"groups must have 1 channel out and in; got {channels}")


def _images_and_lines(n: Sequence[int]) -> tuple[int, int]:
    """Return images and lines as kernels count them: by the slowest and the middle two digits."""
    return (n[0], math.prod(n[1:-1])) if len(n) == 4 else (1, math.prod(n[:-1]))
