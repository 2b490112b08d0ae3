"""Check of fences: tensors lie next to memory that cannot be accessed."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np

from dnncore.engines.memory import Memory
from dnncore.testing.checks.case import Trial
from dnncore.testing.checks.results import CheckFailed

__all__ = ["fenced", "fenced_memories", "fences", "is_available"]

Array = np.ndarray[Any, Any]

NO_ACCESS = 0  # PROT_NONE


def fences(trial: Trial) -> None:
    """No byte before or after a tensor is read or written.

    An invalid access ends the process, and the kit then reports this check. So this check is the
    last one, and it is omitted if other checks have found wrong writes. It needs a POSIX system and
    a host engine, because buffers of other engines are not in host memory.
    """
    if trial.findings or not (trial.case.engine.is_host and is_available()):
        return
    inputs = trial.case.round("integers").inputs
    for at_end in (True, False):
        memories = fenced_memories(trial, inputs, at_end=at_end)
        trial.primitive.execute(trial.case.engine.stream(), **memories).wait()
        outputs = {n: np.array(memories[n].numpy()) for n in trial.outputs("integers")}
        trial.verify("integers", outputs, "beside memory that cannot be accessed")


def fenced_memories(
    trial: Trial,
    inputs: Mapping[str, Array],
    *,
    at_end: bool,
    wrap: Callable[[Array], Any] = lambda array: array,
) -> dict[str, Any]:
    """Return memories of all arguments. Opaque formats and the scratchpad have no fence.

    at_end: whether the fence is directly after each tensor; otherwise it is directly before it.
    wrap: makes a buffer of the engine from host memory.
    """
    memories = trial.arguments(inputs).memories
    for argument, desc in trial.pd.arguments:
        if desc.format_kind != "opaque":
            array = fenced(desc.nbytes, at_end=at_end)
            if argument.name in inputs:
                desc.pack(np.asarray(inputs[argument.name], desc.dtype), array)
            memories[argument.name] = Memory(desc, trial.case.engine, wrap(array))
    return memories


@cache
def is_available() -> bool:
    """Whether the system can protect memory."""
    return os.name == "posix" and hasattr(ctypes.CDLL(None), "mprotect")


def fenced(nbytes: int, *, at_end: bool) -> Array:
    """Return bytes between two pages that cannot be accessed."""
    page = mmap.PAGESIZE
    room = -(-max(1, nbytes) // page) * page
    whole = np.frombuffer(mmap.mmap(-1, room + 2 * page), np.uint8)
    for fence in (whole.ctypes.data, whole.ctypes.data + page + room):
        if ctypes.CDLL(None).mprotect(ctypes.c_void_p(fence), page, NO_ACCESS):
            raise CheckFailed("the system has protected no memory")
    first = page + (room - nbytes if at_end else 0)
    tensor: Array = whole[first : first + nbytes]
    return tensor
