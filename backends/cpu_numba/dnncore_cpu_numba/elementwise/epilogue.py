"""The epilogue of a microkernel: the operations on each vector of results before its store.

An epilogue is a tuple of stages. Bias is an operand that is added. All post-op chains become
epilogues. Operands whose layout a tile cannot read are copied first, see `gemm/plan.py`.

Functions of a few instructions are emitted inline. Longer functions are called: the tile is stored
to the stack, and a stage of `elementwise/algorithms.py` computes it there. The cost of the call is
small compared to the function. Calls keep microkernels small, and each function has one definition.
The arguments of a call, one row of `post_ops.Stage`, follow the operands in their table.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from llvmlite import ir

from dnncore.backend import Attributes, PostOp
from dnncore_cpu_numba.codegen import vector_ir as vir
from dnncore_cpu_numba.codegen.isa import BEST, Isa
from dnncore_cpu_numba.codegen.type_conversion import F64, STORED, as_f32, converted
from dnncore_cpu_numba.codegen.vector_ir import I32, I64, Builder, Value
from dnncore_cpu_numba.elementwise import post_ops
from dnncore_cpu_numba.elementwise.algorithms import STAGE, STAGE_CALL


@dataclass(frozen=True)
class Correction:
    """x = x - the product of operands, for integer sums. Corrections precede all other stages.

    splats, fixed: as in `Operand`. types: integer types; () if all are s32.
    """

    splats: tuple[bool, ...] = (False,)
    types: tuple[str, ...] = ()
    fixed: tuple[bool, ...] = ()


@dataclass(frozen=True)
class Operand:
    """x = x op operand.

    algorithm: of binary, `prelu`, `scale` or `descale`. `scale` multiplies by the product of its
    operands, `descale` by the reciprocal of its operand. `select` reads a condition after its
    operand.
    splats: for each operand, whether it has one value for all lanes of a vector.
    types: the type of each operand; () if all are f32.
    fixed: for each operand, whether all rows of a tile have the same values; () if none has.
    """

    algorithm: str
    splats: tuple[bool, ...] = (False,)
    types: tuple[str, ...] = ()
    fixed: tuple[bool, ...] = ()


@dataclass(frozen=True)
class Sum:
    """x = x + scale * (C - zero_point), with the old values of C.

    fused: the product is not rounded.
    """

    scale: float = 1.0
    zero_point: int = 0
    fused: bool = True


@dataclass(frozen=True)
class Eltwise:
    """x = algorithm(x) for the algorithms of `INLINE`. fused: as in `Sum`."""

    algorithm: str
    alpha: float = 0.0
    beta: float = 0.0
    fused: bool = True


@dataclass(frozen=True)
class Call:
    """x = stage(x) by a call. The function is an argument, so that one kernel serves all."""

    stage: post_ops.Stage = field(repr=False)


Stage = Correction | Operand | Sum | Eltwise | Call
Epilogue = tuple[Stage, ...]


def from_post_ops(
    attr: Attributes,
    operands: Sequence[tuple[bool, str]],
    *,
    before: Sequence[tuple[str, int]] = (),
    after: Sequence[tuple[str, int]] = (),
    fused: bool = True,
) -> Epilogue:
    """Return the epilogue of a post-op chain.

    operands: (splat, type) of the operands of all stages, in order. before, after: (algorithm,
    number of operands) of stages before and after the chain. fused: as in `Sum`.
    """
    rest = iter(operands)

    def stage(algorithm: str, count: int) -> Operand:
        splats, types = zip(*(next(rest) for _ in range(count)), strict=True)
        return Operand(algorithm, splats, () if {*types} == {"f32"} else types)

    first = [stage(*own) for own in before]
    steps = [_stage(post_op, stage, fused=fused) for post_op in attr.post_ops]
    return (*first, *steps, *(stage(*own) for own in after))


def _stage(post_op: PostOp, operand: Callable[[str, int], Operand], *, fused: bool) -> Stage:
    match post_op.kind:
        case "sum":
            return Sum(post_op.scale, post_op.zero_point, fused)
        case "eltwise" if post_op.algorithm in INLINE:
            return Eltwise(post_op.algorithm, post_op.alpha, post_op.beta, fused)
        case "eltwise":
            return Call(post_ops.eltwise(post_op.algorithm, post_op.alpha, post_op.beta))
        case "binary":
            return operand(post_op.algorithm, len(post_op.operands))
        case "prelu":
            return operand("prelu", 1)
        case kind:
            raise post_ops.UnknownAlgorithm(f"has no post-op {kind!r}")


def with_fixed(chain: Epilogue, fixed: Sequence[bool]) -> Epilogue:
    """Return the chain with `fixed`: whether each operand has the same values in all rows."""
    rest = iter(fixed)
    return tuple(
        replace(stage, fixed=tuple(itertools.islice(rest, len(stage.splats))))
        if isinstance(stage, Correction | Operand)
        else stage
        for stage in chain
    )


def has_calls(attr: Attributes) -> bool:
    """Whether a chain has a `Call`. Called functions compute with f32."""
    return any(
        post_op.kind == "eltwise" and post_op.algorithm not in INLINE for post_op in attr.post_ops
    )


def call_rows(chain: Epilogue) -> list[np.ndarray[Any, Any]]:
    """Return the `STAGE` records of a chain's calls. Compiles their functions."""
    return [STAGE.table([call.stage.row()]) for call in chain if isinstance(call, Call)]


