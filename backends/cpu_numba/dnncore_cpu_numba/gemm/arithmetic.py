"""The products of a microkernel: the operands of one step of k, and the instructions.

Operands are stored in *groups* of 4 bytes: one f32, one s32, or two bf16 or four 8-bit integers
that are contiguous along k. A step of k multiplies one group of a row of A by one group of each
lane of a row of B, and adds the products to the lanes' sums. Addresses and strides are therefore
the same for all types except f64. Groups of f64 have 8 bytes, and vectors half the lanes.

Sums of integers are exact and wrap around. If a processor has no instruction for groups, they are
divided into pairs of 16-bit integers, whose products and sums fit into 32 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from llvmlite import ir

from dnncore.backend import MemoryDesc
from dnncore_cpu_numba.codegen import vector_ir as vir
from dnncore_cpu_numba.codegen.isa import Isa, host_cpu
from dnncore_cpu_numba.codegen.type_conversion import F64, I16, PACKED
from dnncore_cpu_numba.codegen.vector_ir import F32, I32, Builder, Value, constant

TILE_SPEED = 2  # speed of AMX per element of a group, relative to f32; measured
SLOW_PAIRS = 0.6  # speed of bf16 on Intel relative to f32; measured: Sapphire Rapids; Zen 4: 2
INTEGERS = ("s8", "u8")  # one-byte integers
WIDE = ("f32", "f64", "s32")  # types whose groups have one element
WIDE_SPEEDS = {"s32": 0.5}  # speed in vectors, relative to f32
_REALS = {"f32": F32, "f64": F64}
_PAIRS = {16: "llvm.x86.avx512.pmaddw.d.512", 8: "llvm.x86.avx2.pmadd.wd",
          4: "llvm.x86.sse2.pmadd.wd"}  # fmt: skip


@dataclass(frozen=True)
class Arithmetic:
    """The element types of A and B in memory: 8-bit integers, or one type for both."""

    a: str = "f32"
    b: str = "f32"

    @classmethod
    def of(cls, a: MemoryDesc, b: MemoryDesc, isa: Isa) -> Arithmetic:
        """Return the arithmetic for two tensors; f32 if the instruction set lacks their types.

        If the set has instructions for u8 but not for s8, A of s8 becomes u8 by adding 128.
        """
        own = cls(a.data_type, b.data_type)
        if own.a in INTEGERS and own.b in PACKED:
            own = cls(own.a, "s8")
        if own.a != own.b and not own.is_integer:
            return cls()
        if own.is_integer and not own.is_native(isa):
            native = cls("u8", own.b)
            return native if native.is_native(isa) else own
        return own if own.is_native(isa) else cls()

    @property
    def is_integer(self) -> bool:
        """Whether sums are s32. Otherwise they are f32 or f64."""
        return self.a == "s32" or (self.a in INTEGERS and self.b in INTEGERS)

    @property
    def group(self) -> int:
        """The number of elements of a group."""
        return 4 if self.a in INTEGERS else 2 if self.a == "bf16" else 1

    @property
    def size(self) -> int:
        """The size of a group in bytes."""
        return 8 if self.a == "f64" else 4

    @property
    def real(self) -> str:
        """The type that epilogues compute with."""
        return "f64" if self.a == "f64" else "f32"

    @property
    def converts(self) -> bool:
        """Whether factors of other types are converted to f32 before the multiplication."""
        return self.a == "f32"

    def vectors_of(self, isa: Isa) -> Isa:
        """Return the instruction set with its lanes set to the groups per vector."""
        return isa if self.size == 4 else replace(isa, lanes=isa.lanes // 2)

    def groups(self, elements: int) -> int:
        """Return the number of groups that hold this number of elements."""
        return -(-elements // self.group)

    def is_native(self, isa: Isa) -> bool:
        """Whether the set has an instruction that multiplies and adds whole groups."""
        if self.a in WIDE:
            return True
        if self.is_integer:
            return self.a in isa.products and (self.b == "s8" or isa.has_tiles)
        return self.b == self.a and self.a in isa.products

    def speed(self, isa: Isa) -> float:
        """Return the number of products in the time of one f32 product; of f64, of vectors."""
        if self.group == 1 or not self.is_native(isa):
            return WIDE_SPEEDS.get(self.a, 1.0)
        if isa.has_tiles:
            return TILE_SPEED * self.group
        is_slow = self.a == "bf16" and not host_cpu().startswith("znver")
        return SLOW_PAIRS if is_slow else self.group

    def sums(self, lanes: int) -> ir.VectorType:
        """Return the type of a vector of sums."""
        return ir.VectorType(I32 if self.is_integer else _REALS[self.real], lanes)

    def groups_of(self, lanes: int) -> ir.VectorType:
        """Return the type of a vector of groups."""
        return ir.VectorType(_REALS.get(self.a, I32), lanes)

    def parts(self, builder: Builder, isa: Isa, x: Value, data_type: str) -> list[Value]:
        """Return a vector of groups as operands of `multiply_add`."""
        if self.is_native(isa):
            return [x]
        pairs = ir.VectorType(I16, 2 * x.type.count)
        x, byte = builder.bitcast(x, pairs), constant(pairs, 8)
        if data_type == "u8":
            return [builder.and_(x, constant(pairs, 255)), builder.lshr(x, byte)]
        return [builder.ashr(builder.shl(x, byte), byte), builder.ashr(x, byte)]

    def multiply_add(
        self, builder: Builder, isa: Isa, a: Sequence[Value], b: Sequence[Value], sums: Value
    ) -> Value:
        """Return the sums plus the products of groups; a, b: their `parts`."""
        if self.a == "s32":
            return builder.add(sums, builder.mul(a[0], b[0]))
        if self.a in WIDE:
            return vir.multiply_add(builder, a[0], b[0], sums)
        if self.is_native(isa):
            width = 32 * isa.lanes
            name = f"avx512.vpdpbusd.{width}" if self.is_integer else f"avx512bf16.dpbf16ps.{width}"
            return vir.intrinsic(builder, f"llvm.x86.{name}", sums.type, [sums, a[0], b[0]])
        for x, y in zip(a, b, strict=True):
            sums = builder.add(sums, _products_of_pairs(builder, isa, x, y, sums.type))
        return sums


F32_PRODUCTS, F64_PRODUCTS = Arithmetic(), Arithmetic("f64", "f64")


def _products_of_pairs(
    builder: Builder, isa: Isa, x: Value, y: Value, result: ir.VectorType
) -> Value:
    """Multiply 16-bit integers, and add each pair of neighbouring products."""
    if not isa.any_processor:
        return vir.intrinsic(builder, _PAIRS[isa.lanes], result, [x, y])
    halves = []
    for odd in (0, 1):
        order = list(range(odd, x.type.count, 2))
        wide = (builder.sext(vir.shuffled(builder, v, order), result) for v in (x, y))
        halves.append(builder.mul(*wide))
    return builder.add(*halves)
