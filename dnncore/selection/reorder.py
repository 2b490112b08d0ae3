"""`dnncore.reorder`: a memory in another format, with another data type or on another engine."""

from __future__ import annotations

from dnncore.engines.engine import Engine
from dnncore.engines.memory import Memory, no_memory
from dnncore.engines.stream import Stream
from dnncore.errors import DescriptorError
from dnncore.ops import Reorder
from dnncore.selection.primitive_desc import PrimitiveDesc
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["reorder"]


def reorder(
    memory: Memory,
    desc: MemoryDesc | None = None,
    engine: Engine | None = None,
    stream: Stream | None = None,
) -> Memory:
    """Return a memory with the values of `memory`, laid out as `desc` on `engine`.

    The result is `memory` itself if layout and engine are the same, else a new memory.

    desc: the descriptor of the result; by default the memory's own.
    engine: the engine of the result; by default the memory's own.
    stream: a stream of one of the two engines. Without a stream, the call waits for the copy.

    Raises `DescriptorError` for other dims or an `any` format.
    """
    if not isinstance(memory, Memory):
        raise DescriptorError(f"reorder: {no_memory('memory', memory)}")
    if isinstance(desc, Memory):
        raise DescriptorError(
            "reorder: desc must be a MemoryDesc; got Memory; pass its desc, or execute the"
            " operation Reorder to write into a memory"
        )
    desc = desc or memory.desc
    engine = engine or memory.engine
    if desc == memory.desc and engine is memory.engine:
        return memory
    pd = PrimitiveDesc(Reorder(src=memory.desc, dst=desc), engine, src_engine=memory.engine)
    moved = Memory(desc, engine)
    event = pd.primitive().execute(stream or engine.stream(), src=memory, dst=moved)
    if stream is None:
        event.wait()
    return moved
