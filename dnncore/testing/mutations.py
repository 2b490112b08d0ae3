"""Bad input: valid calls changed at random must end in the library's errors or in right answers.

    python -m dnncore.testing.mutations cpu opencl:0 --described 20000 --executed 1000 --seed 1
    python -m dnncore.testing.mutations cpu --level executed --seed 1 --index 17

Programs run in spawned processes, which are replaced when they crash or hang. A program is at fault
if it raises anything but a `DnnError` that says something, unless Python itself refuses the call;
if it hides a foreign exception in one; if it takes long; and if it executes a primitive and its
outputs are not those of the reference.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import itertools
import multiprocessing
import re
import sys
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

import dnncore as dnn
from dnncore import selection
from dnncore.compare import consistent_inputs, expected_outputs
from dnncore.errors import DnnError, NoImplementation, ReferenceWarning
from dnncore.fills import fill_normal
from dnncore.testing import valid_calls
from dnncore.testing.mutated_programs import mutation

__all__ = ["Fault", "Report", "examine", "survey"]

PROGRAM_NAME = "dnncore.testing.mutations"  # also where it is __main__
SLOW = 0.05  # seconds of processor time within which a descriptor is made or refused
HANGS = 60.0  # seconds after which a process is given up
VOLUME = 2**18  # elements of all tensors above which nothing is executed
HEADROOM = 2**31 - 2**26  # bytes that a process may allocate; the absurd sizes are beyond
CHUNK = 100  # programs that a process is given at a time
MOST_FAULTS = 200  # after which nothing more is to be learned
SHORTEST = 20  # characters of a message that tells what and what was got


class Fault(NamedTuple):
    """A program that ended as none may; `str` is the whole story, the reproducer first."""

    engine: str
    level: str
    seed: int
    place: int
    reason: str

    def __str__(self) -> str:
        program = mutation(self.level, self.seed, self.place)
        return (
            f"python -m {PROGRAM_NAME} {self.engine} --level {self.level} --seed {self.seed}"
            f" --index {self.place}\n{program}\n{self.reason}"
        )


@dataclass
class Report:
    """What became of all programs: (level, "refused" | "python" | "passed" | ...) -> how many."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    faults: list[Fault] = field(default_factory=list)

    def __str__(self) -> str:
        rows = [f"{level}: {end}: {n}" for (level, end), n in sorted(self.counts.items())]
        return "\n".join([*map(str, self.faults), *rows])


# -- one program ----------------------------------------------------------------------------------


class _TooLarge(Exception):
    """What a program would execute is beyond what there is time for."""


class _Elsewhere(dnn.backend.HostEngine):
    """An engine without any implementation."""

    kind = "elsewhere"


_ELSEWHERE = _Elsewhere()


def examine(program: str, engine: dnn.Engine) -> tuple[str, str]:
    """Run a program: how it ended, and what is wrong with that, "" if nothing is.

    It ends "passed", with the reference's answers where it executed a primitive; "refused" by the
    library; refused by "python" itself; or "left", where it would execute too much.
    """
    cpu = dnn.engine("cpu")
    scope = {
        **valid_calls.NAMES,
        "engine": engine,
        "other": _ELSEWHERE if engine is cpu else cpu,
        "inputs": _inputs,
        "copies": _copies,
    }
    code = compile(program, PROGRAM, "exec")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", ReferenceWarning)
            exec(code, scope)  # noqa: S102 - the point of it
    except _TooLarge:
        return "left", ""
    except DnnError as error:
        return "refused", _unfit(error)
    except Exception as error:
        if _is_pythons(error):
            return "python", ""
        return "raised", "".join(traceback.format_exception(error))
    try:
        return "passed", _wrong(scope, program)
    except Exception as error:
        return "passed", "".join(traceback.format_exception(error))


PROGRAM = "<program>"
_WRONG_CALL = re.compile(r"\(\) (missing|takes|got an unexpected|got multiple|got some)")


def _is_pythons(error: Exception) -> bool:
    """Whether the library was not reached, or has no such attribute.

    A call with wrong keywords never leaves the program's own line.
    """
    frames = traceback.extract_tb(error.__traceback__)
    place = max(i for i, frame in enumerate(frames) if frame.filename == PROGRAM) + 1
    if place == len(frames) or frames[place].name == "__getattr__":
        return True
    if isinstance(error, TypeError) and _WRONG_CALL.search(str(error)):
        return True
    inside = [frame.filename for frame in frames[place:] if "dnncore" in frame.filename]
    return not inside or inside[0] == __file__


