"""Pooling forward and backward: one kernel over boxes of taps, in place or through buffers.

See `pooling/kernel.py` for what is computed, `pooling/windows.py` for the boxes and
`pooling/tasks.py` for the loops. NaN counts as larger than everything, as in torch; of several the
first is kept.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dnncore.backend import Accepted, Attributes, Executable, Implementation, MemoryDesc, Refused
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


class DirectPooling(Implementation[Any]):
    """Pooling in both directions, with each result in registers."""

    name = "cpu_numba:direct"

    def accept(self, op: Any, attr: Attributes, engine: Any, hint: Any) -> Accepted | Refused:
        """Accept every layout that has strides, and post-ops."""
        op = _resolved(op)
        workspace = op.workspace_desc(hint)
        if refusal := refuse_post_ops(op, attr, workspace):
            return refusal
        return Accepted(
            op,
            build=lambda: self._build(op, attr, workspace, engine.num_threads),
            efficiency=0.5,
            workspace=workspace,
            scratchpad_bytes=second_pass_bytes(op, attr) + _copies_bytes(op, workspace),
            exact=op.is_max or op.SRC == "src",  # backward adds up quotients
        )

    def _build(
        self, op: Any, attr: Attributes, workspace: MemoryDesc | None, num_threads: int
    ) -> Executable:
        fold = fold_of(op, workspace)
        if are_even(fold):
            steps = fold_steps(fold)
        else:
            copy, before, after = _copied(fold, second_pass_bytes(op, attr))
            steps = [*before, *fold_steps(copy), *after]
        return Program(with_post_ops(steps, op, attr, workspace), num_threads)


def _resolved(op: Any) -> Any:
    """Replace `any`: the image that is not known is laid out like the one that is."""
    known, other = (op.SRC, op.DST) if not op.src_role.is_any else (op.DST, op.SRC)
    if op.src_role.is_any and op.dst_role.is_any:
        op = op.resolve_any(**{known: op.dst_role.with_format(None)})
    return op.resolve_any(**{other: getattr(op, known)})


def _copied(fold: PoolingFold, start: int) -> tuple[PoolingFold, list[Step], list[Step]]:
    """The fold of channels-last copies in the scratchpad from `start` on, and the copies' steps."""
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
    return replace(fold, tensors=copies), before, after


def _copies_bytes(op: Any, workspace: MemoryDesc | None) -> int:
    """The scratchpad for copies, where neither way serves the layouts."""
    fold = fold_of(op, workspace)
    return 0 if are_even(fold) else sum(_room(_channels_last(desc)) for desc in fold.used.values())


def _channels_last(desc: MemoryDesc) -> MemoryDesc:
    return desc.with_format("a" + "cde"[: desc.ndims - 2] + "b")


def _room(desc: MemoryDesc) -> int:
    return -(-desc.nbytes // LINE) * LINE


TABLE = (DirectPooling(),)
