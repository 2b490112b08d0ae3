"""Attention and its gradients: online softmax over blocks of keys, products by the microkernel.

Keys and values are copied to panels for the microkernel, which takes memory proportional to their
size. Tensors of half types are converted to f32 first. The scores of a block of queries and a block
of keys are computed, replaced by exponentials and multiplied with values while they are in caches.
Blocks that a causal mask excludes are skipped. The gradients compute the scores again from lse:
diff_queries per block of queries, diff_keys and diff_values per block of keys. If each thread has a
head, it computes all three per block of keys, which takes five products instead of seven. Few
queries read keys and values in place, see `few_queries_task.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, cast

from dnncore.backend import (
    Accepted,
    Attention,
    AttentionBackward,
    AttentionForward,
    Attributes,
    Implementation,
    MemoryDesc,
    Refused,
)
from dnncore_cpu_numba.attention import few_queries_task, tasks
from dnncore_cpu_numba.attention.product_kernel import ProductKernel
from dnncore_cpu_numba.attention.slopes_kernel import SlopesKernel
from dnncore_cpu_numba.attention.weights_kernel import WeightsKernel
from dnncore_cpu_numba.codegen.isa import BEST
from dnncore_cpu_numba.codegen.kernel import NativeKernel
from dnncore_cpu_numba.codegen.nontemporal import LINE
from dnncore_cpu_numba.codegen.task import Task
from dnncore_cpu_numba.codegen.type_conversion import FLOATS
from dnncore_cpu_numba.copies.reformat import copy_steps
from dnncore_cpu_numba.elementwise.chains import zero_padding
from dnncore_cpu_numba.elementwise.finish import WORDS
from dnncore_cpu_numba.elementwise.implementation import offered, refuse_post_ops
from dnncore_cpu_numba.runtime.program import Scratch, Step
from dnncore_cpu_numba.runtime.tensor import Tensor, arguments

FAR = 1 << 40  # the diagonal of an operation without causal mask
LOG2_E = 1.4426950408889634
PARTS_PER_THREAD = 2  # of the keys, if there are fewer heads than threads
PRODUCTS = ProductKernel(BEST)
MOST = tasks.ROWS * tasks.DEPTH // PRODUCTS.rows // PRODUCTS.columns * PRODUCTS.columns
EFFICIENCY = 0.5  # of the peak of multiply-adds


class _Plan:
    """Collects functions that return the steps of one operation, and its scratchpad.

    All tensors become f32.
    """

    def __init__(
        self, op: Attention, workspace: MemoryDesc | None, result: Tensor | None, threads: int
    ) -> None:
        self.op = op
        self.threads = threads
        self.steps: list[Callable[[], list[Step]]] = []
        self.nbytes = 0
        self.named = arguments(op, workspace)
        if result is not None:
            self.named[op.result_name] = result
        self.wide, self.high = PRODUCTS.columns, PRODUCTS.rows
        self._ends: list[Callable[[], list[Step]]] = []
        self._mask = self.read("mask") if op.mask is not None else None

    def scratch(self, dims: tuple[int, ...], tag: str | None = None) -> Tensor:
        """Return a tensor of f32 in the scratchpad."""
        desc = MemoryDesc(dims, "f32", tag)
        tensor = Tensor(Scratch(self.nbytes), desc)
        self.nbytes += -(-desc.nbytes // LINE) * LINE
        return tensor

    def read(self, name: str) -> Tensor:
        """Return an argument as f32 with strides: the argument or a copy."""
        tensor = self.named[name]
        if _is_direct(tensor.desc):
            return tensor
        return self.copy(tensor)

    def copy(self, tensor: Tensor, tag: str | None = None) -> Tensor:
        """Return a copy of f32 in another format."""
        copy = self.scratch(tensor.desc.dims, tag)
        self.steps.append(lambda: copy_steps(copy, tensor))
        return copy

    def along_rows(self, name: str) -> Tensor:
        """Return an argument as f32 with contiguous rows: the argument or a copy."""
        tensor = self.read(name)
        *_, size, stride = *tensor.desc.dims, tensor.desc.strides[-1]
        return tensor if stride == 1 or size == 1 else self.copy(tensor, "abcd")

    def written(self, name: str) -> Tensor:
        """Return the tensor to which tasks write an output. It is copied to the output later."""
        tensor = self.named[name]
        if _is_direct(tensor.desc):
            return tensor
        room = self.scratch(tensor.desc.dims)
        self._ends.append(lambda: copy_steps(tensor, room))
        if name != self.op.result_name:
            self._ends.append(lambda: zero_padding(tensor))
        return room

    def panels(self, tensor: Tensor) -> Tensor:
        """Return a copy in which the vectors of a panel lie along dim 2."""
        return self.copy(tensor, f"abCd{self.wide}c")

    def lines(self, tensor: Tensor) -> Tensor:
        """Return a copy in which the vectors of a panel lie along dim 3."""
        return self.copy(tensor, f"abDc{self.wide}d")

    def common(self, rows: int, columns: int, heads: int) -> dict[str, Any]:
        """Return the parameters of both tasks, without the address of the kernel."""
        op = self.op
        _, h, g, *_ = op.sizes
        *_, d, v = op.sizes
        padded = -(-max(d, v) // self.wide) * self.wide
        room = min(tasks.ROWS, tasks.ROWS * tasks.DEPTH // padded)
        block = room // self.high * self.high
        mask = self._mask
        strides = [0 if n == 1 else s for n, s in _pairs(mask.desc)] if mask else [0] * 4
        return {
            "tile_rows": self.high, "tile_columns": self.wide,
            "vector": 4 * BEST.lanes,
            "rows": rows, "columns": columns, "block": block, "blocks": -(-rows // block),
            "heads": heads, "share": h // g, "scale": op.scale, "has_mask": mask is not None,
            "diagonal": FAR if op.diagonal is None else op.diagonal,
            "mask": mask.address if mask else 0, "mask_strides": _record(strides),
        }  # fmt: skip

    def add(
        self, task: Task, values: dict[str, Any], items: int, **kernels: NativeKernel | None
    ) -> None:
        """Append a step whose task calls kernels, by the names of their addresses."""

        def step() -> list[Step]:
            found = {name: each.address if each else 0 for name, each in kernels.items()}
            return [Step(task, values | found, items)]

        self.steps.append(step)

    def all_steps(self) -> list[Step]:
        """Return all steps, with the copies to outputs at the end."""
        return [step for make in (*self.steps, *self._ends) for step in make()]


def _pairs(desc: MemoryDesc) -> list[tuple[int, int]]:
    return list(zip(desc.dims, desc.strides, strict=True))


def _is_direct(desc: MemoryDesc) -> bool:
    return desc.data_type == "f32" and desc.is_plain


def _record(strides: Any) -> dict[str, int]:
    return dict(zip(("n", "head", "row", "column"), strides, strict=True))


def _head(tensor: Tensor) -> int:
    """Return the elements of a head of panels, also if there is only one head."""
    *_, outer, inner = tensor.desc.padded_dims
    return outer * inner


def _forward(
    op: AttentionForward, workspace: MemoryDesc | None, result: Tensor | None, threads: int
) -> _Plan:
    plan = _Plan(op, workspace, result, threads)
    n, h, _, q, k, d, v = op.sizes
    if q <= few_queries_task.MOST and max(d, v) <= few_queries_task.DEPTH:
        return _few_queries(plan, workspace)
    queries, dst = plan.read("queries"), plan.written("dst")
    keys, values = plan.panels(plan.named["keys"]), plan.lines(plan.named["values"])
    common = plan.common(q, k, h)
    named = {
        "depth": d, "width": v, "queries": queries.address, "keys": keys.address,
        "values": values.address, "dst": dst.address, **_lse(plan, workspace),
        "factor": cast("float", op.scale) * LOG2_E,
        "query_strides": _record(queries.desc.strides), "dst_strides": _record(dst.desc.strides),
        "key_head": _head(keys), "value_head": _head(values), "value_panel": k * plan.wide,
    }  # fmt: skip
    items = n * h * common["blocks"]
    plan.add(tasks.forward, common | named, items, kernel=PRODUCTS, weights=WeightsKernel(BEST))
    return plan


def _few_queries(plan: _Plan, workspace: MemoryDesc | None) -> _Plan:
    """Divide the keys, so that all threads have some, if there are fewer heads than threads."""
    op = plan.op
    n, h, _, q, k, d, v = op.sizes
    queries, dst = plan.read("queries"), plan.written("dst")
    keys, values = (plan.along_rows(name) for name in ("keys", "values"))
    blocks = -(-k // few_queries_task.COLUMNS)
    span = -(-blocks // min(blocks, -(-PARTS_PER_THREAD * plan.threads // (n * h))))
    parts, padded = -(-blocks // span), -(-v // BEST.lanes) * BEST.lanes
    sums = plan.scratch((n * h, parts, q, padded))
    tops, totals = (plan.scratch((n * h, parts, q, 1)) for _ in range(2))
    shared = {
        "width": v, "padded": padded, "parts": parts,
        "sums": sums.address, "tops": tops.address, "totals": totals.address,
    }  # fmt: skip
    named = shared | {
        "depth": d, "queries": queries.address, "keys": keys.address, "values": values.address,
        "query_strides": _record(queries.desc.strides), "key_strides": _record(keys.desc.strides),
        "value_strides": _record(values.desc.strides), "span": span * few_queries_task.COLUMNS,
        "factor": cast("float", op.scale) * LOG2_E,
    }  # fmt: skip
    common = plan.common(q, k, h)
    plan.add(few_queries_task.parts, common | named, n * h * parts, weights=WeightsKernel(BEST))
    whole = shared | {
        "rows": q, "heads": h, "dst": dst.address, "dst_strides": _record(dst.desc.strides),
        **_lse(plan, workspace),
    }  # fmt: skip
    plan.steps.append(lambda: [Step(few_queries_task.whole, whole, n * h)])
    return plan


def _lse(plan: _Plan, workspace: MemoryDesc | None) -> dict[str, Any]:
    address = plan.named["workspace"].address if workspace else 0
    return {"lse": address, "keeps": workspace is not None}


def _backward(
    op: AttentionBackward, workspace: MemoryDesc | None, result: Tensor | None, threads: int
) -> _Plan:
    plan = _Plan(op, workspace, result, threads)
    n, h, g, q, k, d, v = op.sizes
    names = ("queries", "keys", "values", "dst", "diff_dst")
    read = {name: plan.read(name) for name in names}
    mean = plan.scratch((n, h, q, 1))
    strides = {
        "dst_strides": _record(read["dst"].desc.strides),
        "diff_strides": _record(read["diff_dst"].desc.strides),
    }
    means = {
        "heads": h, "rows": q, "width": v, "dst": read["dst"].address,
        "diff": read["diff_dst"].address, "mean": mean.address,
    }  # fmt: skip
    plan.steps.append(lambda: [Step(tasks.means, means | strides, n * h)])
    shared = {
        "depth": d, "width": v, "lse": plan.named["workspace"].address, "mean": mean.address,
        "factor": cast("float", op.scale) * LOG2_E,
    }  # fmt: skip
    whole = plan.threads <= n * g  # one thread per head computes all gradients at once
    for by_keys in (True,) if whole else (False, True):
        own_names = ("keys", "values") if by_keys else ("queries", "diff_dst")
        others = ("queries", "diff_dst") if by_keys else ("keys", "values")
        rows, columns, heads = (k, q, g) if by_keys else (q, k, h)
        x, y = (read[name] for name in own_names)
        one, other = (read[name] for name in others)
        panels = {"x": plan.panels(one), "y": plan.panels(other)}
        lines = {"x": plan.lines(one), "y": plan.lines(other) if by_keys else plan.named["dst"]}
        dx = plan.written("diff_keys" if by_keys else "diff_queries")
        dy = plan.written("diff_values") if by_keys else dx
        common = plan.common(rows, columns, heads)
        values = common | shared | {"by_keys": by_keys}
        values |= {
            "x": x.address, "y": y.address, "x_strides": _record(x.desc.strides),
            "y_strides": _record(y.desc.strides), "dx": dx.address, "dy": dy.address,
            "dx_strides": _record(dx.desc.strides), "dy_strides": _record(dy.desc.strides),
        }  # fmt: skip
        for name in "xy":
            values |= {
                f"{name}_panels": panels[name].address, f"{name}_head": _head(panels[name]),
                f"{name}_lines": lines[name].address, f"{name}_line_head": _head(lines[name]),
                f"{name}_line_panel": columns * plan.wide,
            }  # fmt: skip
        dq, own, room = dx, dx, dx
        if whole:
            dq, own = plan.written("diff_queries"), plan.lines(x)
            padded = -(-q // tasks.COLUMNS) * tasks.COLUMNS
            room = plan.scratch((n, h, padded, -(-d // plan.wide) * plan.wide))
        blocks = common["blocks"]
        values |= {
            "span": blocks if whole else 1, "own_lines": own.address, "own_line_head": _head(own),
            "own_line_panel": k * plan.wide, "room": room.address, "room_head": _head(room),
            "dq": dq.address, "dq_strides": _record(dq.desc.strides),
        }  # fmt: skip
        plan.add(
            tasks.backward, values, n * heads * (1 if whole else blocks), kernel=PRODUCTS,
            slopes=SlopesKernel(BEST, by_columns=by_keys),
            across=replace(PRODUCTS, is_transposed=True) if whole else None,
        )  # fmt: skip
    return plan


class AttentionImplementation(Implementation[Any]):
    """Attention in blocks. make: makes the plan of an operation."""

    name = "cpu_numba:blocks"
    data_types = FLOATS
    attributes = WORDS
    takes_repeats = True

    def __init__(self, make: Any) -> None:
        self.make = make

    def accept(self, op: Any, attr: Attributes, engine: Any, hint: Any) -> Accepted | Refused:
        """Accept every layout with strides, and up to `MOST` elements of keys and values."""
        op = op.with_descs(**{
            a.name: desc.with_format(None) for a, desc in op.tensors() if desc.is_any
        })  # fmt: skip
        workspace = op.workspace_desc(hint)
        if workspace is None and isinstance(op, AttentionBackward):
            return Refused("attribute", "the hint keeps no workspace")
        if workspace is not None and workspace != op.lse_desc:
            return Refused("format", "the workspace must be row-major")
        if attr.post_ops and isinstance(op, AttentionBackward):
            return Refused("attribute", f"gradients take no post-ops; got {len(attr.post_ops)}")
        if refusal := refuse_post_ops(op, attr, workspace):
            return refusal
        n, h, _, q, k, d, v = op.sizes
        if not 0 < min(d, v) <= max(d, v) <= MOST:
            return Refused("shape", f"takes 1 to {MOST} elements per key; got {d} and {v}")
        if not n * h * q * k:
            return Refused(
                "shape", f"takes at least one query and key; got {n * h} heads of {q}, {k}"
            )
        threads = engine.num_threads
        nbytes = self.make(op, workspace, None, threads).nbytes
        return offered(
            op, attr, engine, partial(self._steps, op, workspace, threads), nbytes, workspace,
            in_f32=True, efficiency=EFFICIENCY,
        )  # fmt: skip

    def _steps(
        self, op: Any, workspace: MemoryDesc | None, threads: int, result: Tensor
    ) -> list[Step]:
        steps: list[Step] = self.make(op, workspace, result, threads).all_steps()
        return steps


FORWARD = (AttentionImplementation(_forward),)
BACKWARD = (AttentionImplementation(_backward),)
