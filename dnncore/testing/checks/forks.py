"""Check of forks: a forked child computes or gets an error, and its parent continues."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import connection
from typing import NoReturn

import numpy as np

from dnncore.engines.memory import Memory
from dnncore.errors import DnnError, describe
from dnncore.selection.plugins import engine as open_engine
from dnncore.testing.checks.case import Trial
from dnncore.testing.checks.guarded import Arguments
from dnncore.testing.checks.results import CheckFailed

__all__ = ["forks"]

CHILD_SECONDS = 30.0  # limit for an execution and the opening of an engine
MOST_BYTES = 4096  # of the child's text, which a pipe can hold


def forks(trial: Trial) -> None:
    """In a forked child, commands are correct or raise an error of dnncore; none hangs.

    The child uses the parent's primitive and memories, and then an engine that it opens by name. A
    command of the parent that is running at the fork is correct.
    """
    if not hasattr(os, "fork"):
        return
    arguments = trial.arguments(trial.case.round("random").inputs)
    event = trial.primitive.execute(trial.case.engine.stream(), **arguments.memories)
    fault = _fault_in_child(lambda: _compute(trial, arguments))
    if fault:
        raise CheckFailed(f"in a forked child: {fault}")
    event.wait()
    trial.verify("random", trial.finish(arguments), "in the parent of a forked child")


def _compute(trial: Trial, arguments: Arguments) -> None:
    engine = trial.case.engine
    with suppress(DnnError):  # the engine may be lost in the child
        arguments.restore()
        trial.primitive.execute(engine.stream(), **arguments.memories).wait()
        trial.verify("random", trial.finish(arguments), "with the engine of its parent")
    with suppress(DnnError):
        own = open_engine(engine.name)
        values = np.arange(8, dtype=np.float32)
        if not np.array_equal(Memory.from_numpy(values, engine=own).numpy(), values):
            raise CheckFailed("a memory of the engine that it has opened has other values")


def _fault_in_child(work: Callable[[], None]) -> str:
    """Do the work in a forked child. Return a description of the failure there, or ""."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about forks with threads, since 3.12
        child = os.fork()
    if not child:
        _end_after(work, writer)
    os.close(writer)
    has_ended = bool(connection.wait([reader], CHILD_SECONDS))
    if not has_ended:
        os.kill(child, signal.SIGKILL)
    text = os.read(reader, MOST_BYTES).decode(errors="replace")
    os.close(reader)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if not has_ended:
        return f"a command has not ended after {CHILD_SECONDS:g} s"
    return text or ("" if status == 0 else f"it ended with exit status {status}")


def _end_after(work: Callable[[], None], writer: int) -> NoReturn:
    """Do the work, write a description of a failure, and end the process without clean-up."""
    status = 1
    try:
        work()
        status = 0
    except Exception as error:
        text = str(error) if isinstance(error, CheckFailed) else describe(error)
        os.write(writer, text.encode()[:MOST_BYTES])
    finally:
        os._exit(status)
