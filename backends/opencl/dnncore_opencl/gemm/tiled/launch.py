"""Launches of the GPU family: defines and arguments of a kernel for a product and a tile."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from dnncore_opencl.codegen.digits import INT4, extended, int4
from dnncore_opencl.elementwise.epilogue import Epilogue, Operand, epilogue
from dnncore_opencl.gemm.arguments import batch_argument, decoding_parameters, zero_point_buffers
from dnncore_opencl.gemm.elements import Elements, one_element, typed
from dnncore_opencl.gemm.tiled.view import TiledProduct, TiledWindow
from dnncore_opencl.gemm.tuned import require
from dnncore_opencl.runtime.launch import Launch, Source, template
from dnncore_opencl.runtime.schema import INT, Arg, Buffer, Schema, Scratch

LANES = 32  # work-items that access local memory at once
COORDINATES = 11  # of an element of c: three digits of the batch, four of its row and its column
MAX_ITEMS = 256  # per work-group, supported by every GPU
MAX_LOCAL = 32768  # bytes of local memory, available on every GPU
TABLE = 64  # values of k whose offsets a work-group computes at a time, one per work-item

# Strides are in elements, per digit. A batch has three digits; rows, columns and k have four.
SCHEMA = Schema(
    a=Buffer("const float"),
    b=Buffer("const float"),
    c=Buffer("float"),
    batch=INT4,  # sizes
    rows=INT4,
    columns=INT4,
    k=INT4,
    a_batch=INT4,  # strides of the batch, then the offset of the first element
    a_row=INT4,
    a_k=INT4,
    b_batch=INT4,
    b_row=INT4,
    b_k=INT4,
    c_batch=INT4,
    c_row=INT4,
    c_column=INT4,
    c_part=INT,  # elements between the sums of consecutive parts of k
    part=INT,  # values of k in a part
)
WINDOW = Schema(  # see `TiledWindow`
    w_at=INT4,
    w_row=INT4,
    w_k=INT4,
    w_size=INT4,
    rows_channel_last=INT,  # whether the window's digits of rows, or of k, have the channel last
    k_channel_last=INT,
)


@dataclass(frozen=True)
class TiledTile:
    """The part of c per work-group, rows x columns, and per work-item, item_rows x item_columns.

    depth: values of k in local memory at a time. lanes_across: how many of 32 consecutive
    work-items are adjacent along columns.
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
        in_lanes = across % self.lanes_across == 0 == down % lanes_down
        require(self, in_lanes, f"work-items must be in blocks of {LANES}")
        require(self, TABLE % self.depth == 0, f"depth must divide {TABLE}")
        in_limits = TABLE <= self.items <= MAX_ITEMS
        require(self, in_limits, f"a group must have {TABLE} to {MAX_ITEMS} work-items")
        has_room = self.local_bytes() <= MAX_LOCAL
        require(self, has_room, f"tiles must fit into {MAX_LOCAL} bytes of local memory")
        loads = min(self.rows, self.columns) * self.depth
        require(self, loads % (4 * self.items) == 0, "work-items must load whole vectors")

    @property
    def items(self) -> int:
        """Work-items per work-group."""
        return self.rows // self.item_rows * (self.columns // self.item_columns)

    def local_bytes(self, number_bytes: int = 4) -> int:
        """Return bytes of local memory: two tiles per operand, tables of rows, columns and k."""
        tiles = 2 * self.depth * (self.rows + 4 + self.columns + 4) * number_bytes
        longer, shorter = max(self.rows, self.columns), min(self.rows, self.columns)
        return tiles + 24 * longer + 8 * shorter + 48 * TABLE

    @property
    def defines(self) -> dict[str, int]:
        """Return the kernel's defines."""
        return {
            "TILE_ROWS": self.rows,
            "TILE_COLUMNS": self.columns,
            "DEPTH": self.depth,
            "ITEM_ROWS": self.item_rows,
            "ITEM_COLUMNS": self.item_columns,
            "LANES_ACROSS": self.lanes_across,
            "TABLE": TABLE,
        }

    def groups(self, product: TiledProduct) -> int:
        """Return the number of work-groups for a product whose k is not split."""
        across = math.ceil(math.prod(product.columns.sizes) / self.columns)
        down = math.ceil(math.prod(product.rows.sizes) / self.rows)
        return math.prod(product.batch) * down * across


