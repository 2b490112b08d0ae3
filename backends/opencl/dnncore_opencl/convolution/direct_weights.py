"""Direct convolution on CPUs, backward by weights: lines of diff_dst times lines of src.

A vector holds output channels. The rows of a tile are input channels. Tensors without channel
blocks are copied. If there are too few channels for all cores, lines are divided into parts. The
sums of the parts are added in order, so results do not depend on timing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dnncore.backend import Attributes, Convolution, MemoryDesc, Refused
from dnncore_opencl.codegen.digits import INT4, extended, int4
from dnncore_opencl.convolution.direct import Direct, first_dim
from dnncore_opencl.convolution.views import FLOAT, View, blocked_tag, image_view, weights_steps
from dnncore_opencl.gemm.cpu import CpuFamily
from dnncore_opencl.gemm.family import Plan
from dnncore_opencl.gemm.strided import TASKS_PER_CORE
from dnncore_opencl.runtime.launch import Launch, Source, padded, template
from dnncore_opencl.runtime.schema import INT, Buffer, Schema, Scratch

ROWS = {16: 8, 8: 4, 4: 4}  # channels of src (times two vectors) in registers, by lanes of a vector
LINE_BYTES = 32 << 10  # of lines in a first-level cache
SUM_BYTES = 256 << 10  # of a work-item's sums, in a second-level cache
LONGEST_LINE = 128  # pixels
MOST_LINES = 16

# Parameters of the first launch. x is src, y is diff_dst.
PRODUCT = Schema(
    src=Buffer("const float"),
    diff_dst=Buffer("const float"),
    scratch=Buffer("float"),
    scratch_start=INT,  # elements
    share=INT,  # lines per part
    lines=INT,  # lines in a cache at once
    blocks=INT,  # blocks of input channels per work-item
    pairs=INT,  # pairs of vectors of output channels per work-item
    all_blocks=INT,
    all_pairs=INT,
    is_odd=INT,  # whether the last pair has one vector
    out=INT4,  # images, then the pixels of diff_dst along three dims
    taps=INT4,  # along three dims, as are the next five
    w_at=INT4,  # position in src of the first tap of the first pixel; negative with padding
    w_n=INT4,  # strides
    w_k=INT4,  # pixels from a tap to the next
    w_size=INT4,  # of src
    x=INT4,  # strides of image, depth, height and width
    x_channels=INT4,  # first element; strides of a group, a channel block and a channel
    y=INT4,
    y_channels=INT4,
)
# Parameters of the second launch, which adds the parts.
FINISH = Schema(
    scratch=Buffer("const float"),
    diff_weights=Buffer("float"),
    scratch_start=INT,  # elements
    parts=INT,
    groups=INT,
    pairs=INT,
    blocks=INT,
    columns=INT,  # output channels of a group
    depth=INT,  # input channels of a group
    end_column=INT,  # channels in memory, including padding
    end_depth=INT,
    taps=INT4,
    w=INT4,  # strides of taps
    start=INT,  # element of diff_weights
    w_group=INT,  # stride
    w_channels=INT4,  # strides of output channels, in blocks and single, then of input channels
)


@dataclass(frozen=True)
class Pixels:
    """The range of the sums: images and pixels of diff_dst, the size of src, and views of both."""

    out: tuple[int, ...]
    size: tuple[int, ...]
    src: View
    dst: View

    def relined(self) -> Pixels:
        """Return the same range, for one tap, with lines of another length.

        The lines are long enough for the innermost loop and short enough for a cache.
        """
        count = math.prod(self.size)
        if (
            not count
            or self.out[1:] != self.size
            or not (_is_line(self.src, self.size) and _is_line(self.dst, self.size))
        ):
            return self
        width = max(n for n in range(1, min(count, LONGEST_LINE) + 1) if count % n == 0)
        size = (1, count // width, width)
        views = (
            replace(view, pixels=(view.pixels[0], 0, width * view.pixels[3], view.pixels[3]))
            for view in (self.src, self.dst)
        )
        return Pixels((self.out[0], *size), size, *views)


def _is_line(view: View, size: Sequence[int]) -> bool:
    """Whether the pixels of an image are contiguous."""
    _, depth, height, width = view.pixels
    rows = size[1] == 1 or height == width * size[2]
    return rows and (size[0] == 1 or depth == width * size[2] * size[1])


@dataclass(frozen=True)
class Sums:
    """The division of the sums among work-items.

    blocks, pairs: of input channels, and of vectors of output channels. own_blocks, own_pairs: the
    same per work-item. items: work-items per part. parts: parts of the lines, with `share` lines
    each. lines: lines in a cache at once.
    """

    groups: int
    blocks: int
    pairs: int
    own_blocks: int
    own_pairs: int
    items: int
    parts: int
    share: int
    lines: int

    @classmethod
    def of(cls, op: Convolution, pixels: Pixels, cpu: CpuFamily) -> Sums:
        """Choose shares whose sums remain in a cache, and enough of them for all cores."""
        groups, oc, ic, *taps = op.grouped_weights
        lanes = cpu.vector
        blocks, pairs = math.ceil(ic / lanes), math.ceil(oc / (2 * lanes))
        fits = max(1, SUM_BYTES // (FLOAT * math.prod(taps) * 2 * lanes**2))
        own_blocks = min(blocks, fits)
        own_pairs = min(pairs, max(1, fits // own_blocks))
        items = groups * math.ceil(blocks / own_blocks) * math.ceil(pairs / own_pairs)
        count = math.prod(pixels.out[:3])
        wanted = min(count, math.ceil(TASKS_PER_CORE * cpu.units / items))
        share = math.ceil(count / wanted) if wanted else 1
        line_bytes = FLOAT * lanes * (2 * pixels.out[3] + pixels.size[2])
        lines = min(MOST_LINES, max(1, LINE_BYTES // max(1, line_bytes)))
        parts = math.ceil(count / share)
        return cls(groups, blocks, pairs, own_blocks, own_pairs, items, parts, share, lines)


class DirectBackwardWeights(Direct):
    """Backward by weights."""

    columns_dim, depth_dim = 0, 1

    def wanted(self, op: Convolution, name: str, desc: MemoryDesc, lanes: int) -> MemoryDesc:
        """Return a format whose channels load as vectors. Weights only need strides."""
        wanted = super().wanted(op, name, desc, lanes)
        if name == op.WEIGHTS:
            return desc if desc.is_plain else wanted
        if name not in (op.SRC, op.DST) or not self._fits_blocks(op, desc, lanes):
            return wanted
        is_last = wanted.is_plain and wanted.strides[1] == 1 and wanted.dims[1] % lanes == 0
        if is_last or not wanted.is_plain:
            return wanted
        return desc.with_format(blocked_tag(desc, lanes))

    def plans(
        self, op: Convolution, attr: Attributes, cpu: CpuFamily, start: int
    ) -> Sequence[Plan] | Refused:
        """Return two launches: the sums of each part, then the sum of the parts."""
        lanes = cpu.vector
        images = (op.src_role, op.dst_role)
        if not all(self._fits_blocks(op, desc, lanes) for desc in images):
            return Refused("shape", f"groups of channels must be multiples of {lanes}")
        pixels = self._pixels(op, lanes)
        sums = Sums.of(op, pixels, cpu)
        taps = op.grouped_weights[3:]
        scratch_bytes = FLOAT * sums.parts * math.prod(taps) * 2 * lanes**2
        scratch_bytes *= sums.groups * sums.blocks * sums.pairs
        launches = (
            *([self._product(op, pixels, sums, lanes, start)] if sums.parts else []),
            self._finish(op, attr, sums, lanes, start),
        )
        return [Plan(lambda: launches, scratch_bytes)]

    def _pixels(self, op: Convolution, lanes: int) -> Pixels:
        pixels = Pixels(
            out=(op.dst_role.dims[0], *extended(op.dst_role.dims[2:], 3, 1)),
            size=extended(op.src_role.dims[2:], 3, 1),
            src=image_view(op, "src", lanes),
            dst=image_view(op, "diff_dst", lanes),
        )
        is_pointwise = {*op.grouped_weights[3:], *op.strides} == {1} and not any(op.padding_l)
        return pixels.relined() if is_pointwise else pixels

    def _product(
        self, op: Convolution, pixels: Pixels, sums: Sums, lanes: int, start: int
    ) -> Launch:
        _, oc, _, *taps = op.grouped_weights
        rows = ROWS[lanes]
        defines: dict[str, str | int | float] = {
            "LANES": lanes,
            "ROWS": rows,
            "MOST_LINES": MOST_LINES,
            "EACH(DO)": " ".join(f"DO({row})" for row in range(rows)),
        }
        arguments = {
            "src": pixels.src.buffer,
            "diff_dst": pixels.dst.buffer,
            "scratch": Scratch(),
            "scratch_start": start // FLOAT,
            "share": sums.share,
            "lines": sums.lines,
            "blocks": sums.own_blocks,
            "pairs": sums.own_pairs,
            "all_blocks": sums.blocks,
            "all_pairs": sums.pairs,
            "is_odd": math.ceil(oc / lanes) % 2,
            "out": int4(pixels.out),
            "taps": int4(extended(taps, 3, 1)),
            "w_at": int4([-p for p in op.padding_l]),
            "w_n": int4(op.strides, 1),
            "w_k": int4([d + 1 for d in op.dilations], 1),
            "w_size": int4(pixels.size, 1),
            **pixels.src.arguments("x"),
            **pixels.dst.arguments("y"),
        }
        snippets = (template("digits"), template("floats"))
        source = Source("convolution_direct_weights", PRODUCT, defines, snippets)
        return Launch(source, arguments, (sums.parts, sums.items), (1, 1))

    def _finish(
        self, op: Convolution, attr: Attributes, sums: Sums, lanes: int, start: int
    ) -> Launch:
        groups, oc, ic, *taps = op.grouped_weights
        steps = weights_steps(op, attr)
        defines = {"LANES": lanes, **({"POST_STEPS": 1} if attr.post_ops else {})}
        arguments = {
            "scratch": Scratch(),
            "scratch_start": start // FLOAT,
            "parts": sums.parts,
            "groups": groups,
            "pairs": sums.pairs,
            "blocks": sums.blocks,
            "columns": oc,
            "depth": ic,
            "taps": int4(extended(taps, 3, 1)),
            **_layout(op, self._filter(op, lanes), lanes),
            **steps.arguments,
        }
        snippets = (steps.code, template("digits"))
        source = Source("convolution_weights_sum", FINISH | steps.schema, defines, snippets)
        return Launch(source, arguments, (groups * sums.pairs * sums.blocks,), (1,))


def _layout(op: Convolution, view: View, lanes: int) -> dict[str, Any]:
    """Return the arguments of `FINISH` for diff_weights, which is plain or in vectors."""
    _, oc, ic, *_ = op.grouped_weights
    blocks, first = op.weights_role.inner_blocks, first_dim(op)
    columns, depth = op.weights_role.strides[first : first + 2]
    channels = (lanes * columns, columns, lanes * depth, depth)
    if blocks:
        channels = (columns, 1, depth if len(blocks) == 2 else lanes * lanes, lanes)
    return {
        "diff_weights": view.buffer,
        "end_column": padded(oc, lanes) if blocks else oc,
        "end_depth": padded(ic, lanes) if len(blocks) == 2 else ic,
        "w": int4(view.pixels),
        "start": view.start,
        "w_group": view.group,
        "w_channels": int4(channels),
    }
