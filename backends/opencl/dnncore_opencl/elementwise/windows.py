"""Kernels whose results depend on a window of a tensor (N, C[, D][, H][, W]): pooling and LRN.

A work-item iterates over places of the result. At each place it computes LANES contiguous elements,
channels or columns. The kernel's text accesses tensors by defines. For a tensor `src`, SRC_AT(n, c,
d, h, w) is an offset, LOAD_SRC(...) reads LANES elements there, and STORE_SRC(..., value) writes
them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from dnncore.backend import Attributes, Executable, MemoryDesc, Refused
from dnncore_opencl.codegen.grid import Boxes, Grid
from dnncore_opencl.codegen.layout import Loop, Nest, Parameters, access, digits
from dnncore_opencl.codegen.vectors import (
    CPU_LANES,
    TYPES,
    conversions,
    load,
    most_lanes,
    read,
    smallest_float,
    store,
    value_type,
    vector,
    with_lanes,
    write,
)
from dnncore_opencl.elementwise.algorithms import chain
from dnncore_opencl.elementwise.random import functions as random_functions
from dnncore_opencl.elementwise.random import rounded_vector, seed
from dnncore_opencl.runtime.launch import template
from dnncore_opencl.runtime.program import LaunchProgram

COORDINATES = ("n", "c", "d", "h", "w")
CHANNELS = 1
WORKSPACE = "workspace"
GPU_ROWS = 4  # places in a column per work-item, so that coordinates are computed less often
GPU_BLOCKS = 2  # blocks in a column per work-item, for the same reason
GPU_RUN = 32  # places along the innermost dim per work-item, if it is not the result's innermost


class Windows:
    """The code and the launch of one kernel over the places of a result.

    tensors: all tensors by name, in bind order; the operands of post-ops are last. written: the
    names of the outputs; the first is the result. axis, lanes: `lanes` elements along the dim
    `axis` are computed at once. innermost: the dim of the innermost loop; None for the order of the
    result.
    """

    def __init__(
        self,
        engine: Any,
        attr: Attributes,
        tensors: Mapping[str, MemoryDesc],
        written: Sequence[str],
        axis: int,
        lanes: int,
        innermost: int | None = None,
    ) -> None:
        self.engine = engine
        self.attr = attr
        self.tensors = dict(tensors)
        self.written = tuple(written)
        self.result = self.tensors[written[0]]
        self.axis = axis
        self.lanes = lanes
        self.innermost = innermost
        self.parameters = Parameters.of(self.tensors, self.written, is_restrict=True)
        self.parameters.is_wide = self.result.data_type == "f64"
        self.kind = "double" if self.parameters.is_wide else "float"  # of values, except workspaces
        seed(attr, self.parameters, len(self.tensors))

    @property
    def has_steps(self) -> bool:
        """Whether post-ops or rounding change results before they are stored."""
        return bool(self.attr.post_ops or self.attr.words)

    @cached_property
    def used(self) -> tuple[str, ...]:
        """The coordinate that each dim uses."""
        return (*COORDINATES[:2], *COORDINATES[7 - self.result.ndims :])

    @cached_property
    def nest(self) -> Nest:
        """The loops over the places. The innermost loop over the axis steps by vectors.

        If vectors do not divide a size, the last vector overlaps with the one before.
        """
        nest = Nest.of([self.result], merge=False)
        loops = tuple(
            Loop(loop.dim, self.lanes, -(-loop.size // self.lanes), loop.chains)
            if (loop.dim, loop.weight) == (self.axis, 1)
            else loop
            for loop in nest.loops
        )
        longer = [loop for loop in loops if loop.size > 1]
        longer.sort(key=lambda loop: loop.dim == self.innermost)
        return replace(nest, loops=tuple(longer))

    @cached_property
    def boxes(self) -> Boxes:
        """The boxes of places."""
        if self.innermost is None:
            return Boxes.of(self.engine, self.nest, rows=GPU_ROWS)
        return Boxes.of(self.engine, self.nest, run=GPU_RUN, beside=True)

    def blocks(self, counts: Mapping[int, int]) -> Boxes:
        """Return boxes with one place per block. counts: the numbers of blocks along some dims."""
        loops = (replace(loop, size=counts.get(loop.dim, loop.size)) for loop in self.nest.loops)
        nest = replace(self.nest, loops=tuple(loop for loop in loops if loop.size > 1))
        return Boxes.of(self.engine, nest, rows=GPU_BLOCKS)

    @cached_property
    def planes(self) -> Boxes:
        """One place per (n, c), including padding. The kernel iterates over d, h and w."""
        return Boxes(Nest.of([self.result], dims=(0, CHANNELS), merge=False), 1, 1)

    def launch(
        self,
        kernel: str,
        defines: Mapping[str, str],
        boxes: Boxes,
        *snippets: str,
        options: tuple[str, ...] = (),
    ) -> Executable:
        """Build the kernel, which uses `snippets`. Without elements there is no launch.

        options: compiler options.
        """
        if not self.result.nelems:
            return LaunchProgram(self.engine, [])
        grid = Grid.of(self.engine, boxes.items)
        parameters = self.parameters
        defines = {
            **defines,
            "DECODE": boxes.decode(parameters),
            **self._coordinates(boxes),
            **self._vectors(),
            **self.accesses(),
            "POST_OPS": self._post_ops(),
            **grid.defines(parameters),
        }
        types = (desc.data_type for name, desc in self.tensors.items() if not self.is_raw(name))
        functions = conversions(self.engine, types, (1, self.lanes))
        functions += random_functions(self.attr, (self.lanes,))
        texts = (*functions, *map(template, ("windows", *snippets)))
        launch = grid.launch(kernel, parameters, defines, texts, options)
        return LaunchProgram(self.engine, [launch])

    # -- the text -----------------------------------------------------------------------------

    def _coordinates(self, boxes: Boxes) -> dict[str, str]:
        """Return the defines COORDINATES and INSIDE."""
        text, size = "", self.result.dims[self.axis]
        loops = {loop.dim for loop in boxes.nest.loops}
        for name in COORDINATES:
            dim = self.used.index(name) if name in self.used else -1
            index = boxes.nest.index_text(dim, boxes.variables) if dim in loops else "0"
            if dim == self.axis and size % self.lanes:
                index = f"min({index}, {self.parameters.size(size - self.lanes)})"
            text += f"const INDEX {name} = {index}; "
        _, inside = boxes.nest.conditions(boxes.variables, self.parameters)
        return {"COORDINATES": text, "INSIDE": inside}

    def _vectors(self) -> dict[str, str]:
        return {
            "LANES": str(self.lanes),
            "REAL": "double" if self.parameters.is_wide else "float",
            "FLOATS": vector(self.kind, self.lanes),
            "INTS": vector("int", self.lanes),
            "TO_INTS": f"convert_{vector('int', self.lanes)}",
            "TO_FLOATS": f"convert_{vector('float', self.lanes)}",
        }

    def accesses(self) -> dict[str, str]:
        """Return the defines that read and write each tensor."""
        defines: dict[str, str] = {}
        at = ", ".join(COORDINATES)
        for name, desc in self.tensors.items():
            upper, data_type = name.upper(), desc.data_type
            defines |= self._access(upper, desc)
            pointer = f"{name} + {upper}_AT({at})"
            repeats = desc.dims[self.axis] == 1 < self.result.dims[self.axis]
            lanes = 1 if repeats else self.lanes
            own, values = TYPES[data_type], f"STORE_{upper}({at}, value)"
            if self.is_raw(name):
                defines[f"LOAD_{upper}({at})"] = load(self.engine, own, lanes, pointer)
                value = f"convert_{vector(own, self.lanes)}(value)"
                defines[values] = store(self.engine, own, self.lanes, pointer, value)
            else:
                defines[f"LOAD_{upper}({at})"] = read(self.engine, data_type, lanes, pointer)
                defines[values] = write(self.engine, data_type, self.lanes, pointer, "value")
        return defines

    def is_raw(self, name: str) -> bool:
        """Whether values of a tensor are bits from memory, without conversion."""
        own = TYPES[self.tensors[name].data_type]
        return own != "float" and (name == WORKSPACE or own == self.kind)

    def _access(self, name: str, desc: MemoryDesc) -> dict[str, str]:
        """Define NAME_AT, which ignores coordinates along which the tensor is broadcast."""
        used = [
            "0" if n == 1 and (padded == 1 or size > 1) else coordinate
            for n, padded, size, coordinate in zip(
                desc.dims, desc.padded_dims, self.result.dims, self.used, strict=True
            )
        ]
        return access(name, desc, COORDINATES, used, self.parameters)

    def _post_ops(self) -> str:
        """Return the statements that change x. Braces separate their names from the kernel's."""
        names = [name for name, _ in self.attr.operands()]
        at = ", ".join(COORDINATES)
        text = ""
        for place, name in enumerate(names):
            kind = vector(value_type(self.tensors[name].data_type), self.lanes)
            text += f"const {kind} operand{place} = LOAD_{name.upper()}({at}); "
        if self.attr.reads_dst:
            text += f"const FLOATS old = LOAD_{self.written[0].upper()}({at}); "
        operands = [f"operand{place}" for place in range(len(names))]
        steps = chain(self.attr.post_ops, operands, "old", self.parameters)
        text += " ".join(f"{{ {step.text} }}" for step in steps)
        number, size = self.parameters.index, self.result.dims
        strides = [math.prod(size[dim + 1 :]) for dim in range(len(size))]
        place_text = " + ".join(
            f"(long){name} * {number(stride)}"
            for name, stride in zip(self.used, strides, strict=True)
        )
        along, data_type = number(strides[self.axis]), self.result.data_type
        text += rounded_vector(self.attr, data_type, self.lanes, place_text, along)
        return with_lanes(text, self.lanes, is_wide=self.parameters.is_wide)


