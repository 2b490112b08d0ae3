"""Problems that are refused, because oneDNN computes them unlike dnncore or damages memory."""

from __future__ import annotations

from dnncore import backend
from dnncore.backend import Attributes, Operation, Refused

__all__ = ["deviation", "is_deterministic"]


def is_deterministic(op: Operation) -> bool:
    return isinstance(op, (backend.Reorder, backend.Sum, backend.Binary, backend.EltwiseForward))


def deviation(op: Operation, attr: Attributes) -> Refused | None:
    if isinstance(op, backend.Reorder | backend.Sum):
        for _, desc in op.tensors():
            if desc.ndims + len(desc.inner_blocks) > 12:
                return Refused("format", "oneDNN copies with 12 loops")
    return None
