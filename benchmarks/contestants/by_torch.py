"""torch's contestants: eager operations on tensors in row-major and in channels-last order.

Operators that fill an existing tensor are preferred, so that torch's time contains no allocation.
The same calls on float64 tensors give the exact results for comparisons.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

import dnncore as dnn
from benchmarks.contestants.by_torch_attention import ATTENTION
from benchmarks.contestants.by_torch_cells import CELLS
from benchmarks.contestants.by_torch_memory import (
    BUILDERS,
    DATA_TYPES,
    LAYOUTS,
    Converted,
    Run,
    Tensors,
    dilation,
    padding,
)
from benchmarks.contestants.by_torch_norms import NORMALIZATIONS
from benchmarks.contestants.contestant import (
    Contestant,
    LeftOut,
    Terms,
    activations,
    period_of,
    typed,
)
from benchmarks.measuring.sampling import Repeat, one_by_one
from dnncore.problem import Problem

__all__ = ["Call", "Place", "call_of", "contestant", "contestants", "places"]

aten = torch.ops.aten
INTEGERS = {"s8": torch.int8, "s32": torch.int32}  # of products of integers
MEMORY_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}  # by rank


def contestants(problem: Problem, _terms: Terms) -> Iterator[Contestant]:
    """One contestant per order of dims that the problem's formats permit."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "0")) or torch.get_num_threads())
    for place in places(problem, "cpu"):
        yield contestant(problem, place, lambda call: one_by_one(call.run))


@dataclass(frozen=True)
class Place:
    """Where and how tensors are stored: torch's device, and the order of dims (a key of LAYOUTS).

    exact: whether tensors are in float64.
    draw: the number of the draw of the tensors' values.
    """

    device: str = "cpu"
    layout: str = "plain"
    exact: bool = False
    draw: int = 0


@dataclass(frozen=True)
class Call:
    """A call of torch on its own tensors."""

    op: Any
    run: Run

    last: list[Any] = field(default_factory=list)  # what the last run returned

    @torch.inference_mode()
    def spoil(self) -> None:
        """Overwrite the outputs of the last run with NaN; of integers with -1."""
        for _, _, found in self._found() if self.last else ():
            for tensor in found.sources if isinstance(found, Converted) else (found,):
                tensor.fill_(math.nan if tensor.is_floating_point() else -1)

    def results(self) -> dict[str, Any]:
        """The tensors of the last run's outputs by argument name, with logical dims."""
        return {
            name: (found.tensor() if isinstance(found, Converted) else found).reshape(desc.dims)
            for name, desc, found in self._found()
        }

    def _found(self) -> list[tuple[str, Any, Any]]:
        """The name, the descriptor and the tensor or `Converted` of each output of the last run."""
        rows = [(row.name, desc) for row, desc in self.op.tensors() if row.direction == "out"]
        (found,) = self.last
        found = found if isinstance(found, (tuple, list)) else [found]
        pairs = zip(rows, found, strict=False)  # torch may return more tensors, such as indices
        return [(*row, tensor) for row, tensor in pairs]

    def outputs(self) -> dict[str, Any]:
        """The results as arrays. bf16 becomes f32, because numpy has no bf16."""
        return {name: _array(tensor.cpu()) for name, tensor in self.results().items()}


def _array(tensor: Any) -> Any:
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


def places(problem: Problem, device: str) -> list[Place]:
    """One place per order that the problem's formats permit. Raises `LeftOut` if none fits."""
    layouts = [name for name, tag in LAYOUTS.items() if _allows(problem.op, tag)]
    if not layouts:
        raise LeftOut("torch has no such formats")
    return [Place(device, layout) for layout in layouts]


def contestant(
    problem: Problem,
    place: Place,
    repeat_of: Callable[[Call], Repeat],
    name: str = "",
    error_factor: float = 1.0,
) -> Contestant:
    """The contestant at a place. `refill` makes new tensors and therefore a new call.

    repeat_of: makes the function that repeats a call.
    """
    calls = _Calls(problem, place, repeat_of)
    return Contestant(
        f"torch {place.layout}{name}",
        calls.repeat,
        calls.outputs,
        calls.refill,
        error_factor=error_factor,
    )


class _Calls:
    """A call on tensors with the values of the current draw."""

    def __init__(self, problem: Problem, place: Place, repeat_of: Callable[[Call], Repeat]) -> None:
        self.problem, self.place, self.repeat_of = problem, place, repeat_of
        self.refill(0)

    def refill(self, draw: int) -> None:
        """Replace the call by one on tensors with the values of a draw."""
        self._call = self._repeat = None  # frees the tensors first
        call = call_of(self.problem, replace(self.place, draw=draw))
        self._call, self._repeat = call, self.repeat_of(call)
        call.spoil()

    def repeat(self, count: int) -> float:
        """Repeat the current call."""
        assert self._repeat is not None
        return self._repeat(count)

    def outputs(self) -> dict[str, Any]:
        """The outputs of the last run; empty before the first run."""
        assert self._call is not None
        return self._call.outputs() if self._call.last else {}


