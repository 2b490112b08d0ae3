"""Local response normalisation forward and backward: sums over windows, one axis after another.

Across channels there is one step, which reads and writes tensors. Within channels there is one step
per spatial dim. All steps but the last store their sums in the scratchpad. `lrn/tasks.py` contains
the loops.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from dnncore.backend import LRN, Accepted, Attributes, Implementation, MemoryDesc, Refused
from dnncore_cpu_numba.codegen.call_schema import Record
from dnncore_cpu_numba.codegen.nest import Loop, Nest, nests
from dnncore_cpu_numba.codegen.nontemporal import LINE
from dnncore_cpu_numba.codegen.task import Task
from dnncore_cpu_numba.codegen.type_conversion import FLOATS
from dnncore_cpu_numba.copies.gather import places
from dnncore_cpu_numba.copies.intrinsics import WIDTH
from dnncore_cpu_numba.copies.typed_rows import conversion
from dnncore_cpu_numba.elementwise.finish import WORDS
from dnncore_cpu_numba.elementwise.implementation import offered, refuse_post_ops
from dnncore_cpu_numba.lrn import arithmetic, tasks
from dnncore_cpu_numba.lrn.kernel import LANES, MOST_ALPHA, POINT, POWERS, LrnKernel
from dnncore_cpu_numba.runtime.program import Scratch, Step, Table
from dnncore_cpu_numba.runtime.tensor import Tensor, arguments, is_streamed, refuse_long, walked

_MOST_COLUMNS = 512  # most columns of a slab; two rings of 10 KB for windows of 5 rows
_MOST_POINTS = 128  # most points of a part of a row; 32 KB of each tensor with 64 channels
_GRAIN = 2048  # least elements of a part
_ALIGNMENT = 64  # bytes


@dataclass(frozen=True)
class _Window:
    """One step: the axis of its sums, and the functions that compute terms and results."""

    axis: int
    make_terms: Task | None  # None: the terms are the sums of an earlier step
    make_results: Task | None  # None: the results are the sums
    tensors: Mapping[str, Tensor]  # by the names in `arithmetic.TENSORS`

    def named(self, record: Record) -> dict[str, Tensor]:
        """Return the tensors that a record names. Absent ones have address 0 and strides 0."""
        dims = self.tensors["result"].desc.dims
        absent = Tensor(0, MemoryDesc(dims, strides=(0,) * len(dims)))
        return {name: self.tensors.get(name, absent) for name in record.fields}

    def rows(self, tensors: Mapping[str, Tensor], most: int) -> Iterator[Nest]:
        """Yield nests over all dims but the axis. The innermost loop has at most `most` columns."""
        dims = self.tensors["result"].desc.dims
        descs = [tensor.desc for tensor in tensors.values()]
        for nest in nests(dims, descs, without=(self.axis,)):
            yield from nest.ordered().rows(most)


class LRNImplementation(Implementation[LRN]):
    """Window sums in the first-level cache."""

    name = "cpu_numba:simd"
    data_types = FLOATS
    attributes = WORDS
    takes_repeats = True

    def accept(self, op: LRN, attr: Attributes, engine: Any, hint: Any) -> Accepted | Refused:
        """Accept every layout with strides, and post-ops."""
        op = op.resolve_any(**{a.name: op.src for a, _ in op.tensors()})
        workspace = op.workspace_desc(hint)
        lengths = (op.src.dims[axis] for axis in op.window_dims)
        if refusal := refuse_long(*lengths) or _refuse_windows(op):
            return refusal
        if refusal := refuse_post_ops(op, attr, workspace):
            return refusal

        efficiency = 0.6 / len(op.window_dims)
        return offered(
            op, attr, engine, partial(_all_steps, op, workspace), _sums_bytes(op), workspace,
            efficiency=efficiency, exact=False,
        )  # fmt: skip


def _all_steps(op: LRN, workspace: MemoryDesc | None, result: Tensor) -> list[Step]:
    steps = []
    tensors = arguments(op, workspace) | {op.result_name: result}
    for window in _windows(op, tensors) if op.src.nelems else []:
        steps += _row_steps(window, op) if _suits_rows(window, op) else _steps(window, op)
    return steps


def _sums_bytes(op: LRN) -> int:
    """Return the bytes of sums between the steps. They have the layout of the result."""
    nbytes = _sums(op).nbytes if len(op.window_dims) > 1 else 0
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def _sums(op: LRN) -> MemoryDesc:
    return op.result.with_data_type("f32").with_offset0(0)


def _refuse_windows(op: LRN) -> Refused | None:
    most = tasks.RING // WIDTH
    for axis in op.window_dims:
        rows = min(2 * op.half_window + 1, op.src.dims[axis])
        if rows > most:
            return Refused("shape", f"sums up to {most} places along an axis; got {rows}")
    return None


def _windows(op: LRN, tensors: Mapping[str, Tensor]) -> list[_Window]:
    """Return the steps of an operation, the innermost axis first."""
    forward = "dst" in tensors
    starts = {"src": tensors["src"]}
    if not forward:
        starts |= {"diff": tensors["diff_dst"], "base": tensors["workspace"]}
    ends = starts | {"result": tensors[op.result_name]}
    if "workspace" in tensors:
        ends["base"] = tensors["workspace"]
    make_terms: Task | None = arithmetic.squares if forward else arithmetic.products
    make_results = arithmetic.finish_forward if forward else arithmetic.finish_backward
    *axes, last = reversed(op.window_dims)
    sums = Tensor(Scratch(), _sums(op))
    windows = []
    for axis in axes:
        windows.append(_Window(axis, make_terms, None, {**starts, "result": sums}))
        starts, make_terms = {"earlier": sums}, None if forward else arithmetic.only_own
    windows.append(_Window(last, make_terms, make_results, {**starts, **ends}))
    return windows


def _steps(window: _Window, op: LRN) -> list[Step]:
    """Return the steps that sum in buffers."""
    tensors = window.named(arithmetic.TENSORS)
    length = op.src.dims[window.axis]
    reach = min(op.half_window, length - 1)
    pieces = {name: _piece(tensor.desc, window.axis) for name, tensor in tensors.items()}
    room = tasks.room(length, reach)
    if room > 0 and min(pieces[name] for name in window.tensors) > 1:
        way, most = tasks.VECTORS, room
    else:
        rows = min(2 * reach + 1, length)
        way, most = tasks.SLABS, min(_MOST_COLUMNS, tasks.RING // rows // WIDTH * WIDTH)
    task, read, write = way
    called = {
        "read": read, "write": write, "make_terms": window.make_terms,
        "make_results": window.make_results, "power": arithmetic.power_task(op.beta),
        "wide": arithmetic.wide_products,
    }  # fmt: skip
    common = arithmetic.constants(op) | {
        "length": length, "reach": reach, "pieces": pieces.values(),
        "places": [Table(tensor.desc.itemsize * places(tensor.desc, window.axis)[:length])
                   for tensor in tensors.values()],
        "sizes": [tensor.desc.itemsize for tensor in tensors.values()],
        "kernels": [_conversion(name, tensor.desc) for name, tensor in tensors.items()],
        **{name: each.address if each else 0 for name, each in called.items()},
    }  # fmt: skip
    steps = []
    for part in window.rows(tensors, most):
        columns, outer = part.loops[-1], part.without(1)
        values = common | walked(outer, tensors)
        values |= {"columns": columns.extent, "strides": columns.strides}
        steps.append(Step(task, values, outer.size, grain=_grain(length, columns)))
    return steps


def _conversion(name: str, desc: MemoryDesc) -> int:
    """Return the address of the kernel that converts rows of a tensor; 0 for f32."""
    if name == "result":
        return conversion("f32", desc.data_type)
    return conversion(desc.data_type, "f32")


def _suits_rows(window: _Window, op: LRN) -> bool:
    """Whether `LrnKernel` applies: whole vectors along the axis, one step from src to result."""
    descs = [tensor.desc for tensor in window.tensors.values()]
    sizes = {desc.padded_dims[window.axis] for desc in descs}
    in_vectors = (
        desc.inner_blocks == ((window.axis, LANES),)
        or (not desc.inner_blocks and desc.strides[window.axis] == 1)
        for desc in descs
    )
    one_step = "earlier" not in window.tensors and window.make_results is not None
    # With a larger alpha, squares may underflow although scaled sums do not.
    quick = op.beta in POWERS and op.half_window < LANES and abs(op.alpha) < MOST_ALPHA
    whole = len(sizes) == 1 and not max(sizes) % LANES and all(in_vectors)
    return one_step and quick and whole


def _row_steps(window: _Window, op: LRN) -> list[Step]:
    """Return the steps that call `LrnKernel`."""
    tensors, axis = window.named(POINT), window.axis
    result, forward = tensors["result"], "diff" not in window.tensors
    length, vectors = op.src.dims[axis], result.desc.padded_dims[axis] // LANES
    blocked = any(tensor.desc.inner_blocks for tensor in tensors.values())
    kernel = LrnKernel(
        forward, op.half_window, op.beta, keeps_base=forward and "base" in window.tensors,
        fetches=vectors > 1 and blocked,
        source=tensors["src"].desc.data_type, target=result.desc.data_type,
    )  # fmt: skip
    streamed = 0
    if is_streamed(result) and _are_lines(window):
        streamed = replace(kernel, streamed=True).address
    constants = arithmetic.constants(op)
    common = {name: constants[name] for name in ("k", "scale", "unit", "factor")}
    common |= {"vectors": vectors, "length": length, "wide": arithmetic.wide_products.address}
    for name, tensor in tensors.items():
        jump = tensor.desc.strides[axis] if tensor.desc.inner_blocks else LANES
        common[f"{name}_vector"] = tensor.desc.itemsize * jump

    steps = []
    for part in window.rows(tensors, _MOST_POINTS):
        points, outer = part.loops[-1], part.without(1)
        fields = common | {"points": points.extent}
        for name, stride in zip(tensors, points.strides, strict=True):
            fields[f"{name}_point"] = tensors[name].desc.itemsize * stride
        values = {"kernel": kernel.address, "streamed": streamed, "fields": fields}
        values |= walked(outer, tensors)
        steps.append(Step(tasks.rows, values, outer.size, grain=_grain(length, points)))
    return steps


def _grain(length: int, row: Loop) -> int:
    """Return the least items of a part. An item has `length` places along the axis per point."""
    return -(-_GRAIN // (length * row.extent))


def _are_lines(window: _Window) -> bool:
    """Whether all stores are whole cache lines in order if the first address is aligned."""
    written = [window.tensors[name] for name in ("result", "base") if name in window.tensors]
    if any(tensor.desc.itemsize < 4 and tensor.desc.inner_blocks for tensor in written):
        return False
    return not any(
        tensor.desc.itemsize * stride % LINE
        for tensor in written
        for dim, stride in enumerate(tensor.desc.strides)
        if tensor.desc.dims[dim] > 1 and (dim != window.axis or tensor.desc.inner_blocks)
    )


def _piece(desc: MemoryDesc, axis: int) -> int:
    """Return the length of contiguous runs of places along an axis."""
    inner = [size for dim, size in desc.inner_blocks if dim == axis]
    if not inner:
        return desc.dims[axis] if desc.strides[axis] == 1 else 1
    return inner[-1] if desc.inner_blocks[-1][0] == axis else 1


TABLE = (LRNImplementation(),)