def launch(
    product: TiledProduct, tile: TiledTile, part: int, c_part: int, elements: Elements
) -> Launch:
    """Return the launch of a product. The sums of consecutive parts of k are `c_part` apart."""
    steps = _steps(product)
    a, b, c = product.a, product.b, product.c
    number = "uint" if product.is_integer else product.real
    defines: dict[str, str | int | float] = {
        **tile.defines,
        "A_WIDTH": a.width,
        "A_ALONG_K": int(a.along_k),
        "B_WIDTH": b.width,
        "B_ALONG_K": int(b.along_k),
        "C_WIDTH": product.c_width,
    }
    defines |= _types(product, number, elements)
    defines |= _decoding(product)
    codes, code_arguments = decoding_parameters(product.decoding)
    zero_points, zeros = zero_point_buffers((a.zero_point, b.zero_point))
    schema = typed(SCHEMA, a=a.data_type, b=b.data_type, c=c.data_type) | zero_points | codes
    window: dict[str, Any] = {}
    if product.window:
        schema, window = schema | WINDOW, _window_arguments(product, product.window)
        defines["WINDOW_A" if product.window_is_a else "WINDOW_B"] = 1
        defines |= {"WINDOW_3D": 1} if len(product.window.at) == 3 else {}
    elif product.k_is_plain:
        defines["PLAIN_K"] = 1
    arguments = {
        "a": Arg(a.index),
        "b": Arg(b.index),
        "c": Arg(c.index) if c.index >= 0 else Scratch(),
        "batch": int4((*extended(product.batch, 3, 1), 0)),
        "rows": int4(product.rows.sizes, 1),
        "columns": int4(product.columns.sizes, 1),
        "k": int4(product.k.sizes, 1),
        "a_batch": batch_argument(a.batch, a.offset),
        "a_row": int4(a.rows),
        "a_k": int4(a.k),
        "b_batch": batch_argument(b.batch, b.offset),
        "b_row": int4(b.rows),
        "b_k": int4(b.k),
        "c_batch": batch_argument(c.batch, c.offset),
        "c_row": int4(c.rows),
        "c_column": int4(c.columns),
        "c_part": c_part,
        "part": part,
        **zeros,
        **code_arguments,
        **window,
        **steps.arguments,
    }
    parts = math.ceil(max(product.depth, 1) / part)
    groups = tile.groups(product) * parts
    work = groups * tile.rows * tile.columns * min(part, product.depth)
    widths = [(a.data_type, a.width), (b.data_type, b.width), (c.data_type, product.c_width)]
    if product.decoding:
        numbers = (product.decoding.scales, product.decoding.zero_points)
        widths += [(own.data_type, 1) for own in numbers if own]
    snippets = (*elements.snippets(widths), steps.code, template("digits"))
    source = Source(
        "gemm_tiled", schema | steps.schema, defines, snippets, is_exact=product.is_integer
    )
    return Launch(source, arguments, (groups * tile.items,), (tile.items,), work)


def _types(product: TiledProduct, number: str, elements: Elements) -> dict[str, str]:
    """Return the functions that access the operands, and the type of sums."""
    defines = {
        "REAL": product.real,
        "NUMBER": number,
        "NUMBERS": f"{number}4",
        "SUM_VALUE(sum)": product.sum_value,
    }
    for name, side in (("A", product.a), ("B", product.b)):
        zero = f"{name.lower()}_zero" if side.zero_point else ""
        defines |= elements.factor(name, side.data_type, side.width, number, zero)
        defines[f"{name}_FETCHED(at, row, place)"] = f"{name}_READ({name.lower()} + (at))"
    return defines | elements.defines("C", product.c.data_type, product.c_width)


def _decoding(product: TiledProduct) -> dict[str, str | int]:
    """Return how the elements of an operand are decoded, if they are."""
    decoding = product.decoding
    if not decoding:
        return {}
    name = "A" if product.window_is_a else "B"
    side = product.a if name == "A" else product.b
    defines: dict[str, str | int] = {
        f"DECODES_{name}": 1,
        "DECODED_ROWS": "TILE_ROWS" if name == "A" else "TILE_COLUMNS",
        f"{name}_ELEMENTS": "NUMBER",
        f"{name}_VALUE(bits)": "(bits)",
    }
    value = one_element(side.data_type, name.lower(), "at")
    for code, own, step in (("zero", decoding.zero_points, "-"), ("scale", decoding.scales, "*")):
        if own:
            at = f"{code}_at_row[row] + {code}_at_k[place]"
            value = f"({value} {step} {one_element(own.data_type, code, at)})"
            defines[f"HAS_{code.upper()}"] = 1
    return {**defines, f"{name}_FETCHED(at, row, place)": value}


def _steps(product: TiledProduct) -> Epilogue:
    """Return the epilogue of the result."""
    operands = [
        Operand(
            operand.index,
            operand.offset,
            (
                *extended(operand.batch, 3),
                *extended(operand.rows, 4),
                *extended(operand.columns, 4),
            ),
            (*[1] * 6, operand.shares[0], *[1] * 3, operand.shares[1]),
        )
        for operand in product.operands
    ]
    return epilogue(
        product.post_ops,
        operands,
        COORDINATES,
        product.scaling,
        is_exact=product.is_integer,
        is_wide=product.real == "double",
    )


def _window_arguments(product: TiledProduct, window: TiledWindow) -> dict[str, Any]:
    """Return the arguments of `WINDOW`."""
    rows = product.rows if product.window_is_a else product.columns
    return {
        "w_at": int4(window.at),
        "w_row": int4(window.rows),
        "w_k": int4(window.k),
        "w_size": int4(window.size, 1),
        "rows_channel_last": rows.channel_last,
        "k_channel_last": product.k.channel_last,
    }
