"""Who can compute a problem: dnncore's implementations and its peers, ready to be timed.

Each side holds its own memories, filled with the same values. A side gives one contestant or
several, such as one a layout; the strongest of them is what it is judged by.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

import dnncore as dnn
from dnncore.problem import Problem

__all__ = ["PEERS", "Contestant", "Side", "ours", "values_of"]

Array = np.ndarray[Any, Any]
PERIOD = (1 << 20) + 7  # values drawn; longer tensors repeat them, in step with nothing


@dataclass(frozen=True)
class Contestant:
    """One way to compute a problem.

    run: computes it once and returns when that is done. outputs: what it wrote, in logical dims.
    scratchpad: its bytes, None where that is not known.
    """

    name: str
    run: Callable[[], object]
    outputs: Callable[[], Mapping[str, Array]]
    scratchpad: int | None = None


Side: TypeAlias = Callable[[Problem], Iterator[Contestant]]


def values_of(name: str, dims: tuple[int, ...]) -> Array:
    """Random float32 of the normal distribution, the same for the same name and dims."""
    count = math.prod(dims)
    seed = [len(name), *name.encode(), *dims]
    drawn = np.random.default_rng(seed).standard_normal(min(count, PERIOD), np.float32)
    return np.resize(drawn, dims)


# -- dnncore and oneDNN, whose primitives are used alike -------------------------------------------


def ours(problem: Problem) -> Iterator[Contestant]:
    """The implementation that is chosen."""
    wishes = {"impl": problem.impl or None, "skip_impl": problem.skip_impl or None}
    yield _of_dnncore(dnn.PrimitiveDesc(problem.op, _cpu(), problem.attr, **wishes))


def _others(problem: Problem) -> Iterator[Contestant]:
    """All implementations that accept but the first, and but the reference."""
    for pd in list(dnn.primitive_descs(problem.op, _cpu(), problem.attr))[1:]:
        if not pd.is_reference:
            yield _of_dnncore(pd)


def _cpu() -> dnn.Engine:
    return dnn.engine("cpu")


def _of_dnncore(pd: dnn.PrimitiveDesc) -> Contestant:
    stream = pd.engine.stream()

    def forward(op: dnn.Operation) -> dict[str, dnn.Memory]:
        first = dnn.PrimitiveDesc(op, pd.engine)
        memories = _memories(first, _reorder, {})
        first.primitive().execute(stream, **memories)
        return memories

    memories = _memories(pd, _reorder, _saved(pd, forward))
    call = pd.primitive().bind(**memories)
    outputs = [a.name for a, _ in pd.op.tensors() if a.direction == "out"]
    return Contestant(
        pd.impl_name, lambda: call(stream), lambda: {n: _plain(memories[n]) for n in outputs},
        pd.scratchpad_bytes,
    )  # fmt: skip


def _reorder(memory: dnn.Memory, values: Array) -> None:
    plain = dnn.Memory.from_numpy(values, engine=memory.engine)
    op = dnn.Reorder(src=plain.desc, dst=memory.desc)
    dnn.PrimitiveDesc(op, _cpu()).primitive().execute(_cpu().stream(), src=plain, dst=memory)


def _plain(memory: dnn.Memory) -> Array:
    if memory.desc.format_kind == "blocked":
        return memory.numpy()
    return dnn.reorder(memory, memory.desc.with_format(None)).numpy()


def _onednn(problem: Problem) -> Iterator[Contestant]:
    from benchmarks.onednn import Peer

    peer = Peer()
    attr = dnn.Attributes(problem.attr.post_ops, scratchpad="user")
    pd = peer.primitive(problem.op, attr=attr)

    def fill(memory: dnn.Memory, values: Array) -> None:
        if memory.desc.format_kind == "blocked":
            memory.desc.pack(values, memory.buffer)
        else:
            peer.reorder(dnn.Memory.from_numpy(values, engine=memory.engine), memory)

    def forward(_op: dnn.Operation) -> dict[str, dnn.Memory]:
        memories = _memories(pd.hint, fill, {})
        pd.hint.bind(**memories)()
        return memories

    memories = _memories(pd, fill, _saved(pd, forward))
    call = pd.bind(**memories)
    outputs = [a.name for a, _ in problem.op.tensors() if a.direction == "out"]
    scratchpad = pd.descs.get("scratchpad")
    yield Contestant(
        pd.impl_name, call, lambda: {n: peer._values(memories[n]) for n in outputs},
        scratchpad.nbytes if scratchpad else 0,
    )  # fmt: skip


def _saved(pd: Any, forward: Callable[[dnn.Operation], dict[str, dnn.Memory]]) -> dict[str, Any]:
    """What a gradient reads of its forward operation: a workspace only, values may be anything."""
    if pd.op.forward_op is None or "workspace" not in pd.descs:
        return {}
    memories = forward(pd.op.forward_op)
    return {name: memories[name] for name in ("workspace",) if name in memories}


def _memories(
    pd: Any, fill: Callable[[dnn.Memory, Array], None], made: dict[str, dnn.Memory]
) -> dict[str, dnn.Memory]:
    """A filled memory for each argument; outputs too, since untouched pages are read too quickly."""
    memories = dict(made)
    for name, desc in pd.descs.items():
        if name in memories:
            continue
        memories[name] = memory = dnn.Memory(desc, _cpu())
        if desc.data_type == "f32":
            fill(memory, values_of(name, desc.dims))
        else:
            memory.buffer[:] = 1
    return memories


PEERS: dict[str, Side] = {"others": _others, "onednn": _onednn}
