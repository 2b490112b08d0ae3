"""Softmax and log-softmax along one axis, and their gradients.

A work item is a tile of some vectors along the axis. If the axis is contiguous in memory and not
short, the kernels' rows are vectors. Otherwise their rows are places of the axis, and their columns
are neighbouring vectors. Tiles in other layouts are copied to a buffer. So the arithmetic is
vectorised in every layout, and works in place. A vector gives NaN if all elements are -inf, or if
it contains NaN or +inf, as in the formula.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

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
from dnncore_cpu_numba.copies.copy_kernel import CopyKernel
from dnncore_cpu_numba.copies.gather import places
from dnncore_cpu_numba.elementwise.chains import chain_steps
from dnncore_cpu_numba.elementwise.finish import WORDS
from dnncore_cpu_numba.elementwise.implementation import held_of, offered, refuse_post_ops
from dnncore_cpu_numba.elementwise.post_ops import binary
from dnncore_cpu_numba.rows.apply_kernel import ApplyKernel, Formula
from dnncore_cpu_numba.rows.sums_kernel import SUMS_AHEAD, SumsKernel
from dnncore_cpu_numba.runtime.program import Scratch, Step, Table
from dnncore_cpu_numba.runtime.tensor import Tensor, arguments, refuse_long, walked
from dnncore_cpu_numba.softmax import tasks, wide_tasks

_SHORT = 16  # elements; of shorter vectors, the rows are places
_ALONG = 2048  # elements of a tile of several contiguous vectors
_ACROSS = 1 << 13  # elements of a tile whose rows are places: 32 KB
_LINE_LENGTH = 16  # elements of a cache line
_PIECE = 1 << 13  # most elements of a vector that are summed at once; longer sums lose precision
_RUN = 256  # most places whose terms are summed at once in one accumulator each
_GRAIN = 2048  # least elements of a part; small because exponentials are slow


class SoftmaxImplementation(Implementation[Softmax]):
    """Softmax in the three sweeps of the formula, over tiles of vectors."""

    name = "cpu_numba:simd"
    data_types = ("f64", *FLOATS, "s8", "u8")
    attributes = WORDS
    takes_repeats = True

    def __init__(self, inputs: Sequence[str], function: Task, wide: Task) -> None:
        self.inputs = tuple(inputs)
        self.function = function
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
        named = arguments(op, attr=attr)
        tensors = {op.result_name: result} | {name: named[name] for name in self.inputs}
        if isinstance(op, SoftmaxForward):  # the task writes no lse if `keeps` is 0
            tensors["lse"] = named.get("lse", result)
        if "src" in attr.scales:
            product = Tensor(Scratch(), _product(named["src"].desc, op))
            factors = [product, named["src"], named["src_scales"]]
            scale = replace(binary("mul", 2), stepwise=held_of(op) != "f64")
            scaling = chain_steps(op.result.dims, factors, [scale], held_of(op))
            return scaling + self._on_tensors(op, tensors | {"src": product})
        return self._on_tensors(op, tensors)

    def _on_tensors(self, op: Softmax, tensors: Mapping[str, Tensor]) -> list[Step]:
        if held_of(op) == "f64":
            return _steps(self.wide, op, tensors, along=False)
        descs = [tensor.desc for name, tensor in tensors.items() if name != "lse"]
        along = _is_contiguous(op, descs) and op.result.dims[op.axis] >= _SHORT
        return _steps(self.function, op, tensors, along=along)


def _product(src: MemoryDesc, op: Softmax) -> MemoryDesc:
    """Return the layout of src times its scale, which is in the scratchpad."""
    return src.with_format(src.order_tag).with_data_type(held_of(op))


def _is_contiguous(op: Softmax, descs: Iterable[MemoryDesc]) -> bool:
    return all(
        desc.strides[op.axis] == 1 and op.axis not in {dim for dim, _ in desc.inner_blocks}
        for desc in descs
    )


def _vectors(length: int, *, along: bool) -> int:
    """Return the most vectors of a tile."""
    if along:
        return min(tasks.VECTORS, max(1, _ALONG // length))
    for most in (_ACROSS, tasks.HELD):  # preferably of the first-level cache
        if lines := most // max(1, length) // _LINE_LENGTH:
            return min(tasks.VECTORS, lines * _LINE_LENGTH)
    return tasks.VECTORS


def _steps(
    function: Task, op: Softmax, tensors: Mapping[str, Tensor], *, along: bool
) -> list[Step]:
    """Return the steps over all dims but the axis."""
    descs = [tensor.desc for tensor in tensors.values()]
    length = op.result.dims[op.axis]
    tables = [desc.itemsize * places(desc, op.axis)[:length] for desc in descs]
    common = {
        "length": length, "log": op.algorithm == "log",
        "keeps": getattr(op, "lse", None) is not None,
        "places": dict(zip(tensors, map(Table, tables), strict=True)),
    }  # fmt: skip
    steps = []
    for nest in nests(op.result.dims, descs, without=(op.axis,)):
        for part in nest.ordered().rows(_vectors(length, along=along)):
            row, outer = part.loops[-1], part.without(1)
            strides = [x * desc.itemsize for x, desc in zip(row.strides, descs, strict=True)]
            values = common | walked(outer, tensors) | {
                "vectors": row.extent, "strides": dict(zip(tensors, strides, strict=True)),
            }  # fmt: skip
            if held_of(op) != "f64":
                values |= _kernels(op, tensors, row.extent, strides, tables, along=along)
            grain = -(-_GRAIN // (length * row.extent))
            steps.append(Step(function, values, outer.size, grain=grain))
    return steps


def _kernels(
    op: Softmax, tensors: Mapping[str, Tensor], vectors: int, strides: Sequence[int],
    tables: Sequence[np.ndarray], *, along: bool,
) -> dict[str, Any]:  # fmt: skip
    """Return the values of a tile's kernels and of what they read."""
    descs = {name: tensor.desc for name, tensor in tensors.items() if name != "lse"}
    length, log, is_forward = op.result.dims[op.axis], op.algorithm == "log", "src" in descs
    steps = [int(table[1] - table[0]) if len(table) > 1 else 0 for table in tables]
    copied = not along and not all(
        stride == desc.itemsize and (np.diff(table) == step).all()
        for desc, stride, table, step in zip(descs.values(), strides, tables, steps, strict=False)
    )
    held = is_forward and length * vectors <= tasks.HELD
    piece = _PIECE if along else _RUN
    if not held and (copied or is_forward):
        piece = min(piece, (tasks.HELD if is_forward else tasks.COPIED) // vectors)
    term_step, term_row = (4, 4 * length) if along else (4 * vectors, 4 * vectors)
    if copied:
        rows = steps = [term_step] * len(tensors)
    else:
        rows = list(strides) if along else steps
    ahead = vectors * strides[1]  # to the tile of the next vectors
    if copied or ahead > tasks.HELD * 4:
        ahead = 0 if copied else SUMS_AHEAD
    kinds = {name: "f32" if copied else desc.data_type for name, desc in descs.items()}
    result, *inputs = descs
    copies = {result: ("f32", descs[result].data_type)}
    copies |= {name: (descs[name].data_type, "f32") for name in inputs}
    streamed = sum(desc.nbytes for _, desc in op.tensors()) >= STREAM_BYTES and not copied
    by_name = {
        "rows": dict(zip(tensors, rows, strict=True)),
        "steps": dict(zip(tensors, steps, strict=True)),
        "copies": {
            name: CopyKernel("rows", *copies[name]).address if copied and name in copies else 0
            for name in tensors
        },
    }  # fmt: skip
    if is_forward:
        kernels = _forward_kernels(kinds, along=along, log=log, held=held, streamed=streamed)
    else:
        kernels = _backward_kernels(kinds, along=along, log=log, streamed=streamed)
    return by_name | kernels | {
        "along": along, "held": held, "copied": copied, "piece": min(piece, max(1, length)),
        "term_row": term_row, "term_step": term_step, "ahead": ahead,
    }  # fmt: skip


def _forward_kernels(
    kinds: Mapping[str, str], *, along: bool, log: bool, held: bool, streamed: bool
) -> dict[str, int]:
    """Return the addresses of kernels. kinds: the types that they read and write."""
    source, kept = kinds["src"], held and not log
    apply = ApplyKernel(
        "f32" if kept else source, kinds["dst"], along, streamed=streamed,
        formula="linear" if log or held else "decay",
    )  # fmt: skip
    return {
        "largest": SumsKernel("largest", along, source).address,
        "sums": SumsKernel("decays", along, source, kept=kept).address,
        "apply": apply.address,
    }


def _backward_kernels(
    kinds: Mapping[str, str], *, along: bool, log: bool, streamed: bool
) -> dict[str, int]:
    y, g = kinds["dst"], kinds["diff_dst"]
    sums = SumsKernel("plain", along, g) if log else SumsKernel("dots", along, y, g)
    formula: Formula = "exponential" if log else "product"
    apply = ApplyKernel(g, kinds["diff_src"], along, y, streamed=streamed, formula=formula)
    return {"largest": 0, "sums": sums.address, "apply": apply.address}


FORWARD = (SoftmaxImplementation(["src"], tasks.forward, wide_tasks.forward),)
BACKWARD = (SoftmaxImplementation(["dst", "diff_dst"], tasks.backward, wide_tasks.backward),)
