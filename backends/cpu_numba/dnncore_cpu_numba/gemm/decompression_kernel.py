"""The kernel of `gemm/decompression.py`: a run of elements with their zero points and scales.

    dst[i] = (src[i] - zero[i]) * scale[i]

Floats are rounded to the target type after each step. Integers wrap around. Places count elements
from an address, because two 4-bit elements share a byte.
"""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir

from dnncore_cpu_numba.codegen import vector_ir as vir
from dnncore_cpu_numba.codegen.call_schema import Record
from dnncore_cpu_numba.codegen.isa import BEST
from dnncore_cpu_numba.codegen.kernel import NativeKernel
from dnncore_cpu_numba.codegen.type_conversion import PACKED, STORED, converted
from dnncore_cpu_numba.codegen.vector_ir import I8, I32, I64, Builder, Value, constant, kind_of

LANES = 16  # lanes of the vectors; LLVM splits them for smaller registers
REAL = ("f32", "f64")
RUN = Record(
    "run of elements",
    ("src zero scale dst", "address"),
    ("src_place zero_place scale_place dst_place", "elements", "of the first element"),
    ("src_step zero_step scale_step dst_step", "elements", "from element to element"),
    ("count", "count"),
)
SIDES = ("src", "zero", "scale", "dst")


@dataclass(frozen=True)
class DecompressionKernel(NativeKernel):
    """A class of kernels.

    source, target: the types of the elements. The target is f32, f64, s8 or s32. zero, scale: the
    types of zero points and scales, "" without them. Zero points have no 4-bit types.
    steps: the steps of src, zero, scale and dst for kernels that use vectors: 1 for src and dst, 0
    or 1 for the others. None allows any steps.
    """

    ARGUMENTS = RUN
    isa = BEST

    source: str
    target: str
    zero: str = ""
    scale: str = ""
    steps: tuple[int, ...] | None = None

    def _emit(self, builder: Builder, args: vir.Values) -> None:
        count = args["count"]
        if self.steps is None:
            vir.loop(builder, count, [], lambda i, _: self._element(builder, args, i, 1))
            return
        head = I64(0)
        if self.source in PACKED:  # vectors begin at a whole byte
            head = builder.and_(args["src_place"], I64(1))
            head = builder.select(builder.icmp_signed("<", count, head), count, head)
        vir.loop(builder, head, [], lambda i, _: self._element(builder, args, i, 1))
        vectors = builder.sdiv(builder.sub(count, head), I64(LANES))

        def vector(turn: Value, _: object) -> list[Value]:
            first = builder.add(head, builder.mul(turn, I64(LANES)))
            return self._element(builder, args, first, LANES)

        vir.loop(builder, vectors, [], vector)
        done = builder.add(head, builder.mul(vectors, I64(LANES)))
        rest = builder.sub(count, done)
        vir.loop(
            builder, rest, [], lambda i, _: self._element(builder, args, builder.add(done, i), 1)
        )

    def _element(self, builder: Builder, args: vir.Values, i: Value, lanes: int) -> list[Value]:
        """Compute element i, or the vector that begins there."""
        x = self._number(builder, self._load(builder, args, "src", i, lanes), self.source)
        for name, own in (("zero", self.zero), ("scale", self.scale)):
            if own:
                y = self._number(builder, self._load(builder, args, name, i, lanes), own)
                x = self._combined(builder, name, x, y)
        if self.target == "s8":
            x = builder.trunc(x, kind_of(x, I8))
        pointer = self._place(builder, args, "dst", i)
        builder.store(x, pointer, align=vir.bytes_of(STORED[self.target]))
        return []

    def _combined(self, builder: Builder, name: str, x: Value, y: Value) -> Value:
        if self.target not in REAL:
            return builder.sub(x, y)
        return (builder.fsub if name == "zero" else builder.fmul)(x, y)

    def _number(self, builder: Builder, x: Value, own: str) -> Value:
        """Convert stored elements to f32, f64 or s32."""
        if self.target in REAL:
            return converted(builder, x, own, self.target)
        wide = kind_of(x, I32)
        if x.type == wide:
            return x
        return (builder.zext if own == "u8" else builder.sext)(x, wide)

    def _load(self, builder: Builder, args: vir.Values, side: str, i: Value, lanes: int) -> Value:
        """Load one element, or a vector of contiguous or equal elements."""
        own = {"src": self.source, "zero": self.zero, "scale": self.scale}[side]
        if own in PACKED:
            return self._unpacked(builder, args, i, lanes)
        element = STORED[own]
        align = vir.bytes_of(element)
        pointer = self._place(builder, args, side, i)
        vector = ir.VectorType(element, lanes)
        if lanes > 1 and self.steps is not None and self.steps[SIDES.index(side)]:
            return builder.load(pointer, typ=vector, align=align)
        x = builder.load(pointer, typ=element, align=align)
        return vir.repeat(builder, x, vector) if lanes > 1 else x

    def _unpacked(self, builder: Builder, args: vir.Values, i: Value, lanes: int) -> Value:
        """Load 4-bit elements and extend each to a byte."""
        place = builder.add(args["src_place"], builder.mul(i, args["src_step"]))
        pointer = vir.address(builder, builder.add(args["src"], builder.ashr(place, I64(1))))
        if lanes == 1:
            pair = builder.load(pointer, typ=I8, align=1)
            shift = builder.shl(builder.and_(place, I64(1)), I64(2))
            pair = builder.lshr(pair, builder.trunc(shift, I8))
            x = builder.and_(pair, I8(15))
        else:
            pairs = builder.load(pointer, typ=ir.VectorType(I8, lanes // 2), align=1)
            low = builder.and_(pairs, constant(pairs.type, 15))
            high = builder.lshr(pairs, constant(pairs.type, 4))
            order = [half * lanes // 2 + j for j in range(lanes // 2) for half in (0, 1)]
            x = builder.shuffle_vector(low, high, ir.Constant(ir.VectorType(I32, lanes), order))
        if self.source == "s4":
            four = constant(x.type, 4)
            x = builder.ashr(builder.shl(x, four), four)
        return x

    def _place(self, builder: Builder, args: vir.Values, side: str, i: Value) -> Value:
        own = {"src": self.source, "zero": self.zero, "scale": self.scale, "dst": self.target}[side]
        place = builder.add(args[f"{side}_place"], builder.mul(i, args[f"{side}_step"]))
        size = I64(vir.bytes_of(STORED[own]))
        return vir.address(builder, builder.add(args[side], builder.mul(place, size)))
