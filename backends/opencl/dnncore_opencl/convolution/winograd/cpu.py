"""Winograd's convolution F(4x4, 3x3) on CPUs, forward and backward by data: 36 products, not 144.

dst is divided into tiles of 4x4 pixels. Each tile depends on 6x6 pixels of src. Tiles and weights
are transformed (`convolution/winograd/tile.py`) and multiplied for each of the 36 positions. This
is a 1x1 convolution of tiles in 36 groups. Its results are transformed back. Backward by data is
the same from diff_dst to diff_src with flipped weights.

Rounding errors are a few times those of direct sums, and no result is exact. Results that are not
finite are computed again by direct sums. So they are finite wherever direct sums are, unless
transformed weights overflow, which requires weights above 1.6e38. NaN and infinity of src do not
spread over a tile.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from dnncore.backend import Accepted, Attributes, Convolution, Implementation, MemoryDesc, Refused
from dnncore.planning.toom_cook import F43, error_factor
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
from dnncore_opencl.convolution.winograd.tile import direct_code
from dnncore_opencl.convolution.winograd.weights_format import (
    DIRECTIONS,
    format_refusal,
    problem_refusal,
    roles,
)
from dnncore_opencl.copies.staging import Staging, plain
from dnncore_opencl.elementwise.algorithms import POST_OP_WORDS
from dnncore_opencl.gemm.cpu import CpuFamily
from dnncore_opencl.gemm.implementation import scratchpad_refusal, size_refusal
from dnncore_opencl.runtime.launch import Launch, Source, padded
from dnncore_opencl.runtime.schema import INT, Arg, Buffer, Schema, Scratch

TILES = 16  # per work-item of a transform
CHUNK_BYTES = 8 << 20  # transformed tiles at once, which remain in a third-level cache
PRODUCT_EFFICIENCY = 0.6
BYTE_FLOPS = 16  # multiplications and additions in the time of moving a byte of a transformed tile

TILES_OF_ITEM = Schema(
    start=INT,  # first element in the scratchpad
    tiles=INT,  # per work-item
    first=INT,  # first tile, counted over all images
    end=INT,  # end of the tiles
    grid=INT2,  # tiles down and across an image
)
# corner: pixels of the first tile outside of the image. size: of an image. blocks: of channels. x,
# y: strides of image, block, row and pixel. x_start, y_start: first elements.
SRC = (
    Schema(src=Buffer("const float"), made=Buffer("float"))
    | TILES_OF_ITEM
    | Schema(corner=INT2, size=INT2, blocks=INT, x=INT4, x_start=INT)
)
DST = (
    Schema(products=Buffer("const float"), dst=Buffer("float"))
    | TILES_OF_ITEM
    | Schema(size=INT2, blocks=INT, channels=INT, y=INT4, y_start=INT)
    | Schema(src=Buffer("const float"), corner=INT2, src_size=INT2, x=INT4, x_start=INT)
    | Schema(
        filters=Buffer("const float"),
        f_start=INT,  # first element of the transformed weights
        f_plane=INT,  # elements between positions
        depth=INT,
    )
)


class Tiles:
    """The tiles of a problem. In each direction, src is the tensor that is read, dst is written.

    op, attr: with images in blocks of `lanes` channels. corner: pixels of the first tile outside of
    the image. depth, columns: channels of src and of dst.
    """

    depth: int
    columns: int

    def __init__(self, op: Convolution, attr: Attributes, direction: str, lanes: int) -> None:
        self.op = op
        self.attr = attr
        self.lanes = lanes
        src, dst, self.corner = roles(op, direction)
        self.src, self.dst = (image_view(op, name, lanes) for name in (src, dst))
        images, self.depth, *self.src_size = getattr(op, src).dims
        _, self.columns, *self.dst_size = getattr(op, dst).dims
        self.grid = [math.ceil(size / F43.outputs) for size in self.dst_size]
        self.count: int = images * math.prod(self.grid)
        self.src_blocks, self.dst_blocks = (
            math.ceil(channels / lanes) for channels in (self.depth, self.columns)
        )

    @property
    def tile_bytes(self) -> int:
        """Bytes of a transformed tile of src plus one of dst, for all channels."""
        return FLOAT * F43.positions * self.lanes * (self.src_blocks + self.dst_blocks)

    @property
    def chunk(self) -> int:
        """Tiles that are transformed before they are multiplied."""
        return min(self.count, max(1, CHUNK_BYTES // self.tile_bytes))

    @property
    def efficiency(self) -> float:
        """Flops of the direct algorithm over Winograd's, whose traffic is converted to flops."""
        columns = padded(self.columns, 2 * self.lanes)
        work = 2 * F43.positions * self.count * self.depth * columns / PRODUCT_EFFICIENCY
        work += self.count * self.tile_bytes * BYTE_FLOPS
        return max(float(self.op.flops), 1.0) / max(work, 1.0)

    def launches(
        self, cpu: CpuFamily, begin: int, filters: tuple[int | None, int], start: int
    ) -> tuple[list[Launch], int]:
        """Return the launches of a chunk from tile `begin` on, and the end of its scratchpad.

        filters: the place and the first element of the transformed weights. start: bytes of the
        scratchpad that are already used.
        """
        lanes, depth, columns = self.lanes, self.src_blocks, self.dst_blocks
        end = min(begin + self.chunk, self.count)
        count = end - begin
        src, dst = start // FLOAT, start // FLOAT + F43.positions * depth * count * lanes
        after = start + count * self.tile_bytes
        lines = (0, 0, 0, lanes)
        column = self.depth * lanes
        product = Lines(
            lanes=lanes,
            channels=(F43.positions, self.columns, self.depth),
            out=(1, 1, 1, count),
            size=(1, 1, count),
            src=View(None, src, depth * count * lanes, count * lanes, 1, lines),
            weights=View(*filters, columns * column, column, lanes**2, (0, 0, 0, 0)),
            dst=View(None, dst, columns * count * lanes, count * lanes, 1, lines),
            is_blocked=True,
            src_is_blocked=True,
        ).plan(cpu, after)
        before, behind = self._src(src, begin, end), self._dst(dst, begin, end, filters)
        return [before, *product.launches, behind], after + product.scratchpad

    def _src(self, start: int, begin: int, end: int) -> Launch:
        arguments = {
            "src": self.src.buffer,
            "made": Scratch(),
            "corner": int2(self.corner),
            "size": int2(self.src_size),
            **_strides("x", self.src),
        }
        text = source("winograd_src", SRC, self.lanes)
        return self._transform(text, arguments, self.src_blocks, start, begin, end)

    def _dst(self, start: int, begin: int, end: int, filters: tuple[int | None, int]) -> Launch:
        place, first = filters
        post_ops = chain(self.op, self.attr)
        made = steps(post_ops, operands(self.op, self.attr))
        arguments = {
            "products": Scratch(),
            "dst": self.dst.buffer,
            "size": int2(self.dst_size),
            "channels": self.columns,
            **_strides("y", self.dst),
            "src": self.src.buffer,
            "corner": int2(self.corner),
            "src_size": int2(self.src_size),
            **_strides("x", self.src),
            "filters": Scratch() if place is None else Arg(place),
            "f_start": first,
            "f_plane": self.dst_blocks * self.depth * self.lanes,
            "depth": self.depth,
            **made.arguments,
        }
        defines = {"WIDTH": self.lanes, "SPAN_ACROSS": F43.span} | (
            {"POST_STEPS": 1} if post_ops else {}
        )
        code = (direct_code(F43, F43), made.code)
        text = source("winograd_dst", DST | made.schema, self.lanes, *code, **defines)
        return self._transform(text, arguments, self.dst_blocks, start, begin, end)

    def _transform(
        self, text: Source, own: dict[str, Any], blocks: int, start: int, begin: int, end: int
    ) -> Launch:
        """Return the transform of the tiles from `begin` to `end`. own: its other arguments."""
        arguments = {
            "start": start,
            "tiles": TILES,
            "first": begin,
            "end": end,
            "grid": int2(self.grid),
            "blocks": blocks,
        }
        items = (math.ceil((end - begin) / TILES), blocks)
        return Launch(text, arguments | own, items, (1, 1))


