"""The kernel of local response normalisation along an axis that is contiguous in memory.

At each point, the axis is a row of vectors. Each lane has a term. The sums of windows are computed
from the terms of three vectors by shifting them in registers. A row is read once, and each term is
computed once:

    forward     term = src**2                                   base = k + scale * sum
                dst = src * base**-beta
    backward    term = unit * diff_dst * src * base**(-beta - 1)
                diff_src = diff_dst * base**-beta - factor / unit * src * sum

The fast powers are valid for bases from 2**-64 to 2**64. If any base is outside, including NaN, all
rows are computed again: forward terms then include scale, and a task computes the powers in
float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llvmlite import ir

from dnncore_cpu_numba.codegen import vector_ir as vir
from dnncore_cpu_numba.codegen.call_schema import Pointer, Record
from dnncore_cpu_numba.codegen.isa import BEST
from dnncore_cpu_numba.codegen.kernel import NativeKernel
from dnncore_cpu_numba.codegen.nontemporal import mark_streamed
from dnncore_cpu_numba.codegen.type_conversion import STORED, load_as_f32, store_from_f32
from dnncore_cpu_numba.codegen.vector_ir import I32, I64, Value
from dnncore_cpu_numba.lrn.arithmetic import WIDE_CALL

LANES = 16
POWERS = (0.5, 0.75, 1.0)
"""The betas for which base**-beta is computed from reciprocal square roots."""
MOST_ALPHA = 2.0**60
"""Below this alpha, the error of subnormal squares is negligible for a moderate base."""
POINT = Record("tensors at a point", ("result base src diff", "address"))
FIELDS = Record(
    "fields of the LRN kernel",
    ("points vectors length", "count", "of a row of points, of the axis, places of the axis"),
    ("result_point base_point src_point diff_point", "bytes", "from point to point"),
    ("result_vector base_vector src_vector diff_vector", "bytes", "from vector to vector"),
    ("k scale unit factor", "float32", "see `arithmetic.constants`"),
    ("wide", "address", "a `WIDE_CALL`"),
)
LRN_CALL = Record("LRN kernel", ("tensors", Pointer(POINT)), ("fields", Pointer(FIELDS)))
LOW_BITS, RANGE_BITS = 63 << 23, 1 << 30  # of the bases for which quick powers are right
QUICK = ("reassoc", "nsz", "arcp", "contract")  # reciprocal roots by estimate and Newton step
VECTOR = vir.vector_of(LANES)
INTEGERS = ir.VectorType(I32, LANES)
AHEAD = 8  # prefetch distance in points; measured


@dataclass(frozen=True)
class LrnKernel(NativeKernel):
    """A class of kernels.

    reach: the places of a window on each side. keeps_base: forward stores the base.
    source, target: the types of src and diff, and of the result. The base is f32.
    fetches: prefetch inputs in software. The vectors of a row of blocks are more streams than the
    hardware prefetcher follows (measured: 2.5 times as fast with 9 MB per tensor).
    """

    ARGUMENTS = LRN_CALL
    isa = BEST

    forward: bool
    reach: int
    beta: float
    source: str = "f32"
    target: str = "f32"
    keeps_base: bool = False
    fetches: bool = False
    streamed: bool = False

    def _emit(self, builder: ir.IRBuilder, args: vir.Values) -> None:
        _Emitter(self, builder, args).emit()


@dataclass(frozen=True)
class _Row:
    """A vector of the row: its terms, and the values that its results need."""

    terms: Value
    src: Value
    own: Value


class _Emitter:
    """The code of one kernel."""

    def __init__(self, kernel: LrnKernel, builder: ir.IRBuilder, args: vir.Values) -> None:
        self.kernel, self.builder = kernel, builder
        tensors, fields = (vir.address(builder, args[name]) for name in ("tensors", "fields"))
        self.starts = vir.fields(builder, tensors, POINT)
        self.fields = vir.fields(builder, fields, FIELDS)
        self.constants = {
            name: vir.repeat(builder, vir.float_of(builder, self.fields[name]), VECTOR)
            for name in ("k", "scale", "unit", "factor")
        }
        self.rooms = [vir.room(builder, VECTOR, 1) for _ in range(4)]
        fetched = POINT.fields if kernel.fetches else ()
        self.ahead = {n: builder.mul(self.fields[f"{n}_point"], I64(AHEAD)) for n in fetched}

    def emit(self) -> None:
        """Emit the loop over points, and a second one for the case that a base is out of range."""
        builder, name = self.builder, f"llvm.vector.reduce.or.v{LANES}i32"
        odd = vir.intrinsic(builder, name, I32, [self._points(wide=False)])
        with builder.if_then(builder.icmp_unsigned(">=", odd, I32(RANGE_BITS)), likely=False):
            self._points(wide=True)

    def _points(self, *, wide: bool) -> Value:
        """Compute all rows. A returned integer is >= RANGE_BITS if a base is out of range."""
        builder, fields = self.builder, self.fields
        self.wide = wide

        def point(index: Value, state: Sequence[Value]) -> list[Value]:
            (self.odd,) = state
            self.places = {
                name: builder.add(start, builder.mul(index, fields[f"{name}_point"]))
                for name, start in self.starts.items()
            }
            self._walk()
            return [self.odd]

        (odd,) = vir.loop(builder, fields["points"], [INTEGERS(None)], point)
        return odd

    def _walk(self) -> None:
        """Compute the row at `places`."""
        builder = self.builder
        none, first = VECTOR(None), self._row(I64(0))
        state = [none, first.terms, first.src, first.own, self.odd]
        last = builder.sub(self.fields["vectors"], I64(1))

        def vector(v: Value, state: Sequence[Value]) -> list[Value]:
            before, middle, self.odd = state[0], _Row(*state[1:4]), state[4]
            after = self._row(builder.add(v, I64(1)))
            self._finish(v, before, middle, after.terms)
            return [middle.terms, after.terms, after.src, after.own, self.odd]

        before, *middle, self.odd = vir.loop(builder, last, state, vector)
        self._finish(last, before, _Row(*middle), none)

    def _place(self, name: str, v: Value) -> Value:
        offset = self.builder.mul(v, self.fields[f"{name}_vector"])
        return vir.address(self.builder, self.builder.add(self.places[name], offset))

    def _load(self, name: str, v: Value) -> Value:
        place = self._place(name, v)
        if self.kernel.fetches:
            vir.prefetch(self.builder, vir.at(self.builder, place, self.ahead[name]))
        kind = "f32" if name == "base" else self.kernel.source
        return load_as_f32(self.builder, place, kind, LANES)

    def _row(self, v: Value) -> _Row:
        builder = self.builder
        src = self._load("src", v)
        if self.kernel.forward:
            factor = builder.fmul(self.constants["scale"], src) if self.wide else src
            return _Row(builder.fmul(factor, src), src, src)
        left = builder.sub(self.fields["length"], builder.mul(v, I64(LANES)))
        inside = vir.first_lanes(builder, left, LANES)  # bases in the padding of blocks are 0
        base = builder.select(inside, self._load("base", v), vir.constant(VECTOR, 1.0))
        diff, unit = self._load("diff", v), self.constants["unit"]

        if self.wide:
            own = self._wide(base, diff, -self.kernel.beta)
            exponent, factor = -self.kernel.beta - 1, self.fields["unit"]
            return _Row(self._wide(base, diff, exponent, y=src, factor=factor), src, own)
        power, inverse = self._powers(base)
        own = builder.fmul(diff, power)
        term = builder.fmul(own, builder.fmul(builder.fmul(unit, src), inverse))
        return _Row(term, src, own)

    def _finish(self, v: Value, before: Value, middle: _Row, after: Value) -> None:
        """Sum the windows of a vector and store the results."""
        builder, constants = self.builder, self.constants
        total = middle.terms
        for shift in range(1, self.kernel.reach + 1):
            low = self._shifted(before, middle.terms, LANES - shift)
            high = self._shifted(middle.terms, after, shift)
            total = builder.fadd(total, builder.fadd(low, high))
        if not self.kernel.forward:
            shared = builder.fmul(builder.fmul(constants["factor"], middle.src), total)
            self._store(builder.fsub(middle.own, shared), "result", v)
            return
        k, scale = constants["k"], constants["scale"]
        base = builder.fadd(total, k)
        if not self.wide:
            base = vir.multiply_add(builder, scale, total, k)
        if self.wide:
            result = self._wide(base, middle.src, -self.kernel.beta)
        else:
            result = builder.fmul(middle.src, self._powers(base)[0])
        self._store(result, "result", v)
        if self.kernel.keeps_base:
            self._store(base, "base", v)

    def _shifted(self, low: Value, high: Value, start: int) -> Value:
        order = ir.Constant(ir.VectorType(I32, LANES), list(range(start, start + LANES)))
        return self.builder.shuffle_vector(low, high, order)

    def _wide(
        self, base: Value, x: Value, exponent: float, y: Value | None = None, factor: Value = None
    ) -> Value:
        """Return factor * x * y * base**exponent in float64. Absent y and factor are 1."""
        builder = self.builder
        *rooms, result = (builder.ptrtoint(room, I64) for room in self.rooms)
        inputs = [base, x] if y is None else [base, x, y]
        for room, value in zip(self.rooms, inputs, strict=False):
            builder.store(value, room, align=4)
        vir.call(
            builder, self.fields["wide"], WIDE_CALL, base=rooms[0], x=rooms[1],
            y=0 if y is None else rooms[2], factor=1.0 if factor is None else factor,
            exponent=exponent, result=result, count=LANES,
        )  # fmt: skip
        return builder.load(self.rooms[-1], typ=VECTOR, align=4)

    def _powers(self, base: Value) -> tuple[Value, Value]:
        """Return base**-beta and 1 / base. Records bases out of range."""
        builder = self.builder
        bits = builder.bitcast(base, INTEGERS)
        low = ir.Constant(INTEGERS, [LOW_BITS] * LANES)
        self.odd = builder.or_(self.odd, builder.sub(bits, low))
        if self.kernel.beta == 1.0:
            inverse = builder.fdiv(vir.constant(VECTOR, 1.0), base)
            return inverse, inverse
        root = self._inverse_root(base)
        inverse = builder.fmul(root, root)
        if self.kernel.beta == 0.5:
            return root, inverse
        return builder.fmul(inverse, self._inverse_root(root)), inverse

    def _inverse_root(self, x: Value) -> Value:
        builder, name = self.builder, f"llvm.sqrt.v{LANES}f32"
        root = vir.intrinsic(builder, name, VECTOR, [x])
        for flag in QUICK:
            root.fastmath.add(flag)
        return builder.fdiv(vir.constant(VECTOR, 1.0), root, flags=QUICK)

    def _store(self, value: Value, name: str, v: Value) -> None:
        kind = "f32" if name == "base" else self.kernel.target
        store = store_from_f32(self.builder, value, self._place(name, v), kind)
        if self.kernel.streamed:
            mark_streamed(self.builder, store, LANES * vir.bytes_of(STORED[kind]))
