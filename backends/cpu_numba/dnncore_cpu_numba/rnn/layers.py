"""Parts of the forward and the backward plan: views of tensors, states of a layer, products."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dnncore.backend import RNN, MemoryDesc, RNNForward
from dnncore_cpu_numba.codegen.isa import Isa
from dnncore_cpu_numba.copies.reformat import copy_steps
from dnncore_cpu_numba.gemm.plan import ProgramPlan
from dnncore_cpu_numba.gemm.product import MatrixProduct, blocked_columns, transposed
from dnncore_cpu_numba.rnn import tasks
from dnncore_cpu_numba.runtime.program import Step, Table
from dnncore_cpu_numba.runtime.tensor import Tensor, moved

__all__ = ["GATES_OF_GRU", "Layers", "matrix", "with_panels"]

BLOCK = 64  # columns of an item of a cell
GRAIN = 16  # least items of a thread
SHARED_SETS, APART = 256, 16  # elements: distances of rows that share sets, and what is added
LETTERS = ["abcdefgh"[:ndims] for ndims in range(8)]
GATES_OF_GRU = slice(0, 2), slice(2, 3)  # of the first and the second product of a step
KINDS = {"relu": tasks.RELU, "logistic": tasks.LOGISTIC, "tanh": 2}


def view(tensor: Tensor, start: int, dims: tuple[int, ...], strides: tuple[int, ...]) -> Tensor:
    """Return a part of f32: dims and strides in elements, from an element."""
    return Tensor(moved(tensor.address, 4 * start), MemoryDesc(dims, "f32", strides=strides))


def with_panels(op: RNN, lanes: int) -> RNN:
    """Return the operation with the layout of weights that the products read, where it is `any`.

    The columns of the products, G * DHC or in the gradient the transposed weights' rows, are in
    panels of a vector. Their number must be whole vectors in each gate.
    """
    for name in ("weights_layer", "weights_iter"):
        desc = vars(op)[name]
        if desc.is_any and desc.dims[_dim_of_columns(op)] % lanes == 0:
            op = op.with_descs(**{name: desc.with_format(_panels(op, lanes))})
    return op


def _dim_of_columns(op: RNN) -> int:
    return 4 if isinstance(op, RNNForward) else 2


def _panels(op: RNN, lanes: int) -> str:
    return f"abdEc{lanes}e" if isinstance(op, RNNForward) else f"abCde{lanes}c"


def matrix(tensor: Tensor, start: int, rows: int, columns: int, step: int = 0) -> Tensor:
    """Return rows of contiguous elements. step: from row to row; by default the columns."""
    return view(tensor, start, (rows, columns), (max(step or columns, 1), 1))


class Layers:
    """The plan of all layers. Tensors are row-major, and absent inputs are zeros."""

    def __init__(self, isa: Isa, plan: ProgramPlan, op: RNN) -> None:
        self.isa, self.plan, self.op, self.sizes = isa, plan, op, op.sizes
        self.panels = _panels(op, isa.lanes)
        self.given = {
            name: tensor
            if self._has_panels(tensor)
            else plan.read(tensor, LETTERS[tensor.desc.ndims])
            for name, tensor in plan.tensors.items()
            if name in op.dims or name.startswith("diff_dst") or name == "workspace"
        }
        self.rows = self.sizes.steps * self.sizes.batch
        self.parts = op.parts
        self.projects = op.weights_projection is not None
        self.row = self.parts["h"].stop

    def _has_panels(self, tensor: Tensor) -> bool:
        desc = tensor.desc
        return desc.ndims == 5 and desc.matches(self.panels) and not desc.has_padding

    def output(self, name: str) -> Tensor | None:
        """Return an output as row-major tensor, or None if it is absent."""
        tensor = self.plan.tensors.get(name)
        return tensor and self.plan.write(tensor, LETTERS[tensor.desc.ndims])

    def room(self, *dims: int) -> Tensor:
        """Return a part of the scratchpad."""
        return self.plan.scratch(MemoryDesc(dims))

    def both(self) -> Tensor:
        """Return room for what a layer reads of both directions of the layer below."""
        return matrix(self.room(self.rows, self.sizes.slc), 0, self.rows, self.sizes.slc)

    def half(self, joint: Tensor, side: int) -> Tensor:
        """Return the columns of a direction in what a layer reads of both."""
        dic = self.sizes.dic
        return matrix(joint, side * dic, self.rows, dic, joint.desc.strides[0])

    def zeros(self, count: int) -> Tensor:
        """Return constant zeros."""
        return Tensor(Table(np.zeros(max(count, 1), np.float32)), MemoryDesc((count,)))

    def part(self, name: str, layer: int, side: int) -> Tensor | None:
        """Return the part of a tensor of all layers; None if it is absent."""
        tensor = self.given.get(name)
        if tensor is None:
            return None
        dims = tensor.desc.dims[2:]
        count = math.prod(dims)
        start = (layer * self.sizes.directions + side) * count
        return matrix(tensor, start, count // max(dims[-1], 1), dims[-1])

    def or_zeros(self, tensor: Tensor | None, count: int) -> Tensor:
        """Return a tensor, or zeros."""
        return self.zeros(count) if tensor is None else tensor

    def weights(self, name: str, layer: int, side: int, gates: slice = slice(None)) -> Tensor:
        """Return the second matrix of a product: weights (rows, gates * DHC), or in the gradient
        their transpose. It is in panels if the tensor is.
        """
        part, lanes = self.part(name, layer, side), self.isa.lanes
        assert part is not None  # required
        rows, width = self.given[name].desc.dims[2], self.sizes.dhc
        whole = self.sizes.gates * width
        first, last, _ = gates.indices(self.sizes.gates)
        columns, forward = (last - first) * width, isinstance(self.op, RNNForward)
        if not self._has_panels(self.given[name]):
            plain = matrix(part, first * width, rows, columns, whole)
            return plain if forward else transposed(plain)
        dims, depth = ((rows, columns), rows) if forward else ((columns, rows), whole)
        start = first * width * (rows if forward else lanes)
        desc = MemoryDesc(dims, "f32", f"Ba{lanes}b", strides=(lanes, depth * lanes))
        return Tensor(moved(part.address, 4 * start), desc)

    def packed(self, weights: Tensor) -> Tensor:
        """Return weights in panels, which all steps read."""
        if weights.desc.inner_blocks:
            return weights
        return self.plan.read(weights, blocked_columns(weights.desc, self.isa.lanes))

    def spread(self, rows: int, columns: int) -> Tensor:
        """Return a matrix in the scratchpad, the first one of a product.

        Its rows are not a multiple of a kilobyte apart, since they would share sets of a cache.
        """
        step = columns if columns % SHARED_SETS else columns + APART
        return matrix(self.room(rows, step), 0, rows, columns, step)

    def apart(self, a: Tensor) -> Tensor:
        """Return a matrix, or its copy if its rows share sets of a cache."""
        if a.desc.strides[0] % SHARED_SETS:
            return a
        target = self.spread(*a.desc.dims)
        self.copy(target, a)
        return target

    def product(self, a: Tensor, b: Tensor, c: Tensor) -> None:
        """Append c = a b."""
        MatrixProduct(isa=self.isa, a=a, b=b, c=c).append_to(self.plan)

    def repeated(self, a: Tensor, b: Tensor, c: Tensor) -> Callable[[], list[Step]]:
        """Return a function that makes the steps of c = a b, which run at every step."""
        return self.plan.apart(lambda: self.product(a, b, c))

    def copy(self, dst: Tensor, src: Tensor | None) -> None:
        """Append a copy of a matrix; zeros if there is no source."""
        if dst.desc.nelems:
            source = src or self.zeros(dst.desc.nelems).seen_as(MemoryDesc(dst.desc.dims))
            self.plan.add_steps(lambda: copy_steps(dst, source))

    def add(self, dst: Tensor, a: Tensor, b: Tensor) -> None:
        """Append dst = a + b for dense tensors."""
        values = {"dst": dst.address, "a": a.address, "b": b.address}
        self.plan.add(lambda: Step(tasks.add, values, dst.desc.nelems, grain=4096))

    def times(self, side: int) -> list[int]:
        """Return the steps in the order of a direction."""
        steps = list(range(self.sizes.steps))
        return steps[::-1] if self.op.is_reversed(side) else steps

    def saved(self, workspace: Tensor, layer: int, side: int, time: int = 0) -> Tensor:
        """Return the workspace's rows of a step, or of all steps if they are dense."""
        sizes = self.sizes
        place = (layer * sizes.directions + side) * sizes.steps + time
        return matrix(workspace, place * sizes.batch * self.row, sizes.batch, self.row)

    def hidden(self, workspace: Tensor, layer: int, side: int) -> Tensor:
        """Return h' of all steps as a matrix (T * N, DIC)."""
        first = self.saved(workspace, layer, side)
        return matrix(first, self.parts["h"].start, self.rows, self.sizes.dic, self.row)

    def step(self, task: Any, values: Mapping[str, Any]) -> Step:
        """Return the step of a cell. values: those that differ from 0."""
        width = self.sizes.dhc
        whole = bool(values.get("d_attention"))
        block = max(width, 1) if whole else BLOCK
        own = {
            "width": width, "block": block, "kind": KINDS[self.op.activation],
            "attends": int(self.op.has_attention), "alpha": self.op.alpha,
        }  # fmt: skip
        all_ = {**dict.fromkeys(task.params.fields, 0), **own, **values}
        items = self.sizes.batch * -(-width // block) if width else 0
        return Step(task, all_, items, grain=1 if whole else GRAIN)
