"""Check of memory: it is freed after its last use."""

from __future__ import annotations

import ctypes
import gc
import itertools
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from dnncore.cache import primitives
from dnncore.selection import ranking
from dnncore.testing.checks.case import Trial
from dnncore.testing.checks.concurrency import Late
from dnncore.testing.checks.results import CheckFailed

__all__ = ["memory", "quick_collections"]

ROUNDS = 5
EXECUTIONS = (8, 64)  # executions in a round; the larger number only if the smaller shows growth
CREATIONS = 3
LEAK_HANDLES = 0.1  # open files or threads by which each execution may grow
LEAK_BYTES = 64  # bytes of native memory by which each execution may grow


def memory(trial: Trial) -> None:
    """Memories and primitives are freed after their last use. Executions leak no memory.

    Growth is counted in blocks of Python's allocator and, if the C library reports them, in bytes
    of its allocator. Every object, array and buffer uses at least one block. Growth in each of
    several rounds is a leak.
    """
    with quick_collections():
        _memories_die(trial)
        _primitives_die(trial)
        _executions_stay_level(trial)


@contextmanager
def quick_collections() -> Iterator[None]:
    """Restrict the garbage collector to new objects. Blocks and programs may freeze objects before.

    With the modules of a compiler loaded, a collection of all objects takes 0.1 s.
    """
    was_frozen = gc.get_freeze_count() > 0
    if was_frozen:
        gc.collect()  # these objects remain frozen, so garbage must not be among them
    gc.freeze()
    try:
        yield
    finally:
        if not was_frozen:
            gc.unfreeze()


def _memories_die(trial: Trial) -> None:
    arguments = trial.arguments(trial.case.round("random").inputs)
    memories = arguments.memories
    stream = trial.case.engine.stream()
    call = trial.primitive.bind(**memories)
    trial.primitive.execute(stream, **memories).wait()
    call(stream).wait()
    stream.wait()
    alive = {name: weakref.ref(one) for name, one in memories.items()}
    del arguments, memories, call, stream
    gc.collect()
    left = [name for name, one in alive.items() if one() is not None]
    if left:
        raise CheckFailed(
            f"must be freed after the call and the memories were deleted: {', '.join(left)}"
        )


def _primitives_die(trial: Trial) -> None:
    """Primitives are freed. An implementation may keep one executable per problem, not per
    creation.
    """
    built = [_new_executable(trial) for _ in range(CREATIONS)]
    _forget()
    gc.collect()
    left = {id(one()) for one in built if one() is not None}
    if len(left) > 1:
        raise CheckFailed(
            f"{len(left)} of {CREATIONS} executables are still kept after all that used them went"
        )


def _new_executable(trial: Trial) -> Callable[[], object]:
    _forget()
    pd = trial.case.sibling(trial, trial.case.attr)
    assert pd is not None
    return weakref.ref(pd.primitive().executable)


def _forget() -> None:
    ranking.forget()
    primitives.clear()


def _executions_stay_level(trial: Trial) -> None:
    for executions in EXECUTIONS:  # a cache that fills grows ever more slowly; a leak does not
        objects, native, files, threads = _growth(trial, executions)
        if objects < 1 and native < LEAK_BYTES and max(files, threads) < LEAK_HANDLES:
            return
    raise CheckFailed(
        f"each execution leaks {objects:.0f} objects, {native:.0f} bytes of native memory,"
        f" {files:.2g} open files and {threads:.2g} threads"
    )


def _growth(trial: Trial, executions: int) -> tuple[float, ...]:
    """Return the growth per execution in objects, native bytes, open files and threads, in the
    round with the least growth. The last execution must be correct.
    """
    arguments = trial.arguments(trial.case.round("random").inputs)
    stream = trial.case.engine.stream()
    counts = []
    for _ in range(ROUNDS):
        for _ in range(executions):
            event = Late(lambda: None, seconds=0.0)
            trial.primitive.execute(stream, wait_for=[event], **arguments.memories).wait()
        stream.wait()
        gc.collect()
        counts.append((sys.getallocatedblocks(), _native_bytes(), *_handles()))
    arguments.restore()
    trial.primitive.execute(stream, **arguments.memories).wait()
    trial.verify("random", trial.finish(arguments), f"after {ROUNDS * executions} executions")
    return tuple(
        min(b - a for a, b in itertools.pairwise(counted)) / executions
        for counted in zip(*counts, strict=True)
    )


def _handles() -> tuple[int, int]:
    """Return the numbers of open files and of threads of this process; 0 if unknown."""
    folders = [Path("/proc/self/fd"), Path("/proc/self/task")]
    open_files, tasks = (len(os.listdir(f)) if f.exists() else 0 for f in folders)  # noqa: PTH208 - a count
    return open_files, tasks


class _MallInfo(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks",
                     "uordblks", "fordblks", "keepcost")
    )  # fmt: skip


@cache
def _mallinfo() -> Callable[[], Any] | None:
    """Return the C library's report on its allocator; None without glibc 2.33 or newer."""
    function = getattr(ctypes.CDLL(None), "mallinfo2", None) if os.name == "posix" else None
    if function is not None:
        function.restype = _MallInfo
    return function


def _native_bytes() -> int:
    """Return the bytes in use in malloc; 0 if the C library does not report them."""
    report = _mallinfo()
    if report is None:
        return 0
    info = report()
    return int(info.uordblks + info.hblkhd)
