"""Shuffle: the axis is a matrix that is transposed.

If rows of other dims are contiguous, they are copied between views in which the axis is two loops.
If the axis itself is contiguous or blocked, vectors are permuted from a few windows. If that needs
too many windows, elements are moved one by one. Both follow tables of places.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from dnncore.backend import Accepted, Attributes, Implementation, MemoryDesc, Refused, Shuffle
from dnncore_cpu_numba.codegen.isa import BEST
from dnncore_cpu_numba.codegen.nest import Loop, Nest, nests, places
from dnncore_cpu_numba.codegen.nontemporal import STREAM_BYTES
from dnncore_cpu_numba.codegen.type_conversion import FLOATS, INTEGERS
from dnncore_cpu_numba.copies.permuted_kernel import PERMUTED, PermutedKernel, windows_of
from dnncore_cpu_numba.copies.permuted_task import permute_rows
from dnncore_cpu_numba.copies.places_task import move_by_places
from dnncore_cpu_numba.copies.reformat import copies_of_nests
from dnncore_cpu_numba.elementwise.finish import WORDS
from dnncore_cpu_numba.elementwise.implementation import offered, refuse_post_ops
from dnncore_cpu_numba.runtime.program import Step, Table
from dnncore_cpu_numba.runtime.tensor import Tensor, arguments, refuse_long, walked

_GRAIN = 4096  # least elements of a part
_NEAR = 16 << 10  # bytes that stay in a first-level cache
_SHORT_VECTOR = 8  # lanes that processors with longer vectors can permute too


class ShuffleImplementation(Implementation[Shuffle]):
    """Both directions: the gradient transposes the matrix back."""

    name = "cpu_numba:rows"
    data_types = (*FLOATS, *INTEGERS)
    attributes = WORDS
    takes_repeats = True

    def accept(self, op: Shuffle, attr: Attributes, engine: Any, hint: Any) -> Accepted | Refused:
        """Accept every layout with strides, and every attribute."""
        (source, desc), _ = op.tensors()
        op = op.resolve_any(**{op.result_name: desc})
        refusal = refuse_post_ops(op, attr) or refuse_long(desc.dims[op.axis])
        if refusal:
            return refusal
        return offered(op, attr, engine, partial(_steps, op, source.name), efficiency=0.5)


def _steps(op: Shuffle, source: str, dst: Tensor) -> list[Step]:
    """Return the steps that write the result to dst, perhaps in another data type."""
    src, axis = arguments(op)[source], op.axis
    if not dst.desc.nelems:
        return []
    parts = nests(dst.desc.dims, (dst.desc, src.desc), without=(axis,))
    count = dst.desc.dims[axis]
    order = [v * op.columns + u for u in range(op.columns) for v in range(op.rows)]
    targets = places(dst.desc, axis, range(count))
    sources = places(src.desc, axis, order)
    if dst.desc.data_type != src.desc.data_type:
        parts = [
            Nest((part.offsets[0] + t, part.offsets[1] + s), part.loops)
            for part in parts
            for t, s in zip(targets, sources, strict=True)
        ]
        return copies_of_nests(parts, dst, src)
    if _is_apart(dst.desc, axis) and _is_apart(src.desc, axis):
        d, s = dst.desc.strides[axis], src.desc.strides[axis]
        rows, columns = Loop(op.rows, (d, s * op.columns)), Loop(op.columns, (d * op.rows, s))
        parts = [Nest(part.offsets, (*part.loops, columns, rows)) for part in parts]
        return copies_of_nests(parts, dst, src)
    if permuted := _permuted(dst.desc, src.desc, axis, order):
        kernel, shape = permuted
        return [step for part in parts for step in _in_vectors(part, dst, src, kernel, shape)]
    size = dst.desc.itemsize
    return [_moves(part.ordered(), dst, src, np.array(targets) * size, np.array(sources) * size)
            for part in parts]  # fmt: skip


def _permuted(
    dst: MemoryDesc, src: MemoryDesc, axis: int, order: Sequence[int]
) -> tuple[PermutedKernel, dict[str, Any]] | None:
    """Return a kernel of vectors along the axis, and the values of `PERMUTED` of one step.

    None if the axis has gaps or runs shorter than a vector, or if too many windows are needed.
    """
    runs = [_run(desc, axis) for desc in (dst, src)]
    count, lanes = len(order), min(BEST.lanes, *runs)
    if lanes < BEST.lanes and (lanes != _SHORT_VECTOR or BEST.lanes < lanes):
        return None
    if dst.inner_blocks:
        if runs[0] % lanes:
            return None
        begins = np.arange(0, count, lanes)
    else:
        begins = np.minimum(np.arange(0, count, lanes), count - lanes)
    indices = np.array(order)[np.minimum(begins[:, None] + np.arange(lanes), count - 1)]
    sources = np.array(places(src, axis, indices.ravel())).reshape(indices.shape)
    found = windows_of(sources, lanes, sources - indices % runs[1] + runs[1])
    if found is None:
        return None
    bases, lane_places = found
    kind, size = dst.data_type, dst.itemsize
    shape = {
        "vectors": len(begins), "plane": 0, "row": 0,
        "targets": Table(np.array(places(dst, axis, begins)) * size),
        "bases": Table(bases * size), "lanes": Table(lane_places), "shares": 0,
        "src_count": count, "dst_count": count,
    }  # fmt: skip
    return PermutedKernel(kind, kind, lanes, is_copy=True, windows=bases.shape[-1]), shape


def _run(desc: MemoryDesc, axis: int) -> int:
    """Return the number of neighbours along the axis that are contiguous in memory; 0 for one."""
    blocks = desc.inner_blocks
    if not blocks:
        return desc.dims[axis] if desc.strides[axis] == 1 else 0
    is_run = blocks[-1][0] == axis and [dim for dim, _ in blocks].count(axis) == 1
    return blocks[-1][1] if is_run else 0


def _in_vectors(
    part: Nest, dst: Tensor, src: Tensor, kernel: PermutedKernel, shape: dict[str, Any]
) -> Iterator[Step]:
    """Yield the steps of a nest of the other dims. Its innermost loop is inside the kernel."""
    size, vectors = dst.desc.itemsize, shape["vectors"]
    nbytes = vectors * kernel.lanes * size
    large = dst.desc.nbytes + src.desc.nbytes >= STREAM_BYTES
    # Stores bypass the caches only if they are in order.
    is_blocked = bool(dst.desc.inner_blocks)
    longest = _GRAIN if is_blocked else 1 if large else max(1, _NEAR // nbytes)
    for tile in part.ordered().rows(longest):
        loop, outer = tile.loops[-1], tile.without(1)
        dst_step, src_step = (stride * size for stride in loop.strides)
        values = PERMUTED.pack(
            shape | {"steps": loop.extent, "dst_step": dst_step, "src_step": src_step}
        )
        aligned = dst_step if is_blocked else nbytes
        whole = aligned % (kernel.lanes * size) == 0 and loop.extent * vectors > 1
        streamed = replace(kernel, streamed=True).address if large and whole else 0
        common = walked(outer, {"dst": dst, "src": src}) | {
            "kernel": kernel.address, "streamed": streamed, "shape": values,
        }  # fmt: skip
        grain = -(-_GRAIN // max(1, loop.extent * vectors * kernel.lanes))
        yield Step(permute_rows, common, outer.size, grain=grain)


def _is_apart(desc: MemoryDesc, axis: int) -> bool:
    """Whether neighbours along the axis are apart, so that rows of other dims may lie between."""
    return desc.strides[axis] != 1 and all(dim != axis for dim, _ in desc.inner_blocks)


def _moves(part: Nest, dst: Tensor, src: Tensor, targets: Any, sources: Any) -> Step:
    values = walked(part, {"dst": dst, "src": src}) | {
        "count": len(targets), "size": dst.desc.itemsize,
        "targets": Table(targets), "sources": Table(sources),
    }  # fmt: skip
    return Step(move_by_places, values, part.size, grain=-(-_GRAIN // max(1, len(targets))))


TABLE = (ShuffleImplementation(),)