def call_of(problem: Problem, place: Place) -> Call:
    """The call for tensors at a place. Raises `LeftOut` if torch has no such operation.

    The formats of float64 tensors do not matter, so they are row-major.
    """
    op, attr = problem.op, problem.attr
    if place.exact:
        op = op.with_each(lambda desc: desc.with_format(None))
    builder = _BUILDERS.get(type(op))
    if builder is None or attr.post_ops:
        raise LeftOut(f"torch has no {'post-ops' if attr.post_ops else op.KIND} in eager mode")
    types = {desc.data_type for row, desc in op.tensors() if row.name != "workspace"}
    of_integers = isinstance(op, dnn.MatMul) and types == set(INTEGERS)
    if attr.words or not (types <= set(DATA_TYPES) or of_integers):
        raise LeftOut(f"torch has no {op.KIND} of {', '.join(sorted(types))} in eager mode")
    if len(types) > 1 and type(op) not in MIXED and not (place.exact or of_integers):
        raise LeftOut(f"torch computes {op.KIND} in one type")
    with torch.inference_mode():
        run = builder(op, _tensors(op, place))
    last: list[Any] = []

    @torch.inference_mode()
    def keep() -> None:
        last[:] = [run()]

    return Call(op, keep, last)


def _allows(op: Any, tag: str | None) -> bool:
    """Whether the problem permits this format for all activations. Weights may have any format."""
    descs = [getattr(op, name) for name in activations(op)]
    if tag and any(desc.ndims not in MEMORY_FORMATS for desc in descs):
        return False
    if isinstance(op, dnn.Reorder | dnn.AttentionForward | dnn.AttentionBackward):
        # The builder of reorders handles formats; attention takes one order.
        return tag is None
    if isinstance(op, dnn.MatMul):  # products take any order of dims
        return tag is None and all(desc.is_any or _order(desc) for desc in descs)
    return all(desc.is_any or desc == desc.with_format(tag) for desc in descs)


def _order(desc: dnn.MemoryDesc) -> list[int]:
    """The order of dims, outermost first; empty for formats with gaps or blocks and for `any`."""
    if not (desc.is_plain and desc.is_dense):
        return []
    return ["abcdefghijkl".index(letter) for letter in desc.order_tag]


def _tensors(op: Any, place: Place) -> dict[str, Any]:
    """Make the tensors of all arguments. Outputs are NaN. A gradient may also get src or bias."""
    tensors = {row.name: _tensor(op, row.name, desc, place) for row, desc in op.tensors()}
    for row, _ in op.tensors():
        if row.direction == "out":
            tensors[row.name].fill_(math.nan if tensors[row.name].is_floating_point() else -1)
    if isinstance(op, dnn.PoolingBackward):
        tensors["src"] = _tensor(op, "src", op.diff_src, place)
    if isinstance(op, dnn.RNNBackward) and op.forward_op.bias is not None:
        tensors["bias"] = _tensor(op, "bias", op.forward_op.bias, place)
    return tensors


def _tensor(op: Any, name: str, desc: dnn.MemoryDesc, place: Place) -> Any:
    """Make the tensor of an argument. As in torch, grouped weights have no dim for the group."""
    tensor = _values(name, desc, place).to((DATA_TYPES | INTEGERS)[desc.data_type])
    if place.exact:
        tensor = tensor.double()
    if isinstance(op, dnn.MatMul):
        order = _order(desc) or range(desc.ndims)
        return tensor.permute(*order).contiguous().permute(*np.argsort(order).tolist())
    if name.endswith("weights") and hasattr(op, "grouped_weights"):
        tensor = tensor.reshape(-1, *op.grouped_weights[2:])
    if place.layout == "channels_last" and tensor.ndim in MEMORY_FORMATS:
        return tensor.contiguous(memory_format=MEMORY_FORMATS[tensor.ndim])
    return tensor


