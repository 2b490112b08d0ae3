"""Tiles of a convolution with few channels per group, and the common code of its kernels."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dnncore.backend import Convolution, MemoryDesc, Refused
from dnncore_opencl.codegen import vectors
from dnncore_opencl.codegen.digits import INT4, UINT4, int4, inverses
from dnncore_opencl.codegen.layout import Parameters, access
from dnncore_opencl.codegen.vectors import HALVES, INTEGERS, TYPES, vector
from dnncore_opencl.convolution.groups.axes import Axis
from dnncore_opencl.convolution.groups.channels import GROUP, Channels
from dnncore_opencl.convolution.views import place_of
from dnncore_opencl.elementwise.epilogue import Epilogue
from dnncore_opencl.runtime.launch import Launch, Source, template
from dnncore_opencl.runtime.schema import Arg, Schema

MOST_TAPS = 64  # computed at once
MOST_DOWN, MOST_ACROSS = 16, 4  # in units of `least_tile`; 1 across unless along channels
SUMS = 32  # per work-item
WINDOW = 36  # values of a row of the image in registers
RESIDENT = 1024  # work-items with which a multiprocessor hides their latency
BEGIN, LOAD, PRODUCT = 40, 2, 0.25  # times of parts of a tile, in arbitrary units
PIXELS = Schema(pixels=INT4, pixels_inverse=UINT4)  # images, then tiles along three dims
COORDINATES = ("n", "c", "d", "h", "w")


@dataclass(frozen=True)
class Tiling:
    """The tiles of the results of `images` images: depth, height and width, and the channels."""

    images: int
    axes: tuple[Axis, Axis, Axis]
    channels: Channels

    def fastest(self, units: int) -> Tiling:
        """Return the tiling with the least estimated time on `units` multiprocessors."""
        return min(self._choices(), key=lambda choice: choice._cost(units))

    def _choices(self) -> Iterator[Tiling]:
        """Yield this tiling with each tile that fits in registers."""
        depth, height, width = self.axes
        across = MOST_ACROSS if self.channels.along else 1
        for down, side in itertools.product(range(1, MOST_DOWN + 1), range(1, across + 1)):
            h = height.with_tile(down * height.least_tile)
            w = width.with_tile(side * width.least_tile)
            sums = h.tile * w.tile * self.channels.results
            values = self.channels.values * w.window
            if down == side == 1 or (sums <= SUMS and values <= WINDOW):
                yield replace(self, axes=(depth, h, w))

    def _cost(self, units: int) -> float:
        """Return an estimate of the time, in arbitrary units."""
        _, height, width = self.axes
        channels = self.channels
        taps = height.taps * width.taps
        loads = height.window * width.window * channels.values + taps * channels.results
        products = height.tile * width.tile * taps * channels.results * channels.values_read
        own = BEGIN + LOAD * loads + PRODUCT * products
        items = channels.blocks * self.pixel_blocks * GROUP
        return own * max(items, units * RESIDENT)

    @property
    def pixels(self) -> tuple[int, int, int, int]:
        """Images, then tiles along three dims."""
        depth, height, width = self.axes
        return (self.images, depth.result, height.blocks, width.blocks)

    @property
    def tiles(self) -> int:
        """Tiles per channel."""
        return math.prod(self.pixels)

    @property
    def pixel_blocks(self) -> int:
        """Work-groups along pixels, if each computes its tiles at once."""
        return math.ceil(self.tiles / self.channels.others)

    @property
    def taps(self) -> int:
        """Taps that are computed at once."""
        _, height, width = self.axes
        return height.taps * width.taps

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of `PIXELS`."""
        return {"pixels": int4(self.pixels), "pixels_inverse": inverses(self.pixels)}

    def launch(
        self,
        kernel: str,
        parameters: Parameters,
        defines: Mapping[str, str],
        functions: Sequence[str],
        after: Epilogue,
        groups: int,
        work: float,
    ) -> Launch:
        """Return the launch of a kernel with `groups` work-groups.

        functions: texts that convert types. after: the epilogue. work: as in `Launch`.
        """
        snippets = (*functions, after.code, template("digits"), template("tiles"))
        schema = parameters.schema | PIXELS | after.schema
        arguments = {**parameters.arguments, **self.arguments, **after.arguments}
        source = Source(kernel, schema, {**defines, **parameters.defines}, snippets)
        return Launch(source, arguments, (groups * GROUP,), (GROUP,), work)

    def defines(self, image: MemoryDesc, parameters: Parameters) -> dict[str, str]:
        """Return the defines common to all kernels."""
        depth, height, width = self.axes
        channels = self.channels
        row, pixel = (0, *_steps(image))[-2:]
        return {
            "IS_BACKWARD": str(int(height.is_backward)),
            "IS_DEPTHWISE": str(int(channels.is_depthwise)),
            "IS_WIDE": str(int(channels.is_wide)),
            "GROUP": str(GROUP),
            "SLOTS": str(channels.slots),
            "RESULTS": str(channels.results),
            "FLOATS": vector("float", channels.results),
            "VALUES": vector("float", channels.values),
            "VECTORS": parameters.size(channels.vectors),
            "INNERS": "DEPTH" if channels.for_weights else "1",
            "VECTORS_OF_GROUP": parameters.divisor(channels.vectors_of_group),
            "COLUMNS": parameters.index(channels.columns),
            "DEPTH": parameters.divisor(channels.depth),
            "SLOT_BLOCKS": parameters.divisor(channels.blocks),
            "ROW_STEP": parameters.index(row * height.in_step),
            "PIXEL_STEP": parameters.index(pixel * width.in_step),
            **depth.depth_defines(parameters),
            **height.defines(parameters),
            **width.defines(parameters),
            **parameters.defines,
        }


