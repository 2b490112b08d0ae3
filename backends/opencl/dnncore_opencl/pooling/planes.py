"""The gradient of pooling on GPUs, by tiles of planes in local memory. Rows must be plain."""

from __future__ import annotations

from collections.abc import Mapping

from dnncore.backend import Executable, Pooling
from dnncore_opencl.codegen.grid import Grid, power_of_two
from dnncore_opencl.codegen.layout import digits
from dnncore_opencl.codegen.vectors import (
    TYPES,
    conversions,
    load,
    most_lanes,
    read,
    vector,
    write,
)
from dnncore_opencl.elementwise.windows import Windows
from dnncore_opencl.runtime.launch import template
from dnncore_opencl.runtime.program import LaunchProgram

GROUP = 256
CELLS_HELD = 4096  # floats per tile: 16 KiB, half of the local memory of every device
ROWS_HELD = 256  # of a tile, and of the windows that overlap it


def fits(op: Pooling, windows: Windows) -> bool:
    """Whether the tensors have plain rows that fit, are not f64, and there are no post-ops."""
    is_wide = windows.parameters.is_wide
    if windows.engine.is_cpu or is_wide or windows.has_steps or not 1 <= len(op.kernel) <= 2:
        return False
    plain = all(
        desc.padded_dims == desc.dims and not desc.inner_blocks for desc in windows.tensors.values()
    )
    is_row = digits(op.src_role, op.src_role.ndims - 1)[-1].stride == 1
    return plain and is_row and _rows(op)[2] <= ROWS_HELD and op.src_role.dims[-1] <= CELLS_HELD


def launch(op: Pooling, windows: Windows, window: Mapping[str, str]) -> Executable:
    """Build the kernel. window: the defines of the operation's window."""
    engine, parameters = windows.engine, windows.parameters
    n, c, *_, width = op.src_role.dims
    height = op.src_role.dims[-2] if op.src_role.ndims > 3 else 1
    planes, rows, _ = _rows(op)
    phases = [_phases(op, i) for i in (-2, -1)]
    steps = [s for s, size in zip(op.src_role.strides, op.src_role.dims, strict=True) if size > 1]
    lanes = most_lanes(engine, [width], [op.src_role.offset0, *steps[:-1]])
    lanes = lanes if steps and steps[-1] == 1 else 1
    items = -(-n * c // planes) * -(-height // rows)
    grid = Grid.of_groups(items, GROUP)
    tensors = windows.tensors
    diff = read(engine, op.dst_role.data_type, 1, "diff_dst + (at)")
    defines = {
        **window,
        **windows.accesses(),
        "GROUP": str(GROUP),
        "CELLS_HELD": str(CELLS_HELD),
        "ROWS_HELD": str(ROWS_HELD),
        "PLANES": parameters.size(planes),
        "ROWS": parameters.size(rows),
        "PLANES_OF_ALL": parameters.size(n * c),
        "CHANNELS": parameters.size(c),
        "PHASES_H": parameters.size(phases[0]),
        "PHASES_W": parameters.size(phases[1]),
        "WINDOWS_SIDE": str(min(power_of_two(-(-op.dst_role.dims[-1] // phases[1])), GROUP)),
        "CELLS_SIDE": str(min(power_of_two(-(-width // lanes)), GROUP)),
        "DIFF_STEP": parameters.index(op.dst_role.strides[-1]),
        "DIFF_AT(at)": diff,
        "LANES": str(lanes),
        "FLOATS": vector("float", lanes),
        "WRITE(at, value)": write(engine, op.src_role.data_type, lanes, "diff_src + (at)", "value"),
    }
    if op.is_max:
        workspace = tensors["workspace"]
        defines["PLACE_STEP"] = parameters.index(workspace.strides[-1])
        defines["PLACE_AT(at)"] = load(engine, TYPES[workspace.data_type], 1, "workspace + (at)")
    defines |= grid.defines(parameters)
    halves = conversions(engine, [op.src_role.data_type], (1, lanes))
    texts = (*halves, template("pooling_window"))
    return LaunchProgram(engine, [grid.launch("pooling_planes", parameters, defines, texts)])


def _extent(op: Pooling, i: int) -> int:
    """Return the extent of a window in cells along a spatial dim, counted from the last dim."""
    if -i > len(op.kernel):
        return 1
    return (op.kernel[i] - 1) * (op.dilations[i] + 1) + 1


def _phases(op: Pooling, i: int) -> int:
    """Return the distance, in windows, from which on windows share no cell."""
    stride = op.strides[i] if -i <= len(op.kernel) else 1
    return -(-_extent(op, i) // stride)


def _rows(op: Pooling) -> tuple[int, int, int]:
    """Return a tile's planes, the rows of each, and the most rows of windows that overlap it."""
    *_, width = op.src_role.dims
    height, outputs, stride = 1, 1, 1
    if len(op.kernel) > 1:
        height, outputs, stride = op.src_role.dims[-2], op.dst_role.dims[-2], op.strides[-2]
    most = max(1, min(CELLS_HELD // width, ROWS_HELD))
    if 2 * height <= most:
        planes = max(1, min(most // height, ROWS_HELD // outputs))
        return planes, height, planes * outputs
    rows = -(-height // -(-height // most))
    return 1, rows, min(outputs, rows // stride + _phases(op, -2) + 1)
