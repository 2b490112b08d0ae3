"""Contestants in separate processes, with the same cores and the same number of threads.

A process computes only while it handles a request, so one side computes while the others wait. Each
process measures its own times, because a request takes longer than a short computation. If the
threads of a waiting process use a core for longer than the pause between samples, the row is wrong.

Each process lives as long as this process. It has the contestants of one problem at a time.
"""

from __future__ import annotations

import atexit
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing import Pipe
from typing import Any

from benchmarks.contestants.contestant import Contestant, LeftOut, Maker, Side, Terms, imported
from benchmarks.measuring.cores import thread_count
from benchmarks.measuring.sampling import PAUSE
from dnncore.problem import Problem

__all__ = ["Disturbed", "Process", "contestants_of"]


class Disturbed(Exception):
    """A process used a core while it should have waited."""


class Process:
    """A process with `benchmarks.contestants.server`, which makes and runs contestants.

    path: "module:name" of the function that makes the contestants.
    environment: further environment variables of the process.
    """

    def __init__(self, path: str, environment: dict[str, str]) -> None:
        self.path = path
        self._connection, theirs = Pipe()
        command = [
            sys.executable,
            "-m",
            "benchmarks.contestants.server",
            str(theirs.fileno()),
            path,
        ]
        self._popen = subprocess.Popen(
            command, env=os.environ | environment, pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL, stdout=sys.stderr,
        )  # fmt: skip
        theirs.close()
        atexit.register(self.end)

    def make(self, *arguments: Any) -> list[Contestant]:
        """Make the contestants for these arguments. Earlier contestants become unusable.

        Raises `LeftOut` if the function raises it or if the process ends.
        """
        rows = self._ask("make", *arguments)
        return [self._contestant(i, *row) for i, row in enumerate(rows)]

    def end(self) -> None:
        """End the process."""
        self._popen.kill()
        self._popen.wait()

    def _contestant(self, i: int, name: str, *rest: Any) -> Contestant:
        return Contestant(
            name,
            lambda count: self._seconds(i, count),
            lambda: self._ask("outputs", i),
            lambda draw: self._ask("refill", i, draw),
            *rest,
        )

    def _seconds(self, i: int, count: int) -> float:
        """The seconds of one computation. Raises `Disturbed` if a process computed while waiting.

        The threads of OpenMP may stay active after their work for up to one pause between samples.
        """
        before = time.process_time()
        seconds, theirs = self._ask("repeat", i, count)
        ours = time.process_time() - before
        most = PAUSE * thread_count()
        for name, used in ((self.path, theirs), ("dnncore's process", ours)):
            if used > most:
                raise Disturbed(f"{name} used {used:.3f} s of processor time while it waited")
        return float(seconds)

    def _ask(self, what: str, *arguments: Any) -> Any:
        try:
            self._connection.send((what, arguments))
            answer = self._connection.recv()
        except (EOFError, OSError):
            _process.cache_clear()
            raise LeftOut(f"{self.path}: its process {_end(self._popen.wait())}") from None
        if isinstance(answer, Exception):
            raise answer
        return answer


def contestants_of(maker: Maker) -> Side:
    """The function that makes the contestants of a side in that side's own process."""

    def contestants(problem: Problem, terms: Terms) -> Iterator[Contestant]:
        process = _process(maker.path, maker.environment)
        return iter(process.make(str(problem), terms))

    return contestants


@functools.cache
def _process(path: str, environment: str) -> Process:
    return Process(path, imported(environment)() if environment else {})


def _end(code: int) -> str:
    """Describe how a process ended."""
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
