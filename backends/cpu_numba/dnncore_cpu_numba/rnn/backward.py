"""The gradient of recurrent cells: step by step backward, then products over all steps.

The slopes of the sums of all steps are kept. The gradients of weights and of the layer's input are
products of them, one per layer and direction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dnncore.backend import MemoryDesc, RNNBackward
from dnncore_cpu_numba.codegen.isa import Isa
from dnncore_cpu_numba.gemm.plan import ProgramPlan
from dnncore_cpu_numba.gemm.product import transposed
from dnncore_cpu_numba.rnn import tasks
from dnncore_cpu_numba.rnn.layers import Layers, matrix
from dnncore_cpu_numba.runtime.program import Part, Step, Table, repeated
from dnncore_cpu_numba.runtime.tensor import Tensor, moved

__all__ = ["plan_backward"]

NAMES = ("weights_layer", "weights_iter", "weights_peephole", "weights_projection", "bias",
         "src_layer", "src_iter", "src_iter_c", "attention")  # fmt: skip


def plan_backward(isa: Isa, plan: ProgramPlan, op: RNNBackward) -> None:
    """Append the steps of all layers, from the last one."""
    layers = Layers(isa, plan, op)
    sizes = layers.sizes
    out = {name: layers.output(f"diff_{name}") for name in NAMES}
    diff = layers.given["diff_dst_layer"]
    step = diff.desc.dims[2]
    concat = op.direction == "bidirectional_concat"
    above = [
        matrix(diff, side * sizes.dic * concat, layers.rows, sizes.dic, step)
        for side in range(sizes.directions)
    ]
    for layer in reversed(range(sizes.layers)):
        slopes = []
        for side in range(sizes.directions):
            single = layer == 0 and sizes.directions == 1
            target = out["src_layer"] if single else layers.room(layers.rows, sizes.slc)
            target = target and matrix(target, 0, layers.rows, sizes.slc)
            _Side(layers, layer, side, out).plan(above[side], target)
            slopes.append(target)
        above = slopes  # type: ignore[assignment]  # only that of layer 0 may be None
        if layer and not op.has_stacks:
            joint = layers.both()
            layers.add(joint, *above)
            above = [layers.half(joint, side) for side in range(sizes.directions)]
    if sizes.directions == 2 and out["src_layer"] is not None:
        layers.add(out["src_layer"], *above)


class _Side:
    """One layer and direction. out: the outputs by the names of their tensors."""

    def __init__(self, layers: Layers, layer: int, side: int, out: dict[str, Tensor | None]):
        self.layers, self.op, self.sizes = layers, layers.op, layers.sizes
        self.layer, self.side, self.out = layer, side, out
        rows, width = layers.rows, self.sizes.dhc
        self.z = layers.spread(rows, self.sizes.gates * width)
        self.zq = layers.spread(rows, self.sizes.gates * width) if self.op.is_lbr else self.z
        self.z_step = self.z.desc.strides[0]
        self.hp = layers.spread(rows, self.sizes.dic)
        self.projected = layers.spread(rows, self.sizes.dic) if layers.projects else self.hp
        self.mixed = layers.spread(rows, width) if layers.projects else self.hp
        self.is_gru = self.op.is_gru and not self.op.is_lbr
        peephole = layers.part("weights_peephole", layer, side)
        self.keeps = peephole is not None or self.is_gru
        self.more = layers.spread(rows, width) if self.is_gru else self.hp
        if peephole is not None:
            self.more = layers.room(rows, 3 * width)
        self.peephole = layers.or_zeros(peephole, 3 * width)

    def plan(self, above: Tensor, target: Tensor | None) -> None:
        """Append all steps. above: the slopes of h'. target: those of the input, or None."""
        self._plan_steps(above)
        layers, sizes, width = self.layers, self.sizes, self.sizes.dhc
        gates, rows = sizes.gates, layers.rows
        wide = self._part("weights_layer", sizes.slc, gates * width)
        deep = self._part("weights_iter", sizes.dic, gates * width)
        assert wide is not None
        assert deep is not None
        first = 0
        for x in self._inputs():  # each one's columns are rows of the weights
            count = x.desc.dims[1]
            part = matrix(wide, first * gates * width, count, gates * width)
            layers.product(transposed(layers.apart(x)), self.z, part)
            first += count
        if self.is_gru:
            step, last = gates * width, 2 * width
            for x, first, count in ((self.hp, 0, last), (self.more, last, width)):
                slopes = matrix(self.z, first, rows, count, self.z_step)
                part = matrix(deep, first, width, count, step)
                layers.product(transposed(x), slopes, part)
        else:
            layers.product(transposed(self.hp), self.zq, deep)
        projection = self._part("weights_projection", width, sizes.dic)
        if projection is not None:
            layers.product(transposed(self.mixed), self.projected, projection)
        self._plan_sums()
        if target is not None:
            weights = layers.weights("weights_layer", self.layer, self.side)
            layers.product(self.z, weights, target)

    def _inputs(self) -> list[Tensor]:
        """Return the matrices whose columns, side by side, are the input of all steps."""
        layers = self.layers
        if not self.layer:
            return [matrix(layers.given["src_layer"], 0, layers.rows, self.sizes.slc)]
        sides = [self.side] if self.op.has_stacks else range(self.sizes.directions)
        return [layers.hidden(layers.given["workspace"], self.layer - 1, side) for side in sides]

    def _plan_sums(self) -> None:
        """Append the gradients of biases and peephole weights: sums over all rows."""
        layers, sizes, width, rows = self.layers, self.sizes, self.sizes.dhc, self.layers.rows
        ones = Tensor(Table(np.ones(max(rows, 1), np.float32)), MemoryDesc((1, rows)))
        bias = self._part("bias", 1, sizes.biases * width)
        if bias is not None:
            layers.product(ones, self.z, matrix(bias, 0, 1, sizes.gates * width))
            if self.op.is_lbr:
                q = matrix(self.zq, 2 * width, rows, width, self.z_step)
                layers.product(ones, q, matrix(bias, 3 * width, 1, width))
        peephole = self._part("weights_peephole", 1, 3 * width)
        if peephole is not None:
            layers.product(ones, self.more, peephole)

    def _part(self, name: str, rows: int, columns: int) -> Tensor | None:
        tensor = self.out[name]
        if tensor is None:
            return None
        start = (self.layer * self.sizes.directions + self.side) * rows * columns
        return matrix(tensor, start, rows, columns)

    def _plan_steps(self, above: Tensor) -> None:
        layers, op, sizes = self.layers, self.op, self.sizes
        batch, width, gates = sizes.batch, sizes.dhc, sizes.gates
        place = self.layer, self.side
        dh, own, dc = (layers.room(batch, columns) for columns in (sizes.dic, width, width))
        layers.copy(dh, layers.part("diff_dst_iter", *place))
        layers.copy(own, None)
        layers.copy(dc, layers.part("diff_dst_iter_c", *place))
        used = 2 if self.is_gru else gates
        buffer, last = (layers.spread(batch, n * width) for n in (used, 1))
        by = layers.room(batch, width)
        layers.copy(by, None)
        first = layers.packed(layers.weights("weights_iter", *place, slice(0, used)))
        after = layers.repeated(buffer, first, dh)
        between: Callable[[], list[Step]] = list
        if self.is_gru:
            second = layers.packed(layers.weights("weights_iter", *place, slice(2, 3)))
            between = layers.repeated(last, second, by)
        project, projection = self._projection(dh)
        common = {
            "row_step": layers.row, "above_step": above.desc.strides[0], "dh": dh.address,
            "own": own.address, "dc": dc.address, "buffer": buffer.address, "last": last.address,
            "peephole": self.peephole.address, "keeps": int(self.keeps), "z_step": self.z_step,
            "projects": int(layers.projects),
            "hp_step": self.hp.desc.strides[0],
            "buffer_step": buffer.desc.strides[0], "last_step": last.desc.strides[0],
        }  # fmt: skip
        first_h = layers.or_zeros(layers.part("src_iter", *place), batch * sizes.dic).address
        first_c = layers.or_zeros(layers.part("src_iter_c", *place), batch * width).address

        def steps() -> list[Part]:
            order = layers.times(self.side)
            middle, last_ones, projecting = between(), after(), project()

            def at(number: int) -> list[Step]:
                found: list[Step] = []
                before = order[number - 1] if number else None
                values = common | self._at(order[number], above, before, first_h, first_c)
                if layers.projects:
                    found += [projection(order[number], values), *projecting]
                    values = self._mixed(order[number], values, by)
                if op.is_lstm:
                    found.append(layers.step(tasks.lstm_back, values))
                elif op.is_lbr:
                    found.append(layers.step(tasks.lbr_back, values))
                elif self.is_gru:
                    found.append(layers.step(tasks.gru_back, values))
                    found += middle
                    values = {**values, "dh": by.address, "d_attention": 0}
                    found.append(layers.step(tasks.gru_back_reset, values))
                else:
                    found.append(layers.step(tasks.rnn_back, values))
                return [*found, *last_ones]

            first = at(0) if order else []
            return [*repeated(range(len(order) - 1, 0, -1), at), *first]

        layers.plan.add_steps(steps)
        state = self._part("src_iter", batch, sizes.dic)
        if state is not None and op.is_gru:
            layers.add(state, dh, own)
        elif state is not None:
            layers.copy(state, dh)
        state = self._part("src_iter_c", batch, width)
        if state is not None:
            layers.copy(state, dc)

    def _projection(
        self, dh: Tensor
    ) -> tuple[Callable[[], list[Step]], Callable[[int, dict[str, Any]], Step]]:
        """Return the product of the slopes of h' with R transposed, and the step before it."""
        layers, sizes = self.layers, self.sizes
        if not layers.projects:
            return list, lambda _time, _values: Step(tasks.projected_back, {}, 0)
        now = layers.spread(sizes.batch, sizes.dic)
        weights = layers.part("weights_projection", self.layer, self.side)
        assert weights is not None  # `layers.projects`
        self.slopes_of_m = layers.room(sizes.batch, sizes.dhc)
        product = layers.repeated(now, layers.packed(transposed(weights)), self.slopes_of_m)

        def step(time: int, values: dict[str, Any]) -> Step:
            kept = 4 * time * sizes.batch * self.projected.desc.strides[0]
            own = {
                "width": sizes.dic, "dh": dh.address, "now": now.address,
                "kept": moved(self.projected.address, kept), "now_step": now.desc.strides[0],
            }  # fmt: skip
            names = ("above", "above_step", "h", "h_step", "hp", "hp_step")
            return Step(
                tasks.projected_back, own | {name: values[name] for name in names}, sizes.batch
            )

        return product, step

    def _mixed(self, time: int, values: dict[str, Any], zeros: Tensor) -> dict[str, Any]:
        """Return the values of the cell before a projection. It keeps m = o tanh(c') in hp."""
        place, width = 4 * time * self.sizes.batch, self.sizes.dhc
        step = self.mixed.desc.strides[0]
        return values | {
            "above": self.slopes_of_m.address, "above_step": width, "dh": zeros.address,
            "h": values["row"], "h_step": self.layers.row,
            "hp": moved(self.mixed.address, place * step), "hp_step": step,
        }  # fmt: skip

    def _at(
        self, time: int, above: Tensor, before: int | None, first_h: object, first_c: object
    ) -> dict[str, Any]:
        """Return the addresses of one step. before: the step before it, or None."""
        layers, sizes, width = self.layers, self.sizes, self.sizes.dhc
        batch = sizes.batch
        workspace = layers.given["workspace"]
        values: dict[str, Any] = {
            "h": first_h, "c": first_c, "h_step": sizes.dic, "c_step": width,
        }  # fmt: skip
        if before is not None:
            row = layers.saved(workspace, self.layer, self.side, before).address
            values = {
                "h": moved(row, 4 * layers.parts["h"].start), "h_step": layers.row,
                "c": moved(row, 4 * layers.parts["c"].start) if self.op.is_lstm else row,
                "c_step": layers.row,
            }  # fmt: skip
        start = 4 * time * batch
        values |= {
            "row": layers.saved(workspace, self.layer, self.side, time).address,
            "above": moved(above.address, start * above.desc.strides[0]),
            "z": moved(self.z.address, start * self.z_step),
            "zq": moved(self.zq.address, start * self.z_step),
            "hp": moved(self.hp.address, start * self.hp.desc.strides[0]),
            "more": moved(self.more.address, start * self.more.desc.strides[0]),
        }
        if self.op.has_attention:
            values["attention"] = moved(layers.given["attention"].address, start)
            target = self.out["attention"]
            values["d_attention"] = 0 if target is None else moved(target.address, start)
        return values
