"""Pooling forward and backward: one kernel over boxes of taps, in place or through buffers.

See `pooling_kernel.py` for what is computed, `windows.py` for the boxes and `pooling_tasks.py` for
the loops. NaN counts as larger than everything, as in torch; of several the first is kept.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dnncore.backend import Accepted, Attributes, Executable, Implementation, MemoryDesc, Refused
from dnncore_cpu_numba import pooling_tasks as tasks
from dnncore_cpu_numba import windows
from dnncore_cpu_numba.chains import zero_padding
from dnncore_cpu_numba.copies import copy_steps
from dnncore_cpu_numba.copy_kernel import SIDE, CopyKernel
from dnncore_cpu_numba.elementwise import (
    refuse_layouts,
    refuse_post_ops,
    second_pass_bytes,
    with_post_ops,
)
from dnncore_cpu_numba.isa import BEST
from dnncore_cpu_numba.nest import Nest, nests
from dnncore_cpu_numba.plan import Tensor, moved
from dnncore_cpu_numba.pooling_kernel import FIELDS, SLOT, PoolingKernel
from dnncore_cpu_numba.program import Arg, Param, Program, Scratch, Step, Table
from dnncore_cpu_numba.streaming import LINE, STREAM_BYTES

__all__ = ["BACKWARD", "FORWARD"]

_MAX_COLUMNS = 512
_BAND = 8192  # taps of a band, in vectors: so many that a part is some microseconds of work
_MOST_UNROLLED = 4  # taps along w; those of larger windows are for a loop
_LOWEST, _MINUS_INFINITY = float(np.finfo(np.float32).min), -math.inf


class DirectPooling(Implementation):
    """Each result in registers, whichever way the taps lead."""

    name = "cpu_numba:direct"

    def accept(self, op: Any, attr: Attributes, engine: Any, hint: Any) -> Accepted | Refused:
        """Accept every layout that has strides, and post-ops."""
        op = _resolved(op)
        workspace = op.workspace_desc(hint)
        refusal = refuse_post_ops(op, attr)
        if workspace is not None:
            refusal = refusal or refuse_layouts([workspace], workspace)
        if refusal:
            return refusal
        return Accepted(
            op,
            build=lambda: self._build(op, attr, workspace, engine.num_threads),
            efficiency=0.5,
            workspace=workspace,
            scratchpad_bytes=second_pass_bytes(op, attr) + _copies_bytes(op, workspace),
            exact=op.is_max or op.SRC == "src",  # backward adds up quotients
        )

    def _build(
        self, op: Any, attr: Attributes, workspace: MemoryDesc | None, num_threads: int
    ) -> Executable:
        fold = _fold(op, workspace)
        result = fold.tensors[0].address.index
        if _are_even(fold):
            steps = _steps(fold)
        else:
            copy, before, after = _copied(fold, second_pass_bytes(op, attr))
            steps = [*before, *_steps(copy), *after]
        steps = with_post_ops(steps, op, attr, result, 2 if workspace is None else 3)
        if fold.name == "largest" and workspace is not None:
            steps += zero_padding(fold.tensors[2].address.index, workspace)
        return Program(steps, num_threads)


def _resolved(op: Any) -> Any:
    """Replace `any`: the image that is not known is laid out like the one that is."""
    known, other = (op.SRC, op.DST) if not op.src_role.is_any else (op.DST, op.SRC)
    if op.src_role.is_any and op.dst_role.is_any:
        op = op.resolve_any(**{known: op.dst_role.with_format(None)})
    return op.resolve_any(**{other: getattr(op, known)})


@dataclass(frozen=True)
class _Fold:
    """What the kernel is to do.

    tensors: result, a and b; an absent b stays at 0. index: bits of a tap in b. divisor: of every
    sum, None where each has its own. axes: d, h and w; a missing dim has one place.
    """

    name: str
    tensors: tuple[Tensor, Tensor, Tensor]
    index: int
    divisor: int | None
    axes: tuple[windows.Along, ...]
    kernel: tuple[int, ...]

    @property
    def uses_b(self) -> bool:
        """Whether b is an argument."""
        return self.index > 0

    @property
    def uses_taps(self) -> bool:
        """Whether the taps' numbers matter."""
        return self.uses_b

    @property
    def used(self) -> tuple[Tensor, ...]:
        """The arguments among the tensors."""
        return self.tensors[: 2 + self.uses_b]

    @property
    def used_descs(self) -> list[MemoryDesc]:
        """Their descriptors."""
        return [tensor.desc for tensor in self.used]

    @property
    def taps(self) -> tuple[int, int, int]:
        """The number of taps from one place of the kernel to the next, along d, h and w."""
        _, height, width = self.kernel
        return height * width, width, 1


