"""Problems that are refused, because oneDNN computes them unlike dnncore or damages memory.

oneDNN accepts all of them. Each row is a deviation of oneDNN 3.2; later ones have most of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dnncore import backend
from dnncore.backend import Attributes, MemoryDesc, Operation, RefusalKind, Refused

__all__ = ["is_deterministic", "refusal"]

LAYERS = (
    backend.ConvolutionForward, backend.InnerProductForward, backend.MatMul,
)  # fmt: skip

# The post-ops that oneDNN applies; it ignores others, or fails when it executes.
POST_OPS: dict[type[Operation], tuple[str, ...]] = {
    **dict.fromkeys(LAYERS, ("eltwise", "sum", "binary", "prelu")),
    backend.Binary: ("eltwise", "sum", "binary"),
    backend.Reduction: ("eltwise", "sum", "binary"),
    backend.EltwiseForward: ("binary",),
    backend.PoolingForward: ("eltwise", "binary"),
    backend.SoftmaxForward: ("eltwise", "binary"),
    backend.Reorder: ("sum",),
}

# Every element is computed by one thread, in one order.
DETERMINISTIC = (
    backend.Binary, backend.EltwiseForward, backend.EltwiseBackward, backend.PoolingForward,
    backend.Reorder, backend.SoftmaxForward, backend.SoftmaxBackward, backend.Sum,
)  # fmt: skip

MOST_LOOPS = 12  # of oneDNN's copies


@dataclass(frozen=True)
class Deviation:
    """One row: the problems to which it applies, the kind and the reason of the refusal."""

    applies: Callable[[Any, Attributes], bool]
    kind: RefusalKind
    reason: str


def _descs(op: Operation) -> list[MemoryDesc]:
    return [desc for _, desc in op.tensors()]


def _copies_with_many_loops(op: Any, _attr: Attributes) -> bool:
    copies = isinstance(op, backend.Reorder | backend.Sum)
    return copies and any(d.ndims + len(d.inner_blocks) > MOST_LOOPS for d in _descs(op))


DEVIATIONS = (
    Deviation(
        _copies_with_many_loops, "format",
        f"writes past an array if a layout has more than {MOST_LOOPS} dims and blocks",
    ),
)  # fmt: skip


def refusal(op: Operation, attr: Attributes) -> Refused | None:
    """The first deviation that applies, as a refusal."""
    allowed = POST_OPS.get(type(op), ())
    for post_op in attr.post_ops:
        if post_op.kind not in allowed:
            takes = ", ".join(allowed) or "none"
            return Refused(
                "attribute", f"oneDNN's post-ops of {op.KIND} are {takes}; got {post_op.kind}"
            )
    for row in DEVIATIONS:
        if row.applies(op, attr):
            return Refused(row.kind, f"oneDNN {row.reason}")
    return None


def is_deterministic(op: Operation) -> bool:
    """Whether the result does not depend on the timing of threads."""
    return isinstance(op, DETERMINISTIC)
