"""Resampling with few taps per pixel, which a work-item holds while it computes several images.

On GPUs, linear resampling along contiguous channels computes several rows per work-item instead, if
dst has at least as many rows as src. They share rows of src.
"""

from __future__ import annotations

from dataclasses import replace

from dnncore import backend as core
from dnncore.backend import Executable, Refused
from dnncore_opencl.codegen.grid import CPU_ITEM, Boxes, power_of_two
from dnncore_opencl.codegen.layout import Loop
from dnncore_opencl.codegen.vectors import TYPES, load, read
from dnncore_opencl.elementwise.windows import CHANNELS, Windows

MOST_TAPS = 8  # along a dim
IN_FLIGHT, IN_FLIGHT_BACKWARD = 16, 64  # elements that a work-item reads at once
IMAGES = 32  # most images or channels per work-item
ROWS = 28  # per work-item
ROW_ITEMS = 512  # least work-items per compute unit, if they compute several rows
ITEMS = 2048  # least work-items per compute unit, if work-items compute several images
LETTERS = "DHW"
HEIGHT = 2  # the first dim that may be that of rows


def refusal(op: core.Resampling) -> Refused | None:
    """Refuse long sums, blocks along spatial dims, and sources without elements."""
    most = max(_taps(op))
    if most > MOST_TAPS:
        return Refused("shape", f"holds at most {MOST_TAPS} taps along a dim; got {most}")
    for argument, desc in op.tensors():
        if any(dim > CHANNELS for dim, _ in desc.inner_blocks):
            return Refused("format", f"needs plain spatial dims; {argument.name} has {desc.tag}")
    (argument, source), _ = op.tensors()
    if source.nelems:
        return None
    return Refused("shape", f"needs elements in {argument.name}; got {source.dims}")


def _taps(op: core.Resampling) -> tuple[int, ...]:
    """Return the most taps of an element of the result along each spatial dim."""
    if op.result_name == "dst":
        return (1 if op.is_nearest else 2,) * (op.result.ndims - 2)
    reach = 1 if op.is_nearest else 2
    sizes = zip(op.src_role.dims[2:], op.dst_role.dims[2:], strict=True)
    return tuple(power_of_two(-(-reach * outer // max(inner, 1))) for inner, outer in sizes)


def launch(op: core.Resampling, windows: Windows, defines: dict[str, str]) -> Executable:
    """Build the kernel. defines: those of taps.cl and held_taps.cl."""
    (argument, desc), _ = op.tensors()
    source, parameters, engine = argument.name, windows.parameters, windows.engine
    taps = (1, 1, *_taps(op))[-3:]
    strides = (0, 0, *desc.strides[2:])[-3:]
    for letter, count, stride in zip(LETTERS, taps, strides, strict=True):
        defines.setdefault(f"INNER_{letter}", "1")
        defines.setdefault(f"OUTER_{letter}", "1")
        defines[f"TAPS_{letter}"] = str(count)
        defines[f"STEP_{letter}"] = parameters.index(stride)
    pointer = f"{source} + (at)"
    if windows.is_raw(source):
        value = load(engine, TYPES[desc.data_type], windows.lanes, pointer)
    else:
        value = read(engine, desc.data_type, windows.lanes, pointer)
    boxes, is_held = _boxes(windows)
    rows = _in_rows(op, windows)
    in_flight = IN_FLIGHT if op.result_name == "dst" else IN_FLIGHT_BACKWARD
    unrolled = max(1, in_flight // (taps[0] * taps[1] * taps[2]))
    defines |= {
        "IMAGE(n, c)": f"{source.upper()}_AT(n, c, 0, 0, 0)",
        "READ(at)": value,
        "STEP": "(t_end - t_begin)" if is_held else "1",
        "UNROLLED": f'_Pragma("unroll {unrolled}")',
    }
    if rows:
        kernel = "resampling_rows" if op.result_name == "dst" else "resampling_rows_backward"
        return windows.launch(kernel, defines, rows, "taps", "held_taps")
    return windows.launch("resampling_held", defines, boxes, "taps", "held_taps")


def _in_rows(op: core.Resampling, windows: Windows) -> Boxes | None:
    """Return boxes of rows; None where fewer reads of src are no gain."""
    nest, engine, height = windows.nest, windows.engine, windows.result.ndims - 2
    if engine.is_cpu or op.is_nearest or height < HEIGHT or windows.lanes == 1:
        return None
    rows = [loop for loop in nest.loops if loop.dim == height]
    others = tuple(loop for loop in nest.loops if loop.dim != height)
    if len(rows) != 1 or not others or op.src_role.dims[height] > op.dst_role.dims[height]:
        return None
    run, units = ROWS, engine.device.limits["compute_units"]
    while run > 1 and nest.size // run < ROW_ITEMS * units:
        run //= 2
    nest = replace(nest, loops=(*others, *rows))
    return Boxes(nest, 1, run, beside=True, constant=True)


def _boxes(windows: Windows) -> tuple[Boxes, bool]:
    """Return boxes whose innermost loop is over images or channels, if there is such a loop.

    A result with contiguous channels has images apart, another one channels or images.
    """
    nest, engine = windows.nest, windows.engine
    spatial = [_stride(loop) for loop in nest.loops if loop.dim > CHANNELS]
    apart = [
        loop
        for loop in nest.loops
        if loop.dim <= CHANNELS and all(_stride(loop) > stride for stride in spatial)
    ]
    if not apart or len(nest.loops) < 2:
        return windows.boxes, False
    images = max(apart, key=lambda loop: loop.size)
    loops = (*(loop for loop in nest.loops if loop is not images), images)
    nest = replace(nest, loops=loops)
    if engine.is_cpu:
        run = min(IMAGES, images.size)
        return Boxes(nest, max(1, CPU_ITEM // run), run), True
    run = IMAGES
    while run > 1 and nest.size // run < ITEMS * engine.device.limits["compute_units"]:
        run //= 2
    run = -(-images.size // -(-images.size // run))
    return Boxes(nest, 1, run, beside=True, far=True, constant=True), True


def _stride(loop: Loop) -> int:
    return loop.strides[0] or 0
