"""Local response normalisation across or within channels, and its gradient."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from dnncore import backend
from dnncore.backend import (
    Accepted,
    Attributes,
    DescriptorError,
    Executable,
    Implementation,
    MemoryDesc,
    Refused,
)
from dnncore_opencl.codegen.layout import digits
from dnncore_opencl.codegen.vectors import HALVES
from dnncore_opencl.elementwise.algorithms import POST_OP_WORDS
from dnncore_opencl.elementwise.implementation import refuse_common
from dnncore_opencl.elementwise.random import ROUNDING
from dnncore_opencl.elementwise.windows import (
    CHANNELS,
    COORDINATES,
    Windows,
    lanes_along,
    refuse_workspace,
)

MOST_KEPT = 4  # terms on each side of a window that fit in registers
GPU_RING_LANES = 4  # floats; with 8, which f16 permits, the terms would fill the registers
# by beta: x * b**-beta; other exponents use pow, which is many times slower
POWERS = {
    0.5: "(x) * rsqrt(b)", 0.75: "(x) * (rsqrt(b) * sqrt(rsqrt(b)))", 1.0: "(x) / (b)",
}  # fmt: skip


class LRN(Implementation[backend.LRN]):
    """Sums over windows. Each window is summed separately, in one order."""

    name = "opencl:direct"
    data_types = ("f32", *HALVES)
    attributes = (*POST_OP_WORDS, ROUNDING)
    takes_repeats = True
    kernel: ClassVar[str]
    like: ClassVar[dict[str, str]]

    def accept(
        self, op: backend.LRN, attr: Attributes, engine: Any, hint: Any
    ) -> Accepted | Refused:
        """Accept every layout of strides and blocks, with post-ops."""
        op = op.resolve_any(**{name: getattr(op, other) for name, other in self.like.items()})
        workspace = op.workspace_desc(hint)
        refused = refuse_common(op, attr, engine) or refuse_workspace(workspace, op.src.dims, "f32")
        if refused:
            return refused
        tensors = {argument.name: desc for argument, desc in op.tensors(workspace)}
        tensors |= dict(attr.operands())
        if op.window_dims == (CHANNELS,) and op.src.ndims > 3:
            tensors = _flat(tensors)
        axis, lanes = _vectors(op, attr, engine, tensors)
        is_ring = _keeps_terms(op, tensors, axis)
        if is_ring and not engine.is_cpu:
            lanes = min(lanes, GPU_RING_LANES)
        windows = Windows(
            engine,
            attr,
            tensors,
            [a.name for a, _ in op.tensors(workspace) if a.direction == "out"],
            axis,
            lanes,
            innermost=CHANNELS if is_ring else None,
        )
        return Accepted(
            op,
            lambda: self._build(op, windows),
            efficiency=_efficiency(engine, lanes),
            workspace=workspace,
            exact=False,
            notes=("compiles",),
        )

    def _build(self, op: backend.LRN, windows: Windows) -> Executable:
        number = windows.parameters.real
        scale = op.alpha / op.divisor
        unit = _unit(op)
        power = POWERS.get(op.beta) or f"(x) * pow(b, (FLOATS)({number(-op.beta)}))"
        defines = {
            "K": number(op.k),
            "SCALE": number(scale),
            "SLOPE": number(2 * scale * op.beta / unit),
            "UNIT": number(unit),
            "TIMES_POWER(x, b)": f"({power})",
            **({"WORKSPACE": ""} if "workspace" in windows.tensors else {}),
            **_window(op, windows),
        }
        return windows.launch(self.kernel, defines, windows.boxes, "lrn_window")


class Forward(LRN):
    """Forward. Only training writes the workspace."""

    kernel = "lrn_forward"
    like: ClassVar = {"dst": "src"}


class Backward(LRN):
    """Backward. Each element of diff_src gathers from its neighbours."""

    kernel = "lrn_backward"
    like: ClassVar = {"diff_dst": "src", "diff_src": "src"}


def _unit(op: backend.LRN) -> float:
    """Return a power of two near the size of scale * src where base is about 2 * k."""
    size = math.sqrt(abs(op.alpha) / op.divisor) * math.sqrt(abs(op.k) or 1.0)
    return 2.0 ** max(-100, min(round(math.log2(size)), 100)) if size else 1.0


def _efficiency(engine: Any, lanes: int) -> float:
    if engine.is_cpu:
        return 0.15 if lanes > 1 else 0.02
    return 0.4


def _flat(tensors: dict[str, MemoryDesc]) -> dict[str, MemoryDesc]:
    """Merge the spatial dims into one if all tensors permit: fewer coordinates, longer vectors.

    A tensor that is broadcast along only some of them does not permit this.
    """
    spatial = {desc.dims[2:] for desc in tensors.values() if math.prod(desc.dims[2:]) != 1}
    if len(spatial) > 1:
        return tensors
    try:
        return {
            name: desc.reshape((*desc.dims[:2], math.prod(desc.dims[2:])))
            for name, desc in tensors.items()
        }
    except DescriptorError:
        return tensors


def _vectors(
    op: backend.LRN, attr: Attributes, engine: Any, tensors: dict[str, MemoryDesc]
) -> tuple[int, int]:
    """Return the axis of vectors and their length.

    Along a dim of the window, a vector needs whole neighbouring vectors. So vectors must not
    overlap, and the window must not extend beyond one vector on each side. no more than one of them
    on each side.
    """
    dims = tensors[op.result_name].dims
    found = []
    for axis in dict.fromkeys((CHANNELS, len(dims) - 1)):
        lanes = lanes_along(engine, attr, axis, tensors.values(), dims[axis])
        if axis in op.window_dims and (dims[axis] % lanes or op.half_window > lanes):
            lanes = 1
        found.append((lanes, -axis))
    lanes, axis = max(found)
    return -axis, lanes


def _keeps_terms(op: backend.LRN, tensors: dict[str, MemoryDesc], axis: int) -> bool:
    """Whether the innermost loop is over channels, so that the values of a window are kept.

    Each value costs loads, and in the backward pass also divisions and roots.
    """
    if op.window_dims != (CHANNELS,) or axis == CHANNELS:
        return False
    channels = digits(tensors[op.result_name], CHANNELS)
    unblocked = len(channels) == 1 and channels[0].size == op.src.dims[CHANNELS] > 1
    return unblocked and op.half_window <= MOST_KEPT


def _window(op: backend.LRN, windows: Windows) -> dict[str, str]:
    """Return HALF and LAST along each dim, and the defines for a window along the vectors."""
    inside = windows.lanes > 1 and windows.axis in op.window_dims
    dims = windows.result.dims
    defines: dict[str, str] = {}
    for name in COORDINATES[1:]:
        dim = windows.used.index(name) if name in windows.used else -1
        seen = dim in op.window_dims and not (inside and dim == windows.axis)
        # Half a window that is larger than the tensor might overflow.
        half = windows.parameters.size(min(op.half_window, dims[dim])) if seen else "0"
        last = windows.parameters.size(dims[dim] - 1) if dim >= 0 else "0"
        defines |= {f"HALF_{name.upper()}": half, f"LAST_{name.upper()}": last}
    if windows.innermost is not None:
        defines["RING"] = str(op.half_window)
    if not inside:
        return defines
    name = windows.used[windows.axis]
    return defines | {
        "ALONG": name,
        "LAST_ALONG": defines[f"LAST_{name.upper()}"],
        **_neighbours("BEFORE", name, "- LANES"),
        **_neighbours("AFTER", name, "+ LANES"),
        "NEAR(a, b, c)": _near(windows.lanes, op.half_window),
    }


def _neighbours(name: str, axis: str, step: str) -> dict[str, str]:
    """Define how the vector before or after some coordinates is read."""
    at = [f"({other}) {step}" if other == axis else other for other in COORDINATES]
    return {f"{name}(place, {', '.join(COORDINATES)})": f"SEE(place, {', '.join(at)})"}


def _near(lanes: int, half: int) -> str:
    """Return the sum of b, between a and c, and of b shifted by up to `half` to each side."""
    names = [f"({vector}).s{lane:x}" for vector in "abc" for lane in range(lanes)]
    starts = (lanes + side * shift for shift in range(1, half + 1) for side in (-1, 1))
    moved = (f"(FLOATS)({', '.join(names[start : start + lanes])})" for start in starts)
    return " + ".join(["(b)", *moved])


FORWARD = (Forward(),)
BACKWARD = (Backward(),)