def table_rows(chain: Epilogue) -> int:
    """Return the number of rows of the table of operands that a chain reads."""
    return _operand_rows(chain) + sum(isinstance(stage, Call) for stage in chain)


def _operand_rows(chain: Epilogue) -> int:
    """Return the number of operands."""
    return sum(len(stage.splats) for stage in chain if isinstance(stage, Correction | Operand))


@dataclass(frozen=True)
class View:
    """A tile's view of a tensor: an address, and strides in bytes from row to row and vector to
    vector.

    last: the number of the vector with the mask. mask: the valid lanes of the last vector of a row;
    None if all are valid. vector: the type of vectors in registers, of f32 or f64. data_type: the
    type of elements in memory.
    """

    builder: Builder
    vector: ir.VectorType
    pointer: Value
    row: Value
    block: Value
    last: int = -1
    mask: Value | None = None
    data_type: str = "f32"
    isa: Isa = BEST

    def place(self, m: int, n: int) -> tuple[Value, Value | None]:
        """Return the pointer and the mask of vector n of row m."""
        b = self.builder
        pointer = vir.at(b, self.pointer, b.mul(self.row, I64(m)))
        pointer = vir.at(b, pointer, b.mul(self.block, I64(n)))
        return pointer, self.mask if n == self.last else None

    @property
    def real(self) -> str:
        """The type of the computation, f32 or f64."""
        return "f64" if self.vector.element == F64 else "f32"

    def load(self, m: int, n: int, *, splat: bool = False) -> Value:
        """Load a vector as f32 or f64. splat: load one value and copy it to all lanes."""
        return self.as_real(self.stored(m, n, splat=splat), self.data_type)

    def as_real(self, x: Value, data_type: str) -> Value:
        """Convert stored elements of a type to f32 or f64."""
        if self.real == "f32":
            return as_f32(self.builder, x, data_type, self.isa)
        return converted(self.builder, x, data_type, "f64", self.isa)

    def stored(self, m: int, n: int, *, splat: bool = False) -> Value:
        """Load elements without conversion."""
        pointer, mask = self.place(m, n)
        vector = ir.VectorType(STORED[self.data_type], self.vector.count)
        if splat:
            align = vir.bytes_of(vector.element)
            scalar = self.builder.load(pointer, typ=vector.element, align=align)
            return vir.repeat(self.builder, scalar, vector)
        return vir.load(self.builder, pointer, vector, mask)

    def load_integer(self, m: int, n: int, *, splat: bool) -> Value:
        """Load a vector of integers as s32."""
        x, wide = self.stored(m, n, splat=splat), ir.VectorType(I32, self.vector.count)
        if x.type == wide:
            return x
        return (self.builder.zext if self.data_type == "u8" else self.builder.sext)(x, wide)

    def store(self, x: Value, m: int, n: int, edge: str) -> None:
        """Convert and store a vector of f32 or f64. edge: as in `Microkernel`."""
        pointer, mask = self.place(m, n)
        if mask is not None and edge == "zeroed":
            x, mask = self.builder.select(mask, x, self.vector(None)), None
        x = converted(self.builder, x, self.real, self.data_type, self.isa)
        vir.store(self.builder, x, pointer, mask)

    def store_as_is(self, x: Value, m: int, n: int, edge: str) -> None:
        """Store a vector without conversion. edge: as in `Microkernel`."""
        pointer, mask = self.place(m, n)
        if mask is not None and edge == "zeroed":
            x, mask = self.builder.select(mask, x, x.type(None)), None
        vir.store(self.builder, x, pointer, mask)


