"""Attributes of a primitive: its post-op chain, scratchpad, determinism and arithmetic."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

from dnncore.errors import DescriptorError
from dnncore.memory_desc import MemoryDesc
from dnncore.ops.algorithms import BINARY_ALGORITHMS, check_algorithm, check_eltwise, check_finite

if TYPE_CHECKING:
    from dnncore.ops.operation import Operation

__all__ = ["Attributes", "PostOp"]

PostOpKind = Literal["eltwise", "sum", "binary"]
FpMath = Literal["strict", "bf16", "f16", "tf32", "any"]
ScratchpadMode = Literal["library", "user"]


@dataclass(frozen=True)
class PostOp:
    """One step applied, in float32, to each element `x` of a primitive's result before its store.

    Use the constructors: `PostOp.eltwise` (x = f(x)), `PostOp.sum` (x = x + scale * the value that
    dst held before) and `PostOp.binary` (x = x op src1, src1 broadcast to dst).
    """

    kind: PostOpKind
    algorithm: str = ""
    alpha: float = 0.0
    beta: float = 0.0
    scale: float = 1.0
    src: MemoryDesc | None = None

    @classmethod
    def eltwise(cls, algorithm: str, alpha: float = 0.0, beta: float = 0.0) -> PostOp:
        """x = algorithm(x), with the algorithms and parameters of `EltwiseForward`."""
        check_eltwise("post-op eltwise", algorithm, alpha, beta)
        return cls("eltwise", algorithm, float(alpha), float(beta))

    @classmethod
    def sum(cls, scale: float = 1.0) -> PostOp:
        """x = x + scale * dst; with scale 0 the step is dropped and dst is not read."""
        check_finite("post-op sum", scale=scale)
        return cls("sum", scale=float(scale))

    @classmethod
    def binary(cls, algorithm: str, src: MemoryDesc) -> PostOp:
        """x = algorithm(x, src); each dim of `src` is 1 or equal to dst's.

        The operand is passed at execution as `post_op_{i}_src`, i the position in the chain.
        """
        check_algorithm("post-op binary", algorithm, BINARY_ALGORITHMS)
        if not isinstance(src, MemoryDesc):
            raise DescriptorError(
                f"post-op binary: src must be a MemoryDesc; got {type(src).__name__};"
                " the memory itself is passed at execution"
            )
        return cls("binary", algorithm, src=src)


def _checked_chain(post_ops: object) -> tuple[PostOp, ...]:
    """The chain without the sums that add nothing."""
    chain = tuple(post_ops) if isinstance(post_ops, Iterable) else (None,)
    if not all(isinstance(post_op, PostOp) for post_op in chain):
        raise DescriptorError(
            f"attributes: post_ops must be a sequence of PostOp; got {post_ops!r};"
            " make them with PostOp.eltwise, PostOp.sum and PostOp.binary"
        )
    return tuple(post_op for post_op in chain if post_op.kind != "sum" or post_op.scale != 0.0)


@dataclass(frozen=True)
class Attributes:
    """How a primitive is computed, beside what its operation says.

    post_ops: steps fused into the store of the result, in order.
    scratchpad: "library" (the stream owns it) or "user" (an argument `scratchpad` of
        `pd.scratchpad_desc`).
    deterministic: only implementations whose result does not depend on timing.
    fpmath: the loosest arithmetic allowed inside for f32 data; "strict" is f32 itself.
    """

    post_ops: tuple[PostOp, ...] = ()
    scratchpad: ScratchpadMode = "library"
    deterministic: bool = False
    fpmath: FpMath = "strict"
    _hash: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "post_ops", _checked_chain(self.post_ops))
        _check_choice("scratchpad", self.scratchpad, get_args(ScratchpadMode))
        _check_choice("fpmath", self.fpmath, get_args(FpMath))
        key = (self.post_ops, self.scratchpad, self.deterministic, self.fpmath)
        object.__setattr__(self, "_hash", hash(key))

    def __hash__(self) -> int:
        return self._hash

    def binary_srcs(self) -> list[tuple[str, MemoryDesc]]:
        """The extra arguments of the chain: (argument name, descriptor) per binary step."""
        return [
            (f"post_op_{i}_src", p.src) for i, p in enumerate(self.post_ops) if p.src is not None
        ]

    def check(self, op: Operation) -> None:
        """Raise `DescriptorError` where the chain cannot apply to the result of `op`."""
        dims = op.result.dims
        for name, src in self.binary_srcs():
            fits = len(src.dims) == len(dims) and all(
                s in (1, d) for s, d in zip(src.dims, dims, strict=True)
            )
            if not fits:
                raise DescriptorError(
                    f"{op.KIND}: {name} must have dst's rank and each of its dims be 1 or dst's;"
                    f" got {src.dims} for dst {dims}; reshape the operand's descriptor"
                )
            if src.format_kind != "blocked":
                raise DescriptorError(
                    f"{op.KIND}: {name} must have a concrete format; got {src.format_kind!r}"
                )


def _check_choice(what: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise DescriptorError(
            f"attributes: {what} must be one of {', '.join(choices)}; got {value!r}"
        )
