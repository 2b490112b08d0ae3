"""Tensors that only the implementation that wrote them can read.

These are tensors of opaque formats, such as transformed weights, and private workspaces. The values
that they represent are known from the call that wrote them: a reorder's src, or the workspace that
the other implementation wrote in the same call. The values are kept with a checksum of the bytes,
so that they are not used after the program has written other bytes.
"""

from __future__ import annotations

import weakref
import zlib
from typing import Any

import numpy as np

from dnncore.engines.memory import Memory
from dnncore.errors import NoImplementation
from dnncore.selection.primitive_desc import PrimitiveDesc
from dnncore.selection.reorder import reorder

__all__ = ["Hidden", "has_private_workspace", "is_hidden", "revealed"]

Array = np.ndarray[Any, Any]


class Hidden:
    """The values that the program's unreadable memories represent, by memory."""

    def __init__(self) -> None:
        self._known: weakref.WeakKeyDictionary[Memory, tuple[int, Any]] = (
            weakref.WeakKeyDictionary()
        )

    def keep(self, memory: Memory, content: Array, value: Any) -> None:
        """Store the values that a memory with these bytes represents."""
        self._known[memory] = zlib.crc32(content.data), value

    def find(self, memory: Memory, content: Array) -> Any:
        """Return the values that the memory represents; None if unknown or if its bytes have
        changed.
        """
        checksum, value = self._known.get(memory, (None, None))
        return value if checksum is not None and checksum == zlib.crc32(content.data) else None


def has_private_workspace(pd: PrimitiveDesc) -> bool:
    """Whether the workspace differs from the public one of the operation."""
    desc = pd.workspace_desc
    return desc is not None and desc != pd.op.workspace_desc()


def is_hidden(pd: PrimitiveDesc, name: str) -> bool:
    """Whether only the implementation can read this argument."""
    if name == "workspace" and has_private_workspace(pd):
        return True
    return pd.descs[name].format_kind != "blocked"


def revealed(memory: Memory) -> Array | None:
    """Return the values of a tensor of an opaque format, by its owner's reorder, or None."""
    if memory.desc.format_kind != "opaque":
        return None
    try:
        return np.array(reorder(memory, memory.desc.with_format(None)).numpy())
    except NoImplementation:
        return None