def apply(
    chain: Epilogue,
    tile: Sequence[Value],
    c: View,
    operands: Sequence[View],
    places: Sequence[tuple[int, int]],
) -> list[Value]:
    """Emit a chain for a tile of sums. Returns vectors of the type of C's view.

    places: the row and the vector number of each vector of the tile. operands: views of the rows of
    the table: operands first, then calls.
    """
    builder = c.builder
    tile = list(tile)
    views = iter(operands)
    calls = iter(operands[_operand_rows(chain) :])
    corrections = [stage for stage in chain if isinstance(stage, Correction)]
    for correction in corrections:
        own = _Values(views, correction, "s32")
        product = own.at_places(places, lambda *values: functools.reduce(builder.mul, values))
        tile = [builder.sub(x, y) for x, y in zip(tile, product, strict=True)]
    tile = [c.as_real(x, "s32" if x.type.element == I32 else c.real) for x in tile]
    for stage in chain[len(corrections) :]:
        match stage:
            case Operand(algorithm):
                own = _Values(views, stage, "f32")
                values = own.at_places(places, _prepared(builder, algorithm))
                emit = _BINARY[algorithm]
                tile = [emit(builder, x, *y) for x, y in zip(tile, values, strict=True)]
            case Sum(scale, zero_point, fused):
                factor = vir.constant(c.vector, scale)
                for i, (m, n) in enumerate(places):
                    old = c.load(m, n)
                    if zero_point:
                        old = builder.fsub(old, vir.constant(c.vector, zero_point))
                    tile[i] = _multiply_add(builder, factor, old, tile[i], fused=fused)
            case Eltwise(algorithm, alpha, beta, fused):
                emit = functools.partial(INLINE[algorithm], fused=fused)
                tile = [emit(builder, x, alpha, beta) for x in tile]
            case Call():
                tile = _called(builder, tile, next(calls).pointer)
    return tile


class _Values:
    """The operands of a stage, which are the next views. data_type: the default type."""

    def __init__(self, views: Iterator[View], stage: Correction | Operand, data_type: str) -> None:
        count = len(stage.splats)
        types, fixed = stage.types or (data_type,) * count, stage.fixed or (False,) * count
        self.is_integer = data_type == "s32"
        self.operands = [
            (replace(next(views), data_type=own), splat, is_fixed)
            for own, splat, is_fixed in zip(types, stage.splats, fixed, strict=True)
        ]

    def at_places(
        self, places: Sequence[tuple[int, int]], prepare: Callable[..., Any]
    ) -> list[Any]:
        """Return prepare(*vectors) for each place. It is emitted once for rows of equal values."""
        all_fixed = all(is_fixed for *_, is_fixed in self.operands)
        found = {}
        for m, n in dict.fromkeys((0 if all_fixed else m, n) for m, n in places):
            found[m, n] = prepare(
                *(
                    view.load_integer(0 if is_fixed else m, n, splat=splat)
                    if self.is_integer
                    else view.load(0 if is_fixed else m, n, splat=splat)
                    for view, splat, is_fixed in self.operands
                )
            )
        return [found[0 if all_fixed else m, n] for m, n in places]


def _called(builder: Builder, tile: Sequence[Value], row: Value) -> list[Value]:
    """Emit a call that computes a stage for a tile in memory."""
    vector = tile[0].type
    buffer = vir.room(builder, vector, len(tile))
    pointers = [vir.at(builder, buffer, 4 * vector.count * i) for i in range(len(tile))]
    for pointer, x in zip(pointers, tile, strict=True):
        vir.store(builder, x, pointer, None)
    x, length = builder.ptrtoint(buffer, I64), vector.count * len(tile)
    vir.call(
        builder, vir.field(builder, row, STAGE, "function"), STAGE_CALL,
        stage=builder.ptrtoint(row, I64), x=x, operand=0, condition=0, y=x, length=length,
    )  # fmt: skip
    return [vir.load(builder, pointer, vector, None) for pointer in pointers]


def _multiply_add(builder: Builder, x: Value, y: Value, z: Value, *, fused: bool) -> Value:
    """Return x * y + z. fused: the product is not rounded if the processor has such a product."""
    if fused:
        return vir.multiply_add(builder, x, y, z)
    return builder.fadd(builder.fmul(x, y), z)


def _relu(builder: Builder, x: Value, alpha: float, _beta: float, **_: bool) -> Value:
    zero = vir.constant(x.type, 0.0)
    if alpha == 0.0:  # without a product, because 0 * -inf is NaN
        return builder.select(builder.fcmp_ordered("<=", x, zero), zero, x)
    scaled = builder.fmul(x, vir.constant(x.type, alpha))
    return builder.select(builder.fcmp_ordered(">", x, zero), x, scaled)


