"""Attention and its gradients, in tiles of local memory. The scores are never stored."""

from __future__ import annotations

from typing import Any

from dnncore import backend as core
from dnncore.backend import Accepted, Attributes, Implementation, MemoryDesc, Refused
from dnncore_opencl.codegen.grid import Grid
from dnncore_opencl.codegen.layout import Parameters, access
from dnncore_opencl.codegen.vectors import HALVES, conversions, read, write
from dnncore_opencl.elementwise.implementation import refuse_common
from dnncore_opencl.runtime.launch import Launch
from dnncore_opencl.runtime.program import LaunchProgram

GROUP = 64  # work-items; each computes a row
TILE = 16  # columns in local memory
SIZES = (32, 64, 128)  # elements of a row in registers
COORDINATES = ("n", "h", "r", "c")


class Attention(Implementation[Any]):
    """One work-item per query or, for the gradients of keys and values, per key."""

    name = "opencl:tiled"
    data_types: tuple[str, ...] = ("f32", *HALVES)
    takes_repeats = True

    def accept(self, op: Any, attr: Attributes, engine: Any, hint: Any) -> Accepted | Refused:
        """Accept layouts of strides and blocks; outputs without padding."""
        op = op.with_descs(**{
            a.name: desc.with_format(None) for a, desc in op.tensors() if desc.is_any
        })  # fmt: skip
        workspace = op.workspace_desc(hint)
        if workspace is None and isinstance(op, core.AttentionBackward):
            return Refused("attribute", "the hint keeps no workspace")
        if workspace is not None and workspace.format_kind != "blocked":
            return Refused("format", "the workspace must have strides")
        if attr.post_ops:
            return Refused("attribute", f"takes no post-ops; got {len(attr.post_ops)}")
        if refused := refuse_common(op, attr, engine):
            return refused
        if any(desc.has_padding for a, desc in op.tensors(workspace) if a.direction == "out"):
            return Refused("format", "writes no outputs with padding")
        if refused := self.refuse(op, engine):
            return refused
        return Accepted(
            op,
            lambda: LaunchProgram(engine, self.launches(op, workspace, engine)),
            efficiency=self.efficiency(op, engine),
            scratchpad_bytes=self.scratchpad_bytes(op),
            workspace=workspace,
            exact=False,
            notes=self.notes,
        )

    notes: tuple[str, ...] = ("compiles",)

    def refuse(self, op: Any, engine: Any) -> Refused | None:
        """Refuse problems that the kernels do not support."""
        *_, d, v = op.sizes
        if max(d, v) > SIZES[-1]:
            return Refused("shape", f"takes up to {SIZES[-1]} elements per key; got {d} and {v}")
        return None

    def efficiency(self, op: Any, engine: Any) -> float:
        """Return the share of the peak of multiply-adds."""
        return 0.03 if engine.is_cpu else 0.15

    def scratchpad_bytes(self, op: Any) -> int:
        """Return the bytes that several launches share."""
        return 0

    def launches(self, op: Any, workspace: MemoryDesc | None, engine: Any) -> list[Launch]:
        """Return the launches. Without results there is none."""
        n, h, g, q, k, _, _ = op.sizes
        tensors = {argument.name: desc for argument, desc in op.tensors(workspace)}
        kernels = [("attention_forward", q, h)]
        if isinstance(op, core.AttentionBackward):
            kernels = [("attention_queries", q, h), ("attention_keys", k, g)]
        return [
            _launch(op, engine, tensors, kernel, rows, n, heads)
            for kernel, rows, heads in kernels
            if n * heads * rows
        ]


def _launch(
    op: Any, engine: Any, tensors: dict[str, MemoryDesc], kernel: str, rows: int, n: int, heads: int
) -> Launch:
    """Return the launch of a kernel. rows, heads: of the side that work-items compute."""
    _, h, g, q, k, d, v = op.sizes
    outputs = {a.name for a in op.ARGUMENTS if a.direction == "out"}
    parameters = Parameters.of(tensors, outputs)
    defines = {
        "GROUP": str(GROUP), "TILE": str(TILE),
        "DEPTH": str(_rounded(d)), "WIDTH": str(_rounded(v)),
        "KEY_SIZE": parameters.size(d), "VALUE_SIZE": parameters.size(v),
        "QUERIES": parameters.size(q), "KEYS": parameters.size(k),
        "BLOCKS": parameters.divisor(-(-rows // GROUP)), "HEADS": parameters.divisor(heads),
        "SHARE": parameters.divisor(h // max(1, g)), "SCALE": parameters.real(op.scale),
        "DIAGONAL": parameters.size(k if op.diagonal is None else op.diagonal),
        "UNROLL": "" if engine.is_cpu else '_Pragma("unroll")',
        **({"KEEPS": ""} if "workspace" in tensors else {}),
    }  # fmt: skip
    for name, desc in tensors.items():
        defines |= element(name, desc, parameters)
        place = f"{name} + {name.upper()}_AT(n, h, r, c)"
        if name in outputs:
            text = write(engine, desc.data_type, 1, place, "value")
            defines[f"WRITE_{name.upper()}(n, h, r, c, value)"] = text
        else:
            defines[f"READ_{name.upper()}(n, h, r, c)"] = read(engine, desc.data_type, 1, place)
    groups = n * heads * -(-rows // GROUP)
    grid = Grid.of_groups(groups, GROUP)
    halves = conversions(engine, {desc.data_type for desc in tensors.values()}, (1,))
    return grid.launch(kernel, parameters, defines, halves, work=op.flops)


def element(name: str, desc: MemoryDesc, parameters: Parameters) -> dict[str, str]:
    """Define NAME_AT(n, h, r, c). A dim of size 1, such as a mask's, has only its first element,
    even if it is blocked.
    """
    used = [c if size > 1 else "0" for c, size in zip(COORDINATES, desc.dims, strict=True)]
    return access(name.upper(), desc, COORDINATES, used, parameters)


def _rounded(size: int) -> int:
    return next(most for most in SIZES if size <= most)
