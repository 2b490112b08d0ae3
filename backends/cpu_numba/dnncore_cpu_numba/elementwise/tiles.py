"""Chains of element-wise stages over one tile. No code is compiled per chain.

A stage is a native function of `elementwise/algorithms.py` with its parameters. A chain processes a
tile of at most `TILE_BYTES` with one pass per stage, in the first-level cache. Its buffers hold
f32, or f64 in chains for f64.

A tile is `rows` rows of `columns` elements. Its tensors are dst, src, then the operands, each a
`TENSOR`. Post-ops are stages. `sum` adds dst, which only the last stage overwrites.
"""

from __future__ import annotations

from dnncore_cpu_numba.codegen.call_schema import Many, Pointer, Record
from dnncore_cpu_numba.codegen.nontemporal import LINE, stream
from dnncore_cpu_numba.codegen.pointers import address, load_i32, load_i64, store_i32, store_i64
from dnncore_cpu_numba.codegen.task import device, native_function
from dnncore_cpu_numba.copies.typed_rows import convert_rows
from dnncore_cpu_numba.elementwise.algorithms import STAGE, STAGE_CALL

TILE_BYTES = 8192  # src, dst and two buffers of this size fill a first-level cache
DST, SRC = 0, 1  # tensors
_BUFFER = TILE_BYTES // 8  # size in int64
NOTHING = -1  # the tensor number that stands for no tensor
_AHEAD = TILE_BYTES // 2  # prefetch distance of conversions in elements

TENSOR = Record(
    "tensor of a tile",
    ("address", "address", "of the first element"),
    ("column row", "elements", "from one to the next; 0 repeats"),
    ("size", "bytes", "of an element"),
    ("load", "address", "a `COPY_CALL` of `ROWS` to the type of buffers; 0 for a tensor of it"),
    ("random", "address", "a `NOISE_CALL` for a tensor of random numbers; 0 for others"),
)
COPY_TILE = Record("copy of tiles", ("source target", Pointer(TENSOR)), ("rows columns", "count"))
NOISE_CALL = Record(
    "random numbers",
    ("target", "address", "of contiguous u32"),
    ("place column row", "count", "the first place, and steps from one to the next"),
    ("rows columns", "count"),
    ("seed", "address"),
    ("seed_size", "bytes"),
    ("offset", "address", "of an s64"),
)
HELD = Record("tile that is held", ("number", "index", "of its tensor"), ("address", "address"))
ROOM = Record(
    "room of a chain",
    ("operand condition factor", HELD, "what is in their buffers"),
    ("padding", Many("count", 2), "to a cache line"),
    ("tile aside chosen", Many("elements", _BUFFER), "buffers: of x, operand and condition"),
    ("factors scaled", Many("elements", _BUFFER), "buffers: of factors and operands times these"),
)
CHAIN_CALL = Record(
    "apply_stages",
    ("chain", Pointer(STAGE)),
    ("count", "count", "stages"),
    ("copy", "address", "`copy_tile`"),
    ("store", "address", "a `COPY_CALL` of `ROWS` to dst; 0 if dst is of the type of buffers"),
    ("streamed", "address", "like `store` past the caches; any if `store` is 0; 0 for neither"),
    ("tensors", Pointer(TENSOR)),
    ("rows columns", "count"),
    ("room", Pointer(ROOM), "kept from tile to tile; `forget` makes it ready"),
)


@native_function(CHAIN_CALL)
def apply_stages(chain, count, copy, store, streamed, tensors, rows, columns, room):
    """Apply `count` stages to one tile with buffers of f32, as the module docstring describes."""
    _apply(4, chain, count, copy, store, streamed, tensors, rows, columns, room)


@native_function(CHAIN_CALL)
def apply_wide_stages(chain, count, copy, store, streamed, tensors, rows, columns, room):
    """Apply `count` stages to one tile with buffers of f64."""
    _apply(8, chain, count, copy, store, streamed, tensors, rows, columns, room)


