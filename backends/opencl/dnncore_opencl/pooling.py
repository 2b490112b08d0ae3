"""Max pooling and its gradient, for every layout; vectors are of channels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from dnncore.backend import (
    Accepted,
    Attributes,
    Executable,
    Implementation,
    MemoryDesc,
    Refused,
)
from dnncore_opencl.grid import Boxes, Grid
from dnncore_opencl.layout import Nest, Parameters, access, digits
from dnncore_opencl.pointwise import refuse_layouts
from dnncore_opencl.program import Arg, Launch, LaunchProgram, Source
from dnncore_opencl.vectors import TYPES, load, most_lanes, store, vector

GPU_ROWS = 4  # places in a column per work-item, to find coordinates less often
COORDINATES = ("n", "c", "d", "h", "w")
CHANNELS = 1


class Pooling(Implementation):
    """Max pooling, each work-item gathering what it writes."""

    name = "opencl:gather"
    kernel: ClassVar[str]
    like: ClassVar[tuple[str, str]]  # a tensor that may be `any`, and the one whose format it takes

    def accept(self, op: Any, attr: Attributes, engine: Any, hint: Any) -> Accepted | Refused:
        """Accept every layout of strides and blocks, without post-ops."""
        name, other = self.like
        if getattr(op, other).is_any:
            return Refused("format", f"{other} is 'any', and nothing tells its format")
        op = op.resolve_any(**{name: getattr(op, other)})
        if attr.post_ops:
            return Refused("attribute", f"no post-ops; got {len(attr.post_ops)}")
        workspace = op.workspace_desc(hint)
        refused = refuse_layouts(op) or _refuse_workspace(op, workspace)
        if refused:
            return refused
        tensors = {
            argument.name: workspace if argument.name == "workspace" else getattr(op, argument.name)
            for argument in op.ARGUMENTS
        }
        present = {name: desc for name, desc in tensors.items() if desc is not None}
        claim = _efficiency(engine, op.result)
        return Accepted(op, lambda: self._build(op, engine, present), efficiency=claim)

    def _build(self, op: Any, engine: Any, tensors: Mapping[str, MemoryDesc]) -> Executable:
        if not op.result.nelems:
            return LaunchProgram(engine, [])
        lanes = _lanes(engine, list(tensors.values()))
        nest = _in_vectors(Nest.of([op.result], merge=False), lanes)
        boxes = Boxes.of(engine, nest, rows=GPU_ROWS)
        largest = max(desc.nbytes // desc.itemsize for desc in tensors.values())
        parameters = Parameters(largest)
        grid = Grid.of(engine, boxes.items)
        defines = (
            _coordinates(op, boxes, tensors, parameters)
            | _window(op, parameters)
            | _vectors(engine, lanes, tensors.get("workspace"))
            | grid.defines(parameters)
            | parameters.defines
        )
        arguments = [*map(Arg, range(len(tensors))), *parameters.values]
        source = Source(self.kernel, defines)
        return LaunchProgram(
            engine, [Launch(source, self.kernel, arguments, grid.size, grid.group)]
        )


class Forward(Pooling):
    """Training writes the workspace, inference does not."""

    kernel = "pooling_forward"
    like = ("dst", "src")


class Backward(Pooling):
    """Deterministic: each diff_src is one work-item's."""

    kernel = "pooling_backward"
    like = ("diff_src", "diff_dst")


def _efficiency(engine: Any, result: MemoryDesc) -> float:
    """The share of the bandwidth, with and without vectors of channels."""
    in_vectors = digits(result, CHANNELS)[0].stride == 1
    if engine.is_cpu:
        return 0.2 if in_vectors else 0.03
    return 0.8 if in_vectors else 0.5


def _refuse_workspace(op: Any, workspace: MemoryDesc | None) -> Refused | None:
    wanted = (op.dst_role.dims, op.workspace_type)
    if workspace is None or (workspace.dims, workspace.data_type) == wanted:
        return None
    return Refused("format", f"the workspace must be {wanted[0]} of {wanted[1]}; got {workspace}")


