"""The sizes of a convolution, always with three spatial dims and a group dim."""

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
    """The output pixels position + phase_stride * j, which all have the same taps.

    count: the number of j along each dim. taps: (tap, shift) pairs; through the tap, pixel j reads
    input pixel shift + step * j.
    """

    position: Triple
    count: Triple
    taps: list[tuple[Triple, Triple]]


@dataclass(frozen=True)
class Geometry:
    """Sizes in forward roles. `ic` and `oc` are per group. Dilation 1 is dense.

    backward: pixels of src are computed from dst (backward by data); otherwise dst from src.
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
        """Return the geometry of an operation of any direction."""

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
        """The positions (z, r, s) of all taps, in order."""
        return list(itertools.product(*map(range, self.kernel)))

    @property
    def span(self) -> Triple:
        """The part of the padded src that windows read: its size from the first cell."""
        windows = zip(self.dst, self.stride, self.kernel, self.dilation, strict=True)
        return tuple((o - 1) * s + (k - 1) * d + 1 for o, s, k, d in windows)

    @property
    def is_inside(self) -> bool:
        """Whether no window leaves src."""
        return not any(self.padding) and all(map(int.__le__, self.span, self.src))

    @property
    def gathered(self) -> str:
        """The name of the image that is read, forward or backward by data."""
        return "diff_dst" if self.backward else "src"

    @property
    def depth(self) -> int:
        """The channels per group of the image that is read."""
        return self.oc if self.backward else self.ic

    @property
    def columns(self) -> int:
        """The channels per group of the image that is written."""
        return self.ic if self.backward else self.oc

    @property
    def step(self) -> Triple:
        """The step from window to window in the image that is read."""
        return ONES if self.backward else self.stride

    @property
    def phase_stride(self) -> Triple:
        """The step from pixel to pixel of a phase in the image that is written."""
        return self.stride if self.backward else ONES

    def as_forward(self) -> Geometry:
        """Return the forward convolution with the same sums.

        Backward, the result reads dst through flipped weights. Its strides must be 1.
        """
        if not self.backward:
            return self
        reach = scaled((size - 1 for size in self.kernel), self.dilation)
        return replace(
            self, ic=self.oc, oc=self.ic, src=self.dst, dst=self.src, backward=False,
            padding=tuple(map(int.__sub__, reach, self.padding)),
        )  # fmt: skip

    def stretches(self, most: int) -> list[tuple[int, int]]:
        """Return (first, count) of stretches of at most `most` images; (0, 0) without images."""
        starts = range(0, max(1, self.batch), most)
        return [(first, min(most, self.batch - first)) for first in starts]

    def phases(self) -> list[Phase]:
        """Return the phases of the output: one forward; backward, one per remainder of strides."""
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


@functools.lru_cache(1024)  # all instruction sets call it with the same arguments
def weights_as_6d(tensor: Tensor, ndims: int) -> Tensor:
    """Return weights as (G, OC, IC, D, H, W). ndims: the rank of the activations."""
    desc, groups = tensor.desc, tensor.desc.ndims - ndims
    channels, kernel = desc.dims[: 2 + groups], desc.dims[2 + groups :]
    dims = (1,) * (1 - groups) + channels + (1,) * (3 - len(kernel)) + kernel
    return tensor.seen_as(desc.reshape(dims))


def scaled(values: Iterable[int], factors: Iterable[int]) -> tuple[int, ...]:
    """Return the elementwise products."""
    return tuple(map(int.__mul__, values, factors))


def dot(x: Iterable[int], y: Iterable[int]) -> int:
    """Return the sum of products."""
    return sum(map(int.__mul__, x, y))
