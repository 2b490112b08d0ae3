"""Concat: each source is copied to its place in dst, by the copies of `copies/reformat.py`."""

from __future__ import annotations

from functools import partial
from typing import Any

from dnncore.backend import Accepted, Attributes, Concat, Implementation, Refused
from dnncore_cpu_numba.codegen.nest import Nest, Shift, nests
from dnncore_cpu_numba.codegen.type_conversion import FLOATS, INTEGERS
from dnncore_cpu_numba.copies.reformat import copies_of_nests, copies_side_by_side
from dnncore_cpu_numba.elementwise.chains import chain_steps
from dnncore_cpu_numba.elementwise.finish import WORDS
from dnncore_cpu_numba.elementwise.implementation import offered, refuse_post_ops
from dnncore_cpu_numba.elementwise.post_ops import binary
from dnncore_cpu_numba.runtime.program import Step
from dnncore_cpu_numba.runtime.tensor import Tensor, arguments


class ConcatImplementation(Implementation[Concat]):
    """Rows of vectors or transposes. A source that lies in dst is not copied.

    The sources are copied one after the other. Short rows are copied side by side.
    """

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
    starts = dict(zip(op.source_names, op.starts, strict=True))
    parts: dict[str, list[Nest]] = {}
    steps: list[Step] = []
    for name, start in starts.items():
        src = tensors[name]
        if name in attr.scales:
            scaled = [dst, src, tensors[f"{name}_scales"]]
            shift = Shift(op.axis, (start, 0, 0))
            steps += chain_steps(src.desc.dims, scaled, [binary("mul", 2)], shift=shift)
        else:
            shift = Shift(op.axis, (start, 0))
            parts[name] = nests(src.desc.dims, (dst.desc, src.desc), shift=shift)
    sources = [tensors[name] for name in parts]
    together = copies_side_by_side(list(parts.values()), dst, sources)
    if together is not None:
        return steps + together
    for own, src in zip(parts.values(), sources, strict=True):
        steps += copies_of_nests(own, dst, src)
    return steps


TABLE = (ConcatImplementation(),)
