"""The end of a microkernel: what is done to each vector of results before it is stored.

An epilogue is a tuple of stages; bias is one more operand that is added. Every post-op chain is
one: operands that a tile cannot read as they lie are copied first, see `dnncore_cpu_numba.plan`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from dnncore.backend import Attributes, PostOp
from dnncore_cpu_numba import vector_ir as vir
from dnncore_cpu_numba.vector_ir import F32, I64

__all__ = ["Eltwise", "Epilogue", "Operand", "Sum", "View", "apply", "from_post_ops"]

Value = Any
Builder = ir.IRBuilder


@dataclass(frozen=True)
class Operand:
    """x = x op operand. splat: the operand has one value for all lanes of a vector."""

    algorithm: str
    splat: bool = False


@dataclass(frozen=True)
class Sum:
    """x = x + scale * C, C as it was before."""

    scale: float = 1.0


@dataclass(frozen=True)
class Eltwise:
    """x = algorithm(x), as `dnncore.ops.algorithms` defines it."""

    algorithm: str
    alpha: float = 0.0
    beta: float = 0.0


Epilogue = tuple[Operand | Sum | Eltwise, ...]


def from_post_ops(attr: Attributes, splats: Iterable[bool]) -> Epilogue:
    """The epilogue of a chain; splats: of each binary step's operand."""
    splats = iter(splats)
    stages: dict[str, Callable[[PostOp], Operand | Sum | Eltwise]] = {
        "binary": lambda p: Operand(p.algorithm, next(splats)),
        "sum": lambda p: Sum(p.scale),
        "eltwise": lambda p: Eltwise(p.algorithm, p.alpha, p.beta),
    }
    return tuple(stages[post_op.kind](post_op) for post_op in attr.post_ops)


@dataclass(frozen=True)
class View:
    """A tensor as a tile sees it: an address and strides (bytes) per row and vector of the tile.

    mask: the valid lanes of the last vector of a row, None where all are.
    """

    builder: Builder
    vector: ir.VectorType
    pointer: Value
    row: Value
    block: Value
    last: int = -1
    mask: Value | None = None

    def place(self, m: int, n: int) -> tuple[Value, Value | None]:
        """The pointer and the mask of vector n of row m."""
        b = self.builder
        pointer = vir.at(b, self.pointer, b.mul(self.row, I64(m)))
        pointer = vir.at(b, pointer, b.mul(self.block, I64(n)))
        return pointer, self.mask if n == self.last else None

    def load(self, m: int, n: int, *, splat: bool = False) -> Value:
        """A vector; with `splat`, copies of the one value there."""
        pointer, mask = self.place(m, n)
        if splat:
            scalar = self.builder.load(pointer, typ=F32, align=4)
            return vir.repeat(self.builder, scalar, self.vector)
        return vir.load(self.builder, pointer, self.vector, mask)


def apply(chain: Epilogue, x: Value, c: View, operands: Sequence[View], m: int, n: int) -> Value:
    """Emit a chain for vector n of row m; `operands` has one view per `Operand` in the chain."""
    builder = c.builder
    views = iter(operands)
    for stage in chain:
        match stage:
            case Operand(algorithm, splat):
                x = _BINARY[algorithm](builder, x, next(views).load(m, n, splat=splat))
            case Sum(scale):
                x = vir.multiply_add(builder, vir.constant(c.vector, scale), c.load(m, n), x)
            case Eltwise(algorithm, alpha, beta):
                x = _ELTWISE[algorithm](builder, x, alpha, beta)
    return x


def _relu(builder: Builder, x: Value, alpha: float, _beta: float) -> Value:
    zero = vir.constant(x.type, 0.0)
    if alpha == 0.0:  # no product: 0 * -inf would be NaN
        return builder.select(builder.fcmp_ordered("<=", x, zero), zero, x)
    scaled = builder.fmul(x, vir.constant(x.type, alpha))
    return builder.select(builder.fcmp_ordered(">", x, zero), x, scaled)


