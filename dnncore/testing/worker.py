"""A process of its own that runs cases: a crash or a hang ends a case, and the suite goes on.

    with Worker(timeout=60) as worker:
        result = worker.run("--conv mb1ic1oc1ih3kh3", "cpu", "mine:*")

Requests and replies are pickled through the process's stdin and stdout. Whatever the case prints
goes to a file, whose end is part of the message where the case dies.
"""

from __future__ import annotations

import contextlib
import faulthandler
import math
import os
import pickle
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any, BinaryIO, NamedTuple

from dnncore.errors import DescriptorError, ExecutionError
from dnncore.plugins import engine, register
from dnncore.problem import read
from dnncore.testing.checks import CHECKS, run_case
from dnncore.testing.plan import compiled
from dnncore.testing.results import CaseResult, Failure, OnTrial

__all__ = ["Worker"]

START_SECONDS = 120  # for imports and plugins, on a loaded machine
GRACE = 5.0  # seconds after the timeout in which the process itself writes where it hangs
LINES = 40  # of what was printed last are shown


class _Request(NamedTuple):
    problem: str
    engine: str
    impl: str
    timeout: float
    skip: tuple[str, ...]


class Worker:
    """Runs one case after the other in a spawned process, which is replaced when it dies.

    timeout: seconds that a case may take.
    plugins: modules that the process registers as `dnncore.register` does, for backends that are
        not installed.
    forbidden: a regular expression; what a case prints that matches it fails the case. So the
        reports of a sanitizer or a simulator count.
    skip_checks: names of checks that are left out, where a runtime cannot serve them.
    environment: variables that the process sees beside those of this one.

    Use it from one thread, and close it, or enter it as a context.
    """

    def __init__(
        self,
        *,
        timeout: float = 60.0,
        plugins: Sequence[str] = (),
        forbidden: str = "",
        skip_checks: Collection[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        unknown = sorted(set(skip_checks) - set(CHECKS))
        if unknown:
            raise DescriptorError(
                f"skip_checks: expected names among {', '.join(CHECKS)}; got {', '.join(unknown)}"
            )
        if not 0 < timeout < math.inf:
            raise DescriptorError(f"timeout: expected seconds above 0; got {timeout!r}")
        self.timeout = timeout
        self._skipped = tuple(skip_checks)
        self.started = 0
        self._plugins = tuple(plugins)
        self._forbidden = compiled("forbidden", forbidden) if forbidden else None
        self._environment = dict(environment or {})
        self._process: _Process | None = None

    def run(self, problem: str, engine: str, impl: str = "") -> CaseResult:
        """Run the checks of a problem's text on an engine; `impl` selects implementations.

        A case that crashes, hangs or raises is a failure of the check "worker", as is a process
        found dead, of what the cases before it did; one that prints what is forbidden, of the
        check "output". Raises `ExecutionError` where no process starts.
        """
        started = time.perf_counter()
        process = self._current()
        printed = process.mark()
        try:
            result = process.ask(_Request(problem, engine, impl, self.timeout, self._skipped))
        except _Died as death:
            self.close()
            spent = {"reference": 0.0, "building": 0.0, "running": time.perf_counter() - started}
            check, name = process.on_trial or ("", "")
            where = f"in the check {check}: " if check else ""
            failure = Failure("worker", name or impl, f"{where}{death}")
            return CaseResult(problem, engine, "failed", (failure,), (), (), 1, spent)
        return self._judge(result, process.printed(printed), impl)

    def _judge(self, result: CaseResult, printed: str, impl: str) -> CaseResult:
        if self._forbidden is None or not self._forbidden.search(printed):
            return result
        failures = (*result.failures, Failure("output", impl, _last_lines(printed).strip()))
        return replace(result, status="failed", failures=failures)

    def _current(self) -> _Process:
        if self._process is None:
            self._process = _Process(self._plugins, self._environment)
            self.started += 1
        return self._process

    def close(self) -> None:
        """End the process; the next case starts another."""
        if self._process is not None:
            self._process.end()
            self._process = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# -- this side ------------------------------------------------------------------------------------


class _Died(Exception):
    """The process ended, or had to be ended, before it replied."""


class _Process:
    """One spawned process: its pipes, and the file that takes what it prints."""

    def __init__(self, plugins: Sequence[str], environment: Mapping[str, str]) -> None:
        self.output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `end`
        self.process = subprocess.Popen(  # noqa: S603 - this Python
            [sys.executable, "-P", "-m", __name__, *plugins],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.output,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        )
        self.on_trial: OnTrial | None = None  # the last that a request's case announced
        self.replies: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()
        try:
            self._reply(START_SECONDS)
        except _Died as death:
            self.end()
            raise ExecutionError(f"the process that runs cases does not start: {death}") from None

    def _listen(self) -> None:
        """Hand on replies as they come; None after the last."""
        assert self.process.stdout is not None
        try:
            while True:
                message = pickle.load(self.process.stdout)  # noqa: S301 - from our process
                if isinstance(message, OnTrial):
                    self.on_trial = message
                else:
                    self.replies.put(message)
        except (EOFError, OSError, ValueError, pickle.UnpicklingError):  # or closed by `end`
            self.replies.put(None)

    def ask(self, request: _Request) -> CaseResult:
        """Send a request and await the reply; raises `_Died`."""
        assert self.process.stdin is not None
        self.on_trial = None
        if self.process.poll() is not None:
            last = _last_lines(self.printed(0))
            raise _Died(f"{_ending(self.process.wait())} after the case before this one{last}")
        start = self.mark()
        try:
            pickle.dump(request, self.process.stdin)
            self.process.stdin.flush()
        except OSError:  # it has just died, as the reply will tell
            pass
        result: CaseResult = self._reply(request.timeout, start)
        return result

    def _reply(self, seconds: float, start: int = 0) -> Any:
        """The next reply; a process that is late is given time to write where it hangs."""
        late = time.monotonic() + seconds
        try:
            reply = self.replies.get(timeout=seconds + GRACE)
        except queue.Empty:
            self.process.kill()
            reply = None
        if reply is None:
            code = self.process.wait()
            way = f"no reply within {seconds:g} s" if time.monotonic() >= late else _ending(code)
            raise _Died(f"{way}{_last_lines(self.printed(start))}")
        return reply

    def mark(self) -> int:
        """Where the file of printed text ends now."""
        return os.fstat(self.output.fileno()).st_size

    def printed(self, start: int) -> str:
        """What was printed since a mark; read without moving the place where the process writes."""
        descriptor = self.output.fileno()
        return os.pread(descriptor, self.mark() - start, start).decode(errors="replace")

    def end(self) -> None:
        """Kill the process and let go of its pipes."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.output):
            assert pipe is not None
            with contextlib.suppress(OSError):  # what was not flushed to a dead process is lost
                pipe.close()


def _ending(code: int) -> str:
    if code < 0:
        return f"the process died of {signal.Signals(-code).name}"
    return f"the process exited with status {code}"


def _last_lines(text: str) -> str:
    lines = text.strip().splitlines()
    return "".join(f"\n{line}" for line in lines[-LINES:])


# -- that side ------------------------------------------------------------------------------------


def main(plugins: Sequence[str]) -> None:
    """Register the plugins, then answer requests until there are no more."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what is printed must not come between the replies
    with open(os.devnull) as nothing:  # noqa: PTH123 - a descriptor is wanted
        os.dup2(nothing.fileno(), 0)
    faulthandler.enable()
    for name in plugins:
        register(import_module(name))
    _send(replies, "ready")
    while True:
        try:
            request = pickle.load(requests)  # noqa: S301 - from the process that started this one
        except EOFError:
            return
        faulthandler.dump_traceback_later(request.timeout, exit=True)
        result = _run(request, replies)
        faulthandler.cancel_dump_traceback_later()
        _send(replies, result)


def _send(replies: BinaryIO, reply: object) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    pickle.dump(reply, replies)
    replies.flush()


def _run(request: _Request, replies: BinaryIO) -> CaseResult:
    problem, engine_name, impl, _, skip = request
    announce = partial(_send, replies)
    try:
        (case,) = read(problem)
        return run_case(case, engine(engine_name), impl=impl, skip=skip, announce=announce)
    except Exception:
        failure = Failure("worker", impl, traceback.format_exc(limit=-8))
        return CaseResult(problem, engine_name, "failed", (failure,), (), (), 1, {})


if __name__ == "__main__":
    main(sys.argv[1:])
