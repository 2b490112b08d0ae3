"""Winograd's convolution on GPUs: images and filters as planes, one per position of a tile.

    V[position][tile][depth]     tiles of src, transformed
    U[position][column][depth]   filters, transformed: an opaque format
    M[position][tile][column]    = sum over depth of V * U: a batch of products
    dst                          M transformed back, after post-ops

Backward by weights, a batch of products sums up over the tiles:

    V[position][tile][depth]     tiles of src, transformed
    D[position][tile][column]    tiles of diff_dst, transformed by the adjoint
    U[position][column][depth]   = sum over tiles of D * V, for each slice of the images
    diff_weights                 the sum of all U transformed by the adjoint, after post-ops

The filters' format is `opencl:winograd:2x2x3:DIRECTION:planes`;
`convolution/winograd/weights_format.py` defines columns and depth.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from dnncore.backend import Attributes, Convolution, MemoryDesc
from dnncore_opencl.codegen.digits import INT2, INT4, int2, int4
from dnncore_opencl.convolution.views import FLOAT, chain, operands, place_of, steps, weights_steps
from dnncore_opencl.convolution.winograd.tile import WinogradTile
from dnncore_opencl.convolution.winograd.weights_format import Filters
from dnncore_opencl.gemm.product import Gemm, Matrix, Strides
from dnncore_opencl.runtime.launch import Launch, Source, padded, template
from dnncore_opencl.runtime.schema import INT, UINT, Arg, Buffer, Schema, Scratch

SCRATCHPAD = -1  # the place of operands that lie there
GROUP = 256  # work-items, which every GPU runs
MOST_LANES = 4  # floats: a work-item's widest access

SOURCE, TARGET = Buffer("const float", is_restrict=True), Buffer("float", is_restrict=True)
LAYOUT = Schema(
    start=INT,  # element of the planes
    plane=UINT,  # elements from a position to the next
    depth=UINT,
    w=INT4,  # strides of columns, of depth, of rows and columns of taps; negative of flipped ones
    w_start=INT,  # element of the first tap
)
WEIGHTS = Schema(weights=SOURCE, made=TARGET) | LAYOUT
TAPS = (
    Schema(sums=SOURCE, weights=TARGET)
    | LAYOUT
    | Schema(
        slices=INT, src=SOURCE, diff_dst=SOURCE, corner=INT2, size=INT4, x=INT4, y=INT4, images=INT
    )
)
TILES = Schema(
    start=INT,  # element of the planes
    plane=INT,  # elements from a position to the next
    items=UINT,
    vectors=UINT,  # of channels, of a tile
    grid=INT2,  # tiles down and across an image
    first=INT,  # image
)
# corner: pixels of the first tile before the image. size: of an image. x, y: strides of image, row
# and pixel, then the first element.
POINTS = Schema(src=SOURCE, made=TARGET) | TILES | Schema(corner=INT2, size=INT2, x=INT4)
DST = (
    Schema(products=SOURCE, dst=TARGET)
    | TILES
    | Schema(size=INT2, y=INT4, src=SOURCE, filters=SOURCE, corner=INT2, src_size=INT2, x=INT4)
    | Schema(
        f_start=INT,  # element of the planes of filters
        f_plane=INT,  # elements from a position to the next
        depth=INT,
    )
)


@dataclass(frozen=True)
class FilterPlanes(Filters):
    """Filters of (OC, IC, 3, 3), or with one group in front, transformed for a direction."""

    tile: WinogradTile
    direction: str

    @property
    def tag(self) -> str:
        """The format's text."""
        return f"opencl:winograd:{self.tile.name}:{self.direction}:planes"

    def desc(self, weights: MemoryDesc) -> MemoryDesc:
        """The transformed filters' descriptor."""
        nbytes = FLOAT * self.tile.positions * math.prod(weights.dims[-4:-2])
        return MemoryDesc(weights.dims, "f32", self.tag, nbytes=nbytes)

    def launch(self, weights: MemoryDesc, place: int, target: Arg | Scratch, start: int) -> Launch:
        """Transform filters that have strides to `start`, in elements."""
        arguments = {"weights": Arg(place), "made": target, **self._arguments(weights, start)}
        return _launch("weights", WEIGHTS, self.tile, 1, arguments, self._items(weights))

    def taps_launch(
        self, start: int, slices: int, planes: Planes, op: Convolution, attr: Attributes
    ) -> Launch:
        """Sum up gradients of `slices`, which begin at element `start` of the scratchpad, and
        transform them to diff_weights. planes: of all images.
        """
        made = weights_steps(op, attr)
        arguments = {
            "sums": Scratch(),
            "weights": Arg(place_of(op, op.WEIGHTS)),
            **self._arguments(op.weights_role, start),
            "slices": slices,
            "src": Arg(planes.src.place),
            "diff_dst": Arg(planes.dst.place),
            "corner": int2(planes.corner),
            "size": int4((*planes.src.size, *planes.dst.size)),
            "x": planes.src.argument,
            "y": planes.dst.argument,
            "images": planes.count,
            **made.arguments,
        }
        defines = {"POST_STEPS": 1} if attr.post_ops else {}
        items = self._items(op.weights_role)
        schema = TAPS | made.schema
        return _launch("taps", schema, self.tile, 1, arguments, items, made.code, **defines)

    def _items(self, weights: MemoryDesc) -> int:
        return math.prod(self.channels(weights))

    def _arguments(self, weights: MemoryDesc, start: int) -> dict[str, Any]:
        """The arguments of `LAYOUT`."""
        _, depth = self.channels(weights)
        strides, first = self.strides(weights)
        return {
            "start": start,
            "plane": self._items(weights),
            "depth": depth,
            "w": int4(strides),
            "w_start": first,
        }


