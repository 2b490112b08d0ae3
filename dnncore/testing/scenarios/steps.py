"""The steps of scenarios. Each step is a function of the scene and a random number generator."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Callable
from random import Random
from typing import Any, TypeAlias

import numpy as np

from dnncore import cache, ops
from dnncore.attributes import Attributes
from dnncore.engines.memory import Memory
from dnncore.engines.stream import Stream
from dnncore.engines.threads import get_num_threads, set_num_threads
from dnncore.errors import DescriptorError
from dnncore.execution.sequence import Sequence
from dnncore.post_op import PostOp
from dnncore.tensors.memory_desc import MemoryDesc
from dnncore.testing.scenarios.calls import (
    BACK,
    apply,
    choose,
    described,
    prepared,
    tensors_of,
)
from dnncore.testing.scenarios.model import Arena, Tensor
from dnncore.testing.scenarios.scene import (
    MOST,
    TYPES,
    Call,
    Recorded,
    Scene,
    Unsupported,
    Wrong,
    opened,
)

__all__ = ["STEPS", "Step"]

Step: TypeAlias = Callable[[Scene, Random], None]


def compute(scene: Scene, rng: Random) -> None:
    """Execute a primitive, or bind it and launch the call."""
    engine = rng.choice(scene.engines)
    call, primitive, memories = prepared(scene, rng, engine)
    stream = scene.stream(rng, engine)
    events = scene.waits(rng, stream, *tensors_of([call]))
    if rng.random() < 0.5:
        event = primitive.execute(stream, wait_for=events, **memories)
    else:
        event = primitive.bind(**memories)(stream, events)
    scene.launched(stream, event, *tensors_of([call]))
    apply(call)
    scene.note(f"{described(call)} on {_stream_text(scene, stream)}, {len(events)} events")


def record(scene: Scene, rng: Random) -> None:
    """Make a sequence of some calls and run it."""
    engine = rng.choice(scene.engines)
    calls, bound = [], []
    for _ in range(rng.randint(2, 5)):
        try:
            call, primitive, memories = prepared(scene, rng, engine)
        except Unsupported:
            continue
        calls.append(call)
        bound.append(primitive.bind(**memories))
    scene.recorded.append(Recorded(Sequence(bound), calls, engine))
    scene.note("recorded " + "; ".join(map(described, calls)))
    _replay(scene, rng, scene.recorded[-1])


def replay(scene: Scene, rng: Random) -> None:
    """Run a sequence again, perhaps on another stream. Its tensors may have left the scene."""
    if scene.recorded:
        _replay(scene, rng, rng.choice(scene.recorded))


def _replay(scene: Scene, rng: Random, recorded: Recorded) -> None:
    stream = scene.stream(rng, recorded.engine)
    inputs, outputs = tensors_of(recorded.calls)
    events = scene.waits(rng, stream, inputs, outputs)
    event = recorded.replayed(stream, events)
    scene.launched(stream, event, inputs, outputs)
    for call in recorded.calls:
        apply(call)
    scene.note(f"ran a sequence of {len(recorded.calls)} on {_stream_text(scene, stream)}")


def move(scene: Scene, rng: Random) -> None:
    """Reorder to another format, type or engine."""
    source, target = rng.choice(scene.engines), rng.choice(scene.engines)
    src = scene.input(rng, source, scene.dims, TYPES)
    if rng.random() < 0.3 and not src.desc.has_repeats:
        dst = scene.new(rng, target, src.desc.dims, src.desc.data_type, src.desc)
    else:
        like = MemoryDesc(src.desc.dims, rng.choice(TYPES))
        dst = scene.output(rng, target, like, [src])
    steps = (PostOp.sum(rng.choice((1.0, -1.0))), BACK) if rng.random() < 0.3 else ()
    op, attr = ops.Reorder(src=src.desc, dst=dst.desc), Attributes(steps)
    wishes = {} if source is target else {"src_engine": source}
    pd = choose(scene, rng, op, target, attr, **wishes)
    call = Call(op, attr, {"src": src, "dst": dst}, ("dst",), {}, f"reorder by {pd.impl_name}")
    stream = scene.stream(rng, source, target)
    events = scene.waits(rng, stream, [src], [dst])
    event = pd.primitive().execute(stream, src=src.memory, dst=dst.memory, wait_for=events)
    scene.launched(stream, event, [src], [dst])
    apply(call)
    scene.note(
        f"{described(call)} {src.desc} to {dst.desc} on {_stream_text(scene, stream)},"
        f" {len(events)} events"
    )


def read(scene: Scene, rng: Random) -> None:
    """Compare the values of a tensor."""
    if not scene.tensors:
        return
    tensor = rng.choice(scene.tensors)
    arena = tensor.arena
    for _, event in arena.writes:
        event.wait()
    arena.writes = []
    stream = scene.stream(rng, arena.engine)
    got = tensor.memory.numpy(rng.choice((None, stream)))
    if not np.array_equal(got, tensor.values()):
        count = int((got != tensor.values()).sum())
        raise Wrong(
            f"wrong on {arena.engine.name}: {count} values of {tensor.name} {tensor.desc}, read"
        )
    scene.note(f"read {tensor.name}")


def write(scene: Scene, rng: Random) -> None:
    """Write values from the host: all, or one number."""
    found = [t for t in scene.tensors if not t.desc.has_repeats]
    if not found:
        return
    tensor = rng.choice(found)
    dims, data_type = tensor.desc.dims, tensor.desc.data_type
    if rng.random() < 0.3:
        tensor.arena.settle()
        value = rng.randint(0, MOST)
        tensor.memory.fill(value)
        tensor.store(np.full(dims, value))
    else:
        scene.write(tensor, scene.values(rng, dims, data_type), rng.choice(("w", "rw")))
    scene.note(f"wrote {tensor.name}")


def repeat(scene: Scene, rng: Random) -> None:
    """Add a view that repeats a part of a tensor along some dims (stride 0)."""
    found = [t for t in scene.tensors if t.desc.is_plain and t.desc.dims == scene.dims]
    if not found:
        return
    tensor = rng.choice(found)
    strides = [rng.choice((0, s)) for s in tensor.desc.strides]
    desc = MemoryDesc(
        scene.dims, tensor.desc.data_type, strides=strides, offset0=tensor.desc.offset0
    )
    memory = Memory(desc, tensor.arena.engine, tensor.memory.buffer)
    memory.owner = tensor.memory.owner  # the buffer lives as long as the view
    view = scene.add(Tensor(memory, tensor.arena))
    scene.note(f"{view.name} = {desc}, repeats a part of {tensor.name}")


def duplicate(scene: Scene, rng: Random) -> None:
    """Copy a memory, or pickle it."""
    if not scene.tensors:
        return
    tensor = rng.choice(scene.tensors)
    for _, event in tensor.arena.writes:
        event.wait()
    memory: Memory = rng.choice((copy.copy, copy.deepcopy, _pickled))(tensor.memory)
    content = tensor.arena.right[: memory.nbytes].copy()
    descs = {desc for desc in tensor.arena.descs if desc.nbytes <= memory.nbytes}
    arena = Arena(memory.engine, memory.buffer, content, memory, content.size, descs)
    scene.note(f"{scene.add(Tensor(memory, arena)).name} = copy of {tensor.name}")


def _pickled(memory: Memory) -> Memory:
    copied: Memory = pickle.loads(pickle.dumps(memory))  # noqa: S301 - its own
    return copied


def drop(scene: Scene, rng: Random) -> None:
    """Remove a tensor from the scene, perhaps while commands use it."""
    if len(scene.tensors) < 3:
        return
    tensor = scene.tensors.pop(rng.randrange(len(scene.tensors)))
    if rng.random() < 0.5:
        scene.check(tensor.arena)
    if rng.random() < 0.2:
        gc.collect()
    scene.note(f"dropped {tensor.name}")


def open_stream(scene: Scene, rng: Random) -> None:
    """Open a stream, in place of another one of its engine."""
    engine = rng.choice(scene.engines)
    stream = opened(rng, engine)
    own = [i for i, s in enumerate(scene.streams) if s.engine is engine]
    if len(own) < 3:
        scene.streams.append(stream)
    else:
        scene.streams[rng.choice(own)] = stream
    scene.note(f"opened {_stream_text(scene, stream)}")


def disturb(scene: Scene, rng: Random) -> None:
    """Change settings that must not change results: caches and the number of threads."""
    way = rng.randrange(3)
    if way == 0:
        cache.primitives.clear()
        scene.note("cleared the primitive cache")
    elif way == 1:
        count = rng.randint(1, 3)
        set_num_threads(count)
        scene.note(f"set the number of threads to {get_num_threads()}")
    else:
        scene.recorded[:-1] = []
        gc.collect()
        scene.note("deleted sequences")


def misuse(scene: Scene, rng: Random) -> None:
    """Pass arguments that must be refused. Nothing may change."""
    engine = rng.choice(scene.engines)
    src = scene.input(rng, engine, scene.dims, ("f32",))
    desc = MemoryDesc(scene.dims)
    near = desc.with_offset0(1)
    both = Memory(near, engine)
    right = {"src": Memory(desc, engine), "dst": Memory(near, engine)}
    wrong: dict[str, dict[str, Any]] = {
        "a missing argument": {"src": right["src"]},
        "another descriptor": {**right, "src": Memory(MemoryDesc(scene.dims, "s32"), engine)},
        "an unknown argument": {**right, "bias": src.memory},
        "an overlap": {"src": Memory(desc, engine, both.buffer), "dst": both},
    }
    op = ops.EltwiseForward("forward_inference", "relu", src=desc, dst=near)
    primitive = choose(scene, rng, op, engine, Attributes()).primitive()
    name = rng.choice(list(wrong))
    try:
        primitive.execute(scene.stream(rng, engine), **wrong[name])
    except DescriptorError:
        scene.note(f"was refused: {name}")
    else:
        raise Wrong(f"{primitive.impl_name} on {engine.name} accepted {name}")


def _stream_text(scene: Scene, stream: Stream) -> str:
    return f"stream {scene.streams.index(stream)} ({stream.order}, {stream.engine.name})"


STEPS: tuple[Step, ...] = (
    *((compute,) * 10),
    *((move,) * 5),
    *(record, replay, replay, read, read, write, write),
    *(repeat, duplicate, drop, drop, open_stream, disturb, misuse),
)
