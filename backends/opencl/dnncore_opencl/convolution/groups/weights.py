"""Convolution with few channels per group, backward by weights.

The kernel is `groups_weights.cl`. If there are too few channels to keep the device busy, the tiles
are divided into parts. A second kernel adds the sums of the parts in order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from dnncore.backend import Attributes, Convolution, ConvolutionBackwardWeights, MemoryDesc, Refused
from dnncore_opencl.codegen.grid import power_of_two_within
from dnncore_opencl.codegen.layout import Parameters
from dnncore_opencl.codegen.vectors import TYPES, read, read_bits, write
from dnncore_opencl.convolution.groups.axes import axes_of
from dnncore_opencl.convolution.groups.channels import GROUP, Channels, sizes_of
from dnncore_opencl.convolution.groups.data import Groups
from dnncore_opencl.convolution.groups.tiling import (
    Tiling,
    conversions,
    divided_taps,
    image_access,
    parameters_of,
    reads,
)
from dnncore_opencl.copies.staging import plain
from dnncore_opencl.gemm.arguments import gemm_epilogue
from dnncore_opencl.gemm.family import Plan
from dnncore_opencl.gemm.product import Gemm, Strides, chain, matrix
from dnncore_opencl.gemm.split_k import MANY_ITEMS, part_size
from dnncore_opencl.gemm.split_k import plan as plan_of_parts
from dnncore_opencl.runtime.launch import Launch, padded
from dnncore_opencl.runtime.schema import Arg, Scratch

GROUPS = 8  # work-groups per multiprocessor that keep it busy
FEW_GROUPS = 4  # work-groups per multiprocessor; with these a second launch saves nothing
LEAST_TILES = 2  # per work-item
SHARED = 5120  # floats in local memory
SPATIAL = ("tap_d", "h", "w")


class GroupsWeights(Groups):
    """Backward by weights."""

    def wanted(self, name: str, desc: MemoryDesc) -> MemoryDesc:
        """Return a plain layout for weights."""
        return plain(desc) if "weights" in name else super().wanted(name, desc)

    def plan(self, op: Convolution, attr: Attributes, engine: Any, start: int) -> Plan | Refused:
        """Return one launch, or two."""
        assert isinstance(op, ConvolutionBackwardWeights), op
        axes = divided_taps(*axes_of(op, is_backward=False))
        if isinstance(axes, Refused):
            return axes
        taps = math.prod(axis.taps for axis in axes[1:])
        sizes = sizes_of(op, is_backward=False)
        channels = Channels.of(engine, sizes, taps, op.src, op.diff_dst, for_weights=True)
        units = engine.device.limits["compute_units"]
        tiling = Tiling(op.src.dims[0], axes, channels).fastest(units)
        sums = _Sums.of(tiling, units)
        items = 0 if engine.is_cpu else units * MANY_ITEMS

        def launch(gemm: Gemm) -> Launch:
            return _launch(op, attr, engine, sums, gemm)

        return plan_of_parts(_product(op, attr), sums.parts, start, items, launch)


@dataclass(frozen=True)
class _Sums:
    """The division of the sums: `parts` parts, with `share` tiles each."""

    tiling: Tiling
    share: int
    parts: int

    @classmethod
    def of(cls, tiling: Tiling, units: int) -> _Sums:
        """Choose enough parts to keep a device busy."""
        groups, step = _groups(tiling), tiling.channels.others
        wanted = 1 if groups >= FEW_GROUPS * units else math.ceil(GROUPS * units / groups)
        parts = max(1, min(wanted, tiling.tiles // (LEAST_TILES * step)))
        share = max(step, padded(math.ceil(tiling.tiles / parts), step))
        return cls(tiling, share, max(1, math.ceil(tiling.tiles / share)))


def _groups(tiling: Tiling) -> int:
    """Return the work-groups per part."""
    chunks = (axis.kernel // axis.taps for axis in tiling.axes)
    return tiling.channels.blocks * math.prod(chunks)


def _product(op: ConvolutionBackwardWeights, attr: Attributes) -> Gemm:
    """Return the sums as a product, for the kernel that adds parts. m counts output channels."""
    groups, oc, ic, *taps = op.grouped_weights

    def result(strides: Any) -> Strides:
        grouped = op.diff_weights.ndims > op.src.ndims
        group, column, *inner = strides if grouped else (0, *strides)
        return Strides(batch=(group,), m=column, n=tuple(inner))

    return Gemm(
        batch=(groups,),
        m=oc,
        n=(ic, *taps),
        k=(op.diff_dst.dims[0], *op.diff_dst.dims[2:]),
        a=matrix(1, op.diff_dst, Strides()),
        b=matrix(0, op.src, Strides()),
        c=matrix(2, op.diff_weights, result(op.diff_weights.strides)),
        **chain(op, attr, result),
    )


def _launch(
    op: ConvolutionBackwardWeights, attr: Attributes, engine: Any, sums: _Sums, gemm: Gemm
) -> Launch:
    """Return the launch of the sums of all parts. `gemm` holds the result's place and epilogue."""
    tiling, channels = sums.tiling, sums.tiling.channels
    kind = op.diff_weights.data_type if gemm.c.index >= 0 else "f32"
    parameters = parameters_of(op, ("src", "diff_dst"), "")
    parameters.buffer("result", TYPES[kind], Arg(2) if gemm.c.index >= 0 else Scratch())
    after = gemm_epilogue(gemm)
    in_round = min(tiling.taps, max(1, SHARED // (GROUP * channels.results)))
    values = in_round * channels.results * channels.slots
    ways = power_of_two_within(channels.others, GROUP // values)
    defines = {
        **tiling.defines(op.src, parameters),
        **{f"IS_WHOLE_{axis.letter}": str(int(axis.is_whole)) for axis in tiling.axes[1:]},
        "ROUND": str(in_round),
        "WAYS": str(ways),
        "TILES": parameters.size(tiling.tiles),
        "SHARE": parameters.size(sums.share),
        "PART": parameters.size(part_size(gemm)),
        **reads(engine, "IMAGE", op.src.data_type, channels.values, "src + (at)"),
        **reads(engine, "DIFF", op.diff_dst.data_type, channels.results, "diff_dst + (at)"),
        "READ_ONE_DIFF(at)": read_bits(engine, op.diff_dst.data_type, 1, "diff_dst + (at)"),
        "LOAD_RESULT(at)": read(engine, kind, 1, "result + (at)"),
        "STORE_RESULT(at, value)": write(engine, kind, 1, "result + (at)", "value"),
        **image_access("IMAGE", op.src, parameters),
        **image_access("DIFF", op.diff_dst, parameters),
        **_result_access(op, gemm, parameters),
    }
    descs = [desc for _, desc in (*op.tensors(), *attr.operands())]
    functions = conversions(engine, descs, (channels.values, channels.results))
    groups, work = _groups(tiling) * sums.parts, op.flops * GROUP
    return tiling.launch("groups_weights", parameters, defines, functions, after, groups, work)


def _result_access(
    op: ConvolutionBackwardWeights, gemm: Gemm, parameters: Parameters
) -> dict[str, str]:
    """Define WEIGHTS_AT(group, output channel, input channel, taps) and the last coordinates."""
    names = ("k", *SPATIAL[5 - op.src.ndims :])
    strides = gemm.c.strides
    terms = zip(("g", "o", *names), (*strides.batch, strides.m, *strides.n), strict=True)
    text = parameters.index(gemm.c.offset)
    for name, stride in terms:
        text += f" + ({name}) * {parameters.index(stride)}"
    given = ("k", *SPATIAL)
    unused = ("0",) * (len(given) - len(names))
    return {
        f"WEIGHTS_AT(g, o, {', '.join(given)})": f"({text})",
        f"PLACE({', '.join(given)})": ", ".join((*unused, *names)),
    }


BACKWARD_WEIGHTS = GroupsWeights()
