"""Recurrent cells forward: one product of all steps' inputs per layer, then step by step.

Each step multiplies the state by the weights, which are packed once, and then computes the cell.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dnncore.backend import MemoryDesc, RNNForward
from dnncore_cpu_numba.codegen.isa import Isa
from dnncore_cpu_numba.copies.reformat import copy_steps
from dnncore_cpu_numba.gemm.plan import ProgramPlan
from dnncore_cpu_numba.rnn import tasks
from dnncore_cpu_numba.rnn.layers import GATES_OF_GRU, Layers, matrix
from dnncore_cpu_numba.runtime.program import Part, Step, repeated
from dnncore_cpu_numba.runtime.tensor import Tensor, moved

__all__ = ["plan_forward"]


def plan_forward(isa: Isa, plan: ProgramPlan, op: RNNForward) -> None:
    """Append the steps of all layers."""
    layers = Layers(isa, plan, op)
    sizes = layers.sizes
    dst = layers.output("dst_layer")
    assert dst is not None
    finals = [layers.output(name) for name in ("dst_iter", "dst_iter_c")]
    below = [matrix(layers.given["src_layer"], 0, layers.rows, sizes.slc)] * sizes.directions
    for layer in range(sizes.layers):
        last = layer == sizes.layers - 1
        above = []
        joint = None if op.has_stacks or last else layers.both()
        for side in range(sizes.directions):
            out = _target(layers, dst, side) if last else None
            if joint is not None:
                out = out or layers.half(joint, side)
            out = out or matrix(layers.room(layers.rows, sizes.dic), 0, layers.rows, sizes.dic)
            _plan_side(layers, plan, layer, side, below[side], out, finals)
            above.append(out)
        below = above if joint is None else [joint] * sizes.directions
    if op.direction == "bidirectional_sum":
        layers.add(dst, *below)


def _target(layers: Layers, dst: Tensor, side: int) -> Tensor | None:
    """Return the rows of dst_layer that a direction writes; None if results are added."""
    direction, dic = layers.op.direction, layers.sizes.dic
    if direction == "bidirectional_sum":
        return None
    step = dst.desc.dims[2]
    return matrix(dst, side * dic, layers.rows, dic, step)


def _plan_side(
    layers: Layers, plan: ProgramPlan, layer: int, side: int, x: Tensor, out: Tensor,
    finals: list[Tensor | None],
) -> None:  # fmt: skip
    """Append one direction of a layer."""
    op, sizes = layers.op, layers.sizes
    batch, width, gates = sizes.batch, sizes.dhc, sizes.gates
    z = layers.room(layers.rows, gates * width)
    layers.product(layers.apart(x), layers.weights("weights_layer", layer, side), z)
    h, rh = (layers.spread(batch, sizes.dic) for _ in range(2))
    c = layers.room(batch, width)
    layers.copy(h, layers.part("src_iter", layer, side))
    if op.is_lstm:
        layers.copy(c, layers.part("src_iter_c", layer, side))
    before, between, zh, zo = _products(layers, layer, side, h, rh)
    workspace = plan.tensors.get("workspace")
    row = None if workspace is not None else layers.room(batch, layers.row)
    common = {
        "zh": zh.address, "zo": zo.address, "h": h.address, "c": c.address, "rh": rh.address,
        "bias": layers.or_zeros(layers.part("bias", layer, side), sizes.biases * width).address,
        "peephole": layers.or_zeros(
            layers.part("weights_peephole", layer, side), 3 * width
        ).address,
        "h_step": h.desc.strides[0], "row_step": layers.row, "out_step": out.desc.strides[0],
    }  # fmt: skip
    attention = layers.given.get("attention")
    projection = _Projection(layers, layer, side, h) if layers.projects else None

    def steps() -> list[Part]:
        first, second = before(), between()
        last = projection.product() if projection else []

        def at(time: int) -> list[Step]:
            rows = row if workspace is None else layers.saved(workspace, layer, side, time)
            assert rows is not None
            values = common | {
                "z": moved(z.address, 4 * time * batch * gates * width),
                "row": rows.address,
                "out": moved(out.address, 4 * time * batch * out.desc.strides[0]),
            }
            if attention is not None:
                values["attention"] = moved(attention.address, 4 * time * batch)
            if projection:
                own = layers.step(tasks.lstm, values | projection.values)
                copies = projection.copies(values["row"], values["out"], out)
                return [*first, own, *last, *copies]
            if op.is_lstm:
                values["hidden"] = moved(rows.address, 4 * layers.parts["h"].start)
                own = layers.step(tasks.lstm, values | {"hidden_step": layers.row})
                return [*first, own]
            if op.is_lbr:
                return [*first, layers.step(tasks.lbr, values)]
            if op.is_gru:
                own = layers.step(tasks.gru_gates, values)
                return [*first, own, *second, layers.step(tasks.gru_state, values)]
            return [*first, layers.step(tasks.rnn, values)]

        return repeated(layers.times(side), at)

    plan.add_steps(steps)
    for final, state in zip(finals, (h, c), strict=True):
        if final is not None:
            columns = state.desc.dims[1]
            start = (layer * sizes.directions + side) * batch * columns
            layers.copy(matrix(final, start, batch, columns), state)


class _Projection:
    """The projection of a step of LSTM: the cell writes m = o tanh(c'), and h is m times R."""

    def __init__(self, layers: Layers, layer: int, side: int, h: Tensor) -> None:
        self.layers, self.h, sizes = layers, h, layers.sizes
        m = layers.spread(sizes.batch, sizes.dhc)
        weights = layers.part("weights_projection", layer, side)
        assert weights is not None  # `layers.projects`
        self.product = layers.repeated(m, layers.packed(weights), h)
        step = m.desc.strides[0]
        self.values = {
            "h": m.address, "h_step": step, "out": m.address, "out_step": step,
            "hidden": m.address, "hidden_step": step,
        }  # fmt: skip

    def copies(self, row: Any, address: Any, out: Tensor) -> list[Step]:
        """Return the copies of h to a row of the workspace and to a row of the result."""
        dims, layers = self.h.desc.dims, self.layers
        kept = moved(row, 4 * layers.parts["h"].start)
        places = ((kept, layers.row), (address, out.desc.strides[0]))
        return [
            step
            for place, stride in places
            for step in copy_steps(
                Tensor(place, MemoryDesc(dims, "f32", strides=(max(stride, 1), 1))), self.h
            )
        ]


def _products(
    layers: Layers, layer: int, side: int, h: Tensor, rh: Tensor
) -> tuple[Callable[[], list[Step]], Callable[[], list[Step]], Tensor, Tensor]:
    """Return the products of a step before the cell and between its halves, and their results."""
    batch, width, gates = layers.sizes.batch, layers.sizes.dhc, layers.sizes.gates
    place = "weights_iter", layer, side
    if layers.op.is_gru and not layers.op.is_lbr:
        zh, zo = layers.room(batch, 2 * width), layers.room(batch, width)
        first, second = (layers.packed(layers.weights(*place, own)) for own in GATES_OF_GRU)
        return layers.repeated(h, first, zh), layers.repeated(rh, second, zo), zh, zo
    zh = layers.room(batch, gates * width)
    return layers.repeated(h, layers.packed(layers.weights(*place)), zh), list, zh, zh
