"""Softmax and log-softmax along one axis, and their gradients.

If the axis is contiguous in memory and long, a work item is one vector along it, which is computed
in a buffer, in one or several pieces. Otherwise an item is a slab: some neighbouring vectors, its
columns, are computed place by place of the axis. In both cases the arithmetic runs over short
contiguous buffers. It is therefore vectorised in every layout and works in place. A vector gives
NaN if all elements are -inf, or if it contains NaN or +inf, as in the formula.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from dnncore.backend import (
    Accepted,
    Attributes,
    Implementation,
    MemoryDesc,
    Refused,
    Softmax,
    SoftmaxForward,
)
from dnncore_cpu_numba.codegen.nest import nests
from dnncore_cpu_numba.codegen.nontemporal import LINE, STREAM_BYTES
from dnncore_cpu_numba.codegen.task import Task
from dnncore_cpu_numba.codegen.type_conversion import FLOATS
from dnncore_cpu_numba.copies.gather import places
from dnncore_cpu_numba.copies.typed_rows import conversion
from dnncore_cpu_numba.elementwise.chains import chain_steps
from dnncore_cpu_numba.elementwise.finish import WORDS
from dnncore_cpu_numba.elementwise.implementation import held_of, offered, refuse_post_ops
from dnncore_cpu_numba.elementwise.post_ops import binary
from dnncore_cpu_numba.runtime.program import Scratch, Step, Table
from dnncore_cpu_numba.runtime.tensor import Tensor, arguments, refuse_long, walked
from dnncore_cpu_numba.softmax import half_tasks, tasks, wide_tasks

_SHORT = 32  # elements; shorter vectors become slabs, with one vector per lane
_GRAIN = 2048  # least elements of a part; small because exponentials are slow


class SoftmaxImplementation(Implementation[Softmax]):
    """Softmax in the three passes of the formula, over vectors or slabs."""

    name = "cpu_numba:simd"
    data_types = ("f64", *FLOATS, "s8", "u8")
    attributes = WORDS
    takes_repeats = True

    def __init__(
        self, inputs: Sequence[str], vectors: Task, slabs: Task, wide: Task,
        halves: Mapping[str, Task],
    ) -> None:  # fmt: skip
        self.inputs = tuple(inputs)
        self.halves = halves
        self.vectors = vectors
        self.slabs = slabs
        self.wide = wide

    def accept(self, op: Softmax, attr: Attributes, engine: Any, hint: Any) -> Accepted | Refused:
        """Accept every layout with strides, any axis, and post-ops."""
        if op.algorithm not in ("accurate", "log"):
            return Refused("algorithm", f"has no algorithm {op.algorithm!r}")
        first = getattr(op, self.inputs[0])
        op = op.resolve_any(**{a.name: first for a, _ in op.tensors() if a.name != "lse"})
        if (lse := getattr(op, "lse", None)) is not None and lse.is_any:
            op = op.with_descs(lse=lse.with_format(None))
        if refusal := refuse_post_ops(op, attr) or refuse_long(op.result.dims[op.axis]):
            return refusal
        descs = [desc for argument, desc in op.tensors() if argument.name != "lse"]
        is_contiguous = _is_contiguous(op, descs)
        efficiency = 0.5 if is_contiguous else 0.3
        steps, nbytes = partial(self._make_steps, op, attr), 0
        if "src" in attr.scales:
            nbytes = -(-_product(first, op).nbytes // LINE) * LINE
        return offered(op, attr, engine, steps, nbytes, efficiency=efficiency)

    def _make_steps(self, op: Softmax, attr: Attributes, result: Tensor) -> list[Step]:
        named, length = arguments(op, attr=attr), op.result.dims[op.axis]
        tensors = {op.result_name: result} | {name: named[name] for name in self.inputs}
        if isinstance(op, SoftmaxForward):  # the task writes no lse if `keeps` is 0
            tensors["lse"] = named.get("lse", result)
        if "src" in attr.scales:
            product = Tensor(Scratch(), _product(named["src"].desc, op))
            factors = [product, named["src"], named["src_scales"]]
            scale = replace(binary("mul", 2), stepwise=held_of(op) != "f64")
            scaling = chain_steps(op.result.dims, factors, [scale], held_of(op))
            return scaling + self._on_tensors(op, tensors | {"src": product}, length)
        return self._on_tensors(op, tensors, length)

    def _on_tensors(self, op: Softmax, tensors: Mapping[str, Tensor], length: int) -> list[Step]:
        if held_of(op) == "f64":
            return _steps(self.wide, tasks.COLUMNS, op, tensors)
        descs = [tensor.desc for name, tensor in tensors.items() if name != "lse"]
        if _is_contiguous(op, descs) and length >= _SHORT:
            kind, *others = {desc.data_type for desc in descs}
            is_fit = half_tasks.SHORTEST <= length <= half_tasks.LONGEST and not others
            function = self.halves.get(kind, self.vectors) if is_fit else self.vectors
            return _steps(function, 1, op, tensors)
        return _steps(self.slabs, _slab_columns(length), op, tensors)


def _product(src: MemoryDesc, op: Softmax) -> MemoryDesc:
    """Return the layout of src times its scale, which is in the scratchpad."""
    return src.with_format(src.order_tag).with_data_type(held_of(op))


def _is_contiguous(op: Softmax, descs: Iterable[MemoryDesc]) -> bool:
    return all(
        desc.strides[op.axis] == 1 and op.axis not in {dim for dim, _ in desc.inner_blocks}
        for desc in descs
    )


def _slab_columns(length: int) -> int:
    """Return the most vectors of a slab. If possible, a slab fits into the buffer."""
    lines = min(tasks.COLUMNS, tasks.SLAB // max(1, length)) // tasks.LINE_LENGTH
    return lines * tasks.LINE_LENGTH or tasks.COLUMNS


def _steps(function: Task, columns: int, op: Softmax, tensors: Mapping[str, Tensor]) -> list[Step]:
    """Return the steps over all dims but the axis. columns: the most columns of a slab."""
    descs = [tensor.desc for tensor in tensors.values()]
    length = op.result.dims[op.axis]
    streamed = sum(desc.nbytes for _, desc in op.tensors()) >= STREAM_BYTES
    tables = [Table(desc.itemsize * places(desc, op.axis)[:length]) for desc in descs]
    held = held_of(op)
    result, *inputs = (tensor.desc.data_type for name, tensor in tensors.items() if name != "lse")
    kernels = [conversion(held, result), *(conversion(kind, held) for kind in inputs)]
    kernels += [0] * (len(tensors) - len(kernels))
    by_name: dict[str, list[Any]] = {
        "sizes": [desc.itemsize for desc in descs], "places": tables, "kernels": kernels,
    }  # fmt: skip
    past = conversion(held, result, streamed=True) if streamed else 0
    common: dict[str, Any]
    common = {key: dict(zip(tensors, each, strict=True)) for key, each in by_name.items()}
    common |= {"length": length, "log": op.algorithm == "log", "streamed": streamed, "past": past}
    common["keeps"] = getattr(op, "lse", None) is not None
    steps = []
    for nest in nests(op.result.dims, descs, without=(op.axis,)):
        for part in nest.ordered().rows(columns):
            row, outer = part.loops[-1], part.without(1)
            strides = dict(zip(tensors, row.strides, strict=True))
            values = common | walked(outer, tensors) | {"columns": row.extent, "strides": strides}
            grain = -(-_GRAIN // (length * row.extent))
            steps.append(Step(function, values, outer.size, grain=grain))
    return steps


FORWARD = (
    SoftmaxImplementation(
        ["src"], tasks.forward_vectors, tasks.forward_slabs, wide_tasks.forward,
        half_tasks.FORWARD_OF,
    ),
)  # fmt: skip
BACKWARD = (
    SoftmaxImplementation(
        ["dst", "diff_dst"], tasks.backward_vectors, tasks.backward_slabs, wide_tasks.backward,
        half_tasks.BACKWARD_OF,
    ),
)  # fmt: skip
