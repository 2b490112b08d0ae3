"""The numbers of recurrent cells of 8-bit integers, which are fixed when a primitive is made.

A state of integers q represents the number (q - shift) / scale, and weights w represent
w / scales. The names and the meaning are oneDNN's: scales divide here, unlike those of
`dnncore.quantization`. `help(dnncore.ops.rnn)` has the formulas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dnncore.algorithms.rules import check_finite
from dnncore.errors import DescriptorError

if TYPE_CHECKING:
    from dnncore.ops.operation import Operation

__all__ = ["RNNDataQparams", "RNNQparams", "RNNWeightsQparams", "check_qparams",
           "count_of_scales"]  # fmt: skip

MASKS = {"weights": (0, 24), "projection": (0, 8)}
"""The possible masks: one scale, or one per gate and channel; one per channel of the projection."""

NAMES = ("rnn_data_qparams", "rnn_weights_qparams", "rnn_weights_projection_qparams")
"""The attributes."""


@dataclass(frozen=True)
class RNNDataQparams:
    """src_layer, src_iter, dst_layer and dst_iter: an integer is number * scale + shift, rounded.

    scale: above 0. shift: any finite number; the integer of 0, if it is whole.
    """

    scale: float = 1.0
    shift: float = 0.0

    def __post_init__(self) -> None:
        check_finite("rnn_data_qparams", scale=self.scale, shift=self.shift)
        if np.float32(self.scale) <= 0:
            raise DescriptorError(f"rnn_data_qparams: scale must be above 0; got {self.scale!r}")
        for name in ("scale", "shift"):
            object.__setattr__(self, name, float(np.float32(getattr(self, name))))


@dataclass(frozen=True)
class RNNWeightsQparams:
    """weights_layer and weights_iter, or weights_projection: an integer is number * scale, rounded.

    scales: numbers above 0; one for mask 0.
    mask: 0, or 24 for G * DHC scales, one per gate and channel. For the projection 8, for DIC
        scales, one per channel of the result.
    """

    scales: Sequence[float] = (1.0,)
    mask: int = 0

    def __post_init__(self) -> None:
        what = "rnn_weights_qparams"
        try:
            scales: tuple[Any, ...] = tuple(self.scales)
        except Exception:  # a third-party iterable may raise any exception
            scales = ()
        if not scales or not all(map(_is_scale, scales)):
            raise DescriptorError(
                f"{what}: scales must be a sequence of finite numbers above 0; got {self.scales!r}"
            )
        known = sorted({mask for masks in MASKS.values() for mask in masks})
        given: object = self.mask
        is_whole = isinstance(given, int | np.integer) and not isinstance(given, bool)
        if not is_whole or self.mask not in known:
            raise DescriptorError(
                f"{what}: mask must be one of {', '.join(map(str, known))}; got {self.mask!r}"
            )
        object.__setattr__(self, "scales", tuple(float(np.float32(scale)) for scale in scales))
        object.__setattr__(self, "mask", int(self.mask))


def _is_scale(scale: Any) -> bool:
    try:
        check_finite("", scale=scale)
    except DescriptorError:
        return False
    return float(np.float32(scale)) > 0


@dataclass(frozen=True)
class RNNQparams:
    """The numbers of one operation.

    weights: (G, DHC), the scales of weights. projection: (DIC,).
    """

    scale: float
    shift: float
    weights: np.ndarray[Any, Any]
    projection: np.ndarray[Any, Any]

    @classmethod
    def of(cls, op: Any, attr: Any) -> RNNQparams:
        """Return the numbers, which are 1 and 0 where the attributes do not give them."""
        data = attr.rnn_data_qparams or RNNDataQparams()
        given = (attr.rnn_weights_qparams, attr.rnn_weights_projection_qparams)
        dims = ((op.sizes.gates, op.sizes.dhc), (op.sizes.dic,))
        scales = (
            np.array(own.scales).reshape(count) if own.mask else np.full(count, own.scales[0])
            for own, count in zip((one or RNNWeightsQparams() for one in given), dims, strict=True)
        )
        return cls(data.scale, data.shift, *scales)


def check_qparams(op: Operation, attr: Any) -> None:
    """Raise `DescriptorError` if the attributes of cells of integers cannot apply to `op`."""
    given = [name for name in NAMES if getattr(attr, name) is not None]
    if given and not getattr(op, "is_integer", False):
        raise DescriptorError(
            f"{op.KIND}: {given[0]} belong to recurrent cells of src_layer u8 or s8; leave them out"
        )
    for kind, name in zip(MASKS, NAMES[1:], strict=True):
        own: RNNWeightsQparams | None = getattr(attr, name)
        if own is not None:
            _check_weights(op, kind, name, own)


def count_of_scales(op: Any, name: str, mask: int) -> int:
    """Return the number of scales that an attribute of weights needs; 0 for other operations."""
    if not getattr(op, "is_integer", False):
        return 0
    many: int = op.sizes.gates * op.sizes.dhc if name == NAMES[1] else op.sizes.dic
    return many if mask else 1


def _check_weights(op: Any, kind: str, name: str, own: RNNWeightsQparams) -> None:
    if kind == "projection" and op.weights_projection is None:
        raise DescriptorError(f"{op.KIND}: {name} need weights_projection, which is absent")
    if own.mask not in MASKS[kind]:
        raise DescriptorError(
            f"{op.KIND}: {name}: mask must be {' or '.join(map(str, MASKS[kind]))}; got {own.mask}"
        )
    wanted = count_of_scales(op, name, own.mask)
    if len(own.scales) != wanted:
        raise DescriptorError(
            f"{op.KIND}: {name}: mask {own.mask} needs {wanted} scale{'s' * (wanted != 1)};"
            f" got {len(own.scales)}"
        )
