"""Direct convolution on CPUs, forward and backward by data, in blocks of channels.

A vector holds channels of the result. In blocked formats the channels of a vector are contiguous,
and so are the weights of a tap. `convolution/convolution_direct.cl` describes the kernel. Images of
plain formats are used without a copy. Tensors of other formats are copied to the scratchpad.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from dnncore.backend import Accepted, Attributes, Convolution, Implementation, MemoryDesc, Refused
from dnncore.planning.phases import Phase
from dnncore_opencl.codegen.digits import extended
from dnncore_opencl.convolution.lines import Lines
from dnncore_opencl.convolution.views import (
    View,
    blocked_tag,
    chain,
    image_view,
    operands,
    place_of,
    refuse_phases,
    spatial_phases,
)
from dnncore_opencl.copies.staging import ROW_MAJOR, Staging
from dnncore_opencl.elementwise.algorithms import POST_OP_WORDS
from dnncore_opencl.gemm.cpu import CpuFamily
from dnncore_opencl.gemm.family import Plan
from dnncore_opencl.gemm.implementation import accepted, common_refusal, size_refusal
from dnncore_opencl.runtime.launch import padded

LETTERS = "abcdef"
EFFICIENCY = 0.8  # of the peak, if all vectors and lines are full


class Direct(Implementation[Convolution]):
    """The base of all directions."""

    name = "opencl:direct:simd"
    attributes = POST_OP_WORDS
    columns_dim: int  # dim of the result's channels in weights without groups
    depth_dim: int

    def accept(
        self, op: Convolution, attr: Attributes, engine: Any, hint: object
    ) -> Accepted | Refused:
        """Accept every layout whose elements 32-bit integers can count."""
        if not engine.is_cpu:
            return Refused("device", f"computes on CPUs; got {engine.device.name}")
        if op.algorithm == "winograd":
            reason = "computes by algorithm direct; got winograd; pass algorithm='direct' or 'auto'"
            return Refused("algorithm", reason)
        cpu = CpuFamily.of(engine)
        op = op.resolve_any(**self.formats(op, cpu.vector))
        refused = common_refusal(op, attr)
        if refused:
            return refused

        def wanted(name: str, desc: MemoryDesc) -> MemoryDesc:
            return self.wanted(op, name, desc, cpu.vector)

        staging = Staging.of(op, attr, wanted)
        refused = size_refusal(staging.op, staging.attr)
        plans = refused or self.plans(staging.op, staging.attr, cpu, staging.nbytes)
        if isinstance(plans, Refused):
            return plans
        efficiency = EFFICIENCY * self.utilisation(op, cpu.vector)
        return accepted(op, engine, staging, plans, efficiency)

    @abstractmethod
    def plans(
        self, op: Convolution, attr: Attributes, cpu: CpuFamily, start: int
    ) -> Sequence[Plan] | Refused:
        """Plan the operation, whose tensors have the wanted layouts.

        start: bytes at the beginning of the scratchpad that are already used.
        """

    def utilisation(self, op: Convolution, lanes: int) -> float:
        """Return the share of lanes that hold channels."""
        _, oc, ic, *_ = op.grouped_weights
        columns, depth = (oc, ic) if self.columns_dim == 0 else (ic, oc)
        return float(columns / padded(columns, 2 * lanes) * min(1, depth / lanes) ** 0.5)

    # -- formats ---------------------------------------------------------------------------------

    def formats(self, op: Convolution, lanes: int) -> dict[str, str]:
        """Return the formats that replace `any`: channel blocks, or plain if channels are few."""
        tags = {a.name: ROW_MAJOR[: desc.ndims] for a, desc in op.tensors()}
        for name, desc in ((op.SRC, op.src_role), (op.DST, op.dst_role)):
            if desc.dims[1] >= lanes and self._fits_blocks(op, desc, lanes):
                tags[name] = blocked_tag(desc, lanes)
        return tags | {op.WEIGHTS: self.weights_tag(op, lanes)}

    def weights_tag(self, op: Convolution, lanes: int) -> str:
        """Return the weights' format: vectors of the result's channels for consecutive others."""
        first = first_dim(op)
        group, spatial = LETTERS[:first], LETTERS[first + 2 : op.weights_role.ndims]
        columns, depth = LETTERS[first + self.columns_dim], LETTERS[first + self.depth_dim]
        if op.weights_role.dims[first + self.depth_dim] < lanes:
            return f"{group}{columns.upper()}{spatial}{depth}{lanes}{columns}"
        blocks = "AB" if not first else "BC"
        order = blocks if self.columns_dim == 0 else blocks[::-1]
        return f"{group}{order}{spatial}{lanes}{depth}{lanes}{columns}"

    def wanted(self, op: Convolution, name: str, desc: MemoryDesc, lanes: int) -> MemoryDesc:
        """Return the layout in which the kernel reads or writes a tensor."""
        if name == op.WEIGHTS:
            if self._are_vectors(op, desc, lanes):
                return desc
            return desc.with_format(self.weights_tag(op, lanes))
        if desc.inner_blocks == ((1, lanes),) and self._fits_blocks(op, desc, lanes):
            return desc
        return desc if desc.is_plain else desc.with_format(ROW_MAJOR[: desc.ndims])

    def _are_vectors(self, op: Convolution, weights: MemoryDesc, lanes: int) -> bool:
        first = first_dim(op)
        columns, depth = first + self.columns_dim, first + self.depth_dim
        if weights.inner_blocks == ((columns, lanes),):
            return weights.strides[depth] == lanes
        return weights.inner_blocks == ((depth, lanes), (columns, lanes))

    def _fits_blocks(self, op: Convolution, image: MemoryDesc, lanes: int) -> bool:
        """Whether the first channel of each group is the first of a block."""
        groups, *_ = op.grouped_weights
        return groups == 1 or image.dims[1] // groups % lanes == 0

    # -- views -----------------------------------------------------------------------------------

    def _filter(self, op: Convolution, lanes: int) -> View:
        desc, first = op.weights_role, first_dim(op)
        group = desc.strides[0] if first else 0
        columns, depth = (desc.strides[first + d] for d in (self.columns_dim, self.depth_dim))
        block = depth if len(desc.inner_blocks) == 2 else depth * lanes
        taps = (0, *extended(desc.strides[first + 2 :], 3))
        return View(place_of(op, op.WEIGHTS), desc.offset0, group, columns, block, taps)


def first_dim(op: Convolution) -> int:
    """Return the weights dim of the output channels: 1 with groups, otherwise 0."""
    return op.weights_role.ndims - op.src_role.ndims


class DirectLines(Direct):
    """The base of the directions whose result is an image: sweeps over its lines."""

    def plans(
        self, op: Convolution, attr: Attributes, cpu: CpuFamily, start: int
    ) -> Sequence[Plan] | Refused:
        """Return one launch per sweep."""
        sweeps = [lines for lines in self.lines(op, attr, cpu.vector) if not lines.is_empty]
        refused = next(filter(None, (lines.refusal for lines in sweeps)), None)
        return refused or [lines.plan(cpu, start) for lines in sweeps]

    @abstractmethod
    def lines(self, op: Convolution, attr: Attributes, lanes: int) -> Iterator[Lines]:
        """Yield the sweeps over the result."""


class DirectForward(DirectLines):
    """Forward."""

    columns_dim, depth_dim = 0, 1

    def lines(self, op: Convolution, attr: Attributes, lanes: int) -> Iterator[Lines]:
        """Yield one sweep over all of dst."""
        groups, oc, ic, *taps = op.grouped_weights
        yield Lines(
            lanes=lanes,
            channels=(groups, oc, ic),
            out=(op.dst_role.dims[0], *extended(op.dst_role.dims[2:], 3, 1)),
            taps=extended(taps, 3, 1),
            at=extended([-p for p in op.padding_l], 3),
            n=extended(op.strides, 3, 1),
            k=extended([d + 1 for d in op.dilations], 3, 1),
            size=extended(op.src_role.dims[2:], 3, 1),
            src=image_view(op, "src", lanes),
            weights=self._filter(op, lanes),
            dst=image_view(op, "dst", lanes),
            post_ops=chain(op, attr),
            operands=operands(op, attr),
            is_blocked=not op.dst_role.is_plain,
            src_is_blocked=not op.src_role.is_plain,
        ).merged()


class DirectBackwardData(DirectLines):
    """Backward by data, from diff_dst to diff_src. A sweep covers the pixels with the same taps."""

    columns_dim, depth_dim = 1, 0

    def accept(
        self, op: Convolution, attr: Attributes, engine: Any, hint: object
    ) -> Accepted | Refused:
        """Accept as forward, unless there are very many sweeps."""
        return refuse_phases(op) or super().accept(op, attr, engine, hint)

    def lines(self, op: Convolution, attr: Attributes, lanes: int) -> Iterator[Lines]:
        """Yield one sweep per combination of the dims' phases."""
        for reached in itertools.product(*spatial_phases(op)):
            yield self._reached(op, attr, lanes, reached).merged()

    def _reached(
        self, op: Convolution, attr: Attributes, lanes: int, reached: Sequence[Phase]
    ) -> Lines:
        groups, oc, ic, *_ = op.grouped_weights

        def along(field: str, fill: int) -> tuple[int, ...]:
            return extended([getattr(phase, field) for phase in reached], 3, fill)

        pixel, stride = along("pixel", 0), along("stride", 1)
        return Lines(
            lanes=lanes,
            channels=(groups, ic, oc),
            out=(op.src_role.dims[0], *along("pixels", 1)),
            taps=along("taps", 1),
            at=along("at", 0),
            n=(1, 1, 1),
            k=tuple(-shrink for shrink in along("shrink", 1)),
            size=extended(op.dst_role.dims[2:], 3, 1),
            src=image_view(op, "diff_dst", lanes),
            weights=self._filter(op, lanes).moved(along("tap", 0), along("tap_step", 1)),
            dst=image_view(op, "diff_src", lanes).moved(pixel, stride),
            post_ops=tuple(attr.post_ops),
            operands=tuple(view.moved(pixel, stride) for view in operands(op, attr)),
            is_blocked=not op.src_role.is_plain,
            src_is_blocked=not op.dst_role.is_plain,
        )
