"""Steps after an operation: functions of elements, sums, operands, depthwise convolutions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from numbers import Real
from typing import Any

import numpy as np

from dnncore.algorithms.post_ops import POST_OPS, PostOpKind
from dnncore.algorithms.rules import check_finite
from dnncore.errors import DescriptorError
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["PostOp", "record_text"]


def record_text(record: Any) -> str:
    """Return the constructor's call with the fields that differ from their defaults."""
    words = []
    for row in fields(record):
        own = getattr(record, row.name)
        own = dict(own) if isinstance(own, Mapping) else own
        if row.repr and own not in (row.default, {}):
            words.append(f"{row.name}={own!r}")
    return f"{type(record).__name__}({', '.join(words)})"


@dataclass(frozen=True, repr=False)
class PostOp:
    """A step that is applied, in float32, to each element `x` of a result before it is stored.

    Use the constructors: `PostOp.eltwise` (x = f(x)), `PostOp.sum` (x = x + scale * (the old value
    of dst - zero_point)), `PostOp.binary` (x = x op src), `PostOp.prelu` (x if x > 0, else
    weights * x) and `PostOp.depthwise` (a depthwise convolution of x). Omit fields that the kind
    does not read. Raises `DescriptorError`.

    `binary` and `prelu` read operands: tensors of f32, f16, bf16, s32, s8 or u8 (`src2` of s8), of
    dst's rank, whose dims are 1 or dst's. Their values are converted to f32. Their formats may be
    blocked, may have an offset, and may repeat elements. They must not be `any`. At execution, they
    are the arguments `post_op_{i}_src`, `post_op_{i}_src2` and `post_op_{i}_weights`. i is the
    position of the step in the chain.

    `depthwise` follows a 1x1 convolution. It reads `weights` of (C, 1, 1, kernel), with a kernel of
    equal sizes, and perhaps `bias` of (C,), the argument `post_op_{i}_bias`. `stride` and `padding`
    are by default 1, for all spatial dims. The operation's dst is then the image between both
    convolutions. The stored result has other dims and the type `dst_type`, by default f32:
    `Attributes.stored(op)` is its descriptor.
    """

    kind: PostOpKind
    algorithm: str = ""
    alpha: float = 0.0
    beta: float = 0.0
    scale: float = 1.0
    zero_point: int = 0
    src: MemoryDesc | None = None
    src2: MemoryDesc | None = None
    weights: MemoryDesc | None = None
    bias: MemoryDesc | None = None
    dst_type: str = "f32"
    stride: int = 1
    padding: int = 1

    def __repr__(self) -> str:
        return record_text(self)

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str) or self.kind not in POST_OPS:  # type: ignore[redundant-expr]  # callers pass anything
            raise DescriptorError(
                f"post-op: kind must be one of {', '.join(POST_OPS)}; got {self.kind!r};"
                " make a step with PostOp.eltwise, PostOp.sum, PostOp.binary, PostOp.prelu or"
                " PostOp.depthwise"
            )
        what = f"post-op {self.kind}"
        for row in fields(self)[1:]:
            if row.name not in POST_OPS[self.kind].fields and not _are_equal(
                getattr(self, row.name), row.default
            ):
                raise DescriptorError(f"{what}: it has no {row.name}; leave it out")
        self._check_own(what)
        for name in ("alpha", "beta", "scale"):
            object.__setattr__(self, name, float(getattr(self, name)))

    def _check_own(self, what: str) -> None:
        """Check the fields that this kind reads."""
        check_finite(what, alpha=self.alpha, beta=self.beta, scale=self.scale)
        object.__setattr__(self, "zero_point", _checked_zero_point(what, self.zero_point))
        object.__setattr__(self, "algorithm", POST_OPS[self.kind].check(what, self))
        for name in POST_OPS[self.kind].operands:
            desc = getattr(self, name)
            if desc is not None or name not in ("src2", "bias"):
                _check_operand(f"{what}: {name}", desc)

    @classmethod
    def eltwise(cls, algorithm: str, alpha: float = 0.0, beta: float = 0.0) -> PostOp:
        """x = algorithm(x), with the algorithms and parameters of `EltwiseForward`."""
        return cls("eltwise", algorithm, alpha, beta)

    @classmethod
    def sum(cls, scale: float = 1.0, zero_point: int = 0) -> PostOp:
        """x = x + scale * (dst - zero_point).

        With scale 0 the step is dropped and dst is not read.

        zero_point: an s32. It must be 0 unless dst is of type s32, s8 or u8.
        """
        return cls("sum", scale=scale, zero_point=zero_point)

    @classmethod
    def binary(cls, algorithm: str, src: MemoryDesc, src2: MemoryDesc | None = None) -> PostOp:
        """x = algorithm(x, src), with the algorithms of `Binary`.

        The operand is the argument `post_op_{i}_src`. Only `select` has a second operand,
        `post_op_{i}_src2`. This is the condition, of type s8. Where it is 0, x becomes src.
        """
        return cls("binary", algorithm, src=src, src2=src2)

    @classmethod
    def prelu(cls, weights: MemoryDesc) -> PostOp:
        """x = x where x > 0, else weights * x; the operand is the argument `post_op_{i}_weights`.

        Along a dim in which `weights` has size 1, all elements have the same slope. With size 1 in
        all dims there is one slope. With size 1 in all dims except dim 1 there is one per channel.
        """
        return cls("prelu", weights=weights)

    @classmethod
    def depthwise(
        cls,
        weights: MemoryDesc,
        bias: MemoryDesc | None = None,
        *,
        dst_type: str = "f32",
        stride: int = 1,
        padding: int = 1,
    ) -> PostOp:
        """x = a depthwise convolution of x, after a 1x1 convolution; oneDNN's `append_dw`.

        `help(dnncore.ops.depthwise)` shows the formula. The operation's dst describes x between the
        convolutions: its type is that to which x is rounded. The argument dst of the primitive has
        the dims after the step, the type `dst_type`, and the format of the operation's dst:
        `Attributes.stored(op)`. Steps before it apply to x, and steps after it to the result.

        weights: (C, 1, 1, kernel), a kernel of equal sizes; the argument `post_op_{i}_weights`.
        bias: (C,), or None; the argument `post_op_{i}_bias`.
        stride, padding: one number for all spatial dims; by default 1.
        """
        return cls(
            "depthwise", weights=weights, bias=bias, dst_type=dst_type, stride=stride,
            padding=padding,
        )  # fmt: skip

    @property
    def operands(self) -> tuple[tuple[str, MemoryDesc], ...]:
        """Return the tensors that this step reads, by their field names in the step."""
        named = ((name, getattr(self, name)) for name in POST_OPS[self.kind].operands)
        return tuple((name, desc) for name, desc in named if desc is not None)


def _checked_zero_point(what: str, value: object) -> int:
    """Return the zero point as a Python int. Raises `DescriptorError` unless it is an s32."""
    if (
        not isinstance(value, int | np.integer)
        or isinstance(value, bool)
        or not -(2**31) <= int(value) < 2**31
    ):
        raise DescriptorError(
            f"{what}: zero_point must be a whole number from -2^31 to 2^31 - 1; got {value!r}"
        )
    return int(value)


def _are_equal(value: object, default: object) -> bool:
    """Whether the values are equal; `value` may be an array, which numpy compares by element."""
    return value is default or (isinstance(value, Real | str) and bool(value == default))


def _check_operand(what: str, desc: object) -> None:
    if not isinstance(desc, MemoryDesc):
        raise DescriptorError(
            f"{what} must be a MemoryDesc; got {type(desc).__name__};"
            " the memory itself is passed at execution"
        )