@dataclass(frozen=True)
class Image:
    """Images with channels side by side: strides of image, row and pixel, and the size."""

    place: int
    start: int
    strides: tuple[int, int, int]
    size: tuple[int, int]

    @classmethod
    def of(cls, op: Convolution, name: str) -> Image:
        """A tensor of an operation."""
        desc = getattr(op, name)
        image, _, row, pixel = desc.strides
        return cls(place_of(op, name), desc.offset0, (image, row, pixel), desc.dims[2:])

    @property
    def argument(self) -> Any:
        """The strides, then the first element."""
        return int4((*self.strides, self.start))


@dataclass(frozen=True)
class Planes:
    """Some images of a problem: `count` of them from `first` on.

    depth, columns: channels of src and of dst. corner: pixels of the first tile before src. lanes:
    channels of a vector.
    """

    tile: WinogradTile
    count: int
    depth: int
    columns: int
    src: Image
    dst: Image
    corner: tuple[int, int]
    lanes: int
    first: int = 0

    @property
    def grid(self) -> tuple[int, int]:
        """Tiles down and across an image."""
        sides = zip(self.dst.size, self.tile.outputs, strict=True)
        down, across = (math.ceil(size / outputs) for size, outputs in sides)
        return down, across

    @property
    def tiles(self) -> int:
        """Tiles of these images."""
        return self.count * math.prod(self.grid)

    @property
    def elements(self) -> tuple[int, int]:
        """Of V, and of M or D."""
        tiles = self.tile.positions * self.tiles
        return tiles * self.depth, tiles * self.columns

    def slices(self, elements: int) -> Iterator[Planes]:
        """Divide the images into slices whose planes have at most about `elements` elements."""
        if not self.tiles:
            return
        parts = min(self.count, math.ceil(sum(self.elements) / elements))
        bounds = [self.count * i // parts for i in range(parts + 1)]
        for first, end in pairwise(bounds):
            yield replace(self, first=first, count=end - first)

    def src_launch(self, start: int) -> Launch:
        """Transform src to V, which begins at element `start` of the scratchpad."""
        return self._points_launch("src", self.src, self.depth, self.corner, start)

    def diff_dst_launch(self, start: int) -> Launch:
        """Transform diff_dst to D, which begins at element `start` of the scratchpad."""
        return self._points_launch("dst", self.dst, self.columns, (0, 0), start)

    def _points_launch(
        self, name: str, image: Image, channels: int, corner: tuple[int, int], start: int
    ) -> Launch:
        """Transform tiles of `image`. corner: pixels of the first tile before the image."""
        down, across = self.tile.spans if name == "src" else self.tile.outputs
        shared = self._arguments(channels, start)
        arguments = {
            **shared,
            "src": Arg(image.place),
            "made": Scratch(),
            "corner": int2(corner),
            "size": int2(image.size),
            "x": image.argument,
        }
        defines: dict[str, int | str] = {
            "PIXELS_DOWN": down,
            "PIXELS_ACROSS": across,
            "POINTS_DOWN": f"{name}_points_down",
            "POINTS_ACROSS": f"{name}_points_across",
        }
        items = shared["items"]
        return _launch("points", POINTS, self.tile, self.lanes, arguments, items, **defines)

    def dst_launch(
        self, start: int, filters: tuple[int, int], op: Convolution, attr: Attributes
    ) -> Launch:
        """Transform M, which begins at element `start` of the scratchpad, to dst.

        filters: the place of their planes and their first element.
        """
        place, first = filters
        post_ops = chain(op, attr)
        made = steps(post_ops, operands(op, attr))
        shared = self._arguments(self.columns, start)
        arguments = {
            **shared,
            "products": Scratch(),
            "dst": Arg(self.dst.place),
            "size": int2(self.dst.size),
            "y": self.dst.argument,
            "src": Arg(self.src.place),
            "filters": Scratch() if place == SCRATCHPAD else Arg(place),
            "corner": int2(self.corner),
            "src_size": int2(self.src.size),
            "x": self.src.argument,
            "f_start": first,
            "f_plane": self.columns * self.depth,
            "depth": self.depth,
            **made.arguments,
        }
        defines = {"WIDTH": 1, **({"POST_STEPS": 1} if post_ops else {})}
        schema, code = DST | made.schema, (self.tile.direct_code(), made.code)
        items = shared["items"]
        return _launch("dst", schema, self.tile, self.lanes, arguments, items, *code, **defines)

    def _arguments(self, channels: int, start: int) -> dict[str, Any]:
        """The arguments of `TILES`."""
        size = self.tiles * channels
        return {
            "start": start,
            "plane": size,
            "items": size // self.lanes,
            "vectors": channels // self.lanes,
            "grid": int2(self.grid),
            "first": self.first,
        }

    def gemm(self, filters: tuple[int, int], src: int, dst: int, fpmath: str) -> Gemm:
        """The products; filters: their place and first element; src, dst: those of V and M."""
        depth, columns, tiles = self.depth, self.columns, self.tiles
        return Gemm(
            batch=(self.tile.positions,),
            m=columns,
            n=(tiles,),
            k=(depth,),
            a=self._planes(*filters, columns * depth, m=depth, k=(1,)),
            b=self._planes(SCRATCHPAD, src, tiles * depth, n=(depth,), k=(1,)),
            c=self._planes(SCRATCHPAD, dst, tiles * columns, m=1, n=(columns,)),
            fpmath=fpmath,
        )

    def gradient_gemm(self, src: int, dst: int, target: int, fpmath: str) -> Gemm:
        """The products backward by weights; src, dst, target: first elements of V, D and U."""
        depth, columns, tiles = self.depth, self.columns, self.tiles
        return Gemm(
            batch=(self.tile.positions,),
            m=columns,
            n=(depth,),
            k=(tiles,),
            a=self._planes(SCRATCHPAD, dst, tiles * columns, m=1, k=(columns,)),
            b=self._planes(SCRATCHPAD, src, tiles * depth, n=(1,), k=(depth,)),
            c=self._planes(SCRATCHPAD, target, columns * depth, m=depth, n=(1,)),
            fpmath=fpmath,
        )

    def _planes(self, place: int, first: int, size: int, **steps: Any) -> Matrix:
        """An operand: planes of `size` elements from element `first` on. steps: its strides."""
        end = first + self.tile.positions * size
        return Matrix(place, first, Strides(batch=(size,), **steps), end)


def _launch(
    name: str,
    schema: Schema,
    tile: WinogradTile,
    lanes: int,
    arguments: Mapping[str, Any],
    items: int,
    *snippets: str,
    **defines: int | str,
) -> Launch:
    """Launch the transform `name` with `items` work-items."""
    shared = {**tile.defines, "LANES": lanes, "GROUP": GROUP}
    texts = (template("winograd_planes"), tile.code(), *snippets)
    source = Source(f"winograd_planes_{name}", schema, {**shared, **defines}, texts)
    return Launch(source, arguments, (padded(items, GROUP),), (GROUP,))
