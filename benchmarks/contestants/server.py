"""Makes and runs contestants for another process: `remote.Process` starts it and sends requests."""

from __future__ import annotations

import sys
import time
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.contestants.contestant import Contestant, LeftOut, imported
from dnncore.problem import read
from dnncore.selection.plugins import describe

__all__ = ["Server"]


class Server:
    """Answers requests. The name of a request is the name of a method."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.contestants: list[Contestant] = []
        self._used = time.process_time()

    def make(self, *arguments: Any) -> list[tuple[Any, ...]]:
        """Make the contestants. A string among the arguments is the text of a problem."""
        self.contestants = []  # free the memories of earlier contestants first
        given = (read(each)[0] if isinstance(each, str) else each for each in arguments)
        self.contestants = list(imported(self.path)(*given))
        return [(c.name, c.scratchpad, c.error_factor, c.nbytes) for c in self.contestants]

    def repeat(self, i: int, count: int) -> tuple[float, float]:
        """The seconds of one computation, and the CPU seconds since the last answer."""
        waiting = time.process_time() - self._used
        return self.contestants[i].repeat(count), waiting

    def outputs(self, i: int) -> Any:
        """Return the outputs of a contestant."""
        return dict(self.contestants[i].outputs())

    def refill(self, i: int, draw: int) -> None:
        """Fill the inputs of a contestant with the values of another draw."""
        self.contestants[i].refill(draw)

    def serve(self, connection: Connection) -> None:
        """Answer until the other process ends."""
        while True:
            try:
                what, arguments = connection.recv()
            except EOFError:
                return
            connection.send(self._answer(what, arguments))
            self._used = time.process_time()

    def _answer(self, what: str, arguments: tuple[Any, ...]) -> Any:
        try:
            return getattr(self, what)(*arguments)
        except LeftOut as error:
            return error
        except Exception as error:
            return RuntimeError(describe(error))


if __name__ == "__main__":
    Server(sys.argv[2]).serve(Connection(int(sys.argv[1])))