def _values(name: str, desc: dnn.MemoryDesc, place: Place) -> Any:
    """The values of `values_of`, fitted to the type. The device repeats the period."""
    drawn = typed(name, period_of(name, desc.dims, place.draw), desc.data_type)
    period = torch.from_numpy(drawn).to(place.device)
    count = math.prod(desc.dims)
    return period.repeat(-(-count // max(1, len(period))))[:count].reshape(desc.dims)


# -- convolution and products ----------------------------------------------------------------------


def _convolution(op: Any, t: Tensors) -> Run:
    geometry, bias = _geometry(op), t.get("bias")
    return lambda: torch.convolution(t["src"], t["weights"], bias, *geometry)


def _convolution_backward(op: Any, t: Tensors) -> Run:
    """Call one gradient. A tensor in the place of the output gives its size."""
    by_data = isinstance(op, dnn.ConvolutionBackwardData)
    src, weights = t["diff_src" if by_data else "src"], t["weights" if by_data else "diff_weights"]
    sizes = [op.dst_role.dims[1]] if "diff_bias" in t else None
    geometry, wanted = _geometry(op), [by_data, not by_data, "diff_bias" in t]

    def run() -> list[Any]:
        found = aten.convolution_backward(t["diff_dst"], src, weights, sizes, *geometry, wanted)
        return [tensor for tensor in found if tensor is not None]

    return run


def _deconvolution(op: Any, t: Tensors) -> Run:
    weights, bias, geometry = _exchanged(op, t["weights"]), t.get("bias"), _transposed(op)
    return lambda: torch.convolution(t["src"], weights, bias, *geometry)


def _deconvolution_backward(op: Any, t: Tensors) -> Run:
    by_data = isinstance(op, dnn.DeconvolutionBackwardData)
    src = t["diff_src" if by_data else "src"]
    weights = _exchanged(op, t["weights" if by_data else "diff_weights"])
    sizes = [op.dst_role.dims[1]] if "diff_bias" in t else None
    geometry, wanted = _transposed(op), [by_data, not by_data, "diff_bias" in t]

    def run() -> list[Any]:
        found = aten.convolution_backward(t["diff_dst"], src, weights, sizes, *geometry, wanted)
        diff, diff_weights, diff_bias = found
        if by_data:
            return [diff]
        back = Converted((diff_weights,), functools.partial(_exchanged, op))
        return [back, diff_bias] if "diff_bias" in t else [back]

    return run


def _exchanged(op: Any, weights: Any) -> Any:
    """Exchange the dims of channels, because torch's transposed weights begin with src's."""
    groups = op.grouped_weights[0]
    tensor = weights.unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1)
    is_last = tensor.ndim in MEMORY_FORMATS and weights.is_contiguous(
        memory_format=MEMORY_FORMATS[tensor.ndim]
    )
    order = MEMORY_FORMATS[tensor.ndim] if is_last else torch.contiguous_format
    return tensor.contiguous(memory_format=order)


def _transposed(op: Any) -> tuple[Any, ...]:
    """torch's arguments of a transposed convolution. It may add lines at the end of dst."""
    steps, spread = op.strides, dilation(op)
    rows = zip(op.src_role.dims[2:], op.dst_role.dims[2:], op.padding_l, op.grouped_weights[3:],
               steps, spread, strict=True)  # fmt: skip
    added = [dst - ((src - 1) * step - 2 * left + far * (taps - 1) + 1)
             for src, dst, left, taps, step, far in rows]  # fmt: skip
    limits = zip(added, steps, spread, strict=True)
    if any(not 0 <= more < max(step, far) for more, step, far in limits):
        raise LeftOut("torch pads both sides alike")
    return steps, tuple(op.padding_l), spread, True, tuple(added), op.grouped_weights[0]


def _geometry(op: Any) -> tuple[Any, ...]:
    """torch's arguments after the tensors. The value False means: not a transposed convolution."""
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
    dst = weights.new_empty(len(t["diff_dst"]), weights.shape[1])
    return lambda: torch.mm(t["diff_dst"], weights, out=dst)


def _inner_product_weights(_op: Any, t: Tensors) -> Run:
    src, diff = t["src"].flatten(1), t["diff_dst"]
    dst = src.new_empty(diff.shape[1], src.shape[1])
    if "diff_bias" not in t:
        return lambda: torch.mm(diff.T, src, out=dst)
    return lambda: (torch.mm(diff.T, src, out=dst), torch.sum(diff, 0, out=t["diff_bias"]))


def _matmul(_op: Any, t: Tensors) -> Run:
    bias, src, weights, dst = t.get("bias"), t["src"], t["weights"], t["dst"]
    if src.dtype == torch.int8:
        if bias is not None or src.ndim != 2:
            raise LeftOut("torch has only plain products of two matrices of integers")
        return lambda: torch._int_mm(src, weights, out=dst)
    if bias is None and not dst.is_contiguous() and dst.mT.is_contiguous():
        return lambda: torch.matmul(weights.mT, src.mT, out=dst.mT).mT
    if bias is None:
        return lambda: torch.matmul(src, weights, out=dst)
    add = torch.addmm if src.ndim == 2 else torch.baddbmm
    if src.ndim > 3:
        raise LeftOut("torch has no product of four dims with a bias in one call")
    return lambda: add(bias, src, weights, out=dst)


MIXED = {**BUILDERS, **NORMALIZATIONS, **CELLS, **ATTENTION}  # may have several types
_BUILDERS: dict[type[dnn.Operation], Callable[[Any, Tensors], Run]] = {
    **MIXED,
    dnn.ConvolutionForward: _convolution,
    dnn.ConvolutionBackwardData: _convolution_backward,
    dnn.ConvolutionBackwardWeights: _convolution_backward,
    dnn.DeconvolutionForward: _deconvolution,
    dnn.DeconvolutionBackwardData: _deconvolution_backward,
    dnn.DeconvolutionBackwardWeights: _deconvolution_backward,
    dnn.InnerProductForward: _inner_product,
    dnn.InnerProductBackwardData: _inner_product_data,
    dnn.InnerProductBackwardWeights: _inner_product_weights,
    dnn.MatMul: _matmul,
}