def _lanes(engine: Any, tensors: list[MemoryDesc]) -> int:
    """Channels that lie side by side in all tensors and are either all padding or none."""
    counts, steps = [], []
    for desc in tensors:
        first, *others = digits(desc, CHANNELS)
        if first.stride != 1:
            return 1
        counts += [first.size, desc.dims[CHANNELS]]
        places = (d for d in range(desc.ndims) if d != CHANNELS)
        chains = [others, *(digits(desc, d) for d in places)]
        steps += [desc.offset0, *(d.stride for chain in chains for d in chain if d.size > 1)]
    return most_lanes(engine, counts, steps)


def _in_vectors(nest: Nest, lanes: int) -> Nest:
    """Let the loop over single channels go in vectors."""
    loops = [
        loop.in_vectors(lanes) if (loop.dim, loop.weight) == (CHANNELS, 1) else loop
        for loop in nest.loops
    ]
    return replace(nest, loops=tuple(loops))


def _coordinates(
    op: Any, boxes: Boxes, tensors: Mapping[str, MemoryDesc], parameters: Parameters
) -> dict[str, str]:
    """DECODE, COORDINATES, INSIDE and the offsets of all tensors."""
    used = (*COORDINATES[:2], *COORDINATES[-len(op.kernel) :])
    text = ""
    for name in COORDINATES:
        index = boxes.nest.index_text(used.index(name), boxes.variables) if name in used else "0"
        text += f"const INDEX {name} = {index}; "
    _, inside = boxes.nest.conditions(boxes.variables, parameters)
    defines = {"DECODE": boxes.decode(parameters), "COORDINATES": text, "INSIDE": inside}
    for name, desc in tensors.items():
        defines |= access(name.upper(), desc, COORDINATES, used, parameters)
    return defines


def _window(op: Any, parameters: Parameters) -> dict[str, str]:
    """The window along D, H and W; a dim that is absent has size 1."""
    absent = 3 - len(op.kernel)
    defines = {}
    for i, letter in enumerate("DHW", -absent):
        window = (1, 1, 1, 0, 1, 1) if i < 0 else _window_along(op, i)
        taps, stride, step, left, src, dst = window
        stays = left == 0 and (dst - 1) * stride + (taps - 1) * step < src
        defines |= {
            f"TAPS_{letter}": str(taps),
            f"STRIDE_{letter}": str(stride),
            f"STEP_{letter}": str(step),
            f"LEFT_{letter}": parameters.index(left),
            f"SEES_{letter}(at)": "1" if stays else f"((at) >= 0 && (at) < {parameters.size(src)})",
            f"DST_{letter}": "1" if i < 0 else parameters.size(dst),
        }
    return defines


def _window_along(op: Any, i: int) -> tuple[int, ...]:
    sizes = (op.src_role.dims[2 + i], op.dst_role.dims[2 + i])
    return op.kernel[i], op.strides[i], op.dilations[i] + 1, op.padding_l[i], *sizes


def _vectors(engine: Any, lanes: int, workspace: MemoryDesc | None) -> dict[str, str]:
    """The types of LANES values, and how they are read and written."""
    defines = {
        "LANES": str(lanes),
        "FLOATS": vector("float", lanes),
        "INTS": vector("int", lanes),
        "LOAD_FLOATS(pointer)": load(engine, "float", lanes, "pointer"),
        "STORE_FLOATS(pointer, value)": store(engine, "float", lanes, "pointer", "value"),
        "WORKSPACE": "",
        "STORE_PLACES(n, c, d, h, w, value)": "",
    }
    if workspace is None:
        return defines
    kind, at = TYPES[workspace.data_type], "workspace + WORKSPACE_AT(n, c, d, h, w)"
    read = load(engine, kind, lanes, "pointer")
    places = store(engine, kind, lanes, at, f"convert_{vector(kind, lanes)}(value)")
    return defines | {
        "PLACE": kind,
        "WORKSPACE": f", __global {kind} *restrict workspace",
        "LOAD_PLACES(pointer)": f"convert_{vector('int', lanes)}({read})",
        "STORE_PLACES(n, c, d, h, w, value)": places,
    }


FORWARD = (Forward(),)
BACKWARD = (Backward(),)
