"""Pooling by maximum or average, and its gradient, for every layout.

Vectors are of channels where these lie side by side, else on CPUs of columns.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from dnncore import backend as core
from dnncore.backend import Accepted, Attributes, Executable, Implementation, MemoryDesc, Refused
from dnncore_opencl.codegen.layout import digits
from dnncore_opencl.codegen.vectors import (
    HALVES,
    WITH_F64,
    bits,
    has_pairs,
    load,
    maxima_template,
    pairs_template,
    store,
    value,
    vector,
)
from dnncore_opencl.devices.nvidia import is_nvidia, register_limit
from dnncore_opencl.elementwise.algorithms import POST_OP_WORDS
from dnncore_opencl.elementwise.implementation import refuse_common
from dnncore_opencl.elementwise.random import ROUNDING
from dnncore_opencl.elementwise.windows import CHANNELS, Windows, lanes_along, refuse_workspace
from dnncore_opencl.pooling import planes as pooling_planes
from dnncore_opencl.pooling.global_average import Mean, Repetition

MOST_WITH_PLACES = 4  # lanes of two rows with their places: 8 were 15 % slower than row by row
MOST_HELD = 192  # words of windows that a work-item of a gradient holds, of 255 registers
UNROLLED = 16  # cells of a window that are worth code of its own
WRITTEN = 2  # the longest stride that is part of the text
ROWS = 2  # outputs below each other per work-item of a GPU; more took longer
# A work-item's forward, so that two groups fit into a multiprocessor of NVIDIA's, whose compiler
# takes 150 for rows of f16 by itself; for pairs 96 were the quickest of 48 to 96.
ROW_REGISTERS, PAIR_REGISTERS = 128, 96
# The lowest number and minus infinity, two of each in a word.
LOWEST_PAIRS = {"f16": ("0xfbfffbffu", "0xfc00fc00u"), "bf16": ("0xff7fff7fu", "0xff80ff80u")}
LOWEST = {
    "f64": "-0x1.fffffffffffffp1023", "f32": "-FLT_MAX", "f16": "-65504.0f", "bf16": "-0x1.fep127f",
    "s32": "INT_MIN", "s8": "SCHAR_MIN", "u8": "0",
}  # fmt: skip


class Pooling(Implementation[core.Pooling]):
    """One kernel, with the workspace in any layout."""

    name = "opencl:gather"
    data_types = WITH_F64
    attributes = (*POST_OP_WORDS, ROUNDING)
    takes_repeats = True
    like: ClassVar[tuple[str, str]]  # a tensor that may be `any`, and the one whose format it takes

    def accept(
        self, op: core.Pooling, attr: Attributes, engine: Any, hint: Any
    ) -> Accepted | Refused:
        """Accept every layout of strides and blocks, with post-ops."""
        name, other = self.like
        if getattr(op, other).is_any:
            return Refused("format", f"{other} is 'any', and no other tensor gives its format")
        op = op.resolve_any(**{name: getattr(op, other)})
        workspace = op.workspace_desc(hint)
        refused = refuse_common(op, attr, engine) or refuse_workspace(
            workspace, op.dst_role.dims, op.workspace_type
        )
        if refused:
            return refused
        tensors = {argument.name: desc for argument, desc in op.tensors(workspace)}
        axis, lanes = self.vectors(op, attr, engine, tensors)
        windows = Windows(
            engine,
            attr,
            tensors | dict(attr.operands()),
            [a.name for a, _ in op.tensors(workspace) if a.direction == "out"],
            axis,
            lanes,
        )
        if op.is_max and op.src_role.data_type == "s32" and not attr.post_ops:
            windows.kind = "int"  # which is exact
        return Accepted(
            op,
            lambda: self.build(op, windows),
            efficiency=_efficiency(engine, axis, lanes),
            workspace=workspace,
            exact=op.is_max,
            notes=("compiles",),
        )

    def vectors(
        self, op: core.Pooling, attr: Attributes, engine: Any, tensors: Mapping[str, MemoryDesc]
    ) -> tuple[int, int]:
        """Return the axis of vectors and their length."""
        descs = [*tensors.values(), *(desc for _, desc in attr.operands())]
        return CHANNELS, lanes_along(engine, attr, CHANNELS, descs, op.result.dims[CHANNELS])

    @abstractmethod
    def build(self, op: core.Pooling, windows: Windows) -> Executable:
        """Make the kernel of this direction."""


class Forward(Pooling):
    """Each work-item gathers the windows of what it writes; training writes the workspace."""

    like = ("dst", "src")

    def vectors(
        self, op: core.Pooling, attr: Attributes, engine: Any, tensors: Mapping[str, MemoryDesc]
    ) -> tuple[int, int]:
        """On CPUs columns, if channels are not side by side: src is read with the stride."""
        channels = super().vectors(op, attr, engine, tensors)
        width = op.dst_role.ndims - 1
        row = digits(op.src_role, width)
        is_plain = len(row) == 1 and row[0].stride == 1 and op.src_role.data_type == "f32"
        if channels[1] > 1 or not engine.is_cpu or not is_plain:
            return channels
        others = [desc for name, desc in tensors.items() if name != "src"]
        others += [desc for _, desc in attr.operands()]
        lanes = lanes_along(engine, attr, width, others, op.dst_role.dims[width])
        return (width, lanes) if lanes > 1 else channels

    def build(self, op: core.Pooling, windows: Windows) -> Executable:
        """Make the kernel, with code of its own for a small window."""
        defines = _window(op, windows)
        if windows.axis != CHANNELS:
            defines |= {
                "COLUMNS": "",
                "ROW(pointer)": _strided(windows.lanes, op.strides[-1]),
                "VLOAD": f"vload{windows.lanes}",
            }
        if "workspace" in windows.tensors:
            defines["WORKSPACE"] = ""
        in_vectors = "UNROLL" in defines and windows.lanes > 1
        if in_vectors and _has_pairs(op, windows):
            defines |= _pairs(windows)
            snippets = ("pooling_window", _pairs_template(windows))
            options = _limit(windows.engine, PAIR_REGISTERS)
            return windows.launch(
                "pooling_forward", defines, windows.boxes, *snippets, options=options
            )
        most = MOST_WITH_PLACES if "WORKSPACE" in defines else windows.lanes
        in_rows = windows.kind == "float" and windows.lanes <= most
        if in_vectors and in_rows and _shares_rows(op):
            defines["ROWS"] = str(ROWS)
            boxes = windows.blocks({op.dst_role.ndims - 2: -(-op.dst_role.dims[-2] // ROWS)})
            snippets = ("pooling_window", maxima_template(windows.engine))
            options = _limit(windows.engine, ROW_REGISTERS)
            return windows.launch("pooling_rows", defines, boxes, *snippets, options=options)
        return windows.launch("pooling_forward", defines, windows.boxes, "pooling_window")


class Backward(Pooling):
    """Deterministic: each diff_src, block of them or plane of them is one work-item's."""

    like = ("diff_src", "diff_dst")

    def build(self, op: core.Pooling, windows: Windows) -> Executable:
        """Without vectors add to planes; on CPUs, where there are enough of them for all cores."""
        defines = _window(op, windows)
        near = math.prod(int(defines[f"NEAR_{letter}"]) for letter in "DHW" if "UNROLL" in defines)
        if near > UNROLLED or not op.dst_role.nelems:  # without a branch all are read
            defines.pop("UNROLL", None)
        has_both = op.result.nelems and op.dst_role.nelems
        if windows.lanes == 1 and has_both and pooling_planes.fits(op, windows):
            return pooling_planes.launch(op, windows, defines)
        in_pairs = _has_pairs(op, windows)
        held = near * windows.lanes * (2 if op.is_max else 1) // (2 if in_pairs else 1)
        in_vectors = "UNROLL" in defines and windows.lanes > 1
        if in_vectors and held <= MOST_HELD and _makes_blocks(op):
            blocks = windows.blocks(_blocks(op))
            snippets: tuple[str, ...] = ("pooling_window",)
            if in_pairs:
                defines |= _pairs(windows)
                snippets += (_pairs_template(windows),)
            return windows.launch("pooling_blocks", defines, blocks, *snippets)
        engine = windows.engine
        cores = engine.device.limits["compute_units"]
        by_planes = windows.planes.items >= 2 * cores and not windows.attr.post_ops
        holds_sums = op.src_role.data_type == "f32"
        if engine.is_cpu and windows.lanes == 1 and by_planes and holds_sums:
            padded = zip("DHW"[3 - len(op.kernel) :], op.src_role.padded_dims[2:], strict=True)
            size = windows.parameters.size
            defines |= dict.fromkeys(("PADDED_D", "PADDED_H"), "1")
            defines |= {f"PADDED_{letter}": size(extent) for letter, extent in padded}
            return windows.launch("pooling_scatter", defines, windows.planes, "pooling_window")
        return windows.launch("pooling_backward", defines, windows.boxes, "pooling_window")


