"""Sliding windows: the strides, dilations and paddings that convolution and pooling share."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from dnncore.errors import DescriptorError

__all__ = ["Windowed", "effective_kernel", "entries", "window_output"]

SPATIAL = "dhw"
LARGEST = 2**31 - 1  # so that the product of two fits into 64 bits


def effective_kernel(kernel: int, dilation: int) -> int:
    """Return the cells that a window spans: 1 + (kernel - 1) * (dilation + 1).

    Dilation 0 is dense.
    """
    return 1 + (kernel - 1) * (dilation + 1)


def window_output(size: int, kernel: int, stride: int, dilation: int, left: int, right: int) -> int:
    """Return the number of windows along one dim.

    It is trunc((size - effective kernel + left + right) / stride) + 1.
    """
    span = size - effective_kernel(kernel, dilation) + left + right
    return int(span / stride) + 1  # oneDNN's C division: truncated, not floored


@dataclass(frozen=True, eq=False, kw_only=True)
class Windowed:
    """Fields of an operation with a sliding window, one entry per spatial dim, outer to inner.

    strides >= 1; dilations >= 0, 0 is dense (default); padding_l >= 0 (default 0); padding_r
    defaults to padding_l and may be negative as long as padding_r + stride >= LEAST_REACH. All are
    at most 2**31 - 1.
    """

    LEAST_REACH: ClassVar[int] = 1

    strides: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    padding_l: tuple[int, ...] = ()
    padding_r: tuple[int, ...] = ()

    def _normalise_window(self, kind: str, spatial: int) -> None:
        strides = entries(kind, "strides", self.strides, spatial, (1,) * spatial)
        dilations = entries(kind, "dilations", self.dilations, spatial, (0,) * spatial)
        left = entries(kind, "padding_l", self.padding_l, spatial, (0,) * spatial)
        right = entries(kind, "padding_r", self.padding_r, spatial, left)
        for i in range(spatial):
            _check(kind, "strides", i, strides[i], strides[i] >= 1, "at least 1")
            _check(kind, "dilations", i, dilations[i], dilations[i] >= 0, "at least 0 (0 is dense)")
            _check(kind, "padding_l", i, left[i], left[i] >= 0, "at least 0")
            least = self.LEAST_REACH - strides[i]
            reach = f"padding_r + stride {strides[i]} must be at least {self.LEAST_REACH}"
            rule = f"at least {least}, because {reach}"
            _check(kind, "padding_r", i, right[i], right[i] >= least, rule)
        values = {
            "strides": strides, "dilations": dilations, "padding_l": left, "padding_r": right,
        }  # fmt: skip
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _check_output(
        self, kind: str, src: Sequence[int], kernel: Sequence[int], dst: Sequence[int], name: str,
        image: str = "src",
    ) -> None:  # fmt: skip
        """Check that dst's spatial dims are those of src under this window.

        name: of dst in messages. image: of src.
        """
        names = SPATIAL[-len(src) :]
        for i, (size, k, got) in enumerate(zip(src, kernel, dst, strict=True)):
            geometry = (self.strides[i], self.dilations[i], self.padding_l[i], self.padding_r[i])
            expected = window_output(size, k, *geometry)
            if got != expected:
                raise DescriptorError(
                    f"{kind}: {name} must be {expected} along {names[i]}, that is"
                    f" ({image} {size} - kernel {effective_kernel(k, self.dilations[i])}"
                    f" + padding {self.padding_l[i]} + {self.padding_r[i]})"
                    f" / stride {self.strides[i]} + 1; got {got}"
                )


def entries(
    kind: str, name: str, value: Any, spatial: int, default: tuple[int, ...] = ()
) -> tuple[int, ...]:
    """Return one integer per spatial dim from `value`, which may be one integer for all.

    Raises `DescriptorError` for anything else and for integers above `LARGEST`.
    """
    try:
        found = (operator.index(value),) * spatial
    except TypeError:
        try:
            found = tuple(map(operator.index, itertools.islice(value, len(SPATIAL) + 1))) or default
        except Exception:  # a third-party iterable may raise any exception
            found = ()
    if len(found) != spatial:
        raise DescriptorError(
            f"{kind}: {name} must hold {spatial} integers, one per spatial dim, or be one integer"
            f" for all; got {value!r}"
        )
    if max(found, default=0) > LARGEST:
        raise DescriptorError(f"{kind}: {name} must be at most {LARGEST}; got {value!r}")
    return found


def _check(kind: str, name: str, i: int, value: int, ok: bool, rule: str) -> None:
    if not ok:
        raise DescriptorError(f"{kind}: {name}[{i}] must be {rule}; got {value}")
