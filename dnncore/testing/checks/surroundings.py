"""Check of the surroundings: an implementation does not change the process or the thread."""

from __future__ import annotations

import decimal
import gc
import locale
import logging
import os
import pickle
import random
import signal
import sys
import threading
import tracemalloc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from dnncore import observers
from dnncore.comparison.fills import FillName
from dnncore.engines.engine import Engine
from dnncore.engines.stream import Event, Stream
from dnncore.engines.threads import get_num_threads
from dnncore.execution.primitive import Primitive
from dnncore.testing.checks.case import USUAL_FILLS, Trial
from dnncore.testing.checks.results import CheckFailed

__all__ = ["changed", "drawn_apart", "note_changes", "surroundings", "world"]

Array = np.ndarray[Any, Any]
# Some numbers underflow, some overflow, and some have no result.
STRICT_FILLS: tuple[FillName, ...] = (*USUAL_FILLS, "wide", "large", "tiny", "special")


def surroundings(trial: Trial) -> None:
    """Building and executing change no state of the process or of the calling thread.

    The check covers all executions of the trial. Results do not depend on numpy's handling of
    errors or on the filters of warnings.
    """
    for fill in STRICT_FILLS:
        strictly = trial.execute(trial.case.round(fill).inputs, launch=_strict)
        trial.verify(fill, strictly, "where numpy raises errors and warnings are errors")
    note_changes(trial)
    if trial.changes:
        names = ", ".join(dict.fromkeys(trial.changes))
        raise CheckFailed(f"building, binding or executing changed {names}")


def note_changes(trial: Trial) -> None:
    """Record the states that have changed since `trial.world`."""
    now = world(trial.case.engine)
    trial.changes += changed(trial.world, now)
    trial.world = now


def _strict(primitive: Primitive, stream: Stream, memories: dict[str, Any]) -> Event:
    call = primitive.bind(**memories)
    with np.errstate(all="raise"), warnings.catch_warnings():
        warnings.simplefilter("error")
        return call(stream)


def changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return the names of the states that differ."""
    return [name for name, state in after.items() if state != before[name]]


@contextmanager
def drawn_apart(seed: int) -> Iterator[None]:
    """Give the global random number generators another state during a block.

    So an implementation that seeds them always changes their state.
    """
    states = random.getstate(), np.random.get_state()  # noqa: NPY002 - the global one
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - the global one
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002 - the global one


def world(engine: Engine) -> dict[str, Any]:
    """Return the shared state of the process and the state of this thread, by name."""
    return {
        "os.environ": dict(os.environ),
        "the current folder": Path.cwd(),
        "numpy's error handling": (np.geterr(), np.geterrcall(), np.getbufsize()),
        "numpy's options of printing": np.get_printoptions(),
        "numpy's global generator": pickle.dumps(np.random.get_state()),  # noqa: NPY002 - the global one is checked
        "Python's global generator": random.getstate(),
        "the filters of warnings": [*warnings.filters],
        "the engine's num_threads": getattr(engine, "num_threads", None),
        "dnncore's number of threads": get_num_threads(),
        "dnncore's observers": tuple(observers.active),
        "the floating-point environment of the thread": _arithmetic(),
        "sys.path": [*sys.path],
        "Python's limits": (sys.getrecursionlimit(), sys.getswitchinterval()),
        "Python's standard streams": (sys.stdin, sys.stdout, sys.stderr),
        "Python's hooks": (
            sys.excepthook,
            sys.unraisablehook,
            threading.excepthook,
            sys.gettrace(),
            sys.getprofile(),
            tracemalloc.is_tracing(),
        ),
        "the garbage collector": (gc.isenabled(), gc.get_threshold(), gc.get_debug()),
        "the handlers of signals": [signal.getsignal(n) for n in signal.valid_signals()],
        "the locale": locale.setlocale(locale.LC_ALL),
        "decimal's context": repr(decimal.getcontext()),
        "the root logger": (logging.root.level, [*logging.root.handlers], logging.root.disabled),
        **_scheduling(),
    }


def _scheduling() -> dict[str, Any]:
    """Return the processors and the priority of this thread, if the system reports them."""
    if not hasattr(os, "sched_getaffinity"):
        return {}
    return {
        "the processors of the thread": os.sched_getaffinity(0),
        "the priority of the process": os.getpriority(os.PRIO_PROCESS, 0),
    }


_SUBNORMAL = (np.array([1e-40], np.float32), np.array([1e-310]))
_THIRDS = (np.array([1, -1, 2], np.float32), np.array([1.0, -1.0, 2.0]))


def _arithmetic() -> bytes:
    """Return results that show the rounding direction and whether subnormal numbers become zero."""
    with np.errstate(all="ignore"):
        kept = [x * x.dtype.type(1) for x in _SUBNORMAL]
        rounded = [x / x.dtype.type(3) for x in _THIRDS]
    return b"".join(values.tobytes() for values in kept + rounded)
