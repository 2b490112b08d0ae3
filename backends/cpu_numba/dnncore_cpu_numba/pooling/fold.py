"""The fold and its tensors for each algorithm and direction of pooling."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dnncore.backend import MemoryDesc, Pooling, data_type
from dnncore_cpu_numba.codegen.type_conversion import HALVES
from dnncore_cpu_numba.pooling import windows
from dnncore_cpu_numba.pooling.kernel import FoldName
from dnncore_cpu_numba.runtime.program import Table
from dnncore_cpu_numba.runtime.tensor import Tensor, arguments

LOWEST = {
    "f32": -(2 - 2.0**-23) * 2.0**127, "bf16": -(2 - 2.0**-7) * 2.0**127, "f16": -65504.0,
    "f64": -(2 - 2.0**-23) * 2.0**127, "s32": -(2.0**31), "s8": -128.0, "u8": 0.0,
}  # fmt: skip
"""The lowest finite value of each type: the maximum of a window without cells. For f64 the table
holds the value of f32, which the kernel replaces by the lowest f64."""


@dataclass(frozen=True)
class PoolingFold:
    """The work of the kernel. `pooling/kernel.py` defines the terms.

    tensors: result, a and b; all strides of an absent b are 0. index: the bits of a tap's number
    in b. divisor: the divisor of every sum, or None if the divisors differ. axes: d, h and w; a
    missing dim has one position. taps: the difference of the tap numbers of neighbouring window
    positions along each axis. empty: the result of a window without cells.
    """

    name: FoldName
    tensors: Mapping[str, Tensor]
    index: int
    divisor: int | None
    axes: tuple[windows.Along, ...]
    taps: tuple[int, int, int]
    empty: float

    @property
    def held(self) -> str:
        """The type that the kernel computes with.

        Maxima of integers and halves are computed without conversion. If tap numbers are stored
        too, smaller types become f32, because tap numbers have four bytes in registers.
        """
        kind = self.tensors["a"].desc.data_type
        largest = self.name == "largest" and kind == self.tensors["result"].desc.data_type
        if kind == "f64" or (kind == "s32" and self.name == "largest"):
            return kind
        small = kind in ("s8", "u8", *HALVES)
        return kind if largest and small and not self.uses_b else "f32"

    @property
    def itemsize(self) -> int:
        """The size of an element of type `held` in bytes."""
        return data_type(self.held).itemsize

    @property
    def uses_b(self) -> bool:
        """Whether b is an argument. If it is, the numbers of the taps matter."""
        return bool(self.index)

    @property
    def used(self) -> dict[str, MemoryDesc]:
        """The layouts of the tensors that are arguments."""
        names = ("result", "a", "b") if self.uses_b else ("result", "a")
        return {name: self.tensors[name].desc for name in names}


def fold_of(op: Pooling, workspace: MemoryDesc | None) -> PoolingFold:
    """Return the fold that computes an operation."""
    forward = op.SRC == "src"
    axes, cells = _axes(op, forward=forward)
    whole = all((count == size).all() for count, size in zip(cells, op.kernel, strict=True))
    even = whole or op.algorithm != "avg_exclude_padding"
    given = arguments(op, workspace)
    nowhere = Tensor(Table(np.zeros(1)), _still(op.dst_role, (0,) * len(op.kernel)))
    b = given.get("workspace", nowhere)
    name: FoldName = "sum"
    if op.is_max:
        name = "largest" if forward else "winners"
    elif not (forward or even):
        name, b = "shares", _reciprocals(op.dst_role, cells)
    a = given[op.SRC if forward else op.DST]
    index = 0 if workspace is None else 8 * workspace.itemsize
    divisor = math.prod(op.kernel) if even else None
    height, width = (1, *op.kernel)[-2:]
    tensors = {"result": given[op.result_name], "a": a, "b": b}
    taps = (height * width, width, 1)
    empty = LOWEST[op.dst_role.data_type] if name == "largest" else 0.0
    return PoolingFold(name, tensors, index, divisor, axes, taps, empty)


def _axes(
    op: Pooling, *, forward: bool
) -> tuple[tuple[windows.Along, ...], list[np.ndarray[Any, Any]]]:
    """Return the axes d, h and w, and for each spatial dim the number of cells per window."""
    axes, cells = [], []
    sizes = zip(op.dst_role.dims[2:], op.src_role.dims[2:], op.kernel, op.strides, op.dilations,
                op.padding_l, strict=True)  # fmt: skip
    for dst, src, kernel, stride, dilation, padding in sizes:
        window = kernel, stride, dilation + 1, padding
        seen = windows.forward(dst, src, *window)
        cells.append(seen.taps)
        axes.append(seen if forward else windows.backward(src, dst, *window))
    whole = windows.forward(1, 1, 1, 1, 1, 0)
    return (whole,) * (3 - len(axes)) + tuple(axes), cells


def _still(desc: MemoryDesc, strides: Sequence[int]) -> MemoryDesc:
    """Return a descriptor of the same spatial dims for all images and channels."""
    kind = "f64" if desc.data_type == "f64" else "f32"
    return MemoryDesc((1, 1, *desc.dims[2:]), kind, strides=(0, 0, *strides))


def _reciprocals(dst: MemoryDesc, counts: Sequence[np.ndarray]) -> Tensor:
    """Return the reciprocal of the number of cells of each window."""
    kind = np.float64 if dst.data_type == "f64" else np.float32
    cells = np.ones((), kind)
    for count in counts:
        cells = np.multiply.outer(cells, count.astype(kind))
    values = (kind(1) / cells).astype(kind)
    return Tensor(Table(values), _still(dst, [s // values.itemsize for s in values.strides]))
