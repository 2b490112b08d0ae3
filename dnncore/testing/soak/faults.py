"""The faults that a soak injects while its jobs run."""

from __future__ import annotations

import os
import random
import signal
import time
import types
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import dnncore as dnn
from dnncore.backend import Backend, EltwiseForward, Engine, Implementation, hookimpl
from dnncore.cache import primitives
from dnncore.selection import ranking
from dnncore.testing.soak.jobs import Job, digest

__all__ = ["FAULTS", "FaultFailed"]

CHILD_SECONDS = 120  # time limit for a child that computes one job
INTERRUPT_SECONDS = 0.02  # latest time in a job at which it is interrupted


class FaultFailed(Exception):
    """A job failed while a fault was injected. `job` is this job."""

    def __init__(self, text: str, job: Job) -> None:
        super().__init__(text)
        self.job = job


def clear_caches(_rng: random.Random, _jobs: Sequence[tuple[Job, str]]) -> None:
    """Drop all selections and primitives, including those that are being created."""
    primitives.clear()
    ranking.forget()


class _Failing(Implementation[Any]):
    """An implementation with a unique name whose `accept` raises."""

    name = "soak:failing"

    def accept(self, op: Any, attr: Any, engine: Any, hint: Any) -> Any:
        """Raise an error."""
        raise ZeroDivisionError("a failing plugin")


class _NoDevice(Engine):
    """An engine kind without a device."""

    kind = "soak"

    @classmethod
    def devices(cls) -> Sequence[Any]:
        """Raise an error."""
        raise OSError("a failing plugin")


FAILING = (_Failing(),)


def failing_plugin(rng: random.Random, _jobs: Sequence[tuple[Job, str]]) -> None:
    """Register a plugin that fails in one of several ways, and remove it."""
    plugin: Any = types.ModuleType("soak_failing_plugin")
    way = rng.choice(("accept", "devices", "hook", "table"))

    def dnncore_backends() -> Any:
        if way == "hook":
            raise ValueError("a failing plugin")
        table = f"{__name__}:{'FAILING' if way == 'accept' else 'MISSING'}"
        return Backend(
            "soak",
            "1.0",
            engines={"soak": f"{__name__}:_NoDevice"} if way == "devices" else {},
            implementations={("cpu", EltwiseForward): table} if way in ("accept", "table") else {},
        )

    plugin.dnncore_backends = hookimpl(dnncore_backends)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            dnn.register(plugin)
        except dnn.DnnError:  # the hook failed
            return
        try:
            time.sleep(0.1)
        finally:
            dnn.unregister(plugin)


def fork(rng: random.Random, jobs: Sequence[tuple[Job, str]]) -> None:
    """Fork a child that computes a job of the CPU and compares the result."""
    own = [(job, wanted) for job, wanted in jobs if job.engine_name == "cpu"]
    if not own or not hasattr(os, "fork"):
        return
    job, wanted = rng.choice(own)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about forks with threads, since 3.12
        child = os.fork()
    if not child:
        status = 1
        try:
            status = 0 if digest(job, "execute") == wanted else 2
        finally:
            os._exit(status)
    _wait(child, job)


def _wait(child: int, job: Job) -> None:
    end = time.monotonic() + CHILD_SECONDS
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            if code:
                raise FaultFailed(f"a forked child ended with {code} in {job}", job)
            return
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise FaultFailed(f"a forked child hangs in {job}", job)


def interrupt(rng: random.Random, jobs: Sequence[tuple[Job, str]]) -> None:
    """Interrupt the creation and execution of a job as Ctrl-C does, then run it again.

    This requires the main thread, which alone receives signals.
    """
    job, wanted = rng.choice(jobs)
    before = signal.signal(signal.SIGALRM, _raise_interrupt)
    try:
        try:
            primitives.clear()
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, INTERRUPT_SECONDS))
            digest(job, "execute")
        finally:  # the timer's only signal has come, or comes within this block, or does not come
            signal.setitimer(signal.ITIMER_REAL, 0)
            time.sleep(0)
    except KeyboardInterrupt:
        pass
    signal.signal(signal.SIGALRM, before)
    if digest(job, "execute") != wanted:
        raise FaultFailed(f"wrong after an interrupt: {job}", job)


def _raise_interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


FAULTS: dict[str, Callable[[random.Random, Sequence[tuple[Job, str]]], None]] = {
    "caches": clear_caches,
    "plugins": failing_plugin,
    "forks": fork,
    "interrupts": interrupt,
}
"""The faults that the soak injects, by their names in `--faults`."""
