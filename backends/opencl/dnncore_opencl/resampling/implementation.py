"""Resampling: each work-item gathers the elements on which its results depend.

Vectors are along channels if these are contiguous.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from dnncore import backend as core
from dnncore.backend import Accepted, Attributes, Executable, Implementation, Refused
from dnncore_opencl.codegen.layout import LARGE
from dnncore_opencl.codegen.vectors import COMPUTED
from dnncore_opencl.elementwise.algorithms import POST_OP_WORDS
from dnncore_opencl.elementwise.implementation import refuse_common
from dnncore_opencl.elementwise.random import ROUNDING
from dnncore_opencl.elementwise.windows import CHANNELS, Windows, lanes_along
from dnncore_opencl.resampling import held

LETTERS = "DHW"


class _Resampling(Implementation[core.Resampling]):
    """One kernel for both directions."""

    data_types = COMPUTED
    attributes = (*POST_OP_WORDS, ROUNDING)
    takes_repeats = True

    def refuse(self, op: core.Resampling) -> Refused | None:
        """Refuse problems that the kernel does not support."""
        return None

    @abstractmethod
    def efficiency(self, windows: Windows) -> float:
        """Return the share of the bandwidth."""

    @abstractmethod
    def build(self, op: core.Resampling, windows: Windows, defines: dict[str, str]) -> Executable:
        """Build the kernel. defines: sizes and weights."""

    def accept(
        self, op: core.Resampling, attr: Attributes, engine: Any, hint: Any
    ) -> Accepted | Refused:
        """Accept every layout of strides and blocks, with post-ops."""
        (_, source), _ = op.tensors()
        op = op.resolve_any(**{op.result_name: source})
        if refused := refuse_common(op, attr, engine) or self.refuse(op):
            return refused
        tensors = {argument.name: desc for argument, desc in op.tensors()} | dict(attr.operands())
        size = op.result.dims[CHANNELS]
        lanes = lanes_along(engine, attr, CHANNELS, tensors.values(), size)
        windows = Windows(engine, attr, tensors, [op.result_name], CHANNELS, lanes)
        types = {desc.data_type for _, desc in op.tensors()}
        if _copies(op) and types == {"s32"} and not windows.has_steps:
            windows.kind = "int"  # exact for s32
        return Accepted(
            op,
            lambda: self.build(op, windows, _defines(op, windows)),
            efficiency=self.efficiency(windows),
            notes=("compiles",),
        )


class Held(_Resampling):
    """A work-item holds the taps of a pixel, which it computes for several images or channels."""

    name = "opencl:held"

    def refuse(self, op: core.Resampling) -> Refused | None:
        """Refuse long sums, and images in blocks."""
        return held.refusal(op)

    def efficiency(self, windows: Windows) -> float:
        """On GPUs the bandwidth is nearly reached."""
        return (0.06 if windows.lanes == 1 else 0.2) if windows.engine.is_cpu else 0.9

    def build(self, op: core.Resampling, windows: Windows, defines: dict[str, str]) -> Executable:
        """Build the kernel."""
        return held.launch(op, windows, defines)


class Gather(_Resampling):
    """A work-item computes the taps of each pixel. Any number of taps."""

    name = "opencl:gather"

    def efficiency(self, windows: Windows) -> float:
        """Most time is arithmetic."""
        return (0.03 if windows.lanes == 1 else 0.15) if windows.engine.is_cpu else 0.3

    def build(self, op: core.Resampling, windows: Windows, defines: dict[str, str]) -> Executable:
        """Build the kernel."""
        (read, _), _ = op.tensors()
        defines |= {"LOAD(n, c, d, h, w)": f"LOAD_{read.name.upper()}(n, c, d, h, w)"}
        return windows.launch("resampling", defines, windows.boxes, "taps")


def _copies(op: core.Resampling) -> bool:
    return op.is_nearest and op.result_name == "dst"


def _defines(op: core.Resampling, windows: Windows) -> dict[str, str]:
    """Return the defines of taps.cl, and STORE."""
    _, (written, _) = op.tensors()
    defines = {"STORE(n, c, d, h, w, x)": f"STORE_{written.name.upper()}(n, c, d, h, w, x)"}
    sizes = list(zip(op.src_role.dims[2:], op.dst_role.dims[2:], strict=True))
    is_small = all(4 * (inner + 2) * (outer + 2) < LARGE for inner, outer in sizes)
    defines["WIDE"] = "int" if is_small else "long"
    for letter, (inner, outer) in zip(LETTERS[3 - len(sizes) :], sizes, strict=True):
        defines[f"INNER_{letter}"] = windows.parameters.size(inner)
        defines[f"OUTER_{letter}"] = windows.parameters.size(outer)
        defines[f"HAS_{letter}"] = ""
    if op.is_nearest:
        defines["NEAREST"] = ""
    if written.name != "dst":
        defines["BACKWARD"] = ""
    elif op.is_nearest:
        defines["COPIES"] = ""
    return defines


TABLE = (Held(), Gather())
