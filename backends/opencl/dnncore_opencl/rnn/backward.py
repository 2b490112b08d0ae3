"""The gradient of recurrent cells: the steps, then products over all steps.

The slopes of the sums of all steps are kept. The gradients of weights and of a layer's input are
products of them.
"""

from __future__ import annotations

from dnncore.backend import RNNBackward
from dnncore_opencl.gemm.product import Strides
from dnncore_opencl.rnn.layers import Layers
from dnncore_opencl.rnn.steps import Part, Parts, Step

__all__ = ["plan_backward"]


def plan_backward(layers: Layers, op: RNNBackward) -> None:
    """Append the launches of all layers, from the last one."""
    sizes = layers.sizes
    step = layers.dims["dst_layer"][2]
    both = op.direction == "bidirectional_concat"
    diff = layers.given("diff_dst_layer", step)
    above = [diff.at(0, side * sizes.dic * both) for side in range(sizes.directions)]
    for layer in reversed(range(sizes.layers)):
        for side, own in enumerate(above):
            _Side(layers, op, layer, side, own).plan()
        above = _plan_inputs(layers, layer)


def _plan_inputs(layers: Layers, layer: int) -> list[Part]:
    """Append the slopes of a layer's input; return them for each direction of the layer below."""
    op, sizes = layers.op, layers.sizes
    columns, sides = layers.columns, range(sizes.directions)
    z = layers.room("z", sizes.directions * layers.rows, columns)
    if layer and op.has_stacks:
        own = [layers.room(f"slopes {layer % 2} {side}", layers.rows, sizes.slc) for side in sides]
        for side in sides:
            wide = layers.part("weights_layer", layer, side, columns)
            layers.product(
                (layers.rows, sizes.slc, (columns,)),
                (z.at(side * layers.rows), Strides(m=columns, k=(1,))),
                (wide, Strides(n=(columns,), k=(1,))),
                own[side],
            )
        return own
    joint = layers.room(f"slopes {layer % 2}", layers.rows, sizes.slc) if layer else None
    target = joint or layers.tensor("diff_src_layer", sizes.slc)
    if target is not None:
        wide = layers.part("weights_layer", layer, 0, columns)
        layers.product(
            (layers.rows, sizes.slc, (sizes.directions, columns)),
            (z, Strides(m=columns, k=(layers.rows * columns, 1))),
            (wide, Strides(n=(columns,), k=(sizes.slc * columns, 1))),
            target,
        )
    return [joint.at(0, side * sizes.dic) for side in sides] if joint else []


