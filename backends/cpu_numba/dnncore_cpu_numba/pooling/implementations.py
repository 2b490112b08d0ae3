"""Pooling forward and backward: kernels over boxes of taps, in place or through buffers.

`pooling/kernel.py` defines the computation, `pooling/windows.py` the boxes, `pooling/row_tiles.py`
the tiles of rows, and `pooling/tasks.py` the loops. NaN is larger than every number, as in torch.
The first NaN of a window is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from dnncore.backend import Accepted, Attributes, Implementation, Pooling, Refused
from dnncore_cpu_numba.codegen.nontemporal import LINE
from dnncore_cpu_numba.codegen.type_conversion import FLOATS, INTEGERS
from dnncore_cpu_numba.copies.reformat import copy_steps
from dnncore_cpu_numba.elementwise.finish import WORDS
from dnncore_cpu_numba.elementwise.implementation import offered, refuse_post_ops
from dnncore_cpu_numba.pooling.fold import PoolingFold, fold_of
from dnncore_cpu_numba.pooling.plan import are_even, fold_steps
from dnncore_cpu_numba.runtime.program import Scratch, Step
from dnncore_cpu_numba.runtime.tensor import Tensor, refuse_long


class DirectPooling(Implementation[Pooling]):
    """Pooling in both directions. Results accumulate in registers."""

    name = "cpu_numba:direct"
    data_types = ("f64", *FLOATS, *INTEGERS)
    attributes = WORDS
    takes_repeats = True

    def accept(self, op: Pooling, attr: Attributes, engine: Any, hint: Any) -> Accepted | Refused:
        """Accept every layout with strides, and post-ops."""
        if op.algorithm not in ("max", "avg_include_padding", "avg_exclude_padding"):
            return Refused("algorithm", f"has no algorithm {op.algorithm!r}")
        if refusal := refuse_long(*op.src_role.dims[2:], *op.dst_role.dims[2:], *op.kernel):
            return refusal
        op = _resolved(op)
        workspace = op.workspace_desc(hint)
        if refusal := refuse_post_ops(op, attr, workspace):
            return refusal
        fold = fold_of(op, workspace)
        copies, nbytes = _copies(fold)
        return offered(
            op, attr, engine, partial(_steps, fold, copies), nbytes, workspace,
            efficiency=0.5, exact=op.is_max or op.SRC == "src",  # backward sums rounded quotients
        )  # fmt: skip


def _resolved(op: Pooling) -> Pooling:
    """Replace `any`: an image without a layout gets the layout of the other image."""
    known, other = (op.SRC, op.DST) if not op.src_role.is_any else (op.DST, op.SRC)
    if op.src_role.is_any and op.dst_role.is_any:
        op = op.resolve_any(**{known: op.dst_role.with_format(None)})
    return op.resolve_any(**{other: getattr(op, known)})


def _copies(fold: PoolingFold) -> tuple[dict[str, Tensor], int]:
    """Return the copies in the scratchpad and their size in bytes.

    There are copies only if the kernel supports the layouts neither in place nor through buffers.
    """
    copies: dict[str, Tensor] = {}
    nbytes = 0
    if are_even(fold):
        return copies, nbytes
    for name, desc in fold.used.items():
        kind = fold.held if name == "result" else desc.data_type  # rounds the result once
        channels_last = desc.with_format("a" + "cde"[: desc.ndims - 2] + "b").with_data_type(kind)
        copies[name] = Tensor(Scratch(nbytes), channels_last)
        nbytes += -(-channels_last.nbytes // LINE) * LINE
    return copies, nbytes


def _steps(fold: PoolingFold, copies: Mapping[str, Tensor], result: Tensor) -> list[Step]:
    """Return the steps of a fold into a result. They work on the copies if there are any."""
    fold = replace(fold, tensors={**fold.tensors, "result": result})
    outputs = ("result", "b") if fold.name == "largest" else ("result",)
    before, after = [], []
    for name, copy in copies.items():
        if name in outputs:
            after += copy_steps(fold.tensors[name], copy)
        else:
            before += copy_steps(copy, fold.tensors[name])
    return [*before, *fold_steps(replace(fold, tensors={**fold.tensors, **copies})), *after]


TABLE = (DirectPooling(),)
