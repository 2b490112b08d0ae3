"""Detects a soak that hangs: prints the stacks of all threads and ends the process."""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable

__all__ = ["Watchdog"]


class Watchdog:
    """Ends the process if a worker reports nothing for `patience` seconds.

    describe: a function that returns a worker's present task, and the command that repeats it.

    A thread watches all workers. The timer of `faulthandler`, which needs no interpreter, watches
    this thread.
    """

    EXIT_STATUS = 3

    def __init__(self, patience: float, describe: Callable[[str], str]) -> None:
        self._patience = patience
        self._describe = describe
        self._seen: dict[str, float] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="soak watchdog", daemon=True)
        self._thread.start()

    def report(self, worker: str, more: float = 0.0) -> None:
        """Record progress of a worker. Its next report may take `more` additional seconds."""
        self._seen[worker] = time.monotonic() + more

    def leave(self, worker: str) -> None:
        """Record that a worker has ended."""
        self._seen.pop(worker, None)

    def stop(self) -> None:
        """Stop watching."""
        self._over.set()
        self._thread.join()
        faulthandler.cancel_dump_traceback_later()

    def _look(self) -> None:
        while not self._over.wait(min(1.0, self._patience / 4)):
            faulthandler.dump_traceback_later(2 * self._patience, exit=True)
            now = time.monotonic()
            seconds = {worker: now - seen for worker, seen in self._seen.copy().items()}
            hanging = [worker for worker in seconds if seconds[worker] > self._patience]
            for worker in hanging:
                text = self._describe(worker)
                print(f"soak: {worker} hangs for {seconds[worker]:.0f} s in {text}", flush=True)
            if hanging:
                self._end()

    def _end(self) -> None:
        faulthandler.dump_traceback(sys.stderr, all_threads=True)
        sys.stderr.flush()
        os._exit(self.EXIT_STATUS)