def _strides(name: str, image: View) -> dict[str, Any]:
    """Return the arguments for an image's strides and first element."""
    strides = (image.pixels[0], image.block, *image.pixels[2:])
    return {name: int4(strides), f"{name}_start": image.start}


class CpuWinograd(Implementation[Convolution]):
    """Forward, or backward by data."""

    name = "opencl:winograd:simd"
    attributes = POST_OP_WORDS

    def __init__(self, direction: str) -> None:
        self.direction = direction

    def accept(
        self, op: Convolution, attr: Attributes, engine: Any, hint: object
    ) -> Accepted | Refused:
        """Accept dense 3x3 windows with stride 1 of one group, in every layout."""
        if not engine.is_cpu:
            return Refused("device", f"computes on CPUs; got {engine.device.name}")
        refused = problem_refusal(op)
        if refused:
            return refused
        cpu = CpuFamily.of(engine)
        lanes = cpu.vector
        filters = WinogradFilter(self.direction, lanes)
        images = {name: blocked_tag(getattr(op, name), lanes) for name in (op.SRC, op.DST)}
        plain_tags = {"bias": "a"} if op.bias_role is not None else {}
        op = op.resolve_auto("winograd").resolve_any(
            weights=filters.desc(op.weights_role), **images, **plain_tags
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
        tiles = Tiles(staging.op, staging.attr, self.direction, lanes)
        start = staging.nbytes
        if op.weights_role.format_kind != "opaque":
            start += filters.desc(op.weights_role).nbytes
        refused = refused or scratchpad_refusal(start + tiles.chunk * tiles.tile_bytes)
        if refused:
            return refused
        launches, nbytes = self._plan(staging, tiles, filters, cpu)

        return Accepted(
            op,
            build=partial(staging.program, engine, launches),
            efficiency=tiles.efficiency,
            scratchpad_bytes=nbytes,
            exact=False,
            notes=staging.notes,
            error_factor=error_factor(F43, F43, tiles.depth),
        )

    def _plan(
        self, staging: Staging[Convolution], tiles: Tiles, filters: WinogradFilter, cpu: CpuFamily
    ) -> tuple[list[Launch], int]:
        """Return the launches and the bytes of scratchpad."""
        weights, place, start = staging.op.weights_role, 1, staging.nbytes
        launches = []
        transformed: tuple[int | None, int] = (place, 0)
        if weights.format_kind != "opaque":
            launches.append(filters.launch(weights, place, Scratch(), start // FLOAT))
            transformed = (None, start // FLOAT)
            start += filters.desc(weights).nbytes
        needs = start
        for begin in range(0, tiles.count, max(1, tiles.chunk)):
            chunk, used = tiles.launches(cpu, begin, transformed, start)
            launches += chunk
            needs = max(needs, used)
        return launches, needs


FORWARD, BACKWARD_DATA = map(CpuWinograd, DIRECTIONS)
