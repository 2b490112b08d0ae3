"""torch's operators for recurrent cells: LSTM, and GRU with the reset after the product.

Weights are brought into torch's order before the measurement, and gradients out of it after.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import dnncore as dnn
from benchmarks.contestants.by_torch_memory import Converted, Run, Tensors
from benchmarks.contestants.contestant import LeftOut

__all__ = ["CELLS"]

aten = torch.ops.aten
CELL_ORDERS = {"vanilla_lstm": (0, 1, 2, 3), "lbr_gru": (1, 0, 2)}  # torch's gates: i f g o; r u o
CUDNN_MODES = {"vanilla_lstm": 2, "lbr_gru": 3}


@dataclass(frozen=True)
class Cells:
    """torch's arguments: the sequence, the states before it, and two weights and two biases."""

    op: Any
    src: Any
    states: list[Any]
    parameters: list[Any]

    @classmethod
    def of(cls, op: Any, t: Tensors) -> Cells:
        """Raises `LeftOut` for cells that torch lacks."""
        if op.algorithm not in CELL_ORDERS or op.sizes.layers > 1 or op.direction != "left2right":
            raise LeftOut(f"torch is measured on one layer of LSTM and GRU; got {op.algorithm}")
        if "src_iter" not in t or "bias" not in t or "weights_peephole" in t:
            raise LeftOut("torch's cells have initial states and a bias, and no peephole")
        order = list(CELL_ORDERS[op.algorithm])
        weights = [_matrix(t[f"weights_{name}"][0, 0], order) for name in ("layer", "iter")]
        bias = t["bias"][0, 0]
        first, second = bias[order].flatten(), torch.zeros_like(bias[order]).flatten()
        if op.is_lbr:
            second[-op.sizes.dhc :] = bias[3]
        states = [t[name][0] for name in ("src_iter", "src_iter_c") if name in t]
        return cls(op, t["src_layer"], states, [*weights, first, second])

    def forward(self, *, is_training: bool) -> Any:
        """Sequence and last states."""
        rest = self.parameters, True, 1, 0.0, is_training, False, False
        if self.op.is_lstm:
            return torch.lstm(self.src, self.states, *rest)
        return torch.gru(self.src, self.states[0], *rest)

    def results(self, src: Any, states: Sequence[Any], parameters: Sequence[Any]) -> list[Any]:
        """The gradients in the order and with the dims of the operation's outputs."""
        layer, iteration, first, second = parameters
        order, op = CELL_ORDERS[self.op.algorithm], self.op
        places = [order.index(gate) for gate in range(len(order))]

        def matrix(found: Any) -> Any:
            return found.unflatten(0, (len(order), -1))[places].permute(2, 0, 1)

        def bias(first: Any, second: Any) -> Any:
            rows = first.unflatten(0, (len(order), -1))[places]
            last = second.unflatten(0, (len(order), -1))[2:3]
            return torch.cat([rows, last]) if op.is_lbr else rows

        weights = [Converted((found,), matrix) for found in (layer, iteration)]
        return [*weights, Converted((first, second), bias), src, *states]


def _matrix(weights: Any, order: list[int]) -> Any:
    """Weights (inputs, gates, cells) as a matrix (gates * cells, inputs) in torch's order."""
    return weights[:, order].permute(1, 2, 0).flatten(0, 1).contiguous()


def _forward(op: Any, t: Tensors) -> Run:
    cells = Cells.of(op, t)
    is_training = op.prop_kind == "forward_training"
    if cells.src.is_cuda:
        packed, mode = _packed(cells), _mode(op, is_training=is_training)
        states = cells.states[0], cells.states[1] if op.is_lstm else None
        arguments = cells.src, cells.parameters, 4, packed, *states, *mode
        return lambda: aten._cudnn_rnn(*arguments)[: 3 if op.is_lstm else 2]
    return lambda: cells.forward(is_training=is_training)


def _backward(op: Any, t: Tensors) -> Run:
    wanted = [op.diff_bias, op.diff_src_layer, op.diff_src_iter]
    if None in wanted or (op.is_lstm and op.diff_src_iter_c is None):
        raise LeftOut("torch is measured on all gradients together")
    cells = Cells.of(op, t)
    names = ("diff_dst_layer", "diff_dst_iter", "diff_dst_iter_c")
    gradients = [t[name].reshape(t[name].shape[-3:]) for name in names if name in t]
    return (_on_cuda if cells.src.is_cuda else _on_cpu)(cells, gradients)


def _on_cpu(cells: Cells, gradients: list[Any]) -> Run:
    """The backward pass by automatic differentiation. The forward pass runs before."""
    with torch.inference_mode(False), torch.enable_grad():
        src, states, parameters, wanted = (
            [tensor.clone() for tensor in group]
            for group in ([cells.src], cells.states, cells.parameters, gradients)
        )
        leaves = [tensor.requires_grad_() for tensor in (*src, *states, *parameters)]
        copy = Cells(cells.op, src[0], states, parameters)
        results = copy.forward(is_training=True)

    def run() -> Any:
        with torch.inference_mode(False):
            found = torch.autograd.grad(results, leaves, wanted, retain_graph=True)
        count = 1 + len(states)
        return cells.results(found[0], found[1:count], found[count:])

    return run


def _packed(cells: Cells) -> Any:
    """The buffer with all weights. It moves the parameters there, as a module of torch does."""
    mode = CUDNN_MODES[cells.op.algorithm]
    sizes = cells.op.sizes.slc, mode, cells.op.sizes.dhc, 0, 1, False, False
    return aten._cudnn_rnn_flatten_weight(cells.parameters, 4, *sizes)


def _mode(op: Any, *, is_training: bool) -> tuple[Any, ...]:
    """cuDNN's arguments after the states."""
    cell, hidden = CUDNN_MODES[op.algorithm], op.sizes.dhc
    return cell, hidden, 0, 1, False, 0.0, is_training, False, [], None


def _on_cuda(cells: Cells, gradients: list[Any]) -> Run:
    """cuDNN's backward pass. The forward pass runs before. Each pass overwrites what is kept."""
    (before, *c), mode, packed = cells.states, _mode(cells.op, is_training=True), _packed(cells)
    cell = c[0] if c else None
    found = aten._cudnn_rnn(cells.src, cells.parameters, 4, packed, before, cell, *mode)
    dst, _, _, kept, _ = found
    layer, state, *state_c = gradients
    weights = cells.src, cells.parameters, 4, packed, before, cell
    slopes = dst, layer, state, state_c[0] if state_c else None
    mask = [True, True, bool(c), True]

    def run() -> Any:
        own_kept = kept.clone()
        src, h, own, parameters = aten._cudnn_rnn_backward(*weights, *slopes, *mode, own_kept, mask)
        return cells.results(src, [h, own] if c else [h], parameters)

    return run


CELLS: dict[type[dnn.Operation], Callable[[Any, Tensors], Run]] = {
    dnn.RNNForward: _forward,
    dnn.RNNBackward: _backward,
}