def _unfit(error: DnnError) -> str:
    """What is wrong with one of the library's own errors."""
    text = str(error)
    if len(text) < SHORTEST or " " not in text:
        return f"the message says too little: {text!r}"
    hidden = error.__cause__
    if hidden is not None and type(hidden).__name__ in text:
        return "it hides another: " + "".join(traceback.format_exception(error))
    if isinstance(error, NoImplementation):
        return "".join(map(_unfit_refusal, error.refusals))
    return ""


def _unfit_refusal(refusal: Any) -> str:
    if refusal.kind == "failed" or len(refusal.reason) < SHORTEST:
        return f"an implementation broke, or refused without a reason: {refusal}"
    return ""


def _inputs(pd: dnn.PrimitiveDesc) -> dict[str, Any]:
    """Values of all inputs, where there is time to execute it."""
    elements = sum(desc.nelems for _, desc in pd.arguments)
    if elements > VOLUME or pd.op.flops > 64 * VOLUME:
        raise _TooLarge
    return consistent_inputs(pd.op, pd.attr, fill_normal)


def _copies(arguments: Any) -> dict[str, Any]:
    if not isinstance(arguments, dict):
        return {}
    return {
        name: np.array(memory.numpy())
        for name, memory in arguments.items()
        if isinstance(memory, dnn.Memory) and memory.desc.nelems <= VOLUME
    }


def _wrong(scope: dict[str, Any], program: str) -> str:
    """What is wrong with the answers of a program that ended well."""
    pd = scope.get("pd")
    if isinstance(pd, dnn.PrimitiveDesc):
        broken = "".join(map(_unfit_refusal, pd.refusals))
        if broken or not _executes(program):
            return broken or _undescribed(pd)
        return _differs(pd, scope["before"], scope["arguments"])
    for desc in [v for v in scope.values() if isinstance(v, dnn.MemoryDesc)]:
        if wrong := _inconsistent(desc):
            return wrong
    result = scope.get("result")
    for read in result if isinstance(result, list) else ():
        if not isinstance(read, dnn.problem.Problem):
            break
        text = str(read)
        if dnn.problem.read(text) != [read]:
            return f"{text!r} is read as another problem than the one that it was written from"
    return ""


def _executes(program: str) -> bool:
    """Whether the program still runs its primitive, once, on its arguments."""
    return "primitive = pd.primitive()" in program and (
        len(re.findall(r"primitive\.(?:execute|bind)\([^\n]*\*\*arguments\)", program)) == 1
        and len(re.findall(r"\b(?:execute|bind)\(", program)) == 1
    )


def _undescribed(pd: dnn.PrimitiveDesc) -> str:
    return "" if pd.impl_name in pd.explain() and hash(pd) == hash(pd) else "no explanation"


def _inconsistent(desc: dnn.MemoryDesc) -> str:
    if desc.format_kind != "blocked":
        return ""
    again = dnn.MemoryDesc(
        desc.dims, desc.data_type, desc.order_tag, strides=desc.strides, offset0=desc.offset0
    )
    if (
        again != desc
        or hash(again) != hash(desc)
        or eval(repr(desc), {"MemoryDesc": dnn.MemoryDesc}) != desc  # noqa: S307 - of our own making
    ):
        return f"{desc!r} cannot be made again from what it says of itself"
    return ""


def _differs(pd: dnn.PrimitiveDesc, before: dict[str, Any], arguments: dict[str, Any]) -> str:
    for name, right in expected_outputs(pd.op, pd.attr, before).items():
        result = right.check(arguments[name].numpy(), error_factor=pd.error_factor)
        if not result.ok:
            return f"{pd.impl_name}: {name}: {result}"
    return ""


# -- in the process -------------------------------------------------------------------------------


class _Task(NamedTuple):
    engine: str
    level: str
    programs: Sequence[str]


def _serve(connection: Connection) -> None:
    """Run the tasks that come; one reply per program, of (end, reason)."""
    faulthandler.enable()
    opened: set[str] = set()
    while (task := connection.recv()) is not None:
        engine = dnn.engine(task.engine)
        if task.engine not in opened:
            _warm_up(engine)
            opened.add(task.engine)
        for program in task.programs:
            connection.send(_timed(program, engine, task.level))


