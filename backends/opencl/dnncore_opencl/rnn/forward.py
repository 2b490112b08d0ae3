"""Recurrent cells forward: one product of all steps' inputs per layer, then the steps."""

from __future__ import annotations

from dnncore.backend import RNNForward
from dnncore_opencl.gemm.product import Strides
from dnncore_opencl.rnn.layers import Layers
from dnncore_opencl.rnn.steps import Part, Parts, Step

__all__ = ["plan_forward"]


def plan_forward(layers: Layers, op: RNNForward) -> None:
    """Append the launches of all layers."""
    sizes = layers.sizes
    below = [layers.given("src_layer", sizes.slc)] * sizes.directions
    for layer in range(sizes.layers):
        above = [_result(layers, layer, side) for side in range(sizes.directions)]
        for side, out in enumerate(above):
            is_sum = layer == sizes.layers - 1 and op.direction == "bidirectional_sum"
            _Side(layers, op, layer, side, out, adds=int(is_sum and side == 1)).plan(below[side])
        below = above if op.has_stacks else above[:1] * 2


def _result(layers: Layers, layer: int, side: int) -> Part:
    """Return where a direction of a layer writes its result."""
    op, sizes = layers.op, layers.sizes
    if layer == sizes.layers - 1:
        column = side * sizes.dic if op.direction == "bidirectional_concat" else 0
        return layers.given("dst_layer", layers.dims["dst_layer"][2]).at(0, column)
    if op.has_stacks:
        return layers.room(f"below {layer % 2} {side}", layers.rows, sizes.dic)
    return layers.room(f"below {layer % 2}", layers.rows, sizes.slc).at(0, side * sizes.dic)


class _Side:
    """One layer and direction. out: the rows of its result. adds: whether it adds to them."""

    def __init__(
        self, layers: Layers, op: RNNForward, layer: int, side: int, out: Part, *, adds: int
    ) -> None:
        self.layers, self.op, self.sizes = layers, op, layers.sizes
        self.place = layer, side
        self.out, self.adds = out, adds
        self.columns = layers.columns
        self.z = layers.room("z", layers.rows, self.columns)
        self.saved = layers.saved(layer, side)
        self.middle = layers.room("middle", self.sizes.batch, self.sizes.dhc)

    def plan(self, x: Part) -> None:
        """Append the product of all inputs, and the steps."""
        layers, sizes, place = self.layers, self.sizes, self.place
        wide = layers.part("weights_layer", *place, self.columns)
        layers.product(
            (layers.rows, self.columns, (sizes.slc,)),
            (x, Strides(m=x.step, k=(1,))),
            (wide, Strides(n=(1,), k=(self.columns,))),
            self.z,
        )
        if not sizes.batch:
            return
        names = (("src_iter", "dst_iter", sizes.dic), ("src_iter_c", "dst_iter_c", sizes.dhc))
        order = layers.times(self.place[1])
        for source, target, step in () if order else names:
            final = layers.optional(target, *place, step)
            layers.copy(final, layers.optional(source, *place, step), sizes.batch * step)
        if order:  # rooms and zeros for all steps
            self._state(0)
            self._cell_state()
        layers.room("row", sizes.batch, layers.row)
        is_given = layers.optional("src_iter", *place, sizes.dic) is not None
        self.zeros = None if is_given else layers.zeros(sizes.dic)
        layers.steps(lambda: [one for number in range(len(order)) for one in self._step(number)])

    def _step(self, number: int) -> list[Step]:
        """Return the cells of a step."""
        layers, op, sizes, place = self.layers, self.op, self.sizes, self.place
        order = layers.times(place[1])
        time, is_last = order[number], number == len(order) - 1
        h = self._state(number - 1) if number else layers.optional("src_iter", *place, sizes.dic)
        parts = {
            "z": self.z.at(time * sizes.batch),
            "bias": layers.optional("bias", *place, sizes.dhc),
            "peephole": layers.optional("weights_peephole", *place, sizes.dhc),
            "h": h,
            "row": self.saved and self.saved.at(time * sizes.batch),
        }
        results = {
            "state": self._state(number),
            "last": layers.optional("dst_iter", *place, sizes.dic) if is_last else None,
            "out": self.out.at(time * sizes.batch),
        }
        if op.has_attention:
            results["attention"] = layers.given("attention", 1).at(time * sizes.batch)
        if op.is_lstm:
            return self._lstm(number, parts, results)
        if op.is_lbr:
            return [self._cells("LBR", 3, h, 0, parts | results)]
        if op.is_gru:
            parts["row"] = parts["row"] or layers.room("row", sizes.batch, layers.row)
            return [
                self._cells("GATES_OF_GRU", 2, h, 0, parts | {"middle": self.middle}),
                self._cells("STATE_OF_GRU", 1, self.middle, 2 * sizes.dhc, parts | results),
            ]
        return [self._cells("RNN", 1, h, 0, parts | results)]

    def _lstm(self, number: int, parts: Parts, results: Parts) -> list[Step]:
        layers, sizes, place = self.layers, self.sizes, self.place
        c = self._cell_state()
        parts |= {
            "c": c if number else layers.optional("src_iter_c", *place, sizes.dhc),
            "new_c": c,
        }
        projection = layers.optional("weights_projection", *place, sizes.dic)
        if projection is None:
            return [self._cells("LSTM", 4, parts["h"], 0, parts | results)]
        cells = layers.cells("rnn_forward", "PROJECTION", 1)
        own = {**results, "weights": projection, "source": self.middle}
        if layers.numbers:
            own["factors"] = Part(layers.numbers.projection_factors, 0, sizes.dic)
        return [
            self._cells("LSTM", 4, parts["h"], 0, {**parts, "middle": self.middle}),
            Step(cells, sizes.dic, sizes.dhc, 0, own, self.adds),
        ]

    def _cells(self, cell: str, gates: int, source: Part | None, column: int, parts: Parts) -> Step:
        """Return the cells with weights from a column on.

        source: of the product; zeros if None.
        """
        layers, sizes = self.layers, self.sizes
        cells = layers.cells("rnn_forward", cell, gates)
        deep = layers.part("weights_iter", *self.place, self.columns).at(0, column)
        own = {**parts, "weights": deep, "source": source or self.zeros}
        if layers.numbers:
            own["factors"] = Part(layers.numbers.factors, 0, sizes.dhc)
        return Step(cells, sizes.dhc, sizes.dic, sizes.dhc, own, self.adds)

    def _state(self, number: int) -> Part:
        """Return h' of a step, by its number: in the workspace, or in a room for all steps."""
        layers, sizes = self.layers, self.sizes
        if self.saved is None:
            return layers.room("h", layers.rows, sizes.dic).at(number * sizes.batch)
        time = layers.times(self.place[1])[number]
        return layers.hidden(*self.place).at(time * sizes.batch)

    def _cell_state(self) -> Part:
        """Return c of all steps."""
        layers, sizes = self.layers, self.sizes
        final = layers.optional("dst_iter_c", *self.place, sizes.dhc)
        return final or layers.room("c", sizes.batch, sizes.dhc)