def _efficiency(engine: Any, axis: int, lanes: int) -> float:
    """The share of the bandwidth, with vectors of channels, of columns, and with none."""
    if engine.is_cpu:
        return 0.03 if lanes == 1 else 0.2 if axis == CHANNELS else 0.1
    return 0.8 if lanes > 1 else 0.5


def _window(op: core.Pooling, windows: Windows) -> dict[str, str]:
    """The window along D, H and W, where a dim that is absent has size 1; and what is taken."""
    absent = 3 - len(op.kernel)
    parameters = windows.parameters
    is_small = math.prod(op.kernel) <= UNROLLED
    count = str if is_small else parameters.size
    defines = {
        op.algorithm.upper(): "",
        "CELLS": parameters.real(math.prod(op.kernel)),
        "LOWEST_NUMBER": LOWEST[op.result.data_type],
        "LOWEST_CELL": "INT_MIN" if windows.kind == "int" else "-INFINITY",
    }
    if is_small and not windows.engine.is_cpu:
        defines["UNROLL"] = ""
    for i, letter in enumerate("DHW", -absent):
        taps, stride, step, left, src, dst = _along(op, i)
        stays = left == 0 and (dst - 1) * stride + (taps - 1) * step < src
        tap_count, size = count(taps), parameters.size(src)
        end = f"end_tap(start, STEP_{letter}, {tap_count}, {size})"
        defines |= {
            f"TAPS_{letter}": tap_count,
            f"NEAR_{letter}": count(-(-((taps - 1) * step + 1) // stride)),
            f"STRIDE_{letter}": str(stride) if stride <= WRITTEN else parameters.size(stride),
            f"STEP_{letter}": parameters.index(step),
            f"LEFT_{letter}": parameters.index(left),
            f"SRC_{letter}": size,
            f"DST_{letter}": parameters.size(dst),
            f"FIRST_TAP_{letter}(start)": "0" if stays else f"first_tap(start, STEP_{letter})",
            f"END_TAP_{letter}(start)": tap_count if stays else end,
        }
    return defines


def _limit(engine: Any, registers: int) -> tuple[str, ...]:
    """Options of NVIDIA's compiler."""
    return (register_limit(registers),) if is_nvidia(engine) else ()


def _has_pairs(op: core.Pooling, windows: Windows) -> bool:
    """Whether f16 or bf16 are compared and added two at a time, as they lie in memory."""
    attr, (kind, *others) = windows.attr, {desc.data_type for _, desc in op.tensors()}
    changes = attr.post_ops or attr.scales or attr.rounding != "environment"
    is_kept = op.is_max and kind in HALVES and not others and not changes
    return is_kept and has_pairs(windows.engine, kind)


def _pairs_template(windows: Windows) -> str:
    return pairs_template(windows.engine, windows.result.data_type)


def _pairs(windows: Windows) -> dict[str, str]:
    """The defines of words of two elements."""
    engine, lanes, data_type = windows.engine, windows.lanes, windows.result.data_type
    words = lanes // 2
    lowest, infinities = LOWEST_PAIRS[data_type]
    return {
        "PAIRS": "",
        "PAIR": f'"{data_type}x2"',
        "LOWEST_NUMBERS": lowest,
        "MINUS_INFINITIES": infinities,
        "WORDS": vector("uint", words),
        "PLACES_OF(at)": "((WORDS)((uint)(at) * 0x10001u))",
        "AS_WORDS": f"as_{vector('uint', words)}",
        "UCHARS": f"uchar{lanes}",
        "AS_SHORTS": f"as_short{lanes}",
        "AS_USHORTS": f"as_ushort{lanes}",
        "TO_USHORTS": f"convert_ushort{lanes}",
        "TO_VALUES(bits)": value(data_type, lanes, "bits"),
        "TO_BITS(values)": bits(data_type, lanes, "values"),
        "LOAD_WORDS(at)": load(engine, "uint", words, "(__global const uint *)(at)"),
        "STORE_WORDS(at, value)": store(engine, "uint", words, "(__global uint *)(at)", "value"),
    }


def _shares_rows(op: core.Pooling) -> bool:
    """Whether outputs below each other see the same cells, each by a constant tap."""
    if len(op.kernel) < 2 or any(op.dilations) or op.dst_role.dims[-2] == 1:
        return False
    if op.strides[-2] > WRITTEN or op.kernel[-2] <= op.strides[-2]:
        return False
    for i in range(len(op.kernel)):
        taps, stride, _, left, src, dst = _along(op, i)
        if not src or left >= taps or (dst - 1) * stride - left >= src:  # a window sees no cell
            return False
    return len(digits(op.dst_role, op.dst_role.ndims - 2)) == 1


def _makes_blocks(op: core.Pooling) -> bool:
    """Whether cells fall into blocks which the same windows see, each by a constant tap."""
    is_whole = all(len(digits(op.src_role, dim)) == 1 for dim in range(2, op.src_role.ndims))
    return is_whole and max(op.strides) <= WRITTEN and not any(op.dilations)


def _blocks(op: core.Pooling) -> dict[int, int]:
    """How many blocks of a stride's length there are along each spatial dim."""
    counts = {}
    for i in range(len(op.kernel)):
        _, stride, _, left, src, _ = _along(op, i)
        counts[2 + i] = (left % stride + src - 1) // stride + 1
    return counts


def _along(op: core.Pooling, i: int) -> tuple[int, ...]:
    """Taps, stride, step of a tap, left padding, src and dst along a spatial dim."""
    if i < 0:
        return 1, 1, 1, 0, 1, 1
    sizes = (op.src_role.dims[2 + i], op.dst_role.dims[2 + i])
    return op.kernel[i], op.strides[i], op.dilations[i] + 1, op.padding_l[i], *sizes


def _strided(lanes: int, stride: int) -> str:
    """The expression that reads `lanes` floats, each STRIDE_W behind the one before, and no more.

    The second of two vectors ends with the last float that is wanted.
    """
    if stride == 1:
        return f"vload{lanes}(0, pointer)"
    if stride == 2:
        near, far = f"vload{lanes}(0, pointer)", f"vload{lanes}(0, (pointer) + LANES - 1)"
        return f"(FLOATS)({near}.even, {far}.odd)"
    cells = (f"(pointer)[{lane} * STRIDE_W]" for lane in range(lanes))
    return f"(FLOATS)({', '.join(cells)})"


FORWARD = (Mean(), Forward())
BACKWARD = (Repetition(), Backward())