def _timed(program: str, engine: dnn.Engine, level: str) -> tuple[str, str]:
    started = time.process_time()
    end, reason = examine(program, engine)
    seconds = time.process_time() - started
    if level == "described" and seconds > SLOW and not reason:
        selection.forget()
        gc.collect()  # neither a collection nor a first import counts
        started = time.process_time()
        examine(program, engine)
        seconds = min(seconds, time.process_time() - started)
        if seconds > SLOW:
            return "slow", f"took {seconds * 1e3:.0f} ms"
    return ("fault", reason) if reason else (end, "")


def _warm_up(engine: dnn.Engine) -> None:
    """Import and measure what the first use does, with one valid program of each operation."""
    chosen = valid_calls.described()[2]
    for program in chosen[:: len(chosen) // len(valid_calls.OPERATIONS)]:
        examine(program, engine)
    _limit_memory()


def _limit_memory() -> None:
    """Make absurd sizes fail at once, as on a machine without overcommitment."""
    try:
        import resource
        from pathlib import Path

        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except (ImportError, OSError):  # no such limits or no such file here
        return
    limit = pages * resource.getpagesize() + HEADROOM
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))


# -- all of them ----------------------------------------------------------------------------------


class _Worker:
    """One spawned process after the other."""

    def __init__(self) -> None:
        self._process: Any = None
        self._connection: Any = None

    def run(self, task: _Task) -> Iterator[tuple[str, str]]:
        """One (end, reason) per program; a process that dies or hangs over one is replaced."""
        rest = list(task.programs)
        while rest:
            if self._process is None:
                self._start()
            self._connection.send(task._replace(programs=rest))
            while rest:
                reply = self._reply()
                rest.pop(0)
                yield reply
                if reply[0] in ("crashed", "hung"):
                    break

    def _start(self) -> None:
        spawned = multiprocessing.get_context("spawn")
        self._connection, theirs = spawned.Pipe()
        self._process = spawned.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    def _reply(self) -> tuple[str, str]:
        try:
            if self._connection.poll(HANGS):
                reply: tuple[str, str] = self._connection.recv()
                return reply
            reply = "hung", f"no answer in {HANGS:.0f} s"
        except (EOFError, OSError):
            self._process.join(10)
            reply = "crashed", f"the process ended with exit code {self._process.exitcode}"
        self.close()
        return reply

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._connection.close()
        self._process = None


def survey(tasks: Iterable[tuple[str, str, int]], seed: int, processes: int = 2) -> Report:
    """Run mutations in `processes` processes. tasks: (engine's name, level, how many)."""
    pending = [
        (engine, level, range(start, min(start + CHUNK, count)))
        for engine, level, count in tasks
        for start in range(0, count, CHUNK)
    ]
    report = Report()
    lock = threading.Lock()
    queue = iter(pending)

    def work() -> None:
        worker = _Worker()
        while True:
            with lock:  # which `ast` needs as well: CPython 3.11 parses in one thread at a time
                part = next(queue, None)
                if part is None or len(report.faults) > MOST_FAULTS:
                    break
                engine, level, places = part
                task = _Task(engine, level, [mutation(level, seed, place) for place in places])
            for place, (end, reason) in zip(places, worker.run(task), strict=True):
                with lock:
                    report.counts[level, end] += 1
                    if reason:
                        report.faults.append(Fault(engine, level, seed, place, f"{end}: {reason}"))
        worker.close()

    threads = [threading.Thread(target=work) for _ in range(processes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return report


def _main() -> int:
    parser = argparse.ArgumentParser(prog=f"python -m {PROGRAM_NAME}")
    parser.add_argument("engines", nargs="+", metavar="ENGINE")
    parser.add_argument("--described", type=int, default=0, metavar="COUNT")
    parser.add_argument("--executed", type=int, default=0, metavar="COUNT")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--level", choices=("described", "executed"), default="described")
    parser.add_argument("--index", type=int)
    given = parser.parse_args()
    if given.index is not None:
        program = mutation(given.level, given.seed, given.index)
        end, reason = examine(program, dnn.engine(given.engines[0]))
        print(program, end, reason, sep="\n")
        return bool(reason)
    counts = {"described": given.described, "executed": given.executed}
    report = survey(
        [(e, level, n) for (level, n), e in itertools.product(counts.items(), given.engines)],
        given.seed,
        given.processes,
    )
    print(report)
    return bool(report.faults)


if __name__ == "__main__":
    sys.exit(_main())
