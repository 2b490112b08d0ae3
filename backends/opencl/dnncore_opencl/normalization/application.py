"""A pass with further outputs: the mask of a fused relu, or the gradient of the added tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dnncore.backend import Attributes, MemoryDesc
from dnncore_opencl.codegen.layout import Parameters
from dnncore_opencl.codegen.vectors import TYPES, store, vector, write
from dnncore_opencl.elementwise.implementation import Pass
from dnncore_opencl.rows.statistics import Tensor
from dnncore_opencl.runtime.schema import Arg


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
