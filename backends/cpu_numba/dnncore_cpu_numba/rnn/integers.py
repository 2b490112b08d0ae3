"""Recurrent cells of integers forward.

A product of the inputs of all steps per layer, then step by step a product of the state. Products
of integers become numbers of f32 in their epilogue, which multiplies them by 1 / (weights' scale *
scale). The cells are those of f32. Their results are rounded to integers, of which the next product
reads. The shift of integers changes each sum by a constant, which is added to the bias once:

    sum of (q - shift) * w = sum of q * w - shift * sum of w
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from dnncore.backend import RNN, Attributes, MemoryDesc, Refused, RNNForward, RNNQparams
from dnncore_cpu_numba.codegen.isa import DOT_ISAS, Isa
from dnncore_cpu_numba.copies.reformat import copy_steps
from dnncore_cpu_numba.elementwise.chains import chain_steps
from dnncore_cpu_numba.elementwise.post_ops import eltwise
from dnncore_cpu_numba.gemm.arithmetic import Arithmetic
from dnncore_cpu_numba.gemm.plan import ProgramPlan
from dnncore_cpu_numba.gemm.product import MatrixProduct, blocked_columns
from dnncore_cpu_numba.gemm.quantization import Terms
from dnncore_cpu_numba.rnn import tasks
from dnncore_cpu_numba.rnn.layers import GATES_OF_GRU, Layers
from dnncore_cpu_numba.runtime.program import Part, Step, Table, repeated
from dnncore_cpu_numba.runtime.tensor import Tensor, moved

__all__ = ["KEPT", "plan_integers", "refuse_scales"]

KEPT = ("src_layer", "src_iter", "weights_layer", "weights_iter", "weights_projection",
        "dst_layer", "dst_iter")  # fmt: skip
"""The arguments that are read and written as integers."""

Factors = np.ndarray[Any, Any]
ALL = slice(None)


def refuse_scales(op: RNN, attr: Attributes) -> Refused | None:
    """Refuse scales if a factor of f32 would be infinite: 1 / (weights' scale * scale), or this
    times the shift.
    """
    given = RNNQparams.of(op, attr)
    with np.errstate(over="ignore"):
        factors = [1 / (own * given.scale) for own in (given.weights, given.projection)]
        most = max(float(np.max(own)) for own in factors) * max(1.0, abs(given.shift))
    if most <= float(np.finfo(np.float32).max):
        return None
    return Refused("attribute", f"rnn_weights_qparams: scales need factors of f32; got {most:.3g}")


def plan_integers(isa: Isa, plan: ProgramPlan, op: RNNForward, attr: Attributes) -> None:
    """Append the steps of all layers."""
    cells = _Cells(isa, plan, op, attr)
    layers, sizes = cells.layers, op.sizes
    dst = layers.output("dst_layer")
    assert dst is not None
    finals = {name: layers.output(name) for name in ("dst_iter", "dst_iter_c")}
    rows, dic = layers.rows, sizes.dic
    below = [_matrix(layers.given["src_layer"], 0, rows, sizes.slc)] * sizes.directions
    for layer in range(sizes.layers):
        last = layer == sizes.layers - 1
        joint = None
        if not last and not op.has_stacks:
            joint = _matrix(cells.room(rows, sizes.slc), 0, rows, sizes.slc)
        above = []
        for side in range(sizes.directions):
            if joint is not None:
                out = _matrix(joint, side * dic, rows, dic, sizes.slc)
            else:
                out = _matrix(cells.room(rows, dic), 0, rows, dic)
            if last and op.direction != "bidirectional_sum":
                out = _matrix(dst, side * dic, rows, dic, dst.desc.dims[2])
            cells.plan_side(layer, side, below[side], out, finals)
            above.append(out)
        below = above if joint is None else [joint] * sizes.directions
    if op.direction == "bidirectional_sum":
        parts = [cells.as_numbers(own) for own in below]
        total = layers.room(rows, dic)
        layers.add(total, *parts)
        cells.convert(_matrix(dst, 0, rows, dic), total)


def _matrix(tensor: Tensor, start: int, rows: int, columns: int, step: int = 0) -> Tensor:
    """Return rows of contiguous elements, from an element. step: from row to row."""
    desc = tensor.desc
    strides = (max(step or columns, 1), 1)
    part = MemoryDesc((rows, columns), desc.data_type, strides=strides)
    return Tensor(moved(tensor.address, desc.itemsize * start), part)


class _Cells:
    """The plan of all layers."""

    def __init__(self, isa: Isa, plan: ProgramPlan, op: RNNForward, attr: Attributes) -> None:
        self.plan, self.op = plan, op
        self.layers = Layers(isa, plan, op)
        self.own = op.src_layer.data_type
        self.given = RNNQparams.of(op, attr)
        self.isa = next((own for own in DOT_ISAS if _serves(own)), isa)
        self.factors: Factors = 1 / (self.given.weights * self.given.scale)

    # -- conversions -------------------------------------------------------------------------------

    def room(self, rows: int, columns: int) -> Tensor:
        """Return room for integers."""
        return self.plan.scratch(MemoryDesc((rows, columns), self.own))

    def convert(self, dst: Tensor, src: Tensor) -> None:
        """Append dst = src between integers and the numbers that they represent."""
        self.plan.add_steps(lambda: self._conversion(dst, src))

    def _conversion(self, dst: Tensor, src: Tensor) -> list[Step]:
        if dst.desc.data_type == src.desc.data_type:
            return copy_steps(dst, src)
        scale, shift = self.given.scale, self.given.shift
        stages = [eltwise("linear", scale, shift)]
        if dst.desc.data_type == "f32":
            stages = [eltwise("linear", 1.0, -shift), eltwise("linear", 1 / scale, 0.0)]
        return chain_steps(dst.desc.dims, [dst, src], stages)

    def as_numbers(self, src: Tensor) -> Tensor:
        """Return the numbers of integers, in the scratchpad."""
        room = self.layers.room(*src.desc.dims)
        self.convert(room, src)
        return room

    def state(self, layer: int, side: int) -> Tensor:
        """Return the integers of the first state, which the steps overwrite."""
        sizes = self.op.sizes
        rows, dic = sizes.batch, sizes.dic
        q, start = self.room(rows, dic), (layer * sizes.directions + side) * rows * dic
        given = self.layers.given.get("src_iter")
        if given is None:
            zeros = self.layers.zeros(rows * dic).seen_as(MemoryDesc((rows, dic)))
            self.convert(q, zeros)
        else:
            self.convert(q, _matrix(given, start, rows, dic))
        return q

    # -- products ----------------------------------------------------------------------------------

    def weights(self, name: str, layer: int, side: int, gates: slice = ALL) -> Tensor:
        """Return weights (rows, gates * DHC), or of the projection (DHC, DIC), in panels."""
        tensor, sizes = self.layers.given[name], self.op.sizes
        _, _, rows, *rest = tensor.desc.dims
        whole = int(np.prod(rest))
        first, last, _ = gates.indices(sizes.gates)
        columns = whole if name == "weights_projection" else (last - first) * sizes.dhc
        start = (layer * sizes.directions + side) * rows * whole + first * sizes.dhc
        part = _matrix(tensor, start, rows, columns, whole)
        arithmetic = Arithmetic.of(MemoryDesc((1,), self.own), part.desc, self.isa)
        return self.plan.read(part, blocked_columns(part.desc, self.isa.lanes, arithmetic.group))

    def product(
        self, q: Tensor, weights: Tensor, c: Tensor, factors: Factors, addend: Tensor | None = None
    ) -> None:
        """Append c = q weights * factors + addend; factors, addend: one per column."""
        columns = c.desc.dims[1]
        flat = np.ascontiguousarray(factors.reshape(1, columns), np.float32)
        tensors, before = [Tensor(Table(flat), MemoryDesc((1, columns)))], [("scale", 1)]
        if addend is not None:
            tensors.append(addend)
            before.append(("add", 1))
        MatrixProduct(
            isa=self.isa, a=q, b=weights, c=c, terms=Terms(tensors=tensors, before=before),
            arithmetic=Arithmetic.of(q.desc, weights.desc, self.isa),
        ).append_to(self.plan)  # fmt: skip

    def shifted(
        self, weights: Tensor, factors: Factors, bias: Tensor | None, sums: Tensor | None = None
    ) -> Tensor:
        """Return the bias minus the shift times the sums of the weights, in `sums` if given."""
        rows, columns = weights.desc.dims
        ones = Tensor(Table(np.ones((1, max(rows, 1)), np.uint8)), MemoryDesc((1, rows), "u8"))
        sums = sums or self.layers.room(1, columns)
        self.product(ones, weights, sums, -self.given.shift * factors, bias)
        return sums

    # -- one layer and direction -------------------------------------------------------------------

    def plan_side(
        self, layer: int, side: int, x: Tensor, out: Tensor, finals: dict[str, Tensor | None]
    ) -> None:
        """Append one direction of a layer. out: its results of all steps."""
        layers, sizes = self.layers, self.op.sizes
        batch, width, gates = sizes.batch, sizes.dhc, sizes.gates
        place = layer, side
        parts = [ALL] if self.op.is_lstm else list(GATES_OF_GRU)
        deep = [self.weights("weights_iter", *place, own) for own in parts]
        wide = self.weights("weights_layer", *place)
        bias = self._bias(*place, wide, deep, parts)
        z = layers.room(layers.rows, gates * width)
        self.product(x, wide, z, self.factors, bias)
        q, c = self.state(*place), layers.room(batch, width)
        if self.op.is_lstm:
            layers.copy(c, layers.part("src_iter_c", *place))
        make = self._lstm if self.op.is_lstm else self._gru
        cell = make(place, q, c, deep)

        def steps() -> list[Part]:
            own = cell()

            def at(time: int) -> list[Step]:
                step = out.desc.strides[0]
                rows = _matrix(out, time * batch * step, batch, sizes.dic, step)
                z_now = moved(z.address, 4 * time * batch * gates * width)
                return [*own(z_now), *self._conversion(rows, q)]

            return repeated(layers.times(side), at)

        self.plan.add_steps(steps)
        for name, state in (("dst_iter", q), ("dst_iter_c", c)):
            final = finals[name]
            if final is not None:
                columns = state.desc.dims[1]
                start = (layer * sizes.directions + side) * batch * columns
                self.convert(_matrix(final, start, batch, columns), state)

    def _bias(
        self, layer: int, side: int, wide: Tensor, deep: list[Tensor], parts: list[slice]
    ) -> Tensor:
        """Return the bias of all gates, with the constants of both products."""
        row = MemoryDesc((1, self.factors.size))
        given = self.layers.part("bias", layer, side) or self.layers.zeros(self.factors.size)
        given = given.seen_as(row)
        if not self.given.shift:
            return given
        whole, total = self.shifted(wide, self.factors, given), self.layers.room(*row.dims)
        for weights, gates in zip(deep, parts, strict=True):
            first = gates.indices(self.op.sizes.gates)[0] * self.op.sizes.dhc
            columns = weights.desc.dims[1]
            before, after = (_matrix(own, first, 1, columns) for own in (whole, total))
            self.shifted(weights, self.factors[gates], before, after)
        return total

    def _values(self, **own: Any) -> dict[str, Any]:
        """Return the values of a cell that has no bias of its own."""
        layers, sizes = self.layers, self.op.sizes
        row = layers.room(sizes.batch, layers.row)
        zeros = layers.zeros(sizes.biases * sizes.dhc).address
        return {"bias": zeros, "peephole": zeros, "row": row.address, "row_step": layers.row, **own}

    def _lstm(
        self, place: tuple[int, int], q: Tensor, c: Tensor, deep: list[Tensor]
    ) -> Callable[[], Callable[[Any], list[Step]]]:
        layers, sizes = self.layers, self.op.sizes
        zh = layers.room(sizes.batch, sizes.gates * sizes.dhc)
        m = layers.room(sizes.batch, sizes.dhc)
        first = self.plan.apart(lambda: self.product(q, deep[0], zh, self.factors))
        target, last = q, _nothing
        if layers.projects:
            target = self.room(sizes.batch, sizes.dhc)
            weights, y = self.weights("weights_projection", *place), layers.room(*q.desc.dims)
            factors = 1 / (self.given.projection * self.given.scale)
            addend = self.shifted(weights, factors, None)
            last = self.plan.apart(lambda: self.product(target, weights, y, factors, addend))
        width = sizes.dhc
        values = self._values(
            zh=zh.address, zo=zh.address, h=m.address, c=c.address, rh=m.address, out=m.address,
            hidden=m.address, h_step=width, out_step=width, hidden_step=width,
        )  # fmt: skip

        def build() -> Callable[[Any], list[Step]]:
            before, after = first(), last()
            if layers.projects:
                after = [*after, *self._conversion(q, y)]
            between = self._conversion(target, m)
            return lambda z: [
                *before, layers.step(tasks.lstm, {**values, "z": z}), *between, *after
            ]  # fmt: skip

        return build

    def _gru(
        self, _place: tuple[int, int], q: Tensor, _c: Tensor, deep: list[Tensor]
    ) -> Callable[[], Callable[[Any], list[Step]]]:
        layers, sizes = self.layers, self.op.sizes
        batch, width = sizes.batch, sizes.dhc
        zh, zo = layers.room(batch, 2 * width), layers.room(batch, width)
        h, rh, kept = layers.room(batch, width), layers.room(batch, width), self.room(batch, width)
        first, last = (
            self.plan.apart(partial(self.product, a, b, c, self.factors[gates]))
            for a, b, c, gates in zip((q, kept), deep, (zh, zo), GATES_OF_GRU, strict=True)
        )
        values = self._values(
            zh=zh.address, zo=zo.address, h=h.address, c=h.address, rh=rh.address, out=h.address,
            h_step=width, out_step=width,
        )  # fmt: skip

        def build() -> Callable[[Any], list[Step]]:
            before = [*self._conversion(h, q), *first()]
            between = [*self._conversion(kept, rh), *last()]
            after = self._conversion(q, h)
            return lambda z: [
                *before, layers.step(tasks.gru_gates, {**values, "z": z}), *between,
                layers.step(tasks.gru_state, {**values, "z": z}), *after,
            ]  # fmt: skip

        return build


def _nothing() -> list[Step]:
    return []


def _serves(isa: Isa) -> bool:
    """Whether the processor has this set's products of integers in vectors."""
    return "u8" in isa.products and not isa.has_tiles and not isa.obstacle
