"""A spawned process that answers requests. A crash or hang loses only the present request.

    with Process("dnncore.testing.running.worker") as process:
        reply = process.ask(request, seconds=60)

The module calls `serve(start)` if it is run. Requests and replies are pickled and sent through
stdin and stdout. Printed text is written to a file. If the process dies, the message contains the
end of this file.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dnncore.errors import ExecutionError

__all__ = ["Died", "Process", "last_lines", "resident_bytes", "serve"]

START_SECONDS = 120  # time limit for imports and plugins on a busy machine
GRACE = 5.0  # after the timeout, seconds in which the process itself prints where it hangs
LINES = 40  # lines of printed text that a message contains


def resident_bytes(pid: int | None = None) -> int:
    """Return the bytes of physical memory of a process, by default this one; 0 if not on Linux."""
    try:
        pages = int(Path(f"/proc/{pid or 'self'}/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


class Died(Exception):
    """The process ended, or was killed, before it replied."""


class Hung(Died):
    """The process was killed, because it did not reply in time."""


class _Request(NamedTuple):
    content: Any
    seconds: float


class _Note(NamedTuple):
    """A message about a request in progress. It restarts the time of the request."""

    content: Any


class Process:
    """A spawned process. If it dies, the next request starts another process.

    module: the name of the module, which is run as `python -m module *arguments`.
    environment: variables for the process in addition to those of this process.

    Use it in one thread, and close it, or enter it as a context.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.started = 0
        self.note: Any = None  # the last note about the last request
        self._module = module
        self._command = [sys.executable, "-P", "-m", module, *arguments]
        self._environment = {**(environment or {})}
        self._live: _Live | None = None
        self._mark = 0  # length of the file of printed text when the last request began

    def ask(self, request: Any, seconds: float) -> Any:
        """Send a request and wait for its reply.

        seconds: the time limit for the reply, or for a note that the work continues.

        Raises `Died` if no reply comes, also if the process has died because of earlier requests.
        Raises `ExecutionError` if no process starts.
        """
        live = self._live or self._start()
        self.note = None
        self._mark = live.printed_bytes
        try:
            if live.has_ended:
                self._mark = 0
                raise Died(f"{live.ending()} after the request before this one")
            live.send(_Request(request, seconds))
            message = live.message(seconds)
            while isinstance(message, _Note):
                self.note = message.content
                message = live.message(seconds)
        except Died as death:
            last = last_lines(self.printed())
            self.close()
            raise type(death)(f"{death}{last}") from None
        return message

    def printed(self) -> str:
        """Return the text printed since the last request began."""
        return self._live.printed(self._mark) if self._live else ""

    @property
    def resident_bytes(self) -> int:
        """The bytes of physical memory of the process; 0 if there is none or if it is unknown."""
        return resident_bytes(self._live.pid) if self._live else 0

    def _start(self) -> _Live:
        self._live = live = _Live(self._command, self._environment)
        self.started += 1
        try:
            live.message(START_SECONDS)
        except Died as death:
            last = last_lines(live.printed(0))
            self.close()
            raise ExecutionError(
                f"the process of {self._module} does not start: {death}{last}"
            ) from None
        return live

    def close(self) -> None:
        """End the process; the next request starts another."""
        if self._live is not None:
            self._live.end()
        self._live = None

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Live:
    """A running process: its pipes, and the file for the text that it prints."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `end`
        self._process = subprocess.Popen(  # noqa: S603 - this Python
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._output,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        )
        self.pid = self._process.pid
        self._messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        """Forward messages as they arrive; None after the last."""
        assert self._process.stdout is not None
        try:
            while True:
                self._messages.put(pickle.load(self._process.stdout))  # noqa: S301 - our process
        except (EOFError, OSError, ValueError, pickle.UnpicklingError):  # also closed by `end`
            self._messages.put(None)

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def ending(self) -> str:
        """Describe how the process ended."""
        code = self._process.wait()
        if code < 0:
            return f"the process died of {signal.Signals(-code).name}"
        return f"the process exited with status {code}"

    def send(self, request: _Request) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # the process has just died; `ask` will raise `Died`
            pickle.dump(request, self._process.stdin)
            self._process.stdin.flush()

    def message(self, seconds: float) -> Any:
        """Return the next message. A late process gets `GRACE` seconds to print where it hangs.

        The timer of the process, which ends it with status 1, may have started a little earlier.
        """
        late = time.monotonic() + seconds / 2
        try:
            message = self._messages.get(timeout=seconds + GRACE)
        except queue.Empty:
            self._process.kill()
            message = None
        if message is None:
            ending = self.ending()
            was_ended = (
                self._process.returncode in (1, -signal.SIGKILL) or self._has_printed_timeout
            )
            was_late = was_ended and time.monotonic() >= late
            raise Hung(f"no reply within {seconds:g} s") if was_late else Died(ending)
        return message

    @property
    def _has_printed_timeout(self) -> bool:
        """Report if the timer began to print where all threads are. It may crash as it does so."""
        return "Timeout (" in self.printed(0)

    @property
    def printed_bytes(self) -> int:
        """Return the number of bytes printed so far."""
        return os.fstat(self._output.fileno()).st_size

    def printed(self, start: int) -> str:
        """Return the text printed from byte `start`. The process's position does not move."""
        size = self.printed_bytes - start
        return os.pread(self._output.fileno(), size, start).decode(errors="replace")

    def end(self) -> None:
        """Kill the process and close its pipes."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._output):
            assert pipe is not None
            with contextlib.suppress(OSError):  # data not flushed to a dead process is lost
                pipe.close()


def last_lines(text: str) -> str:
    """Return the end of the printed text, each line after a line feed."""
    lines = text.strip().splitlines()
    return "".join(f"\n{line}" for line in lines[-LINES:])


# -- in the process -------------------------------------------------------------------------------


def serve(start: Callable[[Callable[[object], None]], Callable[[Any], Any]]) -> None:
    """Answer requests until there are no more.

    start: a function that is called once with the function that sends a note. It returns the
        function that computes the reply to a request.
    """
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # printed text must not mix with the replies
    with open(os.devnull) as nothing:  # noqa: PTH123 - a file descriptor is needed
        os.dup2(nothing.fileno(), 0)
    faulthandler.enable()

    def send(message: object) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        pickle.dump(message, replies)
        replies.flush()

    seconds = 0.0  # time limit of the present request

    def note(content: object) -> None:
        faulthandler.dump_traceback_later(seconds, exit=True)  # restarts the time limit
        send(_Note(content))

    answer = start(note)
    send("ready")
    while True:
        try:
            content, seconds = pickle.load(requests)  # noqa: S301 - from our starter
        except EOFError:
            return
        faulthandler.dump_traceback_later(seconds, exit=True)
        reply = answer(content)
        faulthandler.cancel_dump_traceback_later()
        send(reply)
