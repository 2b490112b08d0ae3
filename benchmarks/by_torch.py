"""torch's contestants: its eager operations on tensors, in row-major and in channels-last order.

The operators that fill a tensor given to them are taken where torch has them, so that no allocation
is held against it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import torch

import dnncore as dnn
from benchmarks.by_torch_memory import BUILDERS, LAYOUTS, Run, Tensors, dilation, padding
from benchmarks.contestants import Contestant, LeftOut, activations, values_of
from dnncore.problem import Problem

__all__ = ["contestants"]

aten = torch.ops.aten
MEMORY_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}  # by rank


def contestants(problem: Problem, _reorders: bool) -> Iterator[Contestant]:
    """One of each order that the problem's formats allow."""
    op, attr = problem.op, problem.attr
    builder = _BUILDERS.get(type(op))
    if builder is None or attr.post_ops:
        raise LeftOut(f"torch has no {'post-ops' if attr.post_ops else op.KIND} in eager mode")
    layouts = [name for name, tag in LAYOUTS.items() if _allows(op, tag)]
    if not layouts:
        raise LeftOut("torch has no such formats")
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "0")) or torch.get_num_threads())
    for layout in layouts:
        with torch.inference_mode():
            run = builder(op, _tensors(op, layout))
        yield _contestant(op, f"torch {layout}", run)


def _contestant(op: Any, name: str, run: Run) -> Contestant:
    rows = [(row.name, desc) for row, desc in op.tensors() if row.direction == "out"]

    @torch.inference_mode()
    def inferred() -> Any:
        return run()

    def outputs() -> dict[str, Any]:
        found = inferred()
        found = found if isinstance(found, (tuple, list)) else [found]
        pairs = zip(rows, found, strict=False)  # of what follows, such as indices, nothing is known
        return {name: tensor.reshape(desc.dims).numpy() for (name, desc), tensor in pairs}

    return Contestant(name, inferred, outputs)


def _allows(op: Any, tag: str | None) -> bool:
    """Whether all activations may have that format; weights may have any."""
    descs = [getattr(op, name) for name in activations(op)]
    if tag and any(desc.ndims not in MEMORY_FORMATS for desc in descs):
        return False
    if isinstance(op, dnn.Reorder):  # whose builder looks at the formats
        return tag is None
    return all(desc.is_any or desc == desc.with_format(tag) for desc in descs)


def _tensors(op: Any, layout: str) -> dict[str, Any]:
    return {row.name: _tensor(op, row.name, layout) for row, _ in op.tensors()}


def _tensor(op: Any, name: str, layout: str) -> Any:
    """Grouped weights are without their dim of groups, as torch has them."""
    tensor = torch.from_numpy(values_of(name, getattr(op, name).dims))
    if name.endswith("weights") and hasattr(op, "grouped_weights"):
        tensor = tensor.reshape(-1, *op.grouped_weights[2:])
    if layout == "channels_last" and tensor.ndim in MEMORY_FORMATS:
        return tensor.contiguous(memory_format=MEMORY_FORMATS[tensor.ndim])
    return tensor


# -- convolution and products ----------------------------------------------------------------------


def _convolution(op: Any, t: Tensors) -> Run:
    geometry, bias = _geometry(op), t.get("bias")
    return lambda: torch.convolution(t["src"], t["weights"], bias, *geometry)


def _convolution_backward(op: Any, t: Tensors) -> Run:
    """With the one output asked for; the tensor that it replaces tells its size."""
    by_data = isinstance(op, dnn.ConvolutionBackwardData)
    src, weights = t["diff_src" if by_data else "src"], t["weights" if by_data else "diff_weights"]
    sizes = [op.dst_role.dims[1]] if "diff_bias" in t else None
    geometry, wanted = _geometry(op), [by_data, not by_data, "diff_bias" in t]

    def run() -> list[Any]:
        found = aten.convolution_backward(t["diff_dst"], src, weights, sizes, *geometry, wanted)
        return [tensor for tensor in found if tensor is not None]

    return run


def _geometry(op: Any) -> tuple[Any, ...]:
    """What torch asks for behind the tensors; False: not a transposed convolution."""
    return (
        op.strides,
        padding(op),
        dilation(op),
        False,
        (0,) * len(op.strides),
        op.grouped_weights[0],
    )


def _inner_product(_op: Any, t: Tensors) -> Run:
    src, weights = t["src"].flatten(1), t["weights"].flatten(1)
    return lambda: torch.nn.functional.linear(src, weights, t.get("bias"))


def _inner_product_data(_op: Any, t: Tensors) -> Run:
    weights = t["weights"].flatten(1)
    dst = torch.empty(len(t["diff_dst"]), weights.shape[1])
    return lambda: torch.mm(t["diff_dst"], weights, out=dst)


def _inner_product_weights(_op: Any, t: Tensors) -> Run:
    src, diff = t["src"].flatten(1), t["diff_dst"]
    dst = torch.empty(diff.shape[1], src.shape[1])
    if "diff_bias" not in t:
        return lambda: torch.mm(diff.T, src, out=dst)
    return lambda: (torch.mm(diff.T, src, out=dst), torch.sum(diff, 0, out=t["diff_bias"]))


def _matmul(_op: Any, t: Tensors) -> Run:
    bias, src, weights = t.get("bias"), t["src"], t["weights"]
    if bias is None:
        return lambda: torch.matmul(src, weights, out=t["dst"])
    add = torch.addmm if src.ndim == 2 else torch.baddbmm
    if src.ndim > 3:
        raise LeftOut("torch has no product of four dims with a bias in one call")
    return lambda: add(bias, src, weights, out=t["dst"])


_BUILDERS: dict[type[dnn.Operation], Callable[[Any, Tensors], Run]] = {
    **BUILDERS,
    dnn.ConvolutionForward: _convolution,
    dnn.ConvolutionBackwardData: _convolution_backward,
    dnn.ConvolutionBackwardWeights: _convolution_backward,
    dnn.InnerProductForward: _inner_product,
    dnn.InnerProductBackwardData: _inner_product_data,
    dnn.InnerProductBackwardWeights: _inner_product_weights,
    dnn.MatMul: _matmul,
}