def _fold(op: Any, workspace: MemoryDesc | None) -> _Fold:
    forward = op.SRC == "src"
    src, dst = (
        Tensor(Arg(place), getattr(op, name)) for place, name in enumerate((op.SRC, op.DST))
    )
    axes, counts = _axes(op, forward=forward)
    index = 0 if workspace is None else 8 * workspace.itemsize
    nowhere = Tensor(Table(np.zeros(1)), _still(op.dst_role, (0,) * (op.dst_role.ndims - 2)))
    cells = math.prod(op.kernel)
    even = op.algorithm != "avg_exclude_padding" or all((c == k).all() for c, k in counts)
    divisor = cells if even else None
    if forward:
        b = Tensor(Arg(2), workspace) if workspace else nowhere
        name = "largest" if op.is_max else "sum"
        tensors = dst, src, b
    else:
        # binding order: diff_dst, workspace of max, diff_src
        result = replace(src, address=Arg(1 + (workspace is not None)))
        a = replace(dst, address=Arg(0))
        name, b = "sum", nowhere
        if workspace is not None:
            name, b = "winners", Tensor(Arg(1), workspace)
        elif not even:
            name, b = "shares", _reciprocals(op.dst_role, [c for c, _ in counts])
        tensors = result, a, b
    kernel = (1,) * (3 - len(op.kernel)) + op.kernel
    return _Fold(name, tensors, index, divisor, axes, kernel)


def _axes(op: Any, *, forward: bool) -> tuple[tuple[windows.Along, ...], list[Any]]:
    """Along d, h and w; and of each dim of the windows how many cells they have, and could have."""
    axes, counts = [], []
    sizes = zip(op.dst_role.dims[2:], op.src_role.dims[2:], op.kernel, op.strides, op.dilations,
                op.padding_l, strict=True)  # fmt: skip
    for dst, src, kernel, stride, dilation, padding in sizes:
        window = kernel, stride, dilation + 1, padding
        seen = windows.forward(dst, src, *window)
        counts.append((seen.taps, kernel))
        axes.append(seen if forward else windows.backward(src, dst, *window))
    whole = windows.forward(1, 1, 1, 1, 1, 0)
    return (whole,) * (3 - len(axes)) + tuple(axes), counts


def _still(desc: MemoryDesc, strides: Sequence[int]) -> MemoryDesc:
    """The same dims; batch and channels share their places."""
    return MemoryDesc(desc.dims, "f32", strides=(0, 0, *strides))


