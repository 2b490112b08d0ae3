"""Winograd's convolution on GPUs, in its three directions: a batch of products of planes.

`convolution/winograd/planes.py` has the transforms. A family of kernels computes the products.
Images are processed in slices to limit the scratchpad. Gradients of weights also keep the sums of
each slice. (Slices that fit into an H200's second-level cache were 8 to 80 % slower than whole
batches, because products of few tiles leave multiprocessors idle.)

Results that are not finite are summed up directly. So they are finite wherever direct sums are,
unless a transformed filter overflows, which takes taps above 1.5e38.

Tiles of 2x2 outputs are nearly as exact as direct sums. Tiles of 2x4 are a little less exact, and
their products take a fourth less time. Tiles of 4x4 have larger errors. They are used only if the
algorithm is `winograd`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from dnncore.backend import Accepted, Attributes, Convolution, Implementation, MemoryDesc, Refused
from dnncore.planning.toom_cook import F23, F43
from dnncore_opencl.convolution.views import FLOAT, place_of
from dnncore_opencl.convolution.winograd.planes import (
    MOST_LANES,
    SCRATCHPAD,
    FilterPlanes,
    Image,
    Planes,
)
from dnncore_opencl.convolution.winograd.tile import WinogradTile
from dnncore_opencl.convolution.winograd.weights_format import (
    DIRECTIONS,
    FilterReorder,
    format_refusal,
    problem_refusal,
    roles,
)
from dnncore_opencl.copies.staging import ALIGNMENT, Staging, plain, redirected
from dnncore_opencl.gemm.family import Family
from dnncore_opencl.gemm.implementation import common_refusal, scratchpad_refusal, size_refusal
from dnncore_opencl.gemm.mma.family import Mma
from dnncore_opencl.gemm.product import Gemm
from dnncore_opencl.gemm.tiled.family import Tiled
from dnncore_opencl.gemm.tuned import tuned
from dnncore_opencl.reduction.implementations import bias_sums
from dnncore_opencl.runtime.launch import Launch, padded
from dnncore_opencl.runtime.schema import Scratch

CHANNELS_LAST = "acdb"
WEIGHTS_CHANNELS_LAST = {4: "acdb", 5: "abdec"}  # by dims
SLICE_BYTES = 1 << 30  # of V and M or D
SEEN_TRAFFIC = 0.8  # of all bytes, measured on an H200: products hide the rest
# Of one channel or tile; beyond it, a result is only for those who ask for this algorithm.
AUTO_ERROR_FACTOR = 8


class GpuWinograd(Implementation[Convolution]):
    """Forward, or backward by data: products of images and filters.

    direction: the one whose transform of filters is used.
    """

    def __init__(
        self, family: type[Family], tile: WinogradTile, direction: str = "forward"
    ) -> None:
        self.family = family
        self.tile = tile
        self.direction = direction
        self.filters = FilterPlanes(tile, direction)
        self.name = f"opencl:winograd:{tile.name}:{family.name}"

    def accept(
        self, op: Convolution, attr: Attributes, engine: Any, hint: object
    ) -> Accepted | Refused:
        """Accept dense 3x3 windows with stride 1 of one group, in every layout."""
        refused = self.family.refusal(engine) or self._refusal(op)
        if refused:
            return refused
        images = (op.SRC, op.DST)
        formats = {op.WEIGHTS: self.weights_format(op), **dict.fromkeys(images, CHANNELS_LAST)}
        if op.bias_role is not None:
            formats[op.BIAS] = "a"
        op = op.resolve_auto("winograd").resolve_any(**formats)
        refused = self.format_refusal(op, attr)
        if refused:
            return refused

        def wanted(name: str, desc: MemoryDesc) -> MemoryDesc:
            if name in images:
                return desc if _has_vectors(desc, _lanes(op)) else desc.with_format(CHANNELS_LAST)
            return plain(desc) if desc.format_kind == "blocked" else desc

        staging = Staging.of(op, attr, wanted)
        refused = size_refusal(staging.op, staging.attr)
        if refused:
            return refused
        plan = self._plan(staging, engine)
        if isinstance(plan, Refused):
            return plan

        return Accepted(
            op,
            build=partial(staging.program, engine, plan.launches),
            seconds=plan.seconds,
            scratchpad_bytes=plan.nbytes,
            exact=self.tile.is_exact,
            notes=(*staging.notes, *self.family.notes("f32", attr.fpmath)),
            error_factor=self.error_factor(self._planes(staging.op)),
        )

    def error_factor(self, planes: Planes) -> float:
        """How much larger rounding errors are than those of direct sums."""
        return self.tile.error_factor(planes.depth)

    def weights_format(self, op: Convolution) -> str | MemoryDesc:
        """The format of weights with the format `any`: transformed weights."""
        return self.filters.desc(op.weights_role)

    def format_refusal(self, op: Convolution, attr: Attributes) -> Refused | None:
        """Refuse filters that neither have strides nor are transformed."""
        return format_refusal(op, attr, self.filters)

    def kept_bytes(self, op: Convolution, slices: int) -> int:
        """The bytes of the planes of weights, which stay in the scratchpad for all slices."""
        if not slices or op.weights_role.format_kind == "opaque":
            return 0
        return self.filters.desc(op.weights_role).nbytes

    def fill(
        self, plan: _Launches, slices: Sequence[Planes], op: Convolution, attr: Attributes
    ) -> Refused | None:
        """Add all launches: transform filters, then of each slice what is read and written.

        Returns why the family cannot make the products, if so.
        """
        place = place_of(op, op.WEIGHTS)
        filters = place, 0
        if self.kept_bytes(op, len(slices)):
            filters = SCRATCHPAD, plan.first_kept
            launch = self.filters.launch(op.weights_role, place, Scratch(), plan.first_kept)
            plan.launches.append(launch)
        for part in slices:
            v, m, end = plan.bounds(part)
            plan.launches.append(part.src_launch(v))
            refused = plan.multiply(part.gemm(filters, v, m, attr.fpmath), end)
            if refused:
                return refused
            plan.launches.append(part.dst_launch(m, filters, op, attr))
        return None

    def _refusal(self, op: Convolution) -> Refused | None:
        if op.algorithm == "auto" and self.tile.error_factor(1) > AUTO_ERROR_FACTOR:
            factor = f"up to {self.tile.error_factor(1):.1f} times those of direct sums"
            return Refused("algorithm", f"rounding errors are {factor}; got auto, not winograd")
        return problem_refusal(op)

    def _planes(self, op: Convolution) -> Planes:
        """All images, whose channels lie side by side."""
        src, dst, corner = roles(op, self.direction)
        return Planes(
            tile=self.tile,
            count=op.src_role.dims[0],
            depth=getattr(op, src).dims[1],
            columns=getattr(op, dst).dims[1],
            src=Image.of(op, src),
            dst=Image.of(op, dst),
            corner=corner,
            lanes=_lanes(op),
        )

    def _plan(self, staging: Staging[Convolution], engine: Any) -> _Launches | Refused:
        planes = self._planes(staging.op)
        slices = list(planes.slices(SLICE_BYTES // FLOAT))
        kept = self.kept_bytes(staging.op, len(slices))
        first = padded(staging.nbytes, ALIGNMENT)
        plan = _Launches(engine, self.family.of(engine), first, first + padded(kept, ALIGNMENT))
        refused = (
            scratchpad_refusal(max((plan.bounds(part)[-1] for part in slices), default=0))
            or self.fill(plan, slices, staging.op, staging.attr)
            or scratchpad_refusal(plan.nbytes)
        )
        if refused:
            return refused
        traffic = 2 * FLOAT * sum(planes.elements) + 2 * (kept + staging.nbytes)
        plan.seconds = self._seconds(staging.op, planes, traffic, plan)
        return plan

    def _seconds(self, op: Convolution, planes: Planes, traffic: int, plan: _Launches) -> float:
        """Arithmetic of the products, then traffic and launches.

        traffic: bytes that are read and written beside the images.
        """
        peaks, device_type = plan.engine.peaks, plan.engine.device_type
        flops = 2 * self.tile.positions * planes.tiles * planes.depth * planes.columns
        nbytes = traffic + op.src_role.nbytes + op.dst_role.nbytes
        product = flops / peaks.flops["f32"] / self.family.efficiency[device_type]
        moved = SEEN_TRAFFIC * nbytes / peaks.bandwidth
        seconds: float = product + moved + max(1, len(plan.launches)) * peaks.launch
        return seconds


@dataclass
class _Launches:
    """Launches, the bytes of scratchpad that they need, and their estimated time.

    family: on the engine. kept: the byte of the scratchpad at which planes of filters begin, which
    are kept. start: the byte at which planes of slices begin.
    """

    engine: Any
    family: Any
    kept: int
    start: int
    launches: list[Launch] = field(default_factory=list)
    nbytes: int = 0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.nbytes = self.start

    @property
    def first_kept(self) -> int:
        """The first element of what is kept."""
        return self.kept // FLOAT

    def bounds(self, planes: Planes) -> tuple[int, int, int]:
        """The first elements of V and of M or D, and the bytes at which a slice ends."""
        v_bytes, m_bytes = (padded(FLOAT * n, ALIGNMENT) for n in planes.elements)
        middle = self.start + v_bytes
        return self.start // FLOAT, middle // FLOAT, middle + m_bytes

    def multiply(self, gemm: Gemm, end: int) -> Refused | None:
        """Add the products of a slice; return why the family cannot make them, if so."""
        refused: Refused | None = self.family.refusal_of(gemm)
        if refused:
            return refused
        product = tuned(self.family, gemm, self.engine).plan(gemm, end)
        self.launches += (
            redirected(launch, {SCRATCHPAD: Scratch()}) for launch in product.launches
        )
        self.nbytes = max(self.nbytes, end + product.scratchpad)
        return None


def _lanes(op: Convolution) -> int:
    """Channels of a vector; they divide the channels of all tensors."""
    channels = (op.src_role.dims[1], op.dst_role.dims[1])
    return MOST_LANES if all(n % MOST_LANES == 0 for n in channels) else 1


def _has_vectors(image: MemoryDesc, lanes: int) -> bool:
    """Whether channels lie side by side, in aligned vectors."""
    if not image.is_plain or image.strides[1] != 1:
        return False
    outer = (image.offset0, image.strides[0], *image.strides[2:])
    return all(step % lanes == 0 for step in outer)


class GpuWinogradBackwardWeights(GpuWinograd):
    """Backward by weights: the gradient of the planes that forward makes of filters."""

    def error_factor(self, planes: Planes) -> float:
        """The sums are over tiles."""
        return self.tile.gradient_error_factor(planes.tiles)

    def weights_format(self, op: Convolution) -> str:
        """Input channels side by side, as they are written."""
        return WEIGHTS_CHANNELS_LAST[op.weights_role.ndims]

    def format_refusal(self, op: Convolution, attr: Attributes) -> Refused | None:
        """All have strides."""
        return common_refusal(op, attr)

    def kept_bytes(self, op: Convolution, slices: int) -> int:
        """Of the sums of each slice."""
        return slices * self.filters.desc(op.weights_role).nbytes

    def fill(
        self, plan: _Launches, slices: Sequence[Planes], op: Convolution, attr: Attributes
    ) -> Refused | None:
        """Transform the images of each slice, multiply, and transform the sums; then the bias."""
        step = self.kept_bytes(op, 1) // FLOAT
        for i, part in enumerate(slices):
            v, d, end = plan.bounds(part)
            plan.launches += part.src_launch(v), part.diff_dst_launch(d)
            gemm = part.gradient_gemm(v, d, plan.first_kept + i * step, attr.fpmath)
            refused = plan.multiply(gemm, end)
            if refused:
                return refused
        images = self._planes(op)
        launch = self.filters.taps_launch(plan.first_kept, len(slices), images, op, attr)
        plan.launches.append(launch)
        sums = bias_sums(plan.engine, op, plan.kept)
        if sums:
            plan.launches += sums.launches()
            plan.nbytes = max(plan.nbytes, plan.kept + sums.scratchpad_bytes)
        return None


class WinogradPlanesReorder(FilterReorder):
    """Into the formats of GPUs."""

    name = "opencl:winograd:planes"
    efficiency = 0.5

    def formats(self, engine: Any) -> Iterable[FilterPlanes]:
        """Those of all tiles."""
        return (FilterPlanes(tile, direction) for tile in TILES for direction in DIRECTIONS)


TILES = (WinogradTile(F23, F23), WinogradTile(F23, F43), WinogradTile(F43, F43))
FAMILIES: tuple[type[Family], ...] = (Mma, Tiled)
CHOICES = tuple((family, tile) for tile in TILES for family in FAMILIES)
FORWARD, BACKWARD_DATA = (
    tuple(GpuWinograd(*choice, direction) for choice in CHOICES) for direction in DIRECTIONS
)
BACKWARD_WEIGHTS = tuple(GpuWinogradBackwardWeights(*choice) for choice in CHOICES)
