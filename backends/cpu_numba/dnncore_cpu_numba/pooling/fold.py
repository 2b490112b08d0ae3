"""The fold that each algorithm and direction of pooling computes, and its tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from dnncore.backend import MemoryDesc
from dnncore_cpu_numba.pooling import windows
from dnncore_cpu_numba.runtime.program import Arg, Table
from dnncore_cpu_numba.runtime.tensor import Tensor

FoldName: TypeAlias = Literal["largest", "sum", "winners", "shares"]


@dataclass(frozen=True)
class PoolingFold:
    """The work of the kernel, in the terms of `pooling/kernel.py`.

    tensors: result, a and b; an absent b stays at 0. index: bits of a tap in b. divisor: of every
    sum, None where each has its own. axes: d, h and w; a missing dim has one place.
    """

    name: FoldName
    tensors: tuple[Tensor, Tensor, Tensor]
    index: int
    divisor: int | None
    axes: tuple[windows.Along, ...]
    kernel: tuple[int, ...]

    @property
    def uses_b(self) -> bool:
        """Whether b is an argument. Then the numbers of taps matter."""
        return self.index > 0

    @property
    def used(self) -> tuple[Tensor, ...]:
        """The arguments among the tensors."""
        return self.tensors[: 2 + self.uses_b]

    @property
    def used_descs(self) -> list[MemoryDesc]:
        """The descriptors of `used`."""
        return [tensor.desc for tensor in self.used]

    @property
    def taps(self) -> tuple[int, int, int]:
        """The number of taps from one place of the kernel to the next, along d, h and w."""
        _, height, width = self.kernel
        return height * width, width, 1


def fold_of(op: Any, workspace: MemoryDesc | None) -> PoolingFold:
    """The fold that computes an operation. Binding order is src, dst, workspace, and backward
    diff_dst, workspace, diff_src.
    """
    forward = op.SRC == "src"
    axes, counts = _axes(op, forward=forward)
    index = 0 if workspace is None else 8 * workspace.itemsize
    nowhere = Tensor(Table(np.zeros(1)), _still(op.dst_role, (0,) * (op.dst_role.ndims - 2)))
    cells = math.prod(op.kernel)
    even = op.algorithm != "avg_exclude_padding" or all((c == k).all() for c, k in counts)
    divisor = cells if even else None
    if forward:
        b = Tensor(Arg(2), workspace) if workspace else nowhere
        name: FoldName = "largest" if op.is_max else "sum"
        tensors = Tensor(Arg(1), op.dst), Tensor(Arg(0), op.src), b
    else:
        result = Tensor(Arg(1 + (workspace is not None)), op.diff_src)
        a = Tensor(Arg(0), op.diff_dst)
        name, b = "sum", nowhere
        if workspace is not None:
            name, b = "winners", Tensor(Arg(1), workspace)
        elif not even:
            name, b = "shares", _reciprocals(op.dst_role, [c for c, _ in counts])
        tensors = result, a, b
    kernel = (1,) * (3 - len(op.kernel)) + op.kernel
    return PoolingFold(name, tensors, index, divisor, axes, kernel)


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
    """A descriptor of the same dims in which all images and channels share their elements."""
    return MemoryDesc(desc.dims, "f32", strides=(0, 0, *strides))


def _reciprocals(dst: MemoryDesc, counts: Sequence[np.ndarray]) -> Tensor:
    """The reciprocal of the number of cells, for each window."""
    cells = np.ones((), np.float32)
    for count in counts:
        cells = np.multiply.outer(cells, count.astype(np.float32))
    values = (np.float32(1) / cells).astype(np.float32)
    return Tensor(Table(values), _still(dst, [s // 4 for s in values.strides]))
