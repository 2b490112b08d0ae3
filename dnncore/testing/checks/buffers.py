"""Check of buffers: each one that an engine allocates is given to its `free` once."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from dnncore.cache import primitives
from dnncore.engines.allocation import free_collected
from dnncore.engines.engine import Engine
from dnncore.engines.memory import Memory
from dnncore.engines.stream import Event, Stream
from dnncore.errors import DnnError
from dnncore.execution.primitive import Primitive
from dnncore.selection import ranking
from dnncore.testing.checks.calls import streams_of
from dnncore.testing.checks.case import Trial
from dnncore.testing.checks.failures import Failing
from dnncore.testing.checks.lifetime import quick_collections
from dnncore.testing.checks.results import CheckFailed

__all__ = ["buffers"]

ROUNDS = 3
FREED_SECONDS = 2.0  # time in which a thread of the engine drops the commands that have ended


@dataclass
class _Account:
    """The buffers of `allocate`. They are kept, so that no identity is used again.

    frees: the number of calls of `free`, by identity.
    """

    kept: list[Any] = field(default_factory=list)
    frees: dict[int, int] = field(default_factory=dict)

    @property
    def left(self) -> int:
        """The number of buffers that are not freed."""
        return sum(not count for count in self.frees.values())


def buffers(trial: Trial) -> None:
    """Each buffer of `allocate` is given to `free` once, when all that uses it was dropped.

    The buffers of memories, of executables and of streams' scratchpads are counted. Some commands
    that use them fail. An implementation may keep one executable per problem, so one round may
    leave buffers.
    """
    engine, left = trial.case.engine, []
    for _ in range(ROUNDS):
        with quick_collections(), _counted(engine) as account:
            _use(trial)
            left.append(_left(account))
        if max(account.frees.values(), default=0) > 1:
            raise CheckFailed("a buffer was given to `free` more than once")
    if min(left) > 0:
        raise CheckFailed(
            f"each buffer of `allocate` must be given to `free` when all that uses it was dropped;"
            f" {min(left)} of {len(account.kept)} were not"
        )


def _use(trial: Trial) -> None:
    """Execute with memories of the core, both without a failure and after events that fail."""
    _forget()
    pd = trial.case.sibling(trial, trial.case.attr)
    assert pd is not None
    primitive = pd.primitive()
    memories: dict[str, Any] = {
        argument.name: Memory(desc, pd.engine) for argument, desc in pd.arguments
    }
    if pd.scratchpad_desc is not None:
        memories["scratchpad"] = Memory(pd.scratchpad_desc, pd.engine)
    for memory in memories.values():
        with memory.map(mode="w") as data:
            data[:] = 0
    for stream in streams_of(pd.engine):
        primitive.execute(stream, **memories).wait()
        primitive.bind(**memories)(stream).wait()
        _fail(primitive, stream, memories)


def _fail(primitive: Primitive, stream: Stream, memories: dict[str, Any]) -> None:
    failing: list[Event] = [Failing(has_error=True)]
    with suppress(DnnError):
        primitive.execute(stream, wait_for=failing, **memories).wait()
    with suppress(DnnError):
        stream.wait()


def _left(account: _Account) -> int:
    """Return the number of buffers that are not freed after some time."""
    _forget()
    end = time.monotonic() + FREED_SECONDS
    while True:
        gc.collect()
        free_collected()
        if not account.left or time.monotonic() > end:
            return account.left
        time.sleep(1e-3)


def _forget() -> None:
    ranking.forget()
    primitives.clear()


@contextmanager
def _counted(engine: Engine) -> Iterator[_Account]:
    """Count the allocations of a block, and the calls of `free` for their buffers."""
    account, allocate, free = _Account(), engine.allocate, engine.free

    def counted_allocate(nbytes: int) -> Any:
        buffer = allocate(nbytes)
        account.kept.append(buffer)
        account.frees[id(buffer)] = 0
        return buffer

    def counted_free(buffer: Any) -> None:
        if id(buffer) in account.frees:
            account.frees[id(buffer)] += 1
        free(buffer)

    with (
        mock.patch.object(engine, "allocate", counted_allocate),
        mock.patch.object(engine, "free", counted_free),
    ):
        yield account
