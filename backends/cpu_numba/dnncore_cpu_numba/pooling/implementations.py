"""Pooling forward and backward: one kernel over boxes of taps, in place or through buffers.

See `pooling/kernel.py` for what is computed, `pooling/windows.py` for the boxes and
`pooling/tasks.py` for the loops. NaN counts as larger than everything, as in torch; of several the
first is kept.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dnncore.backend import Accepted, Attributes, Implementation, MemoryDesc, Pooling, Refused
from dnncore_cpu_numba.codegen.nontemporal import LINE
from dnncore_cpu_numba.copies.reformat import copy_steps
from dnncore_cpu_numba.elementwise.implementation import (
    refuse_post_ops,
    second_pass_bytes,
    with_post_ops,
)
from dnncore_cpu_numba.pooling.fold import PoolingFold, fold_of
from dnncore_cpu_numba.pooling.plan import are_even, fold_steps
from dnncore_cpu_numba.runtime.program import Program, Scratch, Step
from dnncore_cpu_numba.runtime.tensor import Tensor


class DirectPooling(Implementation[Pooling]):
    """Pooling in both directions, with each result in registers."""

    name = "cpu_numba:direct"

    def accept(self, op: Pooling, attr: Attributes, engine: Any, hint: Any) -> Accepted | Refused:
        """Accept every layout that has strides, and post-ops."""
        if op.algorithm not in ("max", "avg_include_padding", "avg_exclude_padding"):
            return Refused("algorithm", f"has no algorithm {op.algorithm!r}")
        op = _resolved(op)
        workspace = op.workspace_desc(hint)
        if refusal := refuse_post_ops(op, attr, workspace):
            return refusal
        fold, room = fold_of(op, workspace), second_pass_bytes(op, attr)

        def build() -> Program:
            steps = with_post_ops(_steps(fold, room), op, attr, workspace)
            return Program(steps, engine.num_threads)

        return Accepted(
            op,
            build,
            efficiency=0.5,
            workspace=workspace,
            scratchpad_bytes=room + _copies_bytes(fold),
            exact=op.is_max or op.SRC == "src",  # backward adds up quotients
        )


def _resolved(op: Pooling) -> Pooling:
    """Replace `any`: the image that is not known is laid out like the one that is."""
    known, other = (op.SRC, op.DST) if not op.src_role.is_any else (op.DST, op.SRC)
    if op.src_role.is_any and op.dst_role.is_any:
        op = op.resolve_any(**{known: op.dst_role.with_format(None)})
    return op.resolve_any(**{other: getattr(op, known)})


def _steps(fold: PoolingFold, start: int) -> list[Step]:
    """The steps of a fold, where neither way serves on copies in the scratchpad from `start` on."""
    if are_even(fold):
        return fold_steps(fold)
    copies, before, after = dict(fold.tensors), [], []
    outputs = ("result", "b") if fold.name == "largest" else ("result",)
    for name, desc in fold.used.items():
        tensor, copy = fold.tensors[name], Tensor(Scratch(start), _channels_last(desc))
        start += _room(copy.desc)
        if name in outputs:
            after += copy_steps(tensor, copy)
        else:
            before += copy_steps(copy, tensor)
        copies[name] = copy
    return [*before, *fold_steps(replace(fold, tensors=copies)), *after]


def _copies_bytes(fold: PoolingFold) -> int:
    """The scratchpad for copies, where neither way serves the layouts."""
    if are_even(fold):
        return 0
    return sum(_room(_channels_last(desc)) for desc in fold.used.values())


def _channels_last(desc: MemoryDesc) -> MemoryDesc:
    return desc.with_format("a" + "cde"[: desc.ndims - 2] + "b")


def _room(desc: MemoryDesc) -> int:
    return -(-desc.nbytes // LINE) * LINE


TABLE = (DirectPooling(),)
