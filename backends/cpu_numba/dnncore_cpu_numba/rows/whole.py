"""Layer and group normalization of sets that lie in one piece of memory: memory is read once.

The number of parts depends only on the problem, so results do not depend on the number of threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dnncore.backend import GroupNormalization, LayerNormalization, MemoryDesc
from dnncore_cpu_numba.codegen.nontemporal import STREAM_BYTES, suits_rows
from dnncore_cpu_numba.rows import whole_tasks
from dnncore_cpu_numba.rows.apply_kernel import ApplyKernel
from dnncore_cpu_numba.rows.gradient_kernel import GradientKernel
from dnncore_cpu_numba.rows.sums_kernel import SOURCES, SumsKernel
from dnncore_cpu_numba.runtime.program import Param, Step, Table
from dnncore_cpu_numba.runtime.tensor import Tensor

MOST = 1 << 16  # elements of a set: with diff_dst and the result they fit in a core's cache
_PARTS = 64  # most parts of a gradient
_ROWS = 16  # least sets of a part whose sums have as many elements as a set
_LONG_ROWS = 4  # the same for sets that do not fit
_MANY = 16  # sets that do not fit are divided among threads, but not their elements
_GRAIN = 4096  # least elements of a thread's part


@dataclass(frozen=True)
class Whole:
    """Sets of `runs` runs of `count` elements. groups: sets after which scale repeats."""

    sets: int
    runs: int
    count: int
    groups: int
    per_element: bool

    @property
    def vector(self) -> int:
        """The number of elements of scale."""
        return self.count if self.per_element else self.groups * self.runs

    @property
    def parts(self) -> int:
        """The number of parts of a gradient."""
        least = _ROWS if self.count <= MOST else _LONG_ROWS
        return max(1, min(_PARTS, self.sets // (least if self.per_element else 1)))

    @property
    def nbytes(self) -> int:
        """Bytes of the sums of all parts."""
        return 8 * self.parts * self.vector

    def forward(
        self, op: Any, src: Tensor, result: Tensor, rooms: dict[str, Param], vectors: Any
    ) -> Step:
        """Return the step that computes statistics and the result."""
        values = self._values(op, src, None, result, rooms, vectors)
        grain = -(-_GRAIN // (self.runs * self.count))
        if not self.per_element:
            values |= {"diff": 0, "sums": 0}
            return _step(whole_tasks.normalize_runs, values, self.sets, grain)
        kind = src.desc.data_type
        apply = ApplyKernel(
            kind, result.desc.data_type, along=True, streamed=values["streamed"],
            formula="elements",
        )  # fmt: skip
        values |= {
            "plain": SumsKernel("plain", True, kind).address,
            "deviations": SumsKernel("deviations", True, kind).address,
            "apply": apply.address,
        }
        return _step(whole_tasks.normalize_rows, values, self.sets, grain)

    def backward(
        self, op: Any, src: Tensor, diff: Tensor, result: Tensor, rooms: dict[str, Param],
        vectors: Any, sums: Param,
    ) -> Step:  # fmt: skip
        """Return the step that computes the gradient of src and the sums of all parts."""
        values = self._values(op, src, diff, result, rooms, vectors)
        values |= {"diff": diff.address, "sums": sums}
        if not self.per_element:
            return _step(whole_tasks.differentiate_runs, values, self.parts, 1)
        source, other = src.desc.data_type, diff.desc.data_type
        apply = ApplyKernel(
            source, result.desc.data_type, along=True, other=other, streamed=values["streamed"],
            formula="gradient",
        )  # fmt: skip
        values |= {
            "diff_size": diff.desc.itemsize, "gradient": GradientKernel(source, other).address,
            "apply": apply.address,
        }  # fmt: skip
        return _step(whole_tasks.differentiate_rows, values, self.parts, 1)

    def joined(self, sums: Param, shift: Param, scale: Param) -> Step:
        """Return the step that adds up the gradients of shift and scale."""
        values = {
            "sums": sums, "parts": self.parts, "vector": self.vector, "shift": shift,
            "scale": scale,
        }  # fmt: skip
        return Step(whole_tasks.join_parts, values, self.vector, grain=256)

    def _values(
        self, op: Any, src: Tensor, diff: Tensor | None, result: Tensor,
        rooms: dict[str, Param], vectors: Any,
    ) -> dict[str, Any]:  # fmt: skip
        own = {
            name: vectors[key].address if key in vectors else Table(np.full(self.vector, absent))
            for name, key, absent in (
                ("weight", "scale", np.float32(1)), ("shift", "shift", np.float32(0)),
            )
        }  # fmt: skip
        read = [src] if diff is None else [src, diff]
        nbytes = sum(tensor.desc.nbytes for tensor in (*read, result))
        size = result.desc.itemsize
        streamed = nbytes >= STREAM_BYTES and suits_rows(self.count * size, size)
        return {
            "x": src.address, "y": result.address, "x_size": src.desc.itemsize,
            "y_size": result.desc.itemsize, **rooms, **own, "runs": self.runs,
            "count": self.count, "groups": self.groups,
            "centred": op.has_mean, "streamed": streamed, "epsilon": op.epsilon,
            "sets": self.sets, "parts": self.parts, "vector": self.vector,
        }  # fmt: skip


def _step(task: Any, values: dict[str, Any], items: int, grain: int) -> Step:
    """Return the step of a task with those of the values that it has."""
    return Step(task, {name: values[name] for name in task.params.fields}, items, grain=grain)


def whole_sets(op: Any, source: MemoryDesc) -> Whole | None:
    """Return the sets of an operation if they are dense, and fit in the cache or are many rows.

    source: the layout of src or of its copy.
    """
    tensors = {row.name: desc for row, desc in op.tensors()} | {"src": source}
    if op.use_global_stats or not op.source.nelems:
        return None
    names = ("src", "dst", "diff_dst", "diff_src")
    if not all(_is_dense(tensors[name]) for name in names if name in tensors):
        return None
    dims, kinds = op.source.dims, {tensors[name].data_type for name in names if name in tensors}
    if isinstance(op, LayerNormalization):
        whole = Whole(op.source.nelems // dims[-1], 1, dims[-1], 1, per_element=True)
    elif isinstance(op, GroupNormalization) and kinds == {"f32"}:
        runs = dims[1] // op.groups
        count = op.source.nelems // (dims[0] * dims[1])
        whole = Whole(dims[0] * op.groups, runs, count, op.groups, per_element=False)
    else:
        return None
    fits = whole.runs * whole.count <= MOST or (whole.per_element and whole.sets >= _MANY)
    return whole if fits else None


def _is_dense(desc: MemoryDesc) -> bool:
    return (
        desc.data_type in SOURCES
        and desc.strides == MemoryDesc(desc.dims).strides
        and not (desc.inner_blocks)
    )