def _reciprocals(dst: MemoryDesc, counts: Sequence[np.ndarray]) -> Tensor:
    """For each window one over the number of its cells."""
    cells = np.ones((), np.float32)
    for count in counts:
        cells = np.multiply.outer(cells, count.astype(np.float32))
    values = (np.float32(1) / cells).astype(np.float32)
    return Tensor(Table(values), _still(dst, [s // 4 for s in values.strides]))


# -- steps -----------------------------------------------------------------------------------------


def _steps(fold: _Fold) -> list[Step]:
    steps = []
    for nest in _nests(fold):
        if _are_neighbours(nest, fold):
            steps += [_in_place(fold, part) for part in nest.rows(_MAX_COLUMNS)]
        elif bands := _fitting(fold):
            steps += [_staged(fold, part, bands) for part in nest.rows(SIDE)]
        else:
            steps += [_in_place(fold, part) for part in nest.rows(1)]
    return steps


def _nests(fold: _Fold) -> list[Nest]:
    """Over batch and channels; the columns are the innermost loop."""
    descs = [tensor.desc for tensor in fold.tensors]
    found = nests(descs[0].dims, descs, without=range(2, descs[0].ndims))
    return [nest.ordered() for nest in found]


def _are_neighbours(nest: Nest, fold: _Fold) -> bool:
    """Whether the columns are neighbours in all tensors."""
    return not nest.loops or set(nest.loops[-1].strides[: len(fold.used)]) == {1}


def _are_even(fold: _Fold) -> bool:
    """Whether either way serves: neighbours along channels or w, and no blocks of space."""
    if any(dim > 1 for desc in fold.used_descs for dim, _ in desc.inner_blocks):
        return False
    along_w = all(desc.strides[-1] == 1 or desc.dims[-1] == 1 for desc in fold.used_descs)
    return along_w or all(_are_neighbours(nest, fold) for nest in _nests(fold))


def _copied(fold: _Fold, start: int) -> tuple[_Fold, list[Step], list[Step]]:
    """The fold of channels-last copies in the scratchpad from `start` on, and the copies' steps."""
    copies, before, after = [], [], []
    outputs = (0, 2) if fold.name == "largest" else (0,)
    for i, tensor in enumerate(fold.used):
        copy = Tensor(Scratch(start), _channels_last(tensor.desc))
        start += _room(copy.desc)
        if i in outputs:
            after += copy_steps(tensor, copy)
        else:
            before += copy_steps(copy, tensor)
        copies.append(copy)
    return replace(fold, tensors=(*copies, *fold.tensors[len(copies) :])), before, after


def _copies_bytes(op: Any, workspace: MemoryDesc | None) -> int:
    """The scratchpad for copies, where neither way serves the layouts."""
    fold = _fold(op, workspace)
    return 0 if _are_even(fold) else sum(_room(_channels_last(desc)) for desc in fold.used_descs)


def _channels_last(desc: MemoryDesc) -> MemoryDesc:
    return desc.with_format("a" + "cde"[: desc.ndims - 2] + "b")


def _room(desc: MemoryDesc) -> int:
    return -(-desc.nbytes // LINE) * LINE


def _in_place(fold: _Fold, part: Nest) -> Step:
    """A step whose kernel works on the tensors themselves."""
    columns = part.loops[-1].extent
    strides = [_spatial(tensor.desc) for tensor in fold.tensors]
    kernel = _kernel(fold, columns)
    whole = 4 * kernel.lanes == LINE and columns % kernel.lanes == 0
    streams = whole and fold.tensors[0].desc.nbytes >= STREAM_BYTES
    kernels = kernel.address, replace(kernel, streamed=True).address if streams else 0
    bands = _cut(fold, _height(fold, columns))
    params = _common(fold, part, kernels, bands, _block(fold, columns, strides), strides)
    return _step(fold, part, bands, [*params, 0])


def _step(fold: _Fold, part: Nest, bands: _Bands, params: list[Param]) -> Step:
    items = part.without(1).size * len(bands.table)
    height = _height(fold, part.loops[-1].extent)
    return Step(tasks.pool, params, items, grain=-(-height // max(1, bands.rows[0])) // 4 or 1)


def _height(fold: _Fold, columns: int) -> int:
    """Rows of results that are work enough for a band."""
    vectors = -(-columns // BEST.lanes)
    taps = math.prod(int(axis.taps.max(initial=1)) for axis in fold.axes[:2])
    return -(-_BAND // max(1, vectors * taps * int(fold.axes[2].taps.sum())))


def _spatial(desc: MemoryDesc) -> tuple[int, ...]:
    """The bytes between places along d, h and w."""
    return (0,) * (5 - desc.ndims) + tuple(desc.itemsize * s for s in desc.strides[2:])


def _common(
    fold: _Fold,
    part: Nest,
    kernels: tuple[int, int],
    bands: _Bands,
    block: np.ndarray,
    strides: Sequence[tuple[int, ...]],
) -> list[Param]:
    """The parameters up to the addresses. strides: the bytes along d, h and w of result, a, b."""
    itemsizes = [tensor.desc.itemsize for tensor in fold.tensors]
    depths, _, widths = fold.axes
    segments = [
        [segment for d in range(len(depths.taps)) for segment in depths.segments(d, d + 1)],
        bands.runs,
        widths.segments(by_tap=fold.uses_taps),
    ]
    along = [Table(_rows(fold, dim, found, strides)) for dim, found in enumerate(segments)]
    empty = _bits(_LOWEST if fold.name == "largest" else 0.0)
    starts = [
        tensor.address
        if isinstance(tensor.address, Table)
        else moved(tensor.address, size * offset)
        for tensor, size, offset in zip(fold.tensors, itemsizes, part.offsets, strict=True)
    ]
    return [
        Table(part.without(1).table(itemsizes)), *kernels, Table(block), *along, len(segments[2]),
        Table(bands.table), len(bands.table), empty, int(fold.divisor is not None), *starts,
    ]  # fmt: skip


def _kernel(fold: _Fold, columns: int) -> PoolingKernel:
    """The kernel for so many neighbours."""
    lanes = min(BEST.lanes, 1 << (columns.bit_length() - 1))
    width = int(fold.axes[2].taps.max(initial=1))
    width = width if width <= _MOST_UNROLLED else 1
    kernel = PoolingKernel(BEST, fold.name, lanes, "points", fold.index, width)
    if columns >= lanes * kernel.tile:
        return replace(kernel, along="columns")
    return kernel


def _rows(
    fold: _Fold, dim: int, segments: Sequence[windows.Segment], strides: Sequence[tuple[int, ...]]
) -> np.ndarray:
    """A table along a dim for `pooling_tasks`."""
    rows, period = [], fold.axes[dim].period
    for segment in segments:
        result, source = (segment.first, period), (segment.source, segment.source_step)
        of_tensors = result, source, result if fold.name == "largest" else source
        moves = [
            [way[i] * stride[dim] for way, stride in zip(of_tensors, strides, strict=True)]
            for i in range(2)
        ]
        row = segment.taps, segment.tap * fold.taps[dim], segment.count
        rows.append((*moves[0], *moves[1], *row))
    return np.array(rows, np.int64).reshape(-1, tasks.ROW)


def _block(fold: _Fold, columns: int, strides: Sequence[tuple[int, ...]]) -> np.ndarray:
    """The fields of the kernel that stay."""
    fields = dict.fromkeys(FIELDS, 0) | {"columns": columns}
    _, a, b = strides
    for dim, (name, axis) in enumerate(zip("dhw", fold.axes, strict=True)):
        fields[f"a_{name}"] = axis.source_step * a[dim]
        fields[f"b_{name}"] = 0 if fold.name == "largest" else axis.source_step * b[dim]
        fields[f"tap_{name}"] = axis.tap_step * fold.taps[dim]
    fields["start"] = _bits(_MINUS_INFINITY if fold.name == "largest" else 0.0)
    fields["divisor"] = _bits(float(fold.divisor or 0))
    return np.array([fields[name] for name in FIELDS], np.int64)


def _bits(value: float) -> int:
    return int(np.float32(value).view(np.uint32))


# -- bands -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Bands:
    """Rows of results.

    table: as `pooling_tasks` reads it; runs: what it refers to. rows: the most of result, a and b
    that a band needs, of so many depths.
    """

    table: np.ndarray
    runs: list[windows.Segment]
    rows: tuple[int, int, int]
    depth: int

    def planes(self, fold: _Fold) -> list[int]:
        """The bytes of the buffers of result, a and b, of one depth."""
        return [
            SIDE * tensor.desc.itemsize * tensor.desc.dims[-1] * rows
            for tensor, rows in zip(fold.used, self.rows, strict=False)
        ]

    def places(self, fold: _Fold) -> list[int]:
        """Where each of the buffers begins, and where they end."""
        depths = 1, self.depth, 1 if fold.name == "largest" else self.depth
        sizes = [n * depth for n, depth in zip(self.planes(fold), depths, strict=False)]
        return list(itertools.accumulate(sizes, initial=0))


def _fitting(fold: _Fold) -> _Bands | None:
    """Bands whose buffers fit into the room; None if places along w are no neighbours either."""
    if any(desc.strides[-1] != 1 and desc.dims[-1] > 1 for desc in fold.used_descs):
        return None
    height = min(_height(fold, SIDE), len(fold.axes[1].taps))
    while height:
        bands = _cut(fold, height)
        if bands.places(fold)[-1] <= tasks.BUFFERS:
            return bands
        height //= 2
    return None


def _cut(fold: _Fold, height: int) -> _Bands:
    """Bands of so many rows."""
    depths, heights, _ = fold.axes
    table, runs = [], []
    for first in range(0, len(heights.taps), height):
        last = min(first + height, len(heights.taps))
        found = heights.segments(first, last, by_tap=fold.uses_taps)
        rows = first, last, len(runs), len(runs) + len(found), *heights.reads(first, last)
        runs += found
        table += [(d, *rows, int(z), depths.source_step) for d, z in enumerate(depths.source)]
    most = max(stop - start for *_, start, stop, _, _ in table)
    b = height if fold.name == "largest" else most
    return _Bands(
        np.array(sorted(table), np.int64), runs, (height, most, b), int(depths.taps.max())
    )


def _staged(fold: _Fold, part: Nest, bands: _Bands) -> Step:
    """A step whose kernel works on buffers."""
    columns = part.loops[-1]
    strides, views = [_spatial(tensor.desc) for tensor in fold.tensors], []
    planes = bands.planes(fold)
    for i, (desc, place) in enumerate(zip(fold.used_descs, bands.places(fold), strict=False)):
        size, width = desc.itemsize, desc.dims[-1]
        channels = np.minimum(np.arange(SIDE), columns.extent - 1) * (size * columns.strides[i])
        pixels = np.arange(bands.rows[i] * width) * (SIDE * size)
        tables = (Table(places.astype(np.int64)) for places in (channels, pixels))
        views.append((place, *tables, *strides[i][:2], width, size, planes[i]))
        strides[i] = (0, SIDE * size * width, SIDE * size)
    block = _block(fold, SIDE, strides)
    block[SLOT["a_d"]] = planes[1]
    reads = fold.uses_b and fold.name != "largest"
    if reads:
        block[SLOT["b_d"]] = planes[2]
    types = [tensor.desc.data_type for tensor in (fold.used[0], fold.used[-1])]
    moves = [CopyKernel("transposed", kind, kind).address for kind in types]
    params = _common(fold, part, (_kernel(fold, SIDE).address, 0), bands, block, strides)
    params += [1, columns.extent, *moves, int(reads), int(fold.uses_b and not reads)]
    params += itertools.chain(*views)
    return _step(fold, part, bands, params)


FORWARD = (DirectPooling(),)
BACKWARD = (DirectPooling(),)
