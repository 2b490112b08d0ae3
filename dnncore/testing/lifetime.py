"""Check of memory: it returns when nobody uses it any more."""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from collections.abc import Callable

from dnncore import selection
from dnncore.cache import primitives
from dnncore.testing.case import Trial
from dnncore.testing.results import CheckFailed

__all__ = ["memory"]

ROUNDS = 4
EXECUTIONS = 8  # of a round
CREATIONS = 2  # of a round
SLACK = 64  # bytes per call: what counters and the interpreter itself may keep


def memory(trial: Trial) -> None:
    """Memories die with their last user, and repeated use and creation take no more and more.

    Growth is what Python and numpy allocate, and counts when every one of some rounds grew.
    """
    _memories_die(trial)
    arguments = trial.arguments(trial.case.round("random"))
    stream = trial.case.engine.stream()

    def execute() -> None:
        trial.primitive.execute(stream, **arguments.memories).wait()  # type: ignore[arg-type]
        trial.primitive.bind(**arguments.memories)(stream).wait()

    def create() -> None:
        selection.forget()
        primitives.clear()
        pd = trial.case.sibling(trial, trial.case.attr)
        assert pd is not None
        pd.primitive()

    _stays_level(execute, EXECUTIONS, "each execution")
    _stays_level(create, CREATIONS, "each creation of the primitive")


def _memories_die(trial: Trial) -> None:
    arguments = trial.arguments(trial.case.round("random"))
    memories = arguments.memories
    stream = trial.case.engine.stream()
    call = trial.primitive.bind(**memories)
    trial.primitive.execute(stream, **memories).wait()  # type: ignore[arg-type]
    call(stream).wait()
    stream.wait()
    alive = {name: weakref.ref(one) for name, one in memories.items()}
    del arguments, memories, call, stream
    gc.collect()
    left = [name for name, one in alive.items() if one() is not None]
    if left:
        raise CheckFailed(
            f"still kept after the call and the memories were deleted: {', '.join(left)}"
        )


def _stays_level(call: Callable[[], None], times: int, what: str) -> None:
    call()
    tracemalloc.start()
    try:
        sizes = []
        for _ in range(ROUNDS + 1):
            for _ in range(times):
                call()
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    growth = min(b - a for a, b in zip(sizes[1:], sizes[2:], strict=False)) / times
    if growth > SLACK:
        raise CheckFailed(f"{what} keeps {growth:.0f} bytes more; every round of {times} grew")