def lanes_along(
    engine: Any, attr: Attributes, axis: int, tensors: Iterable[MemoryDesc], size: int
) -> int:
    """Return how many of the `size` elements along `axis` are computed at once.

    They are contiguous in all `tensors`, and either all or none are padding. On CPUs vectors may
    overlap, unless the old value of dst would then be added twice. In f64 the result is 1.
    """
    tensors = list(tensors)
    if any(desc.data_type == "f64" for desc in tensors):
        return 1
    tensors = [desc for desc in tensors if desc.dims[axis] == size]
    chains = [digits(desc, axis) for desc in tensors]
    if any(chain[-1].stride != 1 for chain in chains):
        return 1
    unblocked = all(len(chain) == 1 for chain in chains)
    if engine.is_cpu and unblocked and not attr.reads_dst:
        return min(CPU_LANES, 1 << max(size, 1).bit_length() - 1)
    counts = [size, *(chain[-1].size for chain in chains)]
    steps = []
    for desc, (*blocks, _) in zip(tensors, chains, strict=True):
        others = (digits(desc, dim) for dim in range(desc.ndims) if dim != axis)
        steps += [desc.offset0, *(d.stride for c in (blocks, *others) for d in c if d.size > 1)]
    return most_lanes(engine, counts, steps, smallest_float(tensors))


def refuse_workspace(
    workspace: MemoryDesc | None, dims: tuple[int, ...], data_type: str
) -> Refused | None:
    """Refuse a workspace of other dims, of another type, or without strides. None is accepted."""
    if workspace is None:
        return None
    got = (workspace.dims, workspace.data_type, workspace.format_kind)
    if got == (dims, data_type, "blocked"):
        return None
    return Refused("format", f"the workspace must be {dims} of {data_type}; got {workspace}")