@device
def _apply(size, chain, count, copy, store, streamed, tensors, rows, columns, room):
    """Apply `count` stages to one tile. size: bytes of an element of the buffers."""
    length = rows * columns
    tile, aside, chosen = address(room.tile), address(room.aside), address(room.chosen)
    src, contiguous = tensors[SRC], _is_contiguous(tensors, rows, columns)
    in_place = contiguous and store == 0
    dst = tensors.address if in_place else tile
    # Memory that is read and written in place is already in the cache.
    past = streamed != 0 and contiguous and src.address != tensors.address
    past = past and tensors.address % LINE == 0 and length * tensors.size % LINE == 0
    if count == 0 and store == 0 and src.load == 0 and not past:
        COPY_TILE.call(copy, source=src, target=tensors, rows=rows, columns=columns)
        return
    x = _gathered(size, copy, tensors, SRC, tile, 0, rows, columns)
    for i in range(count):
        stage = chain[i]
        last = i == count - 1
        held = address(room.operand), address(room.condition)
        operand = _gathered(size, copy, tensors, stage.operand, aside, held[0], rows, columns)
        condition = _gathered(size, copy, tensors, stage.condition, chosen, held[1], rows, columns)
        if stage.factor >= 0:
            factors, scaled = address(room.factors), address(room.scaled)
            factor = _gathered(
                size, copy, tensors, stage.factor, factors, address(room.factor), rows, columns
            )
            STAGE_CALL.call(
                stage.multiply, stage=stage, x=operand, operand=factor, condition=0, y=scaled,
                length=length,
            )  # fmt: skip
            operand = scaled
        twin = last and in_place and past and operand != dst
        function = stage.streamed if twin else stage.function
        STAGE_CALL.call(
            function, stage=stage, x=x, operand=operand, condition=condition,
            y=dst if last else tile, length=length,
        )  # fmt: skip
        x = tile
    if count == 0 and past and in_place:
        stream(x, dst, length * size // 4)
    elif count == 0 or not in_place:
        source = TENSOR.room()
        _describe(source, x, columns, size)
        if store != 0:
            _convert(streamed if past else store, source, tensors, rows, columns)
        else:
            COPY_TILE.call(copy, source=source, target=tensors, rows=rows, columns=columns)


@native_function(CHAIN_CALL)
def apply_typed(chain, count, copy, store, streamed, tensors, rows, columns, room):  # noqa: ARG001
    """Apply the only stage to rows of tensors, without conversion.

    All tensors have the type of the stage and are contiguous along columns. The operand may have
    one value per row.
    """
    stage, src, size, operand, step = chain[0], tensors[SRC], tensors.size, 0, 0
    if stage.operand >= 0:
        operand = tensors[stage.operand].address
        step = size * tensors[stage.operand].row
    for row in range(rows):
        x, y = src.address + row * size * src.row, tensors.address + row * size * tensors.row
        past = streamed != 0 and x != y and operand != y
        past = past and y % LINE == 0 and columns * size % LINE == 0
        STAGE_CALL.call(
            stage.streamed if past else stage.function, stage=stage, x=x, operand=operand,
            condition=0, y=y, length=columns,
        )  # fmt: skip
        operand += step


@device
def forget(room):
    """Prepare the memory of a chain: mark all buffers as empty."""
    room.operand.number = NOTHING
    room.condition.number = NOTHING
    room.factor.number = NOTHING


@device
def _gathered(size, copy, tensors, number, buffer, held, rows, columns):
    """Return the address of a contiguous tile of a tensor: in place, or a copy in `buffer`.

    held: the address of the `HELD` that describes the content of the buffer. If it is the requested
    tile, it is not copied again. 0 if the buffer is overwritten by stages.
    """
    if number < 0:
        return buffer
    tensor = tensors[number]
    start, load = tensor.address, tensor.load
    if load == 0 and tensor.random == 0 and _is_contiguous(tensor, rows, columns):
        return start
    if held != 0:
        known = HELD.at(held)
        if known.number == number and known.address == start:
            return buffer
        known.number = number
        known.address = start
    if tensor.random != 0:
        seed, offset = tensors[number + 1], tensors[number + 2]
        NOISE_CALL.call(
            tensor.random, target=buffer, place=start, column=tensor.column, row=tensor.row,
            rows=rows, columns=columns, seed=seed.address, seed_size=seed.size,
            offset=offset.address,
        )  # fmt: skip
        return buffer
    target = TENSOR.room()
    _describe(target, buffer, columns, size)
    if load != 0:
        _convert(load, tensor, target, rows, columns)
    else:
        COPY_TILE.call(copy, source=tensor, target=target, rows=rows, columns=columns)
    return buffer


@device
def _convert(kernel, source, target, rows, columns):
    """Convert a tile to a tensor of another type. Contiguous tiles are converted as one row."""
    if _is_contiguous(source, rows, columns) and _is_contiguous(target, rows, columns):
        rows, columns = 1, rows * columns
    convert_rows(
        kernel, source.address, source.column * source.size, source.row * source.size,
        target.address, target.column * target.size, target.row * target.size, rows, columns,
        _AHEAD * source.size,
    )  # fmt: skip


@device
def _is_contiguous(tensor, rows, columns):
    return tensor.column == 1 and (rows == 1 or tensor.row == columns)


@device
def _describe(tensor, start, columns, size):
    """Set the fields of a contiguous tile of a buffer."""
    tensor.address = start
    tensor.column = 1
    tensor.row = columns
    tensor.size = size


@native_function(COPY_TILE)
def copy_tile(source, target, rows, columns):
    """Copy a tile of f32 from one tensor to another. They must not overlap."""
    _copy_tile(4, load_i32, store_i32, source, target, rows, columns)


@native_function(COPY_TILE)
def copy_wide_tile(source, target, rows, columns):
    """Copy a tile of f64 from one tensor to another. They must not overlap."""
    _copy_tile(8, load_i64, store_i64, source, target, rows, columns)


@device
def _copy_tile(size, load, store, source, target, rows, columns):
    x, x_column, x_row = source.address, source.column, source.row
    y, y_column, y_row = target.address, target.column, target.row
    if x_row == 0 and x_column == 1 and y_column == 1 and y_row == columns:
        _repeat_row(size, load, store, x, y, rows, columns)
        return
    for row in range(rows):
        from_, to = x + size * x_row * row, y + size * y_row * row
        if x_column == 1 and y_column == 1:
            for i in range(columns):
                store(to, i, load(from_, i))
        elif x_column == 0 and y_column == 1:
            value = load(from_, 0)
            for i in range(columns):
                store(to, i, value)
        else:
            for i in range(columns):
                store(to, i * y_column, load(from_, i * x_column))


@device
def _repeat_row(size, load, store, x, y, rows, columns):
    """Copy a row to all rows of a contiguous tile. The length of the copies doubles each time."""
    for i in range(columns):
        store(y, i, load(x, i))
    done, length = columns, rows * columns
    while done < length:
        for i in range(min(done, length - done)):
            store(y + size * done, i, load(y, i))
        done *= 2
