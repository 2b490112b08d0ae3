"""Element-wise work over tensors of any layout: a chain of stages for each tile of their nests.

Eltwise, binary, sum, and reorder with attributes have this form: dst = chain(src, operands).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dnncore.backend import MemoryDesc, data_type
from dnncore_cpu_numba.codegen.call_schema import Many, Pointer, Record
from dnncore_cpu_numba.codegen.nest import (
    MAX_LOOPS,
    NEST,
    Loop,
    Nest,
    Shift,
    advance,
    nests,
    padding,
    seek,
)
from dnncore_cpu_numba.codegen.pointers import stack, store_i8
from dnncore_cpu_numba.codegen.task import Task, task
from dnncore_cpu_numba.codegen.type_conversion import HALVES
from dnncore_cpu_numba.copies.typed_rows import conversion
from dnncore_cpu_numba.elementwise.algorithms import STAGE
from dnncore_cpu_numba.elementwise.noise import Noise, Seed, random_numbers
from dnncore_cpu_numba.elementwise.post_ops import Stage
from dnncore_cpu_numba.elementwise.tiles import (
    CHAIN_CALL,
    ROOM,
    TENSOR,
    TILE_BYTES,
    apply_stages,
    apply_typed,
    apply_wide_stages,
    copy_tile,
    copy_wide_tile,
    forget,
)
from dnncore_cpu_numba.runtime.program import Param, Step, Table
from dnncore_cpu_numba.runtime.tensor import Tensor, is_streamed, moved, walked

MAX_TENSORS = 128  # most tensors of a chain; each thread reserves memory for this number
_WIDTH = TENSOR.size
_TENSORS = _WIDTH * MAX_TENSORS
_LINE_LENGTH = 64  # most elements of a cache line
_CHUNK = 64  # elements of a work item of a single loop
_LEAST_ROW = 32  # least elements of a row for one stage call per row
_GRAIN = 4096  # least elements of a part: a core computes them in the time of a launch

COMMON = (
    ("apply", "address", "`apply_stages`"),
    ("chain", Pointer(STAGE)),
    ("count", "count", "stages"),
    ("copy store streamed", "address", "see `CHAIN_CALL`"),
)
_KIND = (("size", "bytes"), ("load random", "address"))
VIEW = Record("tensor of a nest", ("column row", "elements"), *_KIND)
MOVING = Record("tensor of a loop", ("address", "address"), ("column", "elements"), *_KIND)


def chain_steps(
    dims: Sequence[int],
    tensors: Sequence[Tensor],
    stages: Sequence[Stage],
    held: str = "f32",
    shift: Shift | None = None,
) -> list[Step]:
    """Return the steps of dst = chain(src).

    tensors: dst, src, then the stages' operands, of any types. A dim of size 1 is broadcast to
    `dims`. If a tensor's dim divides the dim of `dims`, each of its elements serves several
    neighbouring places. held: the type in which stages compute, f32 or f64. The result is rounded
    once. shift: for a part of dst; the padding is then undefined.
    """
    chain = _Chain(tensors, stages, held)
    steps: list[Step] = []
    sizes = dims if shift else _covered(dims, chain.descs)
    for nest in nests(sizes, chain.descs, shift=shift):
        ordered = nest.ordered()
        steps += chain.in_tiles(ordered) if len(ordered.loops) > 1 else [chain.along(ordered)]
    return steps if shift else steps + zero_padding(tensors[0])


class _Chain:
    """Creates the steps of a chain for nests of its tensors."""

    def __init__(self, tensors: Sequence[Tensor], stages: Sequence[Stage], held: str):
        self.tensors = tensors
        self.descs = [tensor.desc for tensor in tensors]
        self.itemsizes = [desc.itemsize for desc in self.descs]
        streamed = is_streamed(tensors[0])
        self.kinds = [_kind(tensor, held, fetches=streamed) for tensor in tensors]
        kind = self.descs[0].data_type
        store = conversion(held, kind)
        past = conversion(held, kind, streamed=True) or 1 if streamed else 0
        self.stages, self.streamed, self.held = stages, streamed, held
        self.longest = TILE_BYTES // data_type(held).itemsize
        rows = [stage.row(data_type=held) for stage in stages[:-1]]
        rows += [stage.row(streamed=streamed, data_type=held) for stage in stages[-1:]]
        apply, copy = apply_stages, copy_tile
        if held == "f64":
            apply, copy = apply_wide_stages, copy_wide_tile
        self.common: dict[str, Any] = {
            "apply": apply.address, "chain": Table(STAGE.table(rows)), "count": len(rows),
            "copy": copy.address, "store": store, "streamed": past,
        }  # fmt: skip

    def in_tiles(self, nest: Nest) -> Iterator[Step]:
        """Yield the steps for a nest of several loops."""
        for part in nest.tiles(self.longest):
            rows, columns = part.loops[-2:]
            outer = part.without(2)
            common = self._of_rows(columns) or self.common
            views = zip(columns.strides, rows.strides, self.kinds, strict=True)
            values = common | {
                "nest": outer.table(self.itemsizes), "rows": rows.extent,
                "columns": columns.extent, "starts": self._starts(part),
                "views": Table(
                    VIEW.table({"column": c, "row": r} | kind for c, r, kind in views)
                ),
            }  # fmt: skip
            yield _step(_tiles, values, outer.size, rows.extent * columns.extent)

    def along(self, nest: Nest) -> Step:
        """Return the step for a nest of one loop or none."""
        loop = nest.loops[0] if nest.loops else Loop(1, (1,) * len(self.tensors))
        kinds = {desc.data_type for desc in self.descs}
        simple = len(self.stages) <= 1 and {*loop.strides} == {1}
        plain = simple and kinds == {self.held}
        common = self.common
        if simple and self._has_typed_stage() and not plain:
            common, plain = self._in_one_pass(), True
        tensors = zip(self._starts(nest), loop.strides, self.kinds, strict=True)
        values = common | {
            "extent": loop.extent, "longest": loop.extent if plain else self.longest,
            "tensor_count": len(self.tensors),
            "tensors": [
                {"address": start, "column": stride} | kind for start, stride, kind in tensors
            ],
        }  # fmt: skip
        return _step(_along, values, -(-loop.extent // _CHUNK), _CHUNK)

    def _has_typed_stage(self) -> bool:
        """Whether there is only one stage, and it computes with the common type of all tensors."""
        kind, *others = {desc.data_type for desc in self.descs}
        if others or len(self.stages) != 1:
            return False
        return kind == self.held or (kind in HALVES and self.stages[0].computes(kind))

    def _of_rows(self, columns: Loop) -> dict[str, Any] | None:
        """Return the parameters of `apply_typed` if the stage can run over rows, else None.

        Tiles of f32 are better for an operand that all rows share, because they keep its copy.
        """
        if not self._has_typed_stage() or columns.extent < _LEAST_ROW:
            return None
        (stage,), (dst, src, *operand) = self.stages, columns.strides
        kind = self.descs[0].data_type
        splat = operand == [0] and stage.operand >= 0 and stage.takes_splat(kind)
        served = splat or (operand in ([], [1]) and kind != self.held)
        return self._in_one_pass(splat=splat) if dst == src == 1 and served else None

    def _in_one_pass(self, *, splat: bool = False) -> dict[str, Any]:
        """Return the parameters of `apply_typed`."""
        kind = self.descs[0].data_type
        rows = [
            stage.row(streamed=self.streamed, data_type=kind, splat=splat) for stage in self.stages
        ]
        chain = Table(STAGE.table(rows))
        return self.common | {"apply": apply_typed.address, "chain": chain}

    def _starts(self, nest: Nest) -> list[Param]:
        parts = zip(self.tensors, self.itemsizes, nest.offsets, strict=True)
        return [moved(tensor.address, size * offset) for tensor, size, offset in parts]


def _kind(tensor: Tensor, held: str, *, fetches: bool) -> dict[str, int]:
    """Return the fields that determine how a chain reads a tensor."""
    if isinstance(tensor, Noise):
        return {"size": 1, "load": 0, "random": random_numbers.address}
    desc = tensor.desc
    if isinstance(tensor, Seed):
        return {"size": desc.itemsize, "load": 0, "random": 0}
    load = conversion(desc.data_type, held, fetches=fetches)
    return {"size": desc.itemsize, "load": load, "random": 0}


def zero_padding(tensor: Tensor) -> list[Step]:
    """Return the steps that zero the padding of a tensor."""
    steps = []
    for nest in padding(tensor.desc):
        for part in nest.ordered().tiles(TILE_BYTES):
            rows, columns = part.loops[-2:]
            outer = part.without(2)
            values = walked(outer, {"target": tensor}) | {
                "rows": rows.extent, "columns": columns.extent, "row_stride": rows.strides[0],
                "column_stride": columns.strides[0], "size": tensor.desc.itemsize,
            }  # fmt: skip
            steps.append(_step(_zeros, values, outer.size, rows.extent * columns.extent))
    return steps


def _step(task: Task, values: Mapping[str, Any], items: int, elements: int) -> Step:
    """Return a step. elements: the number of elements of an item."""
    return Step(task, values, items, grain=-(-_GRAIN // elements))


def _covered(dims: Sequence[int], descs: Sequence[MemoryDesc]) -> list[int]:
    """Return the sizes of the loops. They include equal padding of all tensors to join loops."""
    sizes = []
    for dim, size in enumerate(dims):
        padded = {d.padded_dims[dim] for d in descs if d.dims[dim] == size}
        whole = all(d.dims[dim] in (1, size) for d in descs)
        sizes.append(padded.pop() if size > 1 and len(padded) == 1 and whole else size)
    return sizes


@task(Record(
    "tiles of a chain", *COMMON,
    ("nest", Pointer(NEST)),
    ("rows columns", "count", "of a tile"),
    ("views", Pointer(VIEW), "of the tensors"),
    ("starts", Many("address")),
))  # fmt: skip
def _tiles(params, begin, end):
    """Run a chain on the tiles of a nest."""
    apply, chain, count = params.apply, params.chain, params.count
    copy, store, streamed, nest = params.copy, params.store, params.streamed, params.nest
    rows, columns, views = params.rows, params.columns, params.views
    position, tensors, room = stack(MAX_LOOPS), TENSOR.at(stack(_TENSORS)), ROOM.room()
    for t in range(nest.tensors):
        tensor, view = tensors[t], views[t]
        tensor.column, tensor.row = view.column, view.row
        tensor.size, tensor.load, tensor.random = view.size, view.load, view.random
    seek(nest, begin, position, params.starts, tensors, _WIDTH)
    forget(room)
    for _ in range(begin, end):
        CHAIN_CALL.call(
            apply, chain=chain, count=count, copy=copy, store=store, streamed=streamed,
            tensors=tensors, rows=rows, columns=columns, room=room,
        )  # fmt: skip
        advance(nest, position, tensors, _WIDTH)


@task(Record(
    "loop of a chain", *COMMON,
    ("extent longest", "elements", "of the loop, and of a tile"),
    ("tensor_count", "count"),
    ("tensors", Many(MOVING)),
))  # fmt: skip
def _along(params, begin, end):
    """Run a chain on some chunks of a loop."""
    apply, chain, count = params.apply, params.chain, params.count
    copy, store, streamed = params.copy, params.store, params.streamed
    extent, longest = params.extent, params.longest
    tensors, room = TENSOR.at(stack(_TENSORS)), ROOM.room()
    forget(room)
    start, last = begin * _CHUNK, min(end * _CHUNK, extent)
    while start < last:
        columns = min(longest, last - start)
        if columns > _LINE_LENGTH:  # whole lines use non-temporal stores; the remainder follows
            columns -= columns % _LINE_LENGTH
        for t in range(params.tensor_count):
            given, tensor = params.tensors[t], tensors[t]
            tensor.address = given.address + start * given.column * given.size
            tensor.column = given.column
            tensor.size, tensor.load = given.size, given.load
            tensor.random = given.random
        CHAIN_CALL.call(
            apply, chain=chain, count=count, copy=copy, store=store, streamed=streamed,
            tensors=tensors, rows=1, columns=columns, room=room,
        )  # fmt: skip
        start += columns


TARGET = Record("tensor to zero", ("target", "address"))


@task(Record(
    "zeros",
    ("nest", Pointer(NEST)),
    ("rows columns", "count", "of a tile"),
    ("row_stride column_stride", "elements"),
    ("size", "bytes", "of an element"),
    ("starts", TARGET),
))  # fmt: skip
def _zeros(params, begin, end):
    """Zero the tiles of a nest with elements of any size."""
    nest, rows, columns = params.nest, params.rows, params.columns
    row_stride, column_stride = params.row_stride, params.column_stride
    size = params.size
    position, tensors = stack(MAX_LOOPS), TARGET.room()
    seek(nest, begin, position, params.starts, tensors, 1)
    run = size
    if column_stride == 1:  # one run of bytes, for which LLVM calls memset
        columns, run = 1, columns * size
    for _ in range(begin, end):
        for row in range(rows):
            start = tensors.target + row * row_stride * size
            for column in range(columns):
                for byte in range(run):
                    store_i8(start, column * column_stride * size + byte, 0)
        advance(nest, position, tensors, 1)
