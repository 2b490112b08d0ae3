"""Winograd's convolution on GPUs, in three directions: a batch of products of planes.

`convolution/winograd/planes.py` has the transforms. A family of kernels computes the products.
Images are processed in slices to limit the scratchpad. Gradients of weights also store the sums of
each slice. (Slices that fit in an H200's second-level cache were 8 to 80 % slower than whole
batches, because products of few tiles leave multiprocessors idle.)

Results that are not finite are computed again by direct sums. So they are finite wherever direct
sums are, unless transformed weights overflow, which requires weights above 1.5e38.

Tiles of 2x2 outputs are nearly as exact as direct sums. Tiles of 2x4 outputs are a little less
exact, and their products take a quarter less time. Tiles of 4x4 outputs have larger errors. They
are used only if the algorithm is `winograd`.
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
WEIGHTS_CHANNELS_LAST = {4: "acdb", 5: "abdec"}  # by number of dims
SLICE_BYTES = 1 << 30  # of V and of M or D
SEEN_TRAFFIC = 0.8  # of the traffic adds to the time (measured on an H200); products hide the rest
# For one channel or tile. Above this, an implementation requires the algorithm `winograd`.
AUTO_ERROR_FACTOR = 8


class GpuWinograd(Implementation[Convolution]):
    """Forward, or backward by data: products of images and weights.

    direction: the direction of the weights transform.
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
        """Return the factor between rounding errors and those of direct sums."""
        return self.tile.error_factor(planes.depth)

    def weights_format(self, op: Convolution) -> str | MemoryDesc:
        """Return the format that replaces `any` for weights: transformed weights."""
        return self.filters.desc(op.weights_role)

    def format_refusal(self, op: Convolution, attr: Attributes) -> Refused | None:
        """Refuse weights that neither have strides nor are transformed."""
        return format_refusal(op, attr, self.filters)

    def kept_bytes(self, op: Convolution, slices: int) -> int:
        """Return the bytes of the planes of weights. They stay in the scratchpad for all slices."""
        if not slices or op.weights_role.format_kind == "opaque":
            return 0
        return self.filters.desc(op.weights_role).nbytes

    def fill(
        self, plan: _Launches, slices: Sequence[Planes], op: Convolution, attr: Attributes
    ) -> Refused | None:
        """Add all launches: the transform of weights; per slice, transforms and products.

        Returns the family's refusal of the products, or None.
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
        """Return all images, whose channels are contiguous."""
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
        """Estimate the time: arithmetic of the products, then traffic and launches.

        traffic: bytes that are read and written in addition to the images.
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

    family: for the engine. kept: the first byte in the scratchpad of the planes of weights, which
    all slices use. start: the first byte of the planes of slices.
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
        """The first element of the planes of weights."""
        return self.kept // FLOAT

    def bounds(self, planes: Planes) -> tuple[int, int, int]:
        """Return the first elements of V and of M or D, and the end of a slice in bytes."""
        v_bytes, m_bytes = (padded(FLOAT * n, ALIGNMENT) for n in planes.elements)
        middle = self.start + v_bytes
        return self.start // FLOAT, middle // FLOAT, middle + m_bytes

    def multiply(self, gemm: Gemm, end: int) -> Refused | None:
        """Add the products of a slice. Return the family's refusal, or None."""
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
    """Return the channels per vector, which divides the channels of all tensors."""
    channels = (op.src_role.dims[1], op.dst_role.dims[1])
    return MOST_LANES if all(n % MOST_LANES == 0 for n in channels) else 1


def _has_vectors(image: MemoryDesc, lanes: int) -> bool:
    """Whether channels are contiguous, in aligned vectors."""
    if not image.is_plain or image.strides[1] != 1:
        return False
    outer = (image.offset0, image.strides[0], *image.strides[2:])
    return all(step % lanes == 0 for step in outer)


class GpuWinogradBackwardWeights(GpuWinograd):
    """Backward by weights: the gradient of the planes into which forward transforms weights."""

    def error_factor(self, planes: Planes) -> float:
        """Return the error factor of sums over tiles."""
        return self.tile.gradient_error_factor(planes.tiles)

    def weights_format(self, op: Convolution) -> str:
        """Return the format of written weights: input channels contiguous."""
        return WEIGHTS_CHANNELS_LAST[op.weights_role.ndims]

    def format_refusal(self, op: Convolution, attr: Attributes) -> Refused | None:
        """Return None: all tensors have strides."""
        return common_refusal(op, attr)

    def kept_bytes(self, op: Convolution, slices: int) -> int:
        """Return the bytes of the sums of all slices."""
        return slices * self.filters.desc(op.weights_role).nbytes

    def fill(
        self, plan: _Launches, slices: Sequence[Planes], op: Convolution, attr: Attributes
    ) -> Refused | None:
        """Per slice, transform images and multiply; then transform the sums; then the bias."""
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
    """Reorder to the GPU formats."""

    name = "opencl:winograd:planes"
    efficiency = 0.5

    def formats(self, engine: Any) -> Iterable[FilterPlanes]:
        """Return the formats of all tiles."""
        return (FilterPlanes(tile, direction) for tile in TILES for direction in DIRECTIONS)


TILES = (WinogradTile(F23, F23), WinogradTile(F23, F43), WinogradTile(F43, F43))
FAMILIES: tuple[type[Family], ...] = (Mma, Tiled)
CHOICES = tuple((family, tile) for tile in TILES for family in FAMILIES)
FORWARD, BACKWARD_DATA = (
    tuple(GpuWinograd(*choice, direction) for choice in CHOICES) for direction in DIRECTIONS
)
BACKWARD_WEIGHTS = tuple(GpuWinogradBackwardWeights(*choice) for choice in CHOICES)
