"""A pass with further outputs: the mask of a fused relu, or the gradient of the added tensor.

If channels are contiguous, a work-item of a GPU computes a vector of channels of several pixels. So
it reads the numbers of these channels once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from dnncore.backend import Attributes, MemoryDesc
from dnncore_opencl.codegen.grid import Boxes
from dnncore_opencl.codegen.layout import Parameters
from dnncore_opencl.codegen.vectors import TYPES, store, value, vector, write
from dnncore_opencl.elementwise.implementation import Pass
from dnncore_opencl.rows.statistics import Tensor
from dnncore_opencl.runtime.schema import Arg

ROWS = 4  # pixels per work-item


class Application(Pass):
    """Tensors with their buffers: inputs by name, the result, operands, then further outputs."""

    def __init__(
        self,
        engine: Any,
        inputs: dict[str, Tensor],
        result: Tensor,
        operands: Sequence[Tensor],
        outputs: dict[str, Tensor],
    ) -> None:
        tensors = [*inputs.values(), result, *operands, *outputs.values()]
        super().__init__(engine, [tensor.desc for tensor in tensors], len(inputs))
        first = len(tensors) - len(outputs)
        self.extra = dict(zip(outputs, range(first, len(tensors)), strict=True))
        self.names = {name: place for place, name in enumerate(inputs)}
        written = {f"b{place}" for place in (self.result, *self.extra.values())}
        named = {f"b{place}": tensor.desc for place, tensor in enumerate(tensors)}
        self.parameters = Parameters.of(named, written)
        for place, tensor in enumerate(tensors):
            self.parameters.arguments[f"b{place}"] = tensor.buffer

    def bind(
        self, attr: Attributes, result: str, scalars: dict[str, tuple[MemoryDesc, int]]
    ) -> None:
        """Add the arguments of scales and rounding. scalars: descriptors and places by name."""
        self.attr = attr
        self.is_exact = bool(attr.scales)
        self.names[result] = self.result
        for name, (desc, place) in scalars.items():
            if name.endswith("_scales"):
                ones = MemoryDesc((1,) * self.descs[self.result].ndims, desc.data_type)
                self._add(name, ones, place, is_written=False)
            else:
                self.parameters.buffer(name, f"const {TYPES[desc.data_type]}", Arg(place))
        if attr.words and attr.rounding == "stochastic":
            self._number()

    def value(self, name: str) -> str:
        """Return the expression of an input's element, multiplied by its scale."""
        return self.dequantized(name)

    @property
    def template(self) -> str:  # type: ignore[override]  # a field of `Pass`
        """The kernel."""
        return "application_rows" if self.has_rows else "elementwise"

    @cached_property
    def has_rows(self) -> bool:
        """Whether a work-item computes whole vectors in several rows, which share some inputs."""
        loops = self.nest.loops
        if self.engine.is_cpu or len(loops) < 2 or self.lanes == 1 or loops[-1].size % self.lanes:
            return False
        inputs = [place for place in range(len(self.descs)) if self.uses(place)]
        shared = [p for p in inputs if loops[-1].strides[p] and self._is_shared(p)]
        return bool(shared) and self.row_major is None and not self.nest.guarded

    def _is_shared(self, place: int) -> bool:
        """Whether the rows of a work-item use the same elements of a tensor."""
        return self.nest.loops[-2].strides[place] == 0

    @cached_property
    def boxes(self) -> Boxes:
        """Vectors of several rows."""
        if not self.has_rows:
            return super().boxes
        return Boxes(self.nest, ROWS, self.lanes, constant=True)

    def load(self, place: int, lanes: int) -> str:
        """Return the expression that reads a tensor's elements as values."""
        if not self.has_rows:
            return super().load(place, lanes)
        if self._is_shared(place):
            return f"of_rows{place}"
        own = lanes if self.nest.loops[-1].strides[place] else 1
        return value(self.descs[place].data_type, own, f"held{place}[i]")

    def defines(self) -> dict[str, str]:
        """Return the defines of the template."""
        defines = super().defines()
        if not self.has_rows:
            return defines
        declare = fetch = once = ""
        for place in filter(self.uses, range(len(self.descs))):
            if self._is_shared(place):
                kind = vector(self.kind(place), self.lanes)
                once += f"const {kind} of_rows{place} = {super().load(place, self.lanes)}; "
                continue
            own = self.lanes if self.nest.loops[-1].strides[place] else 1
            declare += f"{vector(TYPES[self.descs[place].data_type], own)} held{place}[ROWS]; "
            fetch += f"held{place}[i] = {self.load_bits(place, self.lanes)}; "
        del defines["STEP"]
        rows = {"ROWS": str(ROWS), "DECLARE": declare, "FETCH": fetch, "ONCE": once}
        return defines | rows

    def _store(self, lanes: int, value: str) -> str:
        """Store x and the variables with the names of the further outputs."""
        text = super()._store(lanes, value)
        masked = self.conditions[1] != "1"
        for name, place in self.extra.items():
            data_type, pointer = self.descs[place].data_type, self.pointers[place]
            own = f"convert_{vector('uchar', lanes)}({name})" if data_type == "u8" else name
            kind = vector("uchar" if data_type == "u8" else "float", lanes)
            own = f"inside ? {own} : ({kind})(0)" if masked else own
            if data_type == "u8":
                text += f" {store(self.engine, 'uchar', lanes, pointer, own)};"
            else:
                text += f" {write(self.engine, data_type, lanes, pointer, own)};"
        return text
