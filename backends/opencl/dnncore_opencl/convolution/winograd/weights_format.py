"""Common code of Winograd's convolutions: supported problems and formats of transformed weights.

Weights of (OC, IC, 3, 3), or with one group in front, are transformed once into an opaque format.
Forward, columns are output channels and depth is input channels. Backward by data, columns are
input channels, depth is output channels, and the weights are flipped.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar

from dnncore import backend as core
from dnncore.backend import Accepted, Attributes, Executable, Implementation, MemoryDesc, Refused
from dnncore.planning.toom_cook import TAPS
from dnncore_opencl.copies.staging import Staging, plain
from dnncore_opencl.gemm.implementation import common_refusal, size_refusal
from dnncore_opencl.runtime.launch import Launch
from dnncore_opencl.runtime.schema import Arg, Scratch

DIRECTIONS = ("forward", "backward_data")


class Filters(ABC):
    """A format of weights that are transformed for one of `DIRECTIONS`."""

    direction: str

    @property
    @abstractmethod
    def tag(self) -> str:
        """The format's text."""

    @abstractmethod
    def desc(self, weights: MemoryDesc) -> MemoryDesc:
        """Return the descriptor of transformed weights."""

    @abstractmethod
    def launch(self, weights: MemoryDesc, place: int, target: Arg | Scratch, start: int) -> Launch:
        """Return the launch that transforms weights to the target, from element `start` on."""

    def channels(self, weights: MemoryDesc) -> tuple[int, int]:
        """Return columns and depth."""
        oc, ic = weights.dims[-4:-2]
        return (oc, ic) if self.direction == "forward" else (ic, oc)

    def strides(self, weights: MemoryDesc) -> tuple[tuple[int, ...], int]:
        """Return strides of column, depth, tap row and tap column, and the first element."""
        oc, ic, row, column = weights.strides[-4:]
        if self.direction == "forward":
            return (oc, ic, row, column), weights.offset0
        return (ic, oc, -row, -column), weights.offset0 + (TAPS - 1) * (row + column)


class FilterReorder(Implementation[core.Reorder]):
    """Transforms weights of any layout. There is no inverse transform."""

    efficiency: ClassVar[float]  # share of the memory's bandwidth

    @abstractmethod
    def formats(self, engine: Any) -> Iterable[Filters]:
        """Return the formats that are supported on a device."""

    def accept(
        self, op: core.Reorder, attr: Attributes, engine: Any, hint: Any
    ) -> Accepted | Refused:
        """Accept f32 weights that are reordered to one of the formats."""
        formats = {one.tag: one for one in self.formats(engine)}
        target = formats.get(op.dst.tag or "")
        if target is None or op.src.format_kind != "blocked" or op.src.data_type != "f32":
            made, got = " or ".join(formats), f"{op.src.tag} to {op.dst.tag}"
            return Refused("format", f"makes {made} of f32 with strides; got {got}")
        if op.dst != target.desc(op.src):
            return Refused("format", f"{op.dst.tag} of {op.src.dims}; got {op.dst.nbytes} bytes")
        if attr.post_ops:
            return Refused("attribute", f"no post-ops; got {len(attr.post_ops)}")

        def wanted(name: str, desc: MemoryDesc) -> MemoryDesc:
            return plain(desc) if name == "src" else desc

        staging = Staging.of(op, attr, wanted)
        refused = size_refusal(staging.op, attr)
        if refused:
            return refused

        def build() -> Executable:
            launches = [target.launch(staging.op.src, 0, Arg(1), 0)] if op.src.nelems else []
            return staging.program(engine, launches)

        return Accepted(
            op,
            build=build,
            efficiency=self.efficiency,
            scratchpad_bytes=staging.nbytes,
            exact=False,
            notes=staging.notes,
        )


def roles(op: core.Convolution, direction: str) -> tuple[str, str, tuple[int, int]]:
    """Return the names of src and dst of a transform in one of `DIRECTIONS`, and its corner.

    The corner is the number of pixels of the first tile outside of the image, down and across.
    """
    down, across = op.padding_l
    if direction == "forward":
        return op.SRC, op.DST, (down, across)
    return op.DST, op.SRC, (TAPS - 1 - down, TAPS - 1 - across)


def problem_refusal(op: core.Convolution) -> Refused | None:
    """Refuse all convolutions except dense 3x3 windows with stride 1."""
    if op.algorithm == "direct":
        reason = "computes by algorithm winograd; got direct; pass algorithm='winograd' or 'auto'"
        return Refused("algorithm", reason)
    groups, _, _, *kernel = op.grouped_weights
    for what, got, wanted in (
        ("kernel", tuple(kernel), (TAPS, TAPS)),
        ("strides", op.strides, (1, 1)),
        ("dilations", op.dilations, (0, 0)),
        ("groups", groups, 1),
    ):
        if got != wanted:
            return Refused("shape", f"{what} must be {wanted}; got {got}")
    return None


def format_refusal(op: core.Convolution, attr: Attributes, filters: Filters) -> Refused | None:
    """Refuse formats without strides other than those of the transformed weights."""
    weights = op.weights_role
    if weights.format_kind != "opaque":
        return common_refusal(op, attr)
    if weights != filters.desc(weights):
        return Refused("format", f"weights must have strides; got {weights.tag}")
    return common_refusal(op.with_descs(weights=weights.with_format(None)), attr)
