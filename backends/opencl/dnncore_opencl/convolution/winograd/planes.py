"""Winograd's convolution on GPUs: images and weights as planes, one per position of a tile.

    V[position][tile][depth]     transformed tiles of src
    U[position][column][depth]   transformed weights: an opaque format
    M[position][tile][column]    = sum over depth of V * U: a batch of products
    dst                          M transformed back, after post-ops

Backward by weights, a batch of products sums over the tiles:

    V[position][tile][depth]     transformed tiles of src
    D[position][tile][column]    tiles of diff_dst, transformed by the adjoint
    U[position][column][depth]   = sum over tiles of D * V, for each slice of the images
    diff_weights                 the sum of all U transformed by the adjoint, after post-ops

The format of transformed weights is `opencl:winograd:2x2x3:DIRECTION:planes`.
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

SCRATCHPAD = -1  # place of operands in the scratchpad
GROUP = 256  # work-items, supported by every GPU
MOST_LANES = 4  # floats of a work-item's widest access

SOURCE, TARGET = Buffer("const float", is_restrict=True), Buffer("float", is_restrict=True)
LAYOUT = Schema(
    start=INT,  # first element of the planes
    plane=UINT,  # elements between positions
    depth=UINT,
    w=INT4,  # strides of columns, depth, tap rows and tap columns; negative if flipped
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
    start=INT,  # first element of the planes
    plane=INT,  # elements between positions
    items=UINT,
    vectors=UINT,  # of channels, per tile
    grid=INT2,  # tiles down and across an image
    first=INT,  # first image
)
# corner: pixels of the first tile outside of the image. size: of an image. x, y: strides of image,
# row and pixel, then the first element.
POINTS = Schema(src=SOURCE, made=TARGET) | TILES | Schema(corner=INT2, size=INT2, x=INT4)
DST = (
    Schema(products=SOURCE, dst=TARGET)
    | TILES
    | Schema(size=INT2, y=INT4, src=SOURCE, filters=SOURCE, corner=INT2, src_size=INT2, x=INT4)
    | Schema(
        f_start=INT,  # first element of the planes of weights
        f_plane=INT,  # elements between positions
        depth=INT,
    )
)


@dataclass(frozen=True)
class FilterPlanes(Filters):
    """Weights of (OC, IC, 3, 3), or with one group in front, transformed for a direction."""

    tile: WinogradTile
    direction: str

    @property
    def tag(self) -> str:
        """The format's text."""
        return f"opencl:winograd:{self.tile.name}:{self.direction}:planes"

    def desc(self, weights: MemoryDesc) -> MemoryDesc:
        """Return the descriptor of transformed weights."""
        nbytes = FLOAT * self.tile.positions * math.prod(weights.dims[-4:-2])
        return MemoryDesc(weights.dims, "f32", self.tag, nbytes=nbytes)

    def launch(self, weights: MemoryDesc, place: int, target: Arg | Scratch, start: int) -> Launch:
        """Return the launch that transforms weights to the target, from element `start` on."""
        arguments = {"weights": Arg(place), "made": target, **self._arguments(weights, start)}
        return _launch("weights", WEIGHTS, self.tile, 1, arguments, self._items(weights))

    def taps_launch(
        self, start: int, slices: int, planes: Planes, op: Convolution, attr: Attributes
    ) -> Launch:
        """Return the launch that adds the gradients of slices and transforms them to diff_weights.

        start: the first element of the `slices` gradients in the scratchpad. planes: of all images.
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
        """Return the arguments of `LAYOUT`."""
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
    """Images with contiguous channels: strides of image, row and pixel, and the size."""

    place: int
    start: int
    strides: tuple[int, int, int]
    size: tuple[int, int]

    @classmethod
    def of(cls, op: Convolution, name: str) -> Image:
        """Return the view of a tensor of an operation."""
        desc = getattr(op, name)
        image, _, row, pixel = desc.strides
        return cls(place_of(op, name), desc.offset0, (image, row, pixel), desc.dims[2:])

    @property
    def argument(self) -> Any:
        """The strides, then the first element."""
        return int4((*self.strides, self.start))


@dataclass(frozen=True)
class Planes:
    """`count` images of a problem, from image `first` on.

    depth, columns: channels of src and of dst. corner: pixels of the first tile outside of src.
    lanes: channels per vector.
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
        """The number of tiles of these images."""
        return self.count * math.prod(self.grid)

    @property
    def elements(self) -> tuple[int, int]:
        """The numbers of elements of V, and of M or D."""
        tiles = self.tile.positions * self.tiles
        return tiles * self.depth, tiles * self.columns

    def slices(self, elements: int) -> Iterator[Planes]:
        """Divide the images into slices with planes of at most about `elements` elements."""
        if not self.tiles:
            return
        parts = min(self.count, math.ceil(sum(self.elements) / elements))
        bounds = [self.count * i // parts for i in range(parts + 1)]
        for first, end in pairwise(bounds):
            yield replace(self, first=first, count=end - first)

    def src_launch(self, start: int) -> Launch:
        """Return the transform of src to V, which begins at element `start` of the scratchpad."""
        return self._points_launch("src", self.src, self.depth, self.corner, start)

    def diff_dst_launch(self, start: int) -> Launch:
        """Return the transform of diff_dst to D, from element `start` of the scratchpad on."""
        return self._points_launch("dst", self.dst, self.columns, (0, 0), start)

    def _points_launch(
        self, name: str, image: Image, channels: int, corner: tuple[int, int], start: int
    ) -> Launch:
        """Return the transform of an image's tiles. corner: pixels of the first tile outside."""
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
        """Return the transform of M, which begins at element `start` of the scratchpad, to dst.

        filters: the place and the first element of the planes of weights.
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
        """Return the arguments of `TILES`."""
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
        """Return the products. filters: place and first element. src, dst: those of V and M."""
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
        """Return the products backward by weights, with the first elements of V, D and U."""
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
        """Return an operand: planes of `size` elements from element `first` on. steps: strides."""
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
    """Return the launch of the transform `name` with `items` work-items."""
    shared = {**tile.defines, "LANES": lanes, "GROUP": GROUP}
    texts = (template("winograd_planes"), tile.code(), *snippets)
    source = Source(f"winograd_planes_{name}", schema, {**shared, **defines}, texts)
    return Launch(source, arguments, (padded(items, GROUP),), (GROUP,))
