"""Conditions on a device: 1 where a number is not 0, else 0, as s8."""

from __future__ import annotations

import numpy as np

from dnncore.engines.memory import Memory
from dnncore.engines.stream import Stream
from dnncore.functional.operands import truth
from dnncore.ops import Binary
from dnncore.ops.types import HALF_TYPES, INTEGER_TYPES
from dnncore.selection.primitive_desc import PrimitiveDesc
from dnncore.selection.reorder import reorder
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["condition"]


def condition(memory: Memory, stream: Stream) -> Memory:
    """Return a row-major memory of type s8 that is not 0 where the elements are not 0.

    Types that no kernel compares are compared on the host.
    """
    engine, dims = memory.engine, memory.desc.dims
    desc = MemoryDesc(dims, "s8")
    own = memory.desc.data_type
    if own in INTEGER_TYPES:
        return reorder(memory, desc, stream=stream)  # saturation keeps numbers other than 0
    if own not in ("f32", *HALF_TYPES):
        return Memory.from_numpy(truth(memory.numpy(stream)), desc, engine)
    zero = Memory.from_numpy(np.zeros((1,) * len(dims), np.float32), engine=engine)
    result = Memory(desc, engine)
    op = Binary("ne", src0=memory.desc, src1=zero.desc, dst=desc)
    PrimitiveDesc(op, engine).primitive().execute(stream, src0=memory, src1=zero, dst=result)
    return result
