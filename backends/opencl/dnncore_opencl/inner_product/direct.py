"""Inner product on CPUs, forward and backward by data, with weights in vectors of columns.

It is computed as a 1x1 convolution of one image, whose pixels are the images
(`convolution/lines.py`). If weights are `any`, their format follows the format of src or diff_src,
in which the elements of an image must be contiguous. Other formats of weights are refused.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from dnncore.backend import Accepted, Attributes, Implementation, InnerProduct, MemoryDesc, Refused
from dnncore_opencl.convolution.lines import Lines
from dnncore_opencl.convolution.views import View, chain, operands, place_of
from dnncore_opencl.copies.staging import ROW_MAJOR, Staging, plain
from dnncore_opencl.elementwise.algorithms import POST_OP_WORDS
from dnncore_opencl.gemm.cpu import CpuFamily
from dnncore_opencl.gemm.implementation import accepted, common_refusal, size_refusal

EFFICIENCY = 0.7


class Direct(Implementation[InnerProduct]):
    """The base of both directions.

    names: of the tensor that is read, and of the tensor that is written. image: the one of these
    that may have more than two dims.
    """

    name = "opencl:direct:simd"
    attributes = POST_OP_WORDS
    image: str
    names: tuple[str, str]

    def accept(
        self, op: InnerProduct, attr: Attributes, engine: Any, hint: object
    ) -> Accepted | Refused:
        """Accept weights of one format, and all formats of the other tensors."""
        if not engine.is_cpu:
            return Refused("device", f"computes on CPUs; got {engine.device.name}")
        cpu = CpuFamily.of(engine)
        tags = {argument.name: ROW_MAJOR[: desc.ndims] for argument, desc in op.tensors()}
        op = op.resolve_any(**tags | {"weights": "any", self.image: self.image_tag(op, cpu.vector)})
        wanted_tag = self.weights_tag(self._dense(getattr(op, self.image)), cpu.vector)
        if wanted_tag is None:
            return Refused("format", f"{self.image} must have vectors of channels last")
        op = op.resolve_any(weights=wanted_tag)
        refused = common_refusal(op, attr)
        if refused:
            return refused
        if not op.weights_role.matches(wanted_tag):
            return Refused("format", f"weights must be {wanted_tag}; got {op.weights_role.tag}")

        def wanted(name: str, desc: MemoryDesc) -> MemoryDesc:
            if name == "weights":
                return desc
            if name == self.image:
                return self._dense(desc)
            return _row_major(desc) if name in self.names else plain(desc)

        staging = Staging.of(op, attr, wanted)
        refused = size_refusal(staging.op, staging.attr) or self.refusal(staging.op, staging.attr)
        if refused:
            return refused
        lines = self.lines(staging.op, staging.attr, cpu.vector)
        plans = [] if lines.is_empty else [lines.plan(cpu, staging.nbytes)]
        return accepted(op, engine, staging, plans, EFFICIENCY)

    def image_tag(self, op: InnerProduct, lanes: int) -> str:
        """Return the format that replaces the image's `any`."""
        return ROW_MAJOR[: getattr(op, self.image).ndims]

    def weights_tag(self, image: MemoryDesc, lanes: int) -> str | None:
        """Return the format of weights that matches an image's format; None if there is none."""
        raise NotImplementedError

    def refusal(self, op: InnerProduct, attr: Attributes) -> Refused | None:
        """Return why an operation with the wanted formats is refused; None if it is not."""
        return None

    def _dense(self, image: MemoryDesc) -> MemoryDesc:
        """Return the image's layout if each image's elements are contiguous, else row-major."""
        tag = image.tag
        is_dense = tag is not None and tag[0] == "a" and not image.has_padding
        return image if is_dense else image.with_format(ROW_MAJOR[: image.ndims])

    def lines(self, op: InnerProduct, attr: Attributes, lanes: int) -> Lines:
        """Return the operation as a sweep over one line."""
        src, dst = (getattr(op, name) for name in self.names)
        depth, columns = (math.prod(desc.dims[1:]) for desc in (src, dst))
        images = src.dims[0]
        views = [
            View(place_of(op, name), desc.offset0, 0, lanes, 1, (0, 0, 0, desc.strides[0]))
            for name, desc in zip(self.names, (src, dst), strict=True)
        ]
        weights = View(1, op.weights_role.offset0, 0, depth * lanes, lanes**2, (0, 0, 0, 0))
        return Lines(
            lanes=lanes,
            channels=(1, columns, depth),
            out=(1, 1, 1, images if columns else 0),
            size=(1, 1, images),
            src=views[0],
            weights=weights,
            dst=views[1],
            post_ops=chain(op, attr),
            operands=tuple(  # a line's pixels are the images
                replace(view, pixels=(0, 0, 0, view.pixels[0])) for view in operands(op, attr)
            ),
            is_blocked=False,
            src_is_blocked=False,
            is_deep=True,
        )


def _row_major(rows: MemoryDesc) -> MemoryDesc:
    """Return a 2-D tensor's layout if its channels are contiguous, else row-major."""
    rows = plain(rows)
    return rows if rows.strides[1] == 1 else rows.with_format("ab")


class DirectForward(Direct):
    """Forward. Vectors hold output channels."""

    image, names = "src", ("src", "dst")

    def weights_tag(self, image: MemoryDesc, lanes: int) -> str:
        """Return vectors of output channels for each element of an image, in the image's order."""
        # The order of an empty image's dims is not unique, so "a" need not be first.
        assert image.tag is not None, "dense"
        return f"A{image.tag.replace('a', '')}{lanes}a"


class DirectBackwardData(Direct):
    """Backward by data. Vectors hold input channels, which must be the innermost dim."""

    image, names = "diff_src", ("diff_dst", "diff_src")

    def image_tag(self, op: InnerProduct, lanes: int) -> str:
        """Return the channels-last format."""
        row_major = ROW_MAJOR[: op.src_role.ndims]
        return f"a{row_major[2:]}b"

    def weights_tag(self, image: MemoryDesc, lanes: int) -> str | None:
        """Return vectors of input channels for each pixel."""
        pixels = ROW_MAJOR[2 : image.ndims]
        is_whole = not pixels or image.dims[1] % lanes == 0
        return f"{pixels}Ba{lanes}b" if is_whole and image.matches(f"a{pixels}b") else None

    def refusal(self, op: InnerProduct, attr: Attributes) -> Refused | None:
        """Refuse operands of post-ops on images with pixels, because pixels have no index."""
        if op.src_role.ndims > 2 and attr.operands():
            dims = op.src_role.ndims
            return Refused("attribute", f"takes operands of post-ops if src has 2 dims; got {dims}")
        return None
