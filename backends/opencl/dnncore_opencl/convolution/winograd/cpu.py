"""Winograd's convolution F(4x4, 3x3) on CPUs, forward and backward by data: 36 products, not 144.

dst is divided into tiles of 4x4 pixels. Each tile depends on 6x6 pixels of src. Tiles and filters
are transformed (`convolution/winograd/tile.py`) and multiplied position by position. This is a 1x1
convolution of tiles in 36 groups. Its results are transformed back. Backward by data is the same
from diff_dst to diff_src with flipped filters.

Rounding errors are a few times those of direct sums, and nothing is exact. One NaN or infinity
makes all 16 pixels of each tile that reads it NaN or infinite; with the direct algorithm it is at
most 9 pixels. If a transformed filter overflows, so does dst.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

from dnncore.backend import Accepted, Attributes, Implementation, MemoryDesc, Refused
from dnncore.planning.toom_cook import F43, TAPS
from dnncore_opencl.codegen.digits import INT2, INT4, int2, int4
from dnncore_opencl.convolution.lines import Lines
from dnncore_opencl.convolution.views import (
    FLOAT,
    View,
    blocked_tag,
    chain,
    image_view,
    operands,
    steps,
)
from dnncore_opencl.convolution.winograd.cpu_weights import WinogradFilter, source
from dnncore_opencl.convolution.winograd.weights_format import format_refusal, problem_refusal
from dnncore_opencl.copies.staging import Staging, plain
from dnncore_opencl.gemm.cpu import CpuFamily
from dnncore_opencl.gemm.implementation import scratchpad_refusal, size_refusal
from dnncore_opencl.runtime.launch import Launch, padded
from dnncore_opencl.runtime.schema import INT, Buffer, Schema, Scratch

TILES = 16  # of a work-item of transforms
CHUNK_BYTES = 8 << 20  # of transformed tiles at once, which stay in a third-level cache
PRODUCT_EFFICIENCY = 0.6
BYTE_FLOPS = 16  # multiplications and additions in the time of a byte of a transformed tile

SRC = Schema(
    src=Buffer("const float"),
    made=Buffer("float"),
    start=INT,  # element of `made`
    tiles=INT,  # of a work-item
    first=INT,  # tile of all images
    end=INT,  # tile after the last one
    grid=INT2,  # tiles down and across an image
    corner=INT2,  # pixels of the first tile before the image
    size=INT2,  # of an image
    blocks=INT,  # of channels
    x=INT4,  # strides of image, block, row and pixel
    x_start=INT,  # element of src
)
DST = Schema(
    products=Buffer("const float"),
    dst=Buffer("float"),
    start=INT,  # element of `products`
    tiles=INT,  # as in SRC
    first=INT,
    end=INT,
    grid=INT2,
    size=INT2,
    blocks=INT,
    channels=INT,
    y=INT4,
    y_start=INT,
)


@dataclass(frozen=True)
class Tiles:
    """A problem in the roles of its direction: images of `depth` channels become `columns`.

    grid: tiles down and across an image of dst. corner: pixels of the first one before the image.
    """

    lanes: int
    images: int
    depth: int
    columns: int
    src_size: tuple[int, int]
    dst_size: tuple[int, int]
    corner: tuple[int, int]

    @property
    def grid(self) -> tuple[int, int]:
        """Tiles down and across an image of dst."""
        down, across = (math.ceil(size / F43.outputs) for size in self.dst_size)
        return down, across

    @property
    def count(self) -> int:
        """Tiles of all images."""
        return self.images * math.prod(self.grid)

    @property
    def blocks(self) -> tuple[int, int]:
        """Blocks of channels of src and of dst."""
        depth, columns = (math.ceil(n / self.lanes) for n in (self.depth, self.columns))
        return depth, columns

    @property
    def tile_bytes(self) -> int:
        """Of a tile of src and one of dst, transformed."""
        return FLOAT * F43.positions * self.lanes * sum(self.blocks)

    @property
    def chunk(self) -> int:
        """Tiles that are transformed before they are multiplied."""
        return min(self.count, max(1, CHUNK_BYTES // self.tile_bytes))


class CpuWinograd(Implementation[Any]):
    """What the directions share."""

    name = "opencl:winograd:simd"
    forward: bool

    def accept(self, op: Any, attr: Attributes, engine: Any, hint: object) -> Accepted | Refused:
        """Accept dense 3x3 windows with stride 1 of one group, in every layout."""
        lanes = CpuFamily.of(engine).vector
        refused = _refusal(op, engine)
        if refused:
            return refused
        direction = "forward" if self.forward else "backward_data"
        filters = WinogradFilter(direction, lanes)
        images = {name: blocked_tag(getattr(op, name), lanes) for name in (op.SRC, op.DST)}
        plain_tags = {"bias": "a"} if op.bias_role is not None else {}
        op = op.resolve_auto("winograd").resolve_any(
            weights=filters.desc(op.weights), **images, **plain_tags
        )
        refused = format_refusal(op, attr, filters)
        if refused:
            return refused

        def wanted(name: str, desc: MemoryDesc) -> MemoryDesc:
            if name not in images:
                return plain(desc) if desc.format_kind == "blocked" else desc
            return desc if desc.inner_blocks == ((1, lanes),) else desc.with_format(images[name])

        staging = Staging.of(op, attr, wanted)
        refused = size_refusal(staging.op, staging.attr)
        tiles = self._tiles(op, lanes)
        filled = staging.nbytes + tiles.chunk * tiles.tile_bytes
        if op.weights.format_kind != "opaque":
            filled += filters.desc(op.weights).nbytes
        refused = refused or scratchpad_refusal(filled)
        if refused:
            return refused
        launches, nbytes = self._plan(staging, CpuFamily.of(engine))

        return Accepted(
            op,
            build=partial(staging.program, engine, launches),
            efficiency=_efficiency(op, tiles),
            scratchpad_bytes=nbytes,
            exact=False,
            error_factor=F43.error_factor,
        )

    def _tiles(self, op: Any, lanes: int) -> Tiles:
        _, oc, ic, *_ = op.grouped_weights
        images, _, *src = op.src_role.dims
        dst, padding = op.dst_role.dims[2:], op.padding_l
        if self.forward:
            return Tiles(lanes, images, ic, oc, tuple(src), dst, padding)
        corner = tuple(TAPS - 1 - p for p in padding)
        return Tiles(lanes, images, oc, ic, dst, tuple(src), corner)

    def _plan(self, staging: Staging, cpu: CpuFamily) -> tuple[list[Launch], int]:
        """The launches and the bytes of scratchpad."""
        op, attr = staging.op, staging.attr
        tiles = self._tiles(op, cpu.vector)
        names = (op.SRC, op.DST) if self.forward else (op.DST, op.SRC)
        src, dst = (image_view(op, name, cpu.vector) for name in names)
        sweeps = _Sweeps(tiles, src, dst, op, attr)
        launches = []
        place, start = 1, staging.nbytes
        first: int | None = place
        if op.weights.format_kind != "opaque":
            direction = "forward" if self.forward else "backward_data"
            filters = WinogradFilter(direction, cpu.vector)
            launches.append(filters.launch(op.weights, place, Scratch(), start // FLOAT))
            weights_start, first = start // FLOAT, None
            start += filters.desc(op.weights).nbytes
        else:
            weights_start = 0
        needs = start
        for begin in range(0, tiles.count, max(1, tiles.chunk)):
            chunk, used = sweeps.launches(cpu, begin, first, weights_start, start)
            launches += chunk
            needs = max(needs, used)
        return launches, needs


def _refusal(op: Any, engine: Any) -> Refused | None:
    if not engine.is_cpu:
        return Refused("device", f"computes on CPUs; got {engine.device.name}")
    return problem_refusal(op)


def _efficiency(op: Any, tiles: Tiles) -> float:
    """The direct algorithm's flops over this one's, with traffic converted to flops."""
    columns = padded(tiles.columns, 2 * tiles.lanes)
    work = 2 * F43.positions * tiles.count * tiles.depth * columns / PRODUCT_EFFICIENCY
    work += tiles.count * tiles.tile_bytes * BYTE_FLOPS
    return max(float(op.flops), 1.0) / max(work, 1.0)


@dataclass(frozen=True)
class _Sweeps:
    """The launches for chunks of tiles."""

    tiles: Tiles
    src: View
    dst: View
    op: Any
    attr: Attributes

    def launches(
        self, cpu: CpuFamily, begin: int, weights: int | None, weights_start: int, start: int
    ) -> tuple[list[Launch], int]:
        """Return the launches of a chunk from tile `begin` on, and the end of its scratchpad.

        weights: the place of the transformed filter, which begins at element `weights_start`.
        start: the bytes of the scratchpad that are taken.
        """
        tiles, lanes = self.tiles, self.tiles.lanes
        end = min(begin + tiles.chunk, tiles.count)
        count = end - begin
        depth, columns = tiles.blocks
        src, dst = start // FLOAT, start // FLOAT + F43.positions * depth * count * lanes
        after = start + count * tiles.tile_bytes
        lines = (0, 0, 0, lanes)
        column = tiles.depth * lanes
        product = Lines(
            lanes=lanes,
            channels=(F43.positions, tiles.columns, tiles.depth),
            out=(1, 1, 1, count),
            size=(1, 1, count),
            src=View(None, src, depth * count * lanes, count * lanes, 1, lines),
            weights=View(weights, weights_start, columns * column, column, lanes**2, (0, 0, 0, 0)),
            dst=View(None, dst, columns * count * lanes, count * lanes, 1, lines),
            is_blocked=True,
            src_is_blocked=True,
        ).plan(cpu, after)
        transforms = self._src(src, begin, end), self._dst(dst, begin, end)
        return [transforms[0], *product.launches, transforms[1]], after + product.scratchpad

    def _src(self, start: int, begin: int, end: int) -> Launch:
        tiles, view = self.tiles, self.src
        blocks, _ = tiles.blocks
        arguments = {
            "src": view.buffer,
            "made": Scratch(),
            "start": start,
            "tiles": TILES,
            "first": begin,
            "end": end,
            "grid": int2(tiles.grid),
            "corner": int2(tiles.corner),
            "size": int2(tiles.src_size),
            "blocks": blocks,
            "x": int4((view.pixels[0], view.block, *view.pixels[2:])),
            "x_start": view.start,
        }
        text = source("winograd_src", SRC, tiles.lanes)
        items = (math.ceil((end - begin) / TILES), blocks)
        return Launch(text, arguments, items, (1, 1))

    def _dst(self, start: int, begin: int, end: int) -> Launch:
        tiles, view = self.tiles, self.dst
        _, blocks = tiles.blocks
        post_ops = chain(self.op, self.attr)
        made = steps(post_ops, operands(self.op, self.attr))
        arguments = {
            "products": Scratch(),
            "dst": view.buffer,
            "start": start,
            "tiles": TILES,
            "first": begin,
            "end": end,
            "grid": int2(tiles.grid),
            "size": int2(tiles.dst_size),
            "blocks": blocks,
            "channels": tiles.columns,
            "y": int4((view.pixels[0], view.block, *view.pixels[2:])),
            "y_start": view.start,
            **made.arguments,
        }
        defines = {"POST_STEPS": 1} if post_ops else {}
        text = source("winograd_dst", DST | made.schema, tiles.lanes, made.code, **defines)
        items = (math.ceil((end - begin) / TILES), blocks)
        return Launch(text, arguments, items, (1, 1))


class CpuWinogradForward(CpuWinograd):
    """Forward."""

    forward = True


class CpuWinogradBackwardData(CpuWinograd):
    """Backward by data."""

    forward = False