def _linear(builder: Builder, x: Value, alpha: float, beta: float) -> Value:
    return vir.multiply_add(builder, x, vir.constant(x.type, alpha), vir.constant(x.type, beta))


def _logistic(builder: Builder, x: Value, _alpha: float, _beta: float) -> Value:
    one = vir.constant(x.type, 1.0)
    return builder.fdiv(one, builder.fadd(one, _exp(builder, builder.fneg(x))))


def _tanh(builder: Builder, x: Value, _alpha: float, _beta: float) -> Value:
    """An odd polynomial near 0, 1 - 2 / (exp(2|x|) + 1) elsewhere; at most 3 ulp (measured)."""
    one, two = vir.constant(x.type, 1.0), vir.constant(x.type, 2.0)
    size = vir.intrinsic(builder, f"llvm.fabs.v{x.type.count}f32", x.type, [x])
    grown = _exp(builder, builder.fadd(size, size))
    far = builder.fsub(one, builder.fdiv(two, builder.fadd(grown, one)))
    far = vir.intrinsic(builder, f"llvm.copysign.v{x.type.count}f32", x.type, [far, x])
    square = builder.fmul(x, x)
    tail = builder.fmul(_polynomial(builder, square, _TANH), builder.fmul(square, x))
    near = builder.fadd(x, tail)
    is_near = builder.fcmp_ordered("<", size, vir.constant(x.type, 0.625))
    return builder.select(is_near, near, far)


def _exp(builder: Builder, x: Value) -> Value:
    """2**n * p(x - n * log 2), at most 2 ulp (measured); inf above 88.3, 1e-38 below -87.3."""

    def constant(value: float) -> Value:
        return vir.constant(x.type, value)

    count = x.type.count
    overflows = builder.fcmp_ordered(">", x, constant(88.3))  # false for NaN, which stays
    underflows = builder.fcmp_ordered("<", x, constant(-87.3))
    x = builder.select(underflows, constant(-87.3), x)
    n = builder.fmul(x, constant(1.4426950408889634))
    n = vir.intrinsic(builder, f"llvm.rint.v{count}f32", x.type, [n])
    r = vir.multiply_add(builder, n, constant(-0.693359375), x)
    r = vir.multiply_add(builder, n, constant(2.12194440e-4), r)  # log 2 in two parts
    tail = builder.fmul(_polynomial(builder, r, _EXP), builder.fmul(r, r))
    power = builder.fadd(builder.fadd(tail, r), constant(1.0))
    integers = ir.VectorType(ir.IntType(32), count)
    # a saturating conversion: that of NaN is 0 instead of undefined
    name = f"llvm.fptosi.sat.v{count}i32.v{count}f32"
    exponent = vir.intrinsic(builder, name, integers, [n])
    exponent = builder.shl(exponent, ir.Constant(integers, [23] * count))
    scaled = builder.bitcast(builder.add(builder.bitcast(power, integers), exponent), x.type)
    return builder.select(overflows, constant(math.inf), scaled)


def _polynomial(builder: Builder, x: Value, coefficients: Sequence[float]) -> Value:
    """Horner's rule, highest power first."""
    value = vir.constant(x.type, coefficients[0])
    for coefficient in coefficients[1:]:
        value = vir.multiply_add(builder, value, x, vir.constant(x.type, coefficient))
    return value


# Minimax polynomials of the Cephes library (expf, tanhf), highest power first.
_EXP = (
    1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1,
    5.0000001201e-1,
)  # fmt: skip
_TANH = (
    -5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1,
)  # fmt: skip

_BINARY: dict[str, Callable[..., Value]] = {
    "add": lambda builder, x, y: builder.fadd(x, y),
    "mul": lambda builder, x, y: builder.fmul(x, y),
}

_ELTWISE: dict[str, Callable[..., Value]] = {
    "relu": _relu,
    "tanh": _tanh,
    "logistic": _logistic,
    "linear": _linear,
}