def _linear(builder: Builder, x: Value, alpha: float, beta: float, *, fused: bool) -> Value:
    factor, term = (vir.constant(x.type, value) for value in (alpha, beta))
    return _multiply_add(builder, x, factor, term, fused=fused)


def _clip(builder: Builder, x: Value, alpha: float, beta: float, **_: bool) -> Value:
    low, high = vir.constant(x.type, alpha), vir.constant(x.type, beta)
    x = builder.select(builder.fcmp_ordered(">", x, high), high, x)
    return builder.select(builder.fcmp_ordered("<", x, low), low, x)


def _hardsigmoid(builder: Builder, x: Value, alpha: float, beta: float, *, fused: bool) -> Value:
    return _clip(builder, _linear(builder, x, alpha, beta, fused=fused), 0.0, 1.0)


def _hardswish(builder: Builder, x: Value, alpha: float, beta: float, *, fused: bool) -> Value:
    return builder.fmul(x, _hardsigmoid(builder, x, alpha, beta, fused=fused))


def _lanewise(name: str) -> Callable[..., Value]:
    """Return the emitter of an LLVM intrinsic of one vector."""
    return lambda builder, x, _alpha, _beta, **_: vir.lanewise(builder, name, x)


def _larger(sign: str) -> Callable[..., Value]:
    """Return the emitter of a maximum (sign ">") or minimum ("<"). NaN propagates."""

    def emit(builder: Builder, x: Value, y: Value) -> Value:
        wins = builder.or_(builder.fcmp_ordered(sign, y, x), builder.fcmp_unordered("uno", y, y))
        return builder.select(wins, y, x)

    return emit


def _compared(sign: str) -> Callable[..., Value]:
    """Return the emitter of a comparison: 1 for true, 0 for false."""

    def emit(builder: Builder, x: Value, y: Value) -> Value:
        # with NaN, != is true and all other comparisons are false
        compare = builder.fcmp_unordered if sign == "!=" else builder.fcmp_ordered
        one, zero = vir.constant(x.type, 1.0), vir.constant(x.type, 0.0)
        return builder.select(compare(sign, x, y), one, zero)

    return emit


def _prelu(builder: Builder, x: Value, weights: Value) -> Value:
    positive = builder.fcmp_ordered(">", x, vir.constant(x.type, 0.0))
    return builder.select(positive, x, builder.fmul(weights, x))


def _select(builder: Builder, x: Value, other: Value, condition: Value) -> Value:
    return builder.select(
        builder.fcmp_unordered("!=", condition, vir.constant(x.type, 0.0)), x, other
    )


_BINARY: dict[str, Callable[..., Value]] = {
    "add": lambda builder, x, y: builder.fadd(x, y),
    "sub": lambda builder, x, y: builder.fsub(x, y),
    "mul": lambda builder, x, y: builder.fmul(x, y),
    "div": lambda builder, x, y: builder.fdiv(x, y),
    "max": _larger(">"),
    "min": _larger("<"),
    "ge": _compared(">="),
    "gt": _compared(">"),
    "le": _compared("<="),
    "lt": _compared("<"),
    "eq": _compared("=="),
    "ne": _compared("!="),
    "select": _select,
    "prelu": _prelu,
    **dict.fromkeys(("scale", "descale"), lambda builder, x, factor: builder.fmul(x, factor)),
}


def _product(builder: Builder, *scales: Value) -> Sequence[Value]:
    return [functools.reduce(builder.fmul, scales)]


def _reciprocal(builder: Builder, scale: Value) -> Sequence[Value]:
    return [builder.fdiv(vir.constant(scale.type, 1.0), scale)]


_FACTORS: dict[str, Callable[..., Sequence[Value]]] = {"scale": _product, "descale": _reciprocal}
"""Algorithm -> the emitter of its factors from its operands."""


def _prepared(builder: Builder, algorithm: str) -> Callable[..., Sequence[Value]]:
    """Return the function from an algorithm's operands to its factors, or the identity."""
    if algorithm in _FACTORS:
        return functools.partial(_FACTORS[algorithm], builder)
    return lambda *values: values


INLINE: dict[str, Callable[..., Value]] = {
    "abs": _lanewise("fabs"),
    "clip": _clip,
    "clip_v2": _clip,
    "hardsigmoid": _hardsigmoid,
    "hardswish": _hardswish,
    "linear": _linear,
    "relu": _relu,
    "round": _lanewise("rint"),
    "sqrt": _lanewise("sqrt"),
    "square": lambda builder, x, _alpha, _beta, **_: builder.fmul(x, x),
}