def _steps(image: MemoryDesc) -> list[int]:
    """Return the strides of spatial dims; 0 for dims of size 1."""
    dims = zip(image.dims[2:], image.strides[2:], strict=True)
    return [stride if size > 1 else 0 for size, stride in dims]


def divided_taps(depth: Axis, height: Axis, width: Axis) -> tuple[Axis, Axis, Axis] | Refused:
    """Choose the taps that are computed at once, or refuse the kernel size."""
    w = width.with_taps_within(MOST_TAPS)
    h = height.with_taps_within(MOST_TAPS // w.taps) if w else None
    if w is None or h is None:
        kernel = f"{height.kernel}x{width.kernel}"
        reason = f"kernels must have {MOST_TAPS} taps at most, or parts that strides divide"
        return Refused("shape", f"{reason}; got {kernel}")
    return depth, h, w


def parameters_of(op: Convolution, names: Sequence[str], written: str) -> Parameters:
    """Return a kernel's parameters that begin with tensors, one of which is written."""
    descs = [getattr(op, name) for name in names]
    largest = max(desc.nbytes // desc.itemsize for desc in descs)
    parameters = Parameters(largest, prefix="q")  # epilogues use another prefix
    for name, desc in zip(names, descs, strict=True):
        const = "" if name == written else "const "
        argument = Arg(place_of(op, name))
        parameters.buffer(name, const + TYPES[desc.data_type], argument, is_restrict=True)
    return parameters


def image_access(name: str, desc: MemoryDesc, parameters: Parameters) -> dict[str, str]:
    """Define NAME_AT(n, c, d, h, w)."""
    used = (*COORDINATES[:2], *COORDINATES[7 - desc.ndims :])
    return access(name, desc, COORDINATES, used, parameters)


def conversions(engine: Any, descs: Sequence[MemoryDesc], widths: Sequence[int]) -> tuple[str, ...]:
    """Return the texts that convert types. Epilogues use the same texts."""
    types = {desc.data_type for desc in descs}
    guards = {"#define HALVES": HALVES, "#define INTEGERS": INTEGERS}
    defined = (guard for guard, kinds in guards.items() if types & set(kinds))
    return (*defined, *vectors.conversions(engine, types, {1, *widths}))


def reads(engine: Any, name: str, data_type: str, lanes: int, pointer: str) -> dict[str, str]:
    """Define how one or `lanes` elements are read and converted to floats.

    Reads and conversions are separate, so that compilers need no branch for a conditional read.
    """
    kind = TYPES[data_type]
    return {
        f"{name}_BIT": kind,
        f"{name}_BITS": vector(kind, lanes),
        f"READ_{name}(at)": vectors.read_bits(engine, data_type, lanes, pointer),
        f"{name}_VALUES(bits)": vectors.value(data_type, lanes, "bits"),
    }
