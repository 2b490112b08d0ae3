"""Resampling: each work-item gathers the elements on which its result depends.

Vectors are along channels if these are contiguous.
"""

from __future__ import annotations

from typing import Any

from dnncore import backend as core
from dnncore.backend import Accepted, Attributes, Implementation, Refused
from dnncore_opencl.codegen.layout import LARGE
from dnncore_opencl.codegen.vectors import COMPUTED
from dnncore_opencl.elementwise.algorithms import POST_OP_WORDS
from dnncore_opencl.elementwise.implementation import refuse_common
from dnncore_opencl.elementwise.random import ROUNDING
from dnncore_opencl.elementwise.windows import CHANNELS, Windows, lanes_along


class Resampling(Implementation[core.Resampling]):
    """One kernel for both directions."""

    name = "opencl:gather"
    data_types = COMPUTED
    attributes = (*POST_OP_WORDS, ROUNDING)
    takes_repeats = True

    def accept(
        self, op: core.Resampling, attr: Attributes, engine: Any, hint: Any
    ) -> Accepted | Refused:
        """Accept every layout of strides and blocks, with post-ops."""
        (_, source), _ = op.tensors()
        op = op.resolve_any(**{op.result_name: source})
        if refused := refuse_common(op, attr, engine):
            return refused
        tensors = {argument.name: desc for argument, desc in op.tensors()} | dict(attr.operands())
        size = op.result.dims[CHANNELS]
        lanes = lanes_along(engine, attr, CHANNELS, tensors.values(), size)
        windows = Windows(engine, attr, tensors, [op.result_name], CHANNELS, lanes)
        types = {desc.data_type for _, desc in op.tensors()}
        copies = op.is_nearest and op.result_name == "dst"
        if copies and types == {"s32"} and not windows.has_steps:
            windows.kind = "int"  # exact for s32
        efficiency = (0.03 if lanes == 1 else 0.2) if engine.is_cpu else 0.5
        return Accepted(
            op,
            lambda: windows.launch("resampling", _defines(op, windows), windows.boxes),
            efficiency=efficiency,
            notes=("compiles",),
        )


def _defines(op: core.Resampling, windows: Windows) -> dict[str, str]:
    """Return the defines of the kernel, without those of `Windows`."""
    (read, _), (written, _) = op.tensors()
    defines = {
        "LOAD(n, c, d, h, w)": f"LOAD_{read.name.upper()}(n, c, d, h, w)",
        "STORE(n, c, d, h, w, x)": f"STORE_{written.name.upper()}(n, c, d, h, w, x)",
    }
    sizes = list(zip(op.src_role.dims[2:], op.dst_role.dims[2:], strict=True))
    is_small = all(4 * (inner + 2) * (outer + 2) < LARGE for inner, outer in sizes)
    defines["WIDE"] = "int" if is_small else "long"
    for letter, (inner, outer) in zip("DHW"[3 - len(sizes) :], sizes, strict=True):
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


TABLE = (Resampling(),)
