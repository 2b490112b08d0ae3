"""The numbers of a convolution, with three spatial dims and a group dim always present."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace

from dnncore.backend import Convolution
from dnncore.planning import phases
from dnncore_cpu_numba.runtime.tensor import Tensor

Triple = tuple[int, ...]
ONES: Triple = (1, 1, 1)


@dataclass(frozen=True)
class Phase:
    """Some pixels of the output, position + phase_stride * j, which gather through the same taps.

    count: of j. taps: (tap, shift); through that tap, pixel j gathers from pixel shift + step * j.
    """

    position: Triple
    count: Triple
    taps: list[tuple[Triple, Triple]]


@dataclass(frozen=True)
class Geometry:
    """Sizes in forward roles: `ic` and `oc` are per group, `dilation` is 1 where dense.

    backward: pixels of src gather from dst, as backward by data; otherwise those of dst from src.
    """

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
    backward: bool

    @classmethod
    def of(cls, op: Convolution) -> Geometry:
        """Read them from any direction's operation."""

        def three(values: Iterable[int], fill: int = 1) -> Triple:
            values = tuple(values)
            return (*[fill] * (3 - len(values)), *values)

        groups, oc, ic, *kernel = op.grouped_weights
        return cls(
            op.src_role.dims[0], groups, ic, oc, three(op.src_role.dims[2:]),
            three(op.dst_role.dims[2:]), three(kernel), three(op.strides),
            three(d + 1 for d in op.dilations), three(op.padding_l, 0),
            op.result_name == op.SRC,
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

    @property
    def is_inside(self) -> bool:
        """Whether no window leaves src."""
        return not any(self.padding) and all(map(int.__le__, self.span, self.src))

    @property
    def gathered(self) -> str:
        """The name of the image that is gathered from, forward or backward by data."""
        return "diff_dst" if self.backward else "src"

    @property
    def depth(self) -> int:
        """The channels per group of the side that is gathered from."""
        return self.oc if self.backward else self.ic

    @property
    def columns(self) -> int:
        """The channels per group of the side that gathers."""
        return self.ic if self.backward else self.oc

    @property
    def step(self) -> Triple:
        """From window to window in what is gathered from."""
        return ONES if self.backward else self.stride

    @property
    def phase_stride(self) -> Triple:
        """From pixel to pixel of a phase."""
        return self.stride if self.backward else ONES

    def as_forward(self) -> Geometry:
        """The forward convolution with the same sums; backward, strides must be 1.

        It gathers from dst through the filter flipped.
        """
        if not self.backward:
            return self
        reach = scaled((size - 1 for size in self.kernel), self.dilation)
        return replace(
            self, ic=self.oc, oc=self.ic, src=self.dst, dst=self.src, backward=False,
            padding=tuple(map(int.__sub__, reach, self.padding)),
        )  # fmt: skip

    def stretches(self, most: int) -> list[tuple[int, int]]:
        """(first, count) of stretches of at most `most` images; (0, 0) if there are none."""
        starts = range(0, max(1, self.batch), most)
        return [(first, min(most, self.batch - first)) for first in starts]

    def phases(self) -> list[Phase]:
        """The pixels of the output; backward, by their position modulo the strides."""
        if self.backward:
            dims = zip(self.src, self.kernel, self.stride, self.dilation, self.padding, strict=True)
            by_dim = [phases.phases(*dim) for dim in dims]
            return [_phase(chosen) for chosen in itertools.product(*by_dim)]
        shifts = [
            tuple(map(int.__sub__, scaled(tap, self.dilation), self.padding)) for tap in self.taps
        ]
        return [Phase((0, 0, 0), self.dst, list(zip(self.taps, shifts, strict=True)))]


def _phase(dims: tuple[phases.Phase, ...]) -> Phase:
    taps = [[(d.tap + t * d.tap_step, d.at - t * d.shrink) for t in range(d.taps)] for d in dims]
    choices = itertools.product(*taps)
    gathered = [
        (tuple(tap for tap, _ in choice), tuple(shift for _, shift in choice)) for choice in choices
    ]
    return Phase(tuple(d.pixel for d in dims), tuple(d.pixels for d in dims), gathered)


@functools.lru_cache(1024)  # every instruction set asks for the same
def weights_as_6d(tensor: Tensor, ndims: int) -> Tensor:
    """A filter as (G, OC, IC, D, H, W); ndims: of the activations."""
    desc, groups = tensor.desc, tensor.desc.ndims - ndims
    channels, kernel = desc.dims[: 2 + groups], desc.dims[2 + groups :]
    dims = (1,) * (1 - groups) + channels + (1,) * (3 - len(kernel)) + kernel
    return tensor.seen_as(desc.reshape(dims))


def scaled(values: Iterable[int], factors: Iterable[int]) -> tuple[int, ...]:
    """The products, one by one."""
    return tuple(map(int.__mul__, values, factors))


def dot(x: Iterable[int], y: Iterable[int]) -> int:
    """The sum of products."""
    return sum(map(int.__mul__, x, y))
