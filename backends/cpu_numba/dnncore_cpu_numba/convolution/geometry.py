"""The numbers of a convolution, with three spatial dims and a group dim always present."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dnncore.backend import MemoryDesc, Refused
from dnncore.planning import phases

Triple = tuple[int, ...]
ONES: Triple = (1, 1, 1)


@dataclass(frozen=True)
class Phase:
    """The pixels position + stride * j of diff_src, j < count, which gather through the same taps.

    taps: (tap, shift); through that tap, pixel j gathers from pixel shift + j of diff_dst.
    """

    position: Triple
    count: Triple
    taps: list[tuple[Triple, Triple]]


@dataclass(frozen=True)
class Geometry:
    """Sizes in forward roles: `ic` and `oc` are per group, `dilation` is 1 where dense."""

    batch: int
    groups: int
    ic: int
    oc: int
    src: Triple
    dst: Triple
    kernel: Triple
    stride: Triple
    dilation: Triple
    padding: Triple

    @classmethod
    def of(cls, op: Any) -> Geometry:
        """Read them from any direction's operation."""

        def three(values: Iterable[int], fill: int = 1) -> Triple:
            values = tuple(values)
            return (*[fill] * (3 - len(values)), *values)

        groups, oc, ic, *kernel = op.grouped_weights
        return cls(
            op.src_role.dims[0], groups, ic, oc, three(op.src_role.dims[2:]),
            three(op.dst_role.dims[2:]), three(kernel), three(op.strides),
            three(d + 1 for d in op.dilations), three(op.padding_l, 0),
        )  # fmt: skip

    @property
    def taps(self) -> list[Triple]:
        """The positions (z, r, s) in the kernel, in order."""
        return list(itertools.product(*map(range, self.kernel)))

    @property
    def span(self) -> Triple:
        """The cells of the padded src that windows touch, from its first one on."""
        windows = zip(self.dst, self.stride, self.kernel, self.dilation, strict=True)
        return tuple((o - 1) * s + (k - 1) * d + 1 for o, s, k, d in windows)

    def windows(self) -> Phase:
        """All pixels of dst, which gather from src: pixel j from shift + stride * j."""
        shifts = [
            tuple(map(int.__sub__, scaled(tap, self.dilation), self.padding)) for tap in self.taps
        ]
        return Phase((0, 0, 0), self.dst, list(zip(self.taps, shifts, strict=True)))

    def phases(self) -> list[Phase]:
        """The pixels of diff_src by their position modulo the strides."""
        dims = zip(self.src, self.kernel, self.stride, self.dilation, self.padding, strict=True)
        by_dim = [phases.phases(*dim) for dim in dims]
        return [_phase(chosen) for chosen in itertools.product(*by_dim)]


def _phase(dims: tuple[phases.Phase, ...]) -> Phase:
    taps = [[(d.tap + t * d.tap_step, d.at - t * d.shrink) for t in range(d.taps)] for d in dims]
    choices = itertools.product(*taps)
    gathered = [
        (tuple(tap for tap, _ in choice), tuple(shift for _, shift in choice)) for choice in choices
    ]
    return Phase(tuple(d.pixel for d in dims), tuple(d.pixels for d in dims), gathered)


def refuse_algorithm(op: Any, own: str) -> Refused | None:
    """The refusal of what is asked to be computed by another algorithm than `own`."""
    if op.algorithm in (own, "auto"):
        return None
    return Refused("algorithm", f"computes by algorithm {own}; got {op.algorithm}")


@functools.lru_cache(1024)  # every instruction set asks for the same
def weights_as_6d(desc: MemoryDesc, ndims: int) -> MemoryDesc:
    """A filter's descriptor as (G, OC, IC, D, H, W); ndims: of the activations."""
    groups = desc.ndims - ndims
    channels, kernel = desc.dims[: 2 + groups], desc.dims[2 + groups :]
    return desc.reshape(((1,) * (1 - groups)) + channels + (1,) * (3 - len(kernel)) + kernel)


def scaled(values: Iterable[int], factors: Iterable[int]) -> tuple[int, ...]:
    """The products, one by one."""
    return tuple(map(int.__mul__, values, factors))


def dot(x: Iterable[int], y: Iterable[int]) -> int:
    """The sum of products."""
    return sum(map(int.__mul__, x, y))
