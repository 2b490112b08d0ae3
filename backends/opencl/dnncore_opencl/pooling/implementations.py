"""Pooling by maximum or average, and its gradient, for every layout.

Vectors are along channels if these are contiguous, otherwise on CPUs along columns.
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

MOST_WITH_PLACES = 4  # lanes of two rows with their places; 8 were 15 % slower than single rows
MOST_HELD = 192  # 32-bit words of windows per work-item of a gradient, of 255 registers
UNROLLED = 16  # most cells of a window for which loops are unrolled
WRITTEN = 2  # the longest stride that is a literal in the kernel
ROWS = 2  # vertically adjacent outputs per work-item of a GPU; more were slower
# Registers per work-item forward, so that two work-groups fit in a multiprocessor of NVIDIA's.
# Without a limit, the compiler uses 150 for rows of f16. For pairs, 96 was the fastest of 48 to 96.
ROW_REGISTERS, PAIR_REGISTERS = 128, 96
# The lowest number and minus infinity, two of each per word.
LOWEST_PAIRS = {"f16": ("0xfbfffbffu", "0xfc00fc00u"), "bf16": ("0xff7fff7fu", "0xff80ff80u")}
LOWEST = {
    "f64": "-0x1.fffffffffffffp1023", "f32": "-FLT_MAX", "f16": "-65504.0f", "bf16": "-0x1.fep127f",
    "s32": "INT_MIN", "s8": "SCHAR_MIN", "u8": "0",
}  # fmt: skip


class Pooling(Implementation[core.Pooling]):
    """One kernel. The workspace may have any layout."""

    name = "opencl:gather"
    data_types = WITH_F64
    attributes = (*POST_OP_WORDS, ROUNDING)
    takes_repeats = True
    like: ClassVar[tuple[str, str]]  # what may be `any`, and the tensor whose format it takes

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
            windows.kind = "int"  # exact for s32
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
        """Build the kernel of this direction."""


class Forward(Pooling):
    """Each work-item gathers the windows of its outputs. Training writes the workspace."""

    like = ("dst", "src")

    def vectors(
        self, op: core.Pooling, attr: Attributes, engine: Any, tensors: Mapping[str, MemoryDesc]
    ) -> tuple[int, int]:
        """Choose columns on CPUs if channels are not contiguous; src is read with the stride."""
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
        """Build the kernel. A small window has unrolled code."""
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
    """Deterministic: each element, block or plane of diff_src belongs to one work-item."""

    like = ("diff_src", "diff_dst")

    def build(self, op: core.Pooling, windows: Windows) -> Executable:
        """Choose among kernels: by planes (without vectors), by blocks of cells, or by cell."""
        defines = _window(op, windows)
        near = math.prod(int(defines[f"NEAR_{letter}"]) for letter in "DHW" if "UNROLL" in defines)
        if near > UNROLLED or not op.dst_role.nelems:  # unrolled code reads all of them
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
    """Return the share of the bandwidth, for vectors of channels, vectors of columns, and none."""
    if engine.is_cpu:
        return 0.03 if lanes == 1 else 0.2 if axis == CHANNELS else 0.1
    return 0.8 if lanes > 1 else 0.5


def _window(op: core.Pooling, windows: Windows) -> dict[str, str]:
    """Define the algorithm, and the window along D, H and W. Absent dims have size 1."""
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
    """Return options of NVIDIA's compiler that limit registers."""
    return (register_limit(registers),) if is_nvidia(engine) else ()


def _has_pairs(op: core.Pooling, windows: Windows) -> bool:
    """Whether f16 or bf16 elements are compared and added in pairs, as stored in memory."""
    attr, (kind, *others) = windows.attr, {desc.data_type for _, desc in op.tensors()}
    changes = attr.post_ops or attr.scales or attr.rounding != "environment"
    is_kept = op.is_max and kind in HALVES and not others and not changes
    return is_kept and has_pairs(windows.engine, kind)


def _pairs_template(windows: Windows) -> str:
    return pairs_template(windows.engine, windows.result.data_type)


def _pairs(windows: Windows) -> dict[str, str]:
    """Return the defines for words of two elements."""
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
    """Whether vertically adjacent outputs share cells, each at a constant tap."""
    if len(op.kernel) < 2 or any(op.dilations) or op.dst_role.dims[-2] == 1:
        return False
    if op.strides[-2] > WRITTEN or op.kernel[-2] <= op.strides[-2]:
        return False
    for i in range(len(op.kernel)):
        taps, stride, _, left, src, dst = _along(op, i)
        if not src or left >= taps or (dst - 1) * stride - left >= src:  # a window contains no cell
            return False
    return len(digits(op.dst_role, op.dst_role.ndims - 2)) == 1


def _makes_blocks(op: core.Pooling) -> bool:
    """Whether cells form blocks that are in the same windows, each at a constant tap."""
    is_whole = all(len(digits(op.src_role, dim)) == 1 for dim in range(2, op.src_role.ndims))
    return is_whole and max(op.strides) <= WRITTEN and not any(op.dilations)


def _blocks(op: core.Pooling) -> dict[int, int]:
    """Return the number of blocks of one stride along each spatial dim."""
    counts = {}
    for i in range(len(op.kernel)):
        _, stride, _, left, src, _ = _along(op, i)
        counts[2 + i] = (left % stride + src - 1) // stride + 1
    return counts


def _along(op: core.Pooling, i: int) -> tuple[int, ...]:
    """Return taps, stride, step of a tap, left padding, src and dst along a spatial dim."""
    if i < 0:
        return 1, 1, 1, 0, 1, 1
    sizes = (op.src_role.dims[2 + i], op.dst_role.dims[2 + i])
    return op.kernel[i], op.strides[i], op.dilations[i] + 1, op.padding_l[i], *sizes


def _strided(lanes: int, stride: int) -> str:
    """Return the expression that reads `lanes` floats, STRIDE_W apart, and nothing beyond the last.

    With stride 2, the second of two vectors ends at the last float.
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