class _Side:
    """One layer and direction. above: the slopes of its result."""

    def __init__(self, layers: Layers, op: RNNBackward, layer: int, side: int, above: Part) -> None:
        self.layers, self.op, self.sizes = layers, op, layers.sizes
        self.place, self.above = (layer, side), above
        rows, sizes, width = layers.rows, layers.sizes, layers.sizes.dhc
        self.columns = layers.columns
        self.order = layers.times(side)
        self.z = layers.room("z", sizes.directions * rows, self.columns).at(side * rows)
        self.zq = layers.room("zq", rows, self.columns) if op.is_lbr else self.z
        self.old_h = layers.room("old h", rows, sizes.dic)
        self.is_gru = op.is_gru and not op.is_lbr
        self.more = self.middle = self.dh = self.pulls = None
        if self.is_gru or op.weights_peephole is not None:
            self.more = layers.room("more", rows, width if self.is_gru else 3 * width)
        if op.weights_projection is not None:
            self.middle = layers.room("middle", rows, width)
            self.dh = layers.room("dh", rows, sizes.dic)
        if op.diff_attention is not None:
            self.pulls = layers.room("pulls", rows, width)
        self.own = layers.room("own", sizes.batch, sizes.dic) if op.is_gru else None
        self.dc = layers.room("dc", sizes.batch, width)

    def plan(self) -> None:
        """Append the steps, the gradients of weights and the sums."""
        layers, sizes, width = self.layers, self.sizes, self.sizes.dhc
        if sizes.batch:
            layers.steps(self._steps)
            self._plan_first()
        self._plan_weights()
        bias = layers.optional("diff_bias", *self.place, width)
        if bias:
            layers.sums(self.z, layers.rows, self.columns, bias, along=0)
        if bias and self.op.is_lbr:
            layers.sums(self.zq.at(0, 2 * width), layers.rows, width, bias.at(3), along=0)
        peephole = layers.optional("diff_weights_peephole", *self.place, width)
        if peephole and self.more:
            layers.sums(self.more, layers.rows, 3 * width, peephole, along=0)
        attention = layers.tensor("diff_attention", 1)
        if attention and self.pulls:
            layers.sums(self.pulls, layers.rows, width, attention, along=1)

    # -- steps --------------------------------------------------------------------------------

    def _product(self, number: int) -> tuple[Parts, int]:
        """Return the product that gives the slope of h after a step, and its depth."""
        layers, sizes = self.layers, self.sizes
        if number == len(self.order):
            return {}, 0
        time = self.order[number]
        depth = (2 if self.is_gru else sizes.gates) * sizes.dhc
        deep = layers.part("weights_iter", *self.place, sizes.dic)
        return {"weights": deep, "source": self.zq.at(time * sizes.batch)}, depth

    def _steps(self) -> list[Step]:
        """Return the cells of all steps, from the last one."""
        numbers = reversed(range(len(self.order)))
        return [one for number in numbers for one in self._step(number)]

    def _step(self, number: int) -> list[Step]:
        layers, op, sizes, place = self.layers, self.op, self.sizes, self.place
        width, row = sizes.dhc, self.order[number] * sizes.batch
        is_last = number == len(self.order) - 1
        source, depth = self._product(number + 1)
        given = layers.optional("diff_dst_iter", *place, sizes.dic)
        slopes = {"above": self.above.at(row), "own": given if is_last else self.own, **source}
        h = self._before(number)
        copies = {"h": h, "old_h": self.old_h.at(row)}
        saved = layers.saved(*place)
        parts = {
            "row": saved and saved.at(row),
            "z": self.z.at(row),
            "zq": self.zq.at(row) if op.is_lbr else None,
            "more": self.more and self.more.at(row),
            "pulls": self.pulls and self.pulls.at(row),
            "attention": layers.given("attention", 1).at(row) if op.has_attention else None,
            "new_own": self.own,
        }
        if op.is_lstm:
            return self._lstm(number, parts, slopes, copies, depth)
        if op.is_lbr:
            return [self._cells("LBR", width, depth, parts | slopes | copies)]
        if not self.is_gru:
            return [self._cells("RNN", width, depth, parts | slopes | copies)]
        deep = layers.part("weights_iter", *place, sizes.dic).at(2 * width)
        product = {"weights": deep, "source": self.z.at(row, 2 * width)}
        own = {"own": self.own, "h": h, "attention": None, "pulls": None}
        return [
            self._cells("GRU", width, depth, {**parts, **slopes, **copies, "more": None}),
            self._cells("RESET_OF_GRU", width, width, {**parts, **product, **own}),
        ]

    def _lstm(
        self, number: int, parts: Parts, slopes: Parts, copies: Parts, depth: int
    ) -> list[Step]:
        layers, sizes, place = self.layers, self.sizes, self.place
        width, row = sizes.dhc, self.order[number] * sizes.batch
        is_last = number == len(self.order) - 1
        given = layers.optional("diff_dst_iter_c", *place, width)
        first = layers.optional("diff_src_iter_c", *place, width)
        parts |= {
            "c": self._before_c(number),
            "peephole": layers.optional("weights_peephole", *place, width),
            "dc": given if is_last else self.dc,
            "new_dc": (first if number == 0 else None) or self.dc,
            "middle": self.middle and self.middle.at(row),
        }
        if self.dh is None:
            return [self._cells("LSTM", width, depth, parts | slopes | copies)]
        dh = self.dh.at(row)
        weights = layers.part("weights_projection", *place, width)
        return [
            self._cells("STATE", sizes.dic, depth, {**slopes, **copies, "new_own": dh}),
            self._cells("LSTM", width, sizes.dic, {**parts, "weights": weights, "source": dh}),
        ]

    def _plan_first(self) -> None:
        """Append the slopes of the states before the first step."""
        layers, sizes, place, steps = self.layers, self.sizes, self.place, len(self.order)
        state = layers.optional("diff_src_iter", *place, sizes.dic)
        given = layers.optional("diff_dst_iter", *place, sizes.dic)
        if state:
            product, depth = self._product(0)
            own = {"own": self.own if steps else given, "new_own": state}
            parts = product | own
            layers.steps(lambda: [self._cells("STATE", sizes.dic, depth, parts)])
        if not steps:
            state = layers.optional("diff_src_iter_c", *place, sizes.dhc)
            given = layers.optional("diff_dst_iter_c", *place, sizes.dhc)
            layers.copy(state, given, sizes.batch * sizes.dhc)

    def _cells(self, cell: str, width: int, depth: int, parts: Parts) -> Step:
        return Step(self.layers.cells("rnn_backward", cell, 1), width, depth, 0, parts)

    def _before(self, number: int) -> Part | None:
        """Return h before a step; None if it is zero."""
        layers, sizes = self.layers, self.sizes
        if not number:
            return layers.optional("src_iter", *self.place, sizes.dic)
        return layers.hidden(*self.place).at(self.order[number - 1] * sizes.batch)

    def _before_c(self, number: int) -> Part | None:
        """Return c before a step; None if it is zero."""
        layers, sizes = self.layers, self.sizes
        if not number:
            return layers.optional("src_iter_c", *self.place, sizes.dhc)
        saved = layers.saved(*self.place)
        start = layers.parts["c"].start
        return saved and saved.at(self.order[number - 1] * sizes.batch, start)

    # -- products over all steps ----------------------------------------------------------------

    def _plan_weights(self) -> None:
        layers, sizes, place = self.layers, self.sizes, self.place
        (layer, side), columns, width = place, self.columns, sizes.dhc
        wide = layers.part("diff_weights_layer", *place, columns)
        if layer:
            sides = (side,) if self.op.has_stacks else range(2)
            inputs = [layers.hidden(layer - 1, other) for other in sides]
        else:
            inputs = [layers.given("src_layer", sizes.slc)]
        share = sizes.slc // len(inputs)
        for number, x in enumerate(inputs):
            self._outer(x, share, self.z, columns, wide.at(number * share))
        deep = layers.part("diff_weights_iter", *place, columns)
        if self.is_gru and self.more:
            self._outer(self.old_h, sizes.dic, self.z, 2 * width, deep)
            last = 2 * width
            self._outer(self.more, sizes.dic, self.z.at(0, last), width, deep.at(0, last))
        else:
            self._outer(self.old_h, sizes.dic, self.zq, columns, deep)
        if self.middle and self.dh:
            target = layers.part("diff_weights_projection", *place, sizes.dic)
            self._outer(self.middle, width, self.dh, sizes.dic, target)

    def _outer(self, x: Part, width: int, slopes: Part, columns: int, target: Part) -> None:
        """Append the sum over all rows of x times slopes."""
        layers = self.layers
        layers.product(
            (width, columns, (layers.rows,)),
            (x, Strides(m=1, k=(x.step,))),
            (slopes, Strides(n=(1,), k=(slopes.step,))),
            target,
        )
