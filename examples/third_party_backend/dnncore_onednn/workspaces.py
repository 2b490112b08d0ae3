"""Workspaces: dnncore's public ones and oneDNN's private ones.

The workspace of max pooling has the same contents in both libraries. The contents of LRN's
workspace are private to oneDNN and depend on the implementation. So its format is opaque. The name
of the format contains the implementation and the layout, so that only the gradient of the same
implementation accepts the workspace.

oneDNN's gradients of recurrent cells also read the results of the forward operation. So these
follow oneDNN's workspace in that of cells.
"""

from __future__ import annotations

from typing import Any

from dnncore.backend import (
    Attributes,
    MemoryDesc,
    Operation,
    PoolingForward,
    Refused,
    RNNForward,
)
from dnncore_onednn.cells import hidden
from dnncore_onednn.description import Description
from dnncore_onednn.layouts import Layouts

__all__ = ["forward_of", "states_of", "workspace_of"]

STATES = ("dst_layer", "dst_iter", "dst_iter_c")
ALIGNMENT = 64


def forward_of(hint: Any, layouts: Layouts) -> Description:
    """oneDNN's forward primitive that writes the workspace of a hint, or the first one.

    hint: the primitive descriptor of a forward operation, by any implementation.
    """
    found = Description(layouts, hint.op, Attributes())
    given = hint.workspace_desc
    while given is not None and _own(found, given) != given:
        if not found.advance():
            return Description(layouts, hint.op, Attributes())
    return found


def workspace_of(op: Operation, description: Description, hint: Any) -> MemoryDesc | Refused | None:
    """The workspace that the operation writes, or that it reads and the hint's primitive writes.

    hint: the primitive descriptor of the forward operation, if the user gave it. Returns a refusal
    if oneDNN cannot read this workspace.
    """
    given = op.workspace_desc(hint)
    if given is None:
        return None
    forward = description.hint or description
    own = _own(forward, given)
    if description.hint is None:
        return own
    if "workspace" in description.descs and own != given:
        return Refused("format", f"oneDNN needs the workspace {own}; got {given}")
    absent = [n for n in hidden(op) if n in STATES and n not in states_of(forward)[0]]
    if absent:
        return Refused("format", f"oneDNN reads {', '.join(absent)} of the forward; got none")
    return given


def states_of(forward: Description) -> tuple[dict[str, tuple[int, MemoryDesc]], int]:
    """The results in the workspace of cells, each with its offset in bytes, and the whole size."""
    own = forward.descs["workspace"].nbytes
    found: dict[str, tuple[int, MemoryDesc]] = {}
    size = _aligned(own)
    if isinstance(forward.op, RNNForward):
        for name in STATES:
            desc = getattr(forward.op, name)
            if desc is not None:
                found[name] = size, MemoryDesc(desc.dims, desc.data_type)
                size += _aligned(found[name][1].nbytes)
    return found, size if found else own


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _own(forward: Description, public: MemoryDesc) -> MemoryDesc:
    """The descriptor of the workspace that oneDNN's forward primitive writes."""
    found = forward.descs.get("workspace")
    if isinstance(forward.op, PoolingForward) and found is not None:
        return found
    if found is None:
        return public.with_format("onednn:workspace:none", nbytes=0)
    layout = "x".join(map(str, found.strides)) + found.order_tag
    name = f"onednn:workspace:{forward.impl_name}:{layout}"
    return public.with_format(name, nbytes=states_of(forward)[1])
