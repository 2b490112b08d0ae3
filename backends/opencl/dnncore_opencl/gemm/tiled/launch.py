"""The launches of the GPU family: the kernels' defines and arguments for a product and a tile."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from dnncore_opencl.codegen.digits import extended, int4
from dnncore_opencl.elementwise.epilogue import Epilogue, Operand, epilogue
from dnncore_opencl.gemm.tiled.view import Product, Side, Target
from dnncore_opencl.runtime.program import Arg, Launch, Scratch, Source, template

LANES = 32  # work-items that read local memory at once
COORDINATES = 11  # of an element of c: three digits of the batch, four of its row and its column
MAX_ITEMS = 256  # of a group, which every GPU runs
MAX_LOCAL = 32768  # bytes of local memory that every GPU has
TABLE = 64  # values of k that a group locates at a time, one work-item each


@dataclass(frozen=True)
class Tile:
    """What a group makes: rows x columns of c, of which a work-item has item_rows x item_columns.

    depth: the values of k that lie in local memory at a time. lanes_across: how many of 32
    work-items are side by side.
    """

    rows: int
    columns: int
    depth: int = 8
    item_rows: int = 8
    item_columns: int = 8
    lanes_across: int = 8

    def __post_init__(self) -> None:
        across, down = self.columns // self.item_columns, self.rows // self.item_rows
        lanes_down = LANES // self.lanes_across
        assert across % self.lanes_across == 0, self
        assert down % lanes_down == 0, self
        assert TABLE % self.depth == 0, self  # what is located at a time is whole steps
        assert TABLE <= self.items <= MAX_ITEMS, self
        assert self.local_bytes <= MAX_LOCAL, self
        assert min(self.rows, self.columns) * self.depth % (4 * self.items) == 0, self

    @property
    def items(self) -> int:
        """Work-items of a group."""
        return self.rows // self.item_rows * (self.columns // self.item_columns)

    @property
    def local_bytes(self) -> int:
        """Local memory of a group: two tiles of each operand, and tables of rows, columns and k."""
        tiles = 2 * self.depth * (self.rows + 4 + self.columns + 4) * 4
        return (
            tiles
            + 24 * max(self.rows, self.columns)
            + 8 * min(self.rows, self.columns)
            + 48 * TABLE
        )

    @property
    def defines(self) -> dict[str, int]:
        """What the kernel is told of it."""
        return {
            "TILE_ROWS": self.rows,
            "TILE_COLUMNS": self.columns,
            "DEPTH": self.depth,
            "ITEM_ROWS": self.item_rows,
            "ITEM_COLUMNS": self.item_columns,
            "LANES_ACROSS": self.lanes_across,
            "TABLE": TABLE,
        }

    def groups(self, product: Product) -> int:
        """The groups that make all of a product, without parts."""
        across = math.ceil(math.prod(product.columns.sizes) / self.columns)
        down = math.ceil(math.prod(product.rows.sizes) / self.rows)
        return math.prod(product.batch) * down * across


def launch(product: Product, tile: Tile, part: int, c_part: int = 0) -> Launch:
    """Multiply into c, each part of k `c_part` elements behind the one before."""
    steps = _steps(product)
    left, right, c = product.left, product.right, product.c
    defines = {
        **tile.defines,
        **_side_defines("LEFT", left),
        **_side_defines("RIGHT", right),
        "C_WIDTH": product.c_width,
    }
    if product.window:
        defines["WINDOW_LEFT" if product.window_is_left else "WINDOW_RIGHT"] = 1
        defines |= {"WINDOW_3D": 1} if len(product.window.at) == 3 else {}
    elif product.k_is_plain:
        defines["PLAIN_K"] = 1
    args = (
        Arg(left.index),
        Arg(right.index),
        Arg(c.index) if c.index >= 0 else Scratch(),
        *_sizes(product),
        int4(product.k.sizes, 1),
        *_side_args(left),
        *_side_args(right),
        *_target_args(c),
        np.int32(c_part),
        np.int32(part),
        *_window_args(product),
        *steps.args,
    )
    parts = math.ceil(max(product.depth, 1) / part)
    groups = tile.groups(product) * parts
    work = groups * tile.rows * tile.columns * min(part, product.depth)
    source = Source("gemm_tiled", defines, _snippets(steps))
    return Launch(source, "gemm_tiled", args, (groups * tile.items,), (tile.items,), work)


def _steps(product: Product) -> Epilogue:
    """Return the code and the arguments of what results go through."""
    operands = [
        Operand(
            operand.index,
            operand.offset,
            (
                *extended(operand.batch, 3),
                *extended(operand.rows, 4),
                *extended(operand.columns, 4),
            ),
        )
        for operand in product.operands
    ]
    return epilogue(product.post_ops, operands, COORDINATES)


def _snippets(steps: Epilogue) -> tuple[str, ...]:
    return steps.code, template("digits")


def _side_defines(name: str, side: Side) -> dict[str, int]:
    return {f"{name}_WIDTH": side.width, f"{name}_ALONG_K": int(side.along_k)}


# The kernels' arguments, by group.


def _sizes(product: Product) -> tuple[Any, ...]:
    batch = int4((*extended(product.batch, 3, 1), 0))
    return batch, int4(product.rows.sizes, 1), int4(product.columns.sizes, 1)


def _side_args(side: Side) -> tuple[Any, ...]:
    return _batch(side), int4(side.rows), int4(side.k)


def _target_args(c: Target) -> tuple[Any, ...]:
    return _batch(c), int4(c.rows), int4(c.columns)


def _batch(operand: Side | Target) -> Any:
    """The batch's strides, then the offset of the first element."""
    return int4((*extended(operand.batch, 3), operand.offset))


def _window_args(product: Product) -> tuple[Any, ...]:
    window = product.window
    if window is None:
        return ()
    rows = product.rows if product.window_is_left else product.columns
    orders = np.int32(rows.channel_last), np.int32(product.k.channel_last)
    return int4(window.at), int4(window.rows), int4(window.k), int4(window.size, 1), *orders
