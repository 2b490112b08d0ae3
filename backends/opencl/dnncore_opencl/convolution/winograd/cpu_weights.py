"""Winograd's transformed weights: an opaque format, the launch that makes it, and its reorder.

    U[position][vector of columns][depth][lane]

The format's text is `opencl:winograd:4x3:DIRECTION:LANES`; `convolution/winograd/weights_format.py`
defines columns and depth.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dnncore.backend import MemoryDesc
from dnncore.planning.toom_cook import F43, TAPS
from dnncore_opencl.codegen.digits import INT4, int4
from dnncore_opencl.convolution.views import FLOAT
from dnncore_opencl.convolution.winograd.tile import transforms
from dnncore_opencl.convolution.winograd.weights_format import DIRECTIONS, FilterReorder, Filters
from dnncore_opencl.gemm.cpu import CpuFamily
from dnncore_opencl.runtime.launch import Launch, Source, padded, template
from dnncore_opencl.runtime.schema import INT, Arg, Buffer, Schema, Scratch

PREFIX = f"opencl:winograd:{F43.name}"
SCHEMA = Schema(
    weights=Buffer("const float"),
    made=Buffer("float"),
    start=INT,  # first element of `made`
    columns=INT,
    depth=INT,
    w=INT4,  # strides of columns, depth, tap rows and tap columns; negative if flipped
    w_start=INT,  # element of the first tap
)


def source(name: str, schema: Schema, lanes: int, *snippets: str, **defines: int) -> Source:
    """Return the source of a transform kernel."""
    shared = (template("floats"), transforms(F43), *snippets)
    sizes = {"LANES": lanes, "OUTPUTS": F43.outputs, "SPAN": F43.span, "TAPS": TAPS}
    return Source(name, schema, sizes | defines, shared)


@dataclass(frozen=True)
class WinogradFilter(Filters):
    """The dim of columns in weights of (OC, IC, 3, 3), or with one group in front."""

    direction: str
    lanes: int

    @property
    def tag(self) -> str:
        """The format's text."""
        return f"{PREFIX}:{self.direction}:{self.lanes}"

    def desc(self, weights: MemoryDesc) -> MemoryDesc:
        """Return the descriptor of transformed weights."""
        columns, depth = self.channels(weights)
        nbytes = FLOAT * F43.positions * depth * padded(columns, self.lanes)
        return MemoryDesc(weights.dims, "f32", self.tag, nbytes=nbytes)

    def launch(self, weights: MemoryDesc, place: int, target: Arg | Scratch, start: int) -> Launch:
        """Return the launch that transforms weights to the target, from element `start` on."""
        columns, depth = self.channels(weights)
        strides, first = self.strides(weights)
        arguments = {
            "weights": Arg(place),
            "made": target,
            "start": start,
            "columns": columns,
            "depth": depth,
            "w": int4(strides),
            "w_start": first,
        }
        text = source("winograd_weights", SCHEMA, self.lanes)
        return Launch(text, arguments, (padded(columns, self.lanes) // self.lanes,), (1,))


class WinogradReorder(FilterReorder):
    """Reorder to the CPU formats."""

    name = "opencl:winograd"
    efficiency = 0.1

    def formats(self, engine: Any) -> Iterable[WinogradFilter]:
        """Return the formats for the device's vectors."""
        lanes = CpuFamily.of(engine).vector
        return (WinogradFilter(direction, lanes) for direction in DIRECTIONS)
