"""The binary algorithms: y = f(src0, src1), and `select`, which also reads src2."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dnncore.errors import DescriptorError
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["BINARY", "BinaryAlgorithm", "check_condition"]


@dataclass(frozen=True, kw_only=True)
class BinaryAlgorithm:
    """One algorithm.

    formula: text in Python's syntax.
    roundings: the error, in roundings of |y|.
    oracle: torch's result, as oracle(torch, src0, src1) or, with a condition, oracle(torch, src0,
        src1, src2).
    keeps_integers: whether whole numbers give whole numbers.
    has_condition: whether the algorithm reads src2, a tensor of type s8.
    """

    formula: str
    roundings: float = 0
    oracle: Callable[..., Any]
    keeps_integers: bool = True
    has_condition: bool = False


# In max and min, NaN in either input gives NaN. A comparison gives 1 or 0.
BINARY = {
    "add": BinaryAlgorithm(formula="src0 + src1", roundings=2, oracle=lambda _, a, b: a + b),
    "sub": BinaryAlgorithm(formula="src0 - src1", roundings=2, oracle=lambda _, a, b: a - b),
    "mul": BinaryAlgorithm(formula="src0 * src1", roundings=2, oracle=lambda _, a, b: a * b),
    "div": BinaryAlgorithm(
        formula="src0 / src1",
        roundings=6,  # OpenCL allows 2.5 ulp
        oracle=lambda _, a, b: a / b,
        keeps_integers=False,
    ),
    "max": BinaryAlgorithm(
        formula="max(src0, src1)", oracle=lambda torch, a, b: torch.maximum(a, b)
    ),
    "min": BinaryAlgorithm(
        formula="min(src0, src1)", oracle=lambda torch, a, b: torch.minimum(a, b)
    ),
    "ge": BinaryAlgorithm(formula="src0 >= src1", oracle=lambda _, a, b: a >= b),
    "gt": BinaryAlgorithm(formula="src0 > src1", oracle=lambda _, a, b: a > b),
    "le": BinaryAlgorithm(formula="src0 <= src1", oracle=lambda _, a, b: a <= b),
    "lt": BinaryAlgorithm(formula="src0 < src1", oracle=lambda _, a, b: a < b),
    "eq": BinaryAlgorithm(formula="src0 == src1", oracle=lambda _, a, b: a == b),
    "ne": BinaryAlgorithm(formula="src0 != src1", oracle=lambda _, a, b: a != b),
    "select": BinaryAlgorithm(
        formula="src0 if src2 else src1",
        oracle=lambda torch, a, b, condition: torch.where(condition != 0, a, b),
        has_condition=True,
    ),
}


def check_condition(what: str, algorithm: str, src2: MemoryDesc | None) -> None:
    """Raise `DescriptorError` unless src2, an s8 tensor, is given for `select` and only for it."""
    if BINARY[algorithm].has_condition != (src2 is not None):
        raise DescriptorError(
            f"{what}: src2, the s8 condition, belongs to select alone; got {algorithm}"
            f" {'without' if src2 is None else 'with'} src2"
        )
    if isinstance(src2, MemoryDesc) and src2.data_type != "s8":
        raise DescriptorError(f"{what}: src2 must be of type s8; got {src2.data_type}")
