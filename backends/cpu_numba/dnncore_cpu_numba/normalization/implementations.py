"""Batch, layer and group normalization: statistics of sets, then a chain over all elements.

Small arrays in the scratchpad, of f32 and dense, hold mean, variance and factor, which is
1 / sqrt(variance + epsilon). With the average A of g = diff_dst * scale, and the average B of
g * x, where x = (src - mean) * factor,

    dst      = x * scale + shift
    diff_src = (g - A - x * B) * factor
"""

from __future__ import annotations

from typing import Any

from dnncore.backend import Accepted, Attributes, Implementation, Normalization, Refused
from dnncore_cpu_numba.codegen.type_conversion import FLOATS
from dnncore_cpu_numba.elementwise.finish import WORDS
from dnncore_cpu_numba.elementwise.implementation import offered, refuse_post_ops
from dnncore_cpu_numba.normalization.backward import Backward
from dnncore_cpu_numba.normalization.forward import Forward


class NormalizationImplementation(Implementation[Normalization]):
    """Normalizations and their gradients."""

    name = "cpu_numba:simd"
    data_types = (*FLOATS, "s8", "u8")
    attributes = WORDS
    takes_repeats = True

    def accept(
        self, op: Normalization, attr: Attributes, engine: Any, hint: Any
    ) -> Accepted | Refused:
        """Accept every layout with strides, and post-ops."""
        open_ones = [a.name for a, desc in op.tensors() if desc.is_any]
        op = op.resolve_any(**dict.fromkeys(open_ones, op.source))
        for name in ("scale", "shift"):
            desc = getattr(op, name, None)
            if desc is not None and desc.inner_blocks:
                return Refused("format", f"{name} must have no blocks; got {desc.tag!r}")
        if attr.post_ops and "diff_src" in vars(op):
            return Refused("attribute", "gradients take no post-ops")
        workspace = op.workspace_desc(hint)
        if refusal := refuse_post_ops(op, attr, workspace):
            return refusal
        plan = Forward(op, attr) if "dst" in vars(op) else Backward(op, workspace)
        return offered(
            op, attr, engine, plan.steps, plan.nbytes, workspace, efficiency=0.4, exact=False
        )


TABLE = (NormalizationImplementation(),)
