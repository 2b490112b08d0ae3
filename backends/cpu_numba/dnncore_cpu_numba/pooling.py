"""Pooling forward and backward: which native loop serves which layout.

See `pooling_tasks.py` for maxima, `pooling_average_tasks.py` for averages. NaN counts as larger
than everything, as in torch; of several the first is kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dnncore.backend import Accepted, Attributes, Executable, Implementation, MemoryDesc, Refused
from dnncore_cpu_numba import pooling_average_tasks as averages
from dnncore_cpu_numba import pooling_tasks as tasks
from dnncore_cpu_numba.chains import zero_padding
from dnncore_cpu_numba.elementwise import (
    refuse_layouts,
    refuse_post_ops,
    second_pass_bytes,
    with_post_ops,
)
from dnncore_cpu_numba.nest import Nest, nests, places
from dnncore_cpu_numba.program import Arg, Program, Step, Table

__all__ = ["BACKWARD", "FORWARD"]

_MAX_COLUMNS = 256
_GRAIN = 2048  # cells of windows of a part at least


class DirectPooling(Implementation):
    """Each window read once, in place."""

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
            scratchpad_bytes=second_pass_bytes(op, attr),
            exact=op.is_max or op.SRC == "src",  # backward adds up quotients
        )

    def _build(
        self, op: Any, attr: Attributes, workspace: MemoryDesc | None, num_threads: int
    ) -> Executable:
        forward = op.SRC == "src"
        # binding order: src, dst, workspace forward, and diff_dst, workspace, diff_src backward
        order = {"dst": 1, "src": 0, "ws": 2} if forward else {"dst": 0, "src": 2, "ws": 1}
        if not op.is_max:
            order = {"dst": int(forward), "src": int(not forward)}
            steps = _average_steps(op, order, forward=forward)
        else:
            steps = _steps(op, workspace, order, forward=forward)
        result = order["dst" if forward else "src"]
        steps = with_post_ops(steps, op, attr, result, 2 if workspace is None else 3)
        if forward and workspace is not None:
            steps += zero_padding(order["ws"], workspace)
        return Program(steps, num_threads)


def _resolved(op: Any) -> Any:
    """Replace `any`: the image that is not known is laid out like the one that is."""
    known, other = (op.SRC, op.DST) if not op.src_role.is_any else (op.DST, op.SRC)
    if op.src_role.is_any and op.dst_role.is_any:
        op = op.resolve_any(**{known: op.dst_role.with_format(None)})
    return op.resolve_any(**{other: getattr(op, known)})


def _steps(
    op: Any, workspace: MemoryDesc | None, order: dict[str, int], *, forward: bool
) -> list[Step]:
    dst, src = op.dst_role, op.src_role
    ws = workspace or dst.with_data_type("u8")  # a stand-in of the same layout, never touched
    descs = (dst, src, ws)
    spatial = range(2, dst.ndims)
    contiguous = all(desc.strides[1] == 1 or _block(desc) > 1 for desc in descs)
    even = not any(dim >= 2 for desc in descs for dim, _ in desc.inner_blocks)
    if forward:
        function = tasks.forward_taps if _is_tabulated(op) else tasks.forward_columns
        by_columns = contiguous
    else:
        by_columns = contiguous or not even or not _has_tables(op)
        function = tasks.backward_columns if by_columns else tasks.backward_planes
    place_tables = [
        Table(desc.itemsize * np.array(p, np.int64)) for desc in descs for p in _places(desc)
    ]
    steps = []
    for nest in nests(dst.dims, descs, without=spatial):
        for part in nest.ordered().rows(_MAX_COLUMNS if by_columns else 1):
            columns, outer = part.loops[-1], part.without(1)
            shape = _shape(op, columns.extent)
            params = [Table(outer.table([d.itemsize for d in descs])), columns.extent]
            params += [Table(shape), *place_tables, ws.itemsize if workspace else 0]
            params += columns.strides
            params += _addresses(part, order, descs, workspace)
            if function is tasks.forward_taps:
                params += _taps_along_w(op, columns.extent)
            cells = columns.extent * int(shape[tasks.DST + 2] * np.prod(op.kernel))
            items = outer.size
            if forward:
                od, oh, ow = (int(n) for n in shape[tasks.DST : tasks.DST + 3])
                items *= od * oh * -(-ow // int(shape[tasks.WINDOWS]))
            steps.append(Step(function, params, items, grain=-(-_GRAIN // max(1, cells))))
    return steps


def _average_steps(op: Any, order: dict[str, int], *, forward: bool) -> list[Step]:
    dst, src = descs = (op.dst_role, op.src_role)
    contiguous = all(desc.strides[1] == 1 or _block(desc) > 1 for desc in descs)
    place_tables = [Table(4 * np.array(p, np.int64)) for desc in descs for p in _places(desc)]
    place_tables += [Table(np.array(c, np.float32)) for c in _counts(op)]
    rows, cells = (dst, src) if forward else (src, dst)
    steps = []
    for nest in nests(dst.dims, descs, without=range(2, dst.ndims)):
        for part in nest.ordered().rows(_MAX_COLUMNS if contiguous else 1):
            columns, outer = part.loops[-1], part.without(1)
            params = [Table(outer.table([4, 4])), columns.extent, Table(_shape(op, columns.extent))]
            params += [*place_tables, *columns.strides]
            params += [Arg(order[n], 4 * o) for n, o in zip(order, part.offsets, strict=True)]
            chunks = -(-rows.dims[-1] // (averages.ROOM // columns.extent))
            items = outer.size * math.prod(rows.dims[2:-1]) * chunks
            cost = columns.extent * cells.dims[-1] * math.prod(op.kernel[:-1])
            task = averages.forward if forward else averages.backward
            steps.append(Step(task, params, items, grain=-(-_GRAIN // max(1, cost))))
    return steps


def _counts(op: Any) -> list[list[int]]:
    """How many cells count along d, h and w at each place of dst; a missing dim has one."""
    found = [[1]] * (5 - op.dst_role.ndims)
    for i, (size, count) in enumerate(zip(op.src_role.dims[2:], op.dst_role.dims[2:], strict=True)):
        inside = _cells_inside(op, i, size, count).sum(axis=1)
        exclude = op.algorithm == "avg_exclude_padding"
        found.append(list(inside) if exclude else [op.kernel[i]] * count)
    return found


def _addresses(
    part: Nest, order: dict[str, int], descs: Sequence[MemoryDesc], workspace: MemoryDesc | None
) -> list[Arg | int]:
    names = ("dst", "src", "ws")
    found = [
        Arg(order[name], desc.itemsize * offset)
        for name, desc, offset in zip(names, descs, part.offsets, strict=True)
    ]
    return found if workspace else [*found[:2], 0]


def _block(desc: MemoryDesc) -> int:
    """How many channels are neighbours because of the innermost block."""
    return desc.inner_blocks[-1][1] if desc.inner_blocks and desc.inner_blocks[-1][0] == 1 else 1


def _places(desc: MemoryDesc) -> list[list[int]]:
    """The places along d, h and w; a missing dim has one place."""
    missing = 5 - desc.ndims
    return [[0]] * missing + [places(desc, dim) for dim in range(2, desc.ndims)]


def _shape(op: Any, columns: int) -> np.ndarray:
    """The table SHAPE of `pooling_tasks`."""

    def three(values: Sequence[int], filler: int) -> list[int]:
        return [filler] * (3 - len(values)) + [int(v) for v in values]

    dilations = [d + 1 for d in op.dilations]
    rows = three(op.dst_role.dims[2:], 1) + three(op.src_role.dims[2:], 1) + three(op.kernel, 1)
    rows += three(op.strides, 1) + three(dilations, 1) + three(op.padding_l, 0)
    return np.array([*rows, max(1, tasks.TILE // columns)], np.int64)


def _is_tabulated(op: Any) -> bool:
    """Whether `forward_taps` serves: its table holds the kernel, and src is even along w."""
    steps = set(np.diff(places(op.src_role, op.src_role.ndims - 1)))
    return math.prod(op.kernel) <= tasks.MOST_TAPS and len(steps) <= 1


def _taps_along_w(op: Any, columns: int) -> list[Table | int]:
    """The parameters of `forward_taps` from BY_WINDOWS on."""
    width, windows = op.src_role.dims[-1], op.dst_role.dims[-1]
    inside = _cells_inside(op, len(op.kernel) - 1, width, windows)
    spans = [[int(at[0]), int(at[-1]) + 1] if len(at) else [0, 0]
             for at in map(np.flatnonzero, inside.T)]  # fmt: skip
    firsts = np.where(inside.any(axis=1), inside.argmax(axis=1), -1)
    whole = np.flatnonzero(inside.all(axis=1))
    inner = (int(whole[0]), int(whole[-1]) + 1) if len(whole) else (0, 0)
    steps = places(op.src_role, op.src_role.ndims - 1)[:2]
    distance = op.strides[-1] * (steps[-1] - steps[0])
    by_windows = int(columns == 1 and distance in (1, 2))
    tables = [Table(np.array(values, np.int64).reshape(-1)) for values in (spans, firsts)]
    return [by_windows, *tables, *inner]


def _has_tables(op: Any) -> bool:
    """Whether all taps fit into a table, and each window has a cell inside src along each dim."""
    if math.prod(op.kernel) > tasks.TILE:
        return False
    sizes = zip(op.src_role.dims[2:], op.dst_role.dims[2:], strict=True)
    return all(_cells_inside(op, i, *n).any(axis=1).all() for i, n in enumerate(sizes))


def _cells_inside(op: Any, i: int, size: int, count: int) -> np.ndarray:
    """Which cells of which window are inside src along the i-th spatial dim."""
    starts = np.arange(count)[:, None] * op.strides[i] - op.padding_l[i]
    cells = starts + np.arange(op.kernel[i]) * (op.dilations[i] + 1)
    return (cells >= 0) & (cells < size)


FORWARD = (DirectPooling(),)
BACKWARD = (DirectPooling(),)
