"""Winograd's convolution on GPUs, forward and backward by data: a batch of products of planes.

`winograd_planes.py` has the transforms; a family of kernels makes the products. Images go through
in slices, which bounds the scratchpad. (Slices that an H200's second-level cache holds were 8 to
80 % slower than whole batches: products of few tiles leave multiprocessors idle.)

Tiles of 2x2 outputs are as exact as direct sums are, but for a NaN or an infinity, which spreads
over all tiles that read it; tiles of 2x4 are nearly so, and a fourth quicker to multiply. Tiles of
4x4, whose errors are larger, are for those who ask for `winograd`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from dnncore.backend import Accepted, Attributes, Executable, Implementation, MemoryDesc, Refused
from dnncore_opencl.convolution_views import FLOAT, place_of
from dnncore_opencl.family import Family
from dnncore_opencl.gemm_implementation import scratchpad_refusal, size_refusal
from dnncore_opencl.mma import Mma
from dnncore_opencl.program import Launch, LaunchProgram, Scratch, padded
from dnncore_opencl.staging import ALIGNMENT, Staging, plain, redirected
from dnncore_opencl.tiled import Tiled
from dnncore_opencl.toom_cook import F23, F43, TAPS, Tile
from dnncore_opencl.tuned import tuned
from dnncore_opencl.winograd_filters import (
    DIRECTIONS,
    FilterReorder,
    format_refusal,
    problem_refusal,
)
from dnncore_opencl.winograd_planes import MOST_LANES, SCRATCHPAD, FilterPlanes, Image, Planes

CHANNELS_LAST = "acdb"
SLICE_BYTES = 1 << 30  # of V and M
SEEN_TRAFFIC = 0.8  # measured on an H200: products hide the rest of it
AUTO_ERROR_FACTOR = 4  # beyond which a result is only for those who ask for this algorithm


class Winograd(Implementation):
    """What the directions share."""

    direction: str

    def __init__(self, family: type[Family], tile: Tile) -> None:
        self.family = family
        self.tile = tile
        self.name = f"opencl:winograd:{tile.name}:{family.name}"

    def accept(self, op: Any, attr: Attributes, engine: Any, hint: object) -> Accepted | Refused:
        """Accept dense 3x3 windows with stride 1 of one group, in every layout."""
        refused = self.family.refusal(engine) or self._refusal(op)
        if refused:
            return refused
        filters = FilterPlanes(self.tile, self.direction)
        images = (op.SRC, op.DST)
        bias = {"bias": "a"} if op.bias_role is not None else {}
        op = op.resolve_auto("winograd").resolve_any(
            weights=filters.desc(op.weights), **dict.fromkeys(images, CHANNELS_LAST), **bias
        )
        refused = format_refusal(op, attr, filters)
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

        def build() -> Executable:
            return LaunchProgram(engine, staging.around(engine, plan.launches))

        return Accepted(
            op,
            build=build,
            seconds=plan.seconds,
            scratchpad_bytes=plan.nbytes,
            exact=self.tile.is_exact,
            error_factor=self.tile.error_factor,
        )

    def _refusal(self, op: Any) -> Refused | None:
        if op.algorithm == "auto" and self.tile.error_factor > AUTO_ERROR_FACTOR:
            factor = f"{self.tile.error_factor:.1f} times those of direct sums"
            return Refused("algorithm", f"rounding errors are {factor}; got auto, not winograd")
        return problem_refusal(op)

    def _planes(self, op: Any) -> Planes:
        """All images, whose channels lie side by side."""
        _, oc, ic, *_ = op.grouped_weights
        src, dst, corner = op.SRC, op.DST, op.padding_l
        depth, columns = ic, oc
        if self.direction != "forward":
            src, dst, corner = dst, src, tuple(TAPS - 1 - p for p in op.padding_l)
            depth, columns = oc, ic
        images, _, *src_size = getattr(op, src).dims
        return Planes(
            tile=self.tile,
            count=images,
            depth=depth,
            columns=columns,
            src=Image.of(op, src),
            dst=Image.of(op, dst),
            src_size=tuple(src_size),
            dst_size=getattr(op, dst).dims[2:],
            corner=corner,
            lanes=_lanes(op),
        )

    def _plan(self, staging: Staging, engine: Any) -> _Plan | Refused:
        op, attr = staging.op, staging.attr
        planes = self._planes(op)
        if not planes.depth:
            return Refused("shape", "src must have channels; got 0")
        plan = _Plan(padded(staging.nbytes, ALIGNMENT))
        if not planes.tiles * planes.columns:
            return plan
        family = self.family.of(engine)
        filters = plan.filters(op, FilterPlanes(self.tile, self.direction))
        for part in planes.slices(SLICE_BYTES // FLOAT):
            refused = plan.extend(part, filters, op, attr, family, engine)
            if refused:
                return refused
        refused = scratchpad_refusal(plan.nbytes)
        if refused:
            return refused
        plan.seconds = self._seconds(staging, planes, engine, len(plan.launches))
        return plan

    def _seconds(self, staging: Staging, planes: Planes, engine: Any, launches: int) -> float:
        """Arithmetic of the products, then traffic, then launches."""
        peaks, op = engine.peaks, staging.op
        flops = 2 * self.tile.positions * planes.tiles * planes.depth * planes.columns
        nbytes = 2 * FLOAT * sum(planes.elements) + op.src_role.nbytes + op.dst_role.nbytes
        if op.weights.format_kind != "opaque":
            nbytes += 2 * FilterPlanes(self.tile, self.direction).desc(op.weights).nbytes
        nbytes += 2 * staging.nbytes
        product = flops / peaks.flops["f32"] / self.family.efficiency[engine.device_type]
        traffic = SEEN_TRAFFIC * nbytes / peaks.bandwidth
        return product + traffic + launches * peaks.launch


@dataclass
class _Plan:
    """Launches, the bytes of scratchpad that they need, and their estimated time.

    start: where the scratchpad of slices begins, behind what all of them need.
    """

    start: int
    launches: list[Launch] = field(default_factory=list)
    nbytes: int = 0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.nbytes = self.start

    def filters(self, op: Any, own: FilterPlanes) -> tuple[int, int]:
        """The place and the first element of transformed filters, transformed first if need be."""
        place = place_of(op, op.WEIGHTS)
        if op.weights.format_kind == "opaque":
            return place, 0
        first = self.start // FLOAT
        self.launches.append(own.launch(op.weights, place, Scratch(), first))
        self.start += padded(own.desc(op.weights).nbytes, ALIGNMENT)
        return SCRATCHPAD, first

    def extend(
        self,
        planes: Planes,
        filters: tuple[int, int],
        op: Any,
        attr: Attributes,
        family: Any,
        engine: Any,
    ) -> Refused | None:
        """Add a slice, or tell why the family cannot make its products."""
        v_bytes, m_bytes = (padded(FLOAT * n, ALIGNMENT) for n in planes.elements)
        v, m = self.start // FLOAT, (self.start + v_bytes) // FLOAT
        end = self.start + v_bytes + m_bytes
        gemm = planes.gemm(filters, v, m, attr.fpmath)
        refused = family.refusal_of(gemm)
        if refused:
            return refused
        product = tuned(family, gemm, engine).plan(gemm, end)
        self.launches += (
            planes.src_launch(v),
            *(redirected(launch, {SCRATCHPAD: Scratch()}) for launch in product.launches),
            planes.dst_launch(m, op, attr),
        )
        self.nbytes = max(self.nbytes, end + product.scratchpad)
        return None


def _lanes(op: Any) -> int:
    """Channels of a vector: all or none of the tensors have as many."""
    channels = (op.src_role.dims[1], op.dst_role.dims[1])
    return MOST_LANES if all(n % MOST_LANES == 0 for n in channels) else 1


def _has_vectors(image: MemoryDesc, lanes: int) -> bool:
    """Whether channels lie side by side, in aligned vectors."""
    if not image.is_plain or image.strides[1] != 1:
        return False
    outer = (image.offset0, image.strides[0], *image.strides[2:])
    return all(step % lanes == 0 for step in outer)


class WinogradForward(Winograd):
    """Forward."""

    direction = "forward"


class WinogradBackwardData(Winograd):
    """Backward by data."""

    direction = "backward_data"


class WinogradPlanesReorder(FilterReorder):
    """Into the formats of GPUs."""

    name = "opencl:winograd:planes"
    efficiency = 0.5

    def formats(self, engine: Any) -> Iterable[FilterPlanes]:
        """Those of all tiles."""
        return (FilterPlanes(tile, direction) for tile in TILES for direction in DIRECTIONS)


TILES = (Tile(F23, F23), Tile(F23, F43), Tile(F43, F43))
FAMILIES: tuple[type[Family], ...] = (Mma, Tiled)
FORWARD, BACKWARD_DATA = (
    tuple(direction(family, tile) for tile in TILES for family in FAMILIES)
    for direction in (WinogradForward, WinogradBackwardData)
)
