"""Access to the elements of a product's operands in kernels: reads, conversions and writes.

Kernels compute in f32, or in f64 if tensors are f64. Functions are named by the operand:
`A_READ(at)` returns elements as stored in memory, `A_VALUE(bits)` converts them to numbers, and
`C_WRITE(at, value)` rounds and stores.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dnncore_opencl.codegen.vectors import (
    CONVERTED,
    F8,
    HALVES,
    PACKED,
    SMALL,
    TO_FLOAT,
    TYPES,
    bits,
    scalar_functions,
    value,
    vector,
    with_lanes,
)
from dnncore_opencl.runtime.launch import template
from dnncore_opencl.runtime.schema import Buffer, Schema


@dataclass(frozen=True)
class Elements:
    """Element accesses for one type of device.

    halves: the template that converts half types. is_aligned: whether vectors begin at multiples of
    their size. Then they are accessed as words, which compilers do not split.
    """

    halves: str = "halves"
    is_aligned: bool = True

    def defines(self, name: str, data_type: str, lanes: int) -> dict[str, str]:
        """Return the functions of an operand, for `lanes` elements at once. C also gets WRITE."""
        kind = vector(TYPES[data_type], lanes)
        written = self._write(data_type, lanes, "at", bits(data_type, lanes, "value"))
        return {
            f"{name}_TYPE": TYPES[data_type],
            f"{name}_ELEMENTS": kind,
            f"{name}_READ(at)": self._read(data_type, lanes, "at"),
            f"{name}_VALUE(bits)": value(data_type, lanes, "(bits)"),
            **({f"{name}_WRITE(at, value)": written} if name.startswith("C") else {}),
        }

    def factor(
        self, name: str, data_type: str, lanes: int, number: str, zero: str = ""
    ) -> dict[str, str]:
        """Return the functions of a factor of products, whose values have the type `number`.

        zero: the parameter that holds the zero point, if any. READ subtracts it, so that it is not
        subtracted from zeros outside of the tensor.
        """
        defines, values = self.defines(name, data_type, lanes), f"{name}_VALUE(bits)"
        wide = vector(number, lanes)
        if number == "uint":
            whole = vector("int", lanes)
            defines[values] = f"as_{wide}(convert_{whole}(bits))"
        if zero:
            bits, point = defines[f"{name}_READ(at)"], f"({number})({zero}[0])"
            read = defines[values].replace("(bits)", f"({bits})")
            defines[f"{name}_ELEMENTS"] = wide
            defines[f"{name}_READ(at)"] = f"({read} - {point})"
            defines[values] = "(bits)"
        return defines

    def snippets(self, operands: Iterable[tuple[str, int]]) -> tuple[str, ...]:
        """Return the functions that convert operands, given by data type and lanes."""
        pairs = tuple(operands)
        scalar = scalar_functions((data_type for data_type, _ in pairs), self.halves)
        wide = sorted(
            {
                (name, lanes)
                for data_type, lanes in pairs
                if data_type in CONVERTED and lanes > 1
                for name in self._templates(data_type)
            }
        )
        texts = [
            with_lanes(template(name), lanes).replace("HALF", str(lanes // 2))
            for name, lanes in wide
        ]
        if not self.is_aligned:
            texts = [*map(_packed, sorted(self._unaligned(pairs))), *texts]
        texts += [template("fp64")] if any(data_type == "f64" for data_type, _ in pairs) else []
        return (scalar, *texts) if scalar else tuple(texts)

    def _templates(self, data_type: str) -> tuple[str, ...]:
        """Return the names of the templates with the conversions of vectors of a type."""
        if data_type in PACKED:
            return ("nibbles_vector", "small")
        if data_type in F8:
            return ("small",)
        return (self.halves,) if data_type in HALVES else ("integers",)

    def _unaligned(self, pairs: Iterable[tuple[str, int]]) -> set[str]:
        """Return the vector types of small elements that are read at any address."""
        found = set()
        for data_type, lanes in pairs:
            kind = TYPES[data_type]
            if lanes > 1 and kind in SMALL:
                halves = {vector("uchar", lanes // 2)} if data_type in PACKED else set()
                found |= {vector(kind, lanes), *halves}
        return found

    def _read(self, data_type: str, lanes: int, at: str) -> str:
        kind = TYPES[data_type]
        if lanes == 1:
            return f"(*({at}))"
        if not self.is_aligned and kind in SMALL:
            return f"(((__global const struct packed_{vector(kind, lanes)} *)({at}))->all)"
        if not self.is_aligned:
            return f"vload{lanes}(0, {at})"
        if data_type in HALVES and self.halves != "halves":
            return f"load_{vector(kind, lanes)}({at})"
        word = _word(kind, lanes)
        return f"as_{vector(kind, lanes)}(*(__global const {word} *)({at}))"

    def _write(self, data_type: str, lanes: int, at: str, written: str) -> str:
        kind = TYPES[data_type]
        if lanes == 1:
            return f"*({at}) = {written}"
        if not self.is_aligned:
            return f"vstore{lanes}({written}, 0, {at})"
        word = _word(kind, lanes)
        return f"*(__global {word} *)({at}) = as_{word}({written})"


def _packed(elements: str) -> str:
    """Return the definition of a vector type without alignment."""
    return template("packed").replace("ELEMENTS", elements)


def _word(kind: str, lanes: int) -> str:
    """Return the type that is used to read and write an aligned vector."""
    return vector("uint", SMALL[kind] * lanes // 4) if kind in SMALL else vector(kind, lanes)


def one_element(data_type: str, pointer: str, at: str) -> str:
    """Return the expression that reads one element as a number."""
    is_packed = data_type in PACKED
    read = f"load_{data_type}({pointer}, {at})" if is_packed else f"{pointer}[{at}]"
    return TO_FLOAT[data_type].format(read)


def typed(schema: Schema, **data_types: str) -> Schema:
    """Return the schema with the element types of some buffers replaced, by name."""
    types = dict(schema.types)
    for name, data_type in data_types.items():
        const = "const " if types[name].text.startswith("const ") else ""
        types[name] = Buffer(const + TYPES[data_type])
    return Schema(**types)
