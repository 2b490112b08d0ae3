"""Concat: each source is copied to its place in dst, by the copies of `copies/reformat.py`."""

from __future__ import annotations

from functools import partial
from typing import Any

from dnncore.backend import Accepted, Attributes, Concat, Implementation, Refused
from dnncore_cpu_numba.codegen.nest import Shift, nests
from dnncore_cpu_numba.codegen.type_conversion import FLOATS, INTEGERS
from dnncore_cpu_numba.copies.reformat import copies_of_nests
from dnncore_cpu_numba.elementwise.chains import chain_steps
from dnncore_cpu_numba.elementwise.finish import WORDS
from dnncore_cpu_numba.elementwise.implementation import offered, refuse_post_ops
from dnncore_cpu_numba.elementwise.post_ops import binary
from dnncore_cpu_numba.runtime.program import Step
from dnncore_cpu_numba.runtime.tensor import Tensor, arguments


class ConcatImplementation(Implementation[Concat]):
    """Rows of vectors or transposes, source by source. A source that lies in dst is not copied."""

    name = "cpu_numba:rows"
    data_types = (*FLOATS, *INTEGERS)
    attributes = WORDS
    takes_repeats = True

    def accept(self, op: Concat, attr: Attributes, engine: Any, hint: Any) -> Accepted | Refused:
        """Accept every layout with strides, and every attribute."""
        op = op.resolve_any(dst=op.src0)
        if refusal := refuse_post_ops(op, attr):
            return refusal
        return offered(op, attr, engine, partial(_steps, op, attr), efficiency=0.6)


def _steps(op: Concat, attr: Attributes, dst: Tensor) -> list[Step]:
    """Return the steps of all sources."""
    tensors = arguments(op, attr=attr)
    steps: list[Step] = []
    for name, start in zip(op.source_names, op.starts, strict=True):
        src = tensors[name]
        if name in attr.scales:
            scaled = [dst, src, tensors[f"{name}_scales"]]
            shift = Shift(op.axis, (start, 0, 0))
            steps += chain_steps(src.desc.dims, scaled, [binary("mul", 2)], shift=shift)
        else:
            parts = nests(src.desc.dims, (dst.desc, src.desc), shift=Shift(op.axis, (start, 0)))
            steps += copies_of_nests(parts, dst, src)
    return steps


TABLE = (ConcatImplementation(),)
