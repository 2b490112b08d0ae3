"""Kernels for depthwise convolutions: products of one row, where there is no reuse to block for.

A batch is a channel. Vectors are along channels where these lie side by side, else along the lines
of an image; every other layout is gathered.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from dnncore.backend import Refused
from dnncore_opencl.gemm.cpu import CpuFamily
from dnncore_opencl.gemm.product import Gemm, Matrix
from dnncore_opencl.gemm.strided import TASKS_PER_CORE, Cover, Strided
from dnncore_opencl.runtime.engine import OpenCLEngine
from dnncore_opencl.runtime.launch import template

STRIP = 4  # pixels in registers, so that a tap is read once for all of them
MAX_TAPS = 1024  # vectors of a CPU's work-item: 64 KB, of which only what is needed is touched
TAPS = 64  # sums of a CPU's work-item: 4 KB, beside two lines in the first-level cache
GPU_GROUP = 64


@dataclass(frozen=True)
class Depthwise(Strided):
    """Forward and backward data, on `units` cores of `vector` floats, or with vector 1 on a GPU."""

    name: ClassVar[str] = "depthwise"
    efficiency: ClassVar[Mapping[str, float]] = {"cpu": 0.6, "gpu": 0.6, "accelerator": 0.6}

    units: int
    vector: int

    @classmethod
    def of(cls, engine: OpenCLEngine) -> Depthwise:
        """The family for an engine's device."""
        cpu = CpuFamily.of(engine)
        return cls(cpu.units, cpu.vector if engine.is_cpu else 1)

    def refusal_of(self, gemm: Gemm) -> Refused | None:
        """Groups must have one channel on either side, and a CPU's work-item hold their taps."""
        if self.on_cpu and gemm.depth > MAX_TAPS:
            return Refused("shape", f"kernels must have {MAX_TAPS} taps at most; got {gemm.depth}")
        return _refusal_of_channels(gemm.m, gemm.k[0])

    def cover(self, gemm: Gemm) -> Cover:
        """Choose what vectors are along, and work-items enough for all cores."""
        channels = self.channels(gemm, gemm.b)
        lanes = channels or self.lanes_for(gemm.n[-1])
        blocks = math.ceil(gemm.batches / channels) if channels else gemm.batches
        images, lines = _images_and_lines(gemm.n)
        if self.on_cpu:
            strips, rows = 1, math.ceil(lines * blocks * images / (TASKS_PER_CORE * self.units))
        else:
            strips, rows = math.ceil(gemm.n[-1] / (STRIP if channels else lanes)), 1
        rows = min(rows, lines)
        items = blocks * strips * images * math.ceil(lines / rows)
        defines = {"LANES": lanes, "ALL_STRIPS": int(self.on_cpu)}
        kernel = "depthwise_channels" if channels else "depthwise_pixels"
        if channels:
            defines |= {"STRIP": STRIP, "MAX_TAPS": MAX_TAPS}
        return self.of_items(kernel, defines, items, gemm.depth + 1, rows)

    def of_items(
        self, kernel: str, defines: Mapping[str, int], items: int, least_part: int, rows: int
    ) -> Cover:
        """Return the cover by so many work-items."""
        group = 1 if self.on_cpu else GPU_GROUP
        groups = (math.ceil(items / group), 1)
        snippets = (template("depthwise"),)
        return Cover(kernel, {**defines, "GROUP": group}, groups, group, least_part, rows, snippets)

    @property
    def on_cpu(self) -> bool:
        """Whether a work-item takes vectors and many lines."""
        return self.vector > 1

    def channels(self, gemm: Gemm, *images: Matrix) -> int:
        """Channels in a vector; 0 where they do not lie side by side in all images."""
        if gemm.batches == 1 or any(image.strides.batch != (1,) for image in images):
            return 0
        return min(self.vector, 1 << gemm.batches.bit_length() - 1)

    def lanes_for(self, pixels: int) -> int:
        """The shortest vector that holds a line of so many pixels, or the longest."""
        return min(self.vector, 1 << (pixels - 1).bit_length())


class DepthwiseWeights(Depthwise):
    """Backward weights."""

    def refusal_of(self, gemm: Gemm) -> Refused | None:
        """Groups must have one channel on either side."""
        return _refusal_of_channels(gemm.m, gemm.n[0])

    def cover(self, gemm: Gemm) -> Cover:
        """Choose what vectors are along; k is cut between lines."""
        channels = self.channels(gemm, gemm.a, gemm.b)
        lanes = channels or self.lanes_for(max(gemm.k[-1], 1))
        blocks = math.ceil(gemm.batches / channels) if channels else gemm.batches
        held = TAPS if self.on_cpu else 1
        taps = min(held, gemm.columns)
        defines = {"LANES": lanes, "ALONG_CHANNELS": int(channels > 0), "MAX_TAPS": held}
        items = blocks * math.ceil(gemm.columns / taps)
        return self.of_items("depthwise_weights", defines, items, max(gemm.k[-1], 1), taps)


def _refusal_of_channels(*channels: int) -> Refused | None:
    if channels == (1, 1):
        return None
    return Refused("shape", f"groups must have 1 channel out and in; got {channels}")


def _images_and_lines(n: Sequence[int]) -> tuple[int, int]:
    """What kernels count as images and as lines: the slowest of four digits, and the middle two."""
    return (n[0], math.prod(n[1:-1])) if len(n) == 4 else (1, math.prod(n[:-1]))
