"""The kinds of post-ops: x becomes f(x) before a result is stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from dnncore.algorithms.binary import BINARY, check_condition
from dnncore.algorithms.eltwise import ELTWISE, check_eltwise
from dnncore.algorithms.rounding import ROUNDOFF, Array
from dnncore.algorithms.rules import check_algorithm
from dnncore.errors import DescriptorError
from dnncore.tensors.datatypes import data_type
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["POST_OPS", "PostOpKind", "PostOpRecord", "Step"]


PostOpKind = Literal["eltwise", "sum", "binary", "prelu", "depthwise"]


class Step(Protocol):
    """The fields of a `dnncore.PostOp` that the records read."""

    @property
    def algorithm(self) -> str:
        """The algorithm's name, if the kind has algorithms."""

    @property
    def alpha(self) -> float:
        """The first parameter."""

    @property
    def beta(self) -> float:
        """The second parameter."""

    @property
    def scale(self) -> float:
        """The factor of dst's old value."""

    @property
    def zero_point(self) -> int:
        """The number that is subtracted from the old value of dst."""

    @property
    def src2(self) -> MemoryDesc | None:
        """The condition of `select`."""

    @property
    def weights(self) -> MemoryDesc | None:
        """The weights of `prelu` or `depthwise`."""

    @property
    def dst_type(self) -> str:
        """The type of the result after a depthwise convolution."""

    @property
    def stride(self) -> int:
        """The stride of a depthwise convolution."""

    @property
    def padding(self) -> int:
        """The padding of a depthwise convolution."""


@dataclass(frozen=True, kw_only=True)
class PostOpRecord:
    """One kind of post-op.

    fields: the fields of a `PostOp` that the kind reads.
    operands: those of `fields` that are tensors.
    check: check(what, step) raises `DescriptorError` unless the step's algorithm and parameters
        are valid, and returns the algorithm's name.
    error: error(step, x, y, old) is the absolute error of y = f(x) if x is exact; `old` is the old
        value of dst, or None. `dnncore.comparison.error_bounds` has the error of `depthwise`, which
        is not a function of one element.
    keeps_integers: whether a step maps whole numbers to whole numbers.
    oracle: oracle(torch, step, x, operands, old) is torch's result; operands by field.
    probe: probe(dims, channel) returns the fields of a step that changes nearly every result, so
        that an implementation that ignores the step is wrong. `channel` is a tensor with one value
        per channel. It is None for a kind that may follow only some operations.
    """

    fields: tuple[str, ...]
    operands: tuple[str, ...] = ()
    check: Callable[[str, Step], str] = lambda _what, _step: ""
    error: Callable[[Step, Array, Array, Array | None], Array]
    keeps_integers: Callable[[Step], bool]
    oracle: Callable[[Any, Step, Any, Mapping[str, Any], Any], Any]
    probe: Callable[[MemoryDesc], dict[str, Any]] | None


def _check_eltwise(what: str, step: Step) -> str:
    return check_eltwise(what, step.algorithm, step.alpha, step.beta)


def _eltwise_is_whole(step: Step) -> bool:
    whole = step.alpha.is_integer() and step.beta.is_integer()
    return ELTWISE[step.algorithm].keeps_integers and whole


def _sum_error(step: Step, _x: Array, y: Array, old: Array | None) -> Array:
    added = 0.0 if old is None else np.abs(step.scale * (old - step.zero_point))
    total: Array = 2 * ROUNDOFF * (np.abs(y) + added)
    return total


def _check_binary(what: str, step: Step) -> str:
    check_algorithm(what, step.algorithm, BINARY)
    check_condition(what, step.algorithm, step.src2)
    return step.algorithm


def _binary_oracle(torch: Any, step: Step, x: Any, operands: Mapping[str, Any], _old: Any) -> Any:
    return BINARY[step.algorithm].oracle(torch, x, *operands.values()).to(x.dtype)


def _check_depthwise(what: str, step: Step) -> str:
    for name, least in (("stride", 1), ("padding", 0)):
        value = getattr(step, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise DescriptorError(
                f"{what}: {name} must be an integer, at least {least}; got {value!r}"
            )
    data_type(step.dst_type)
    return ""


def _depthwise_oracle(
    torch: Any, step: Step, x: Any, operands: Mapping[str, Any], _old: Any
) -> Any:
    weights = operands["weights"][:, 0]
    convolve = getattr(torch.nn.functional, f"conv{weights.ndim - 2}d")
    return convolve(
        x, weights, operands.get("bias"), step.stride, step.padding, groups=weights.shape[0]
    )


POST_OPS: dict[PostOpKind, PostOpRecord] = {
    "eltwise": PostOpRecord(
        fields=("algorithm", "alpha", "beta"),
        check=_check_eltwise,
        error=lambda step, x, y, _old: ELTWISE[step.algorithm].error.bound(
            x, y, step.alpha, step.beta
        ),
        keeps_integers=_eltwise_is_whole,
        oracle=lambda torch, step, x, _operands, _old: ELTWISE[step.algorithm].oracle(
            torch, x, step.alpha, step.beta
        ),
        probe=lambda _channel: {"algorithm": "linear", "alpha": 2.0, "beta": 3.0},
    ),
    "sum": PostOpRecord(
        fields=("scale", "zero_point"),
        error=_sum_error,
        keeps_integers=lambda step: step.scale.is_integer(),
        oracle=lambda _torch, step, x, _operands, old: x + step.scale * (old - step.zero_point),
        probe=lambda _channel: {"scale": 2.0},
    ),
    "binary": PostOpRecord(
        fields=("algorithm", "src", "src2"),
        operands=("src", "src2"),
        check=_check_binary,
        error=lambda step, _x, y, _old: BINARY[step.algorithm].roundings * ROUNDOFF * np.abs(y),
        keeps_integers=lambda step: BINARY[step.algorithm].keeps_integers,
        oracle=_binary_oracle,
        probe=lambda channel: {"algorithm": "sub", "src": channel},
    ),
    "prelu": PostOpRecord(
        fields=("weights",),
        operands=("weights",),
        error=lambda _step, _x, y, _old: 2 * ROUNDOFF * np.abs(y),
        keeps_integers=lambda _step: True,
        oracle=lambda torch, _step, x, operands, _old: torch.where(
            x > 0, x, x * operands["weights"]
        ),
        probe=lambda channel: {"weights": channel},
    ),
    "depthwise": PostOpRecord(
        fields=("weights", "bias", "dst_type", "stride", "padding"),
        operands=("weights", "bias"),
        check=_check_depthwise,
        error=lambda _step, _x, y, _old: np.full_like(y, np.nan),
        keeps_integers=lambda _step: True,
        oracle=_depthwise_oracle,
        probe=None,
    ),
}
