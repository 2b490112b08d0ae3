"""The examination of one mutated program: how it ends, and its fault, if any.

These are faults:

- An exception that is not a `DnnError` with an informative message, unless Python itself refuses
  the call.
- An exception of other software that a `DnnError` hides.
- A long run time.
- Outputs of an executed primitive that differ from those of the reference.
- A crash or a hang of the process that is spawned for the program.
"""

from __future__ import annotations

import gc
import re
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import dnncore as dnn
from dnncore.comparison.compare import consistent_inputs, expected_outputs
from dnncore.comparison.error_bounds import believed_factor
from dnncore.comparison.fills import fill_normal
from dnncore.errors import DnnError, NoImplementation, ReferenceWarning
from dnncore.selection import ranking
from dnncore.testing.bad_input import valid_calls
from dnncore.testing.running.process import Died, Process, serve

__all__ = ["examine", "examine_in", "examiner"]

MODULE = "dnncore.testing.bad_input.examination"  # not `__name__`, which may be `__main__`
PROGRAM = "<program>"
SLOW = 0.05  # seconds of processor time allowed to create or refuse a descriptor
HANGS = 60.0  # seconds after which a process is killed
HEADROOM = 2**31 - 2**26  # bytes that a process may allocate; absurd sizes are larger
VOLUME = 2**18  # elements of all tensors; larger programs are not executed
SHORTEST = 20  # characters of a message that states the object and the value
_WRONG_CALL = re.compile(r"\(\) (missing|takes|got an unexpected|got multiple|got some)")


class _TooLarge(Exception):
    """The program would execute a problem that takes too long."""


class _Elsewhere(dnn.backend.HostEngine):
    """An engine without any implementation."""

    kind = "elsewhere"


_ELSEWHERE = _Elsewhere()


def examine(program: str, engine: dnn.Engine) -> tuple[str, str]:
    """Run a program; return how it ended, and a fault or "".

    "passed": the program ended; if it executed a primitive, the outputs are correct. "refused":
    dnncore raised an error. "python": Python itself refused the call. "left": the program was not
    run, because it would take too long.
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
            exec(code, scope)  # noqa: S102 - the program under test
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


def _is_pythons(error: Exception) -> bool:
    """Whether Python raised the error: dnncore was not called, or has no such attribute.

    An error about wrong keywords is raised in a line of the program itself.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    codes = [frame.f_code for frame in frames]
    place = max(i for i, code in enumerate(codes) if code.co_filename == PROGRAM) + 1
    if place == len(frames) or codes[place].co_name == "__getattr__":
        return True
    if isinstance(error, TypeError) and _WRONG_CALL.search(str(error)):
        return True
    inside = [frame.f_globals for frame in frames[place:] if _is_ours(frame.f_globals)]
    return not inside or inside[0] is globals()


def _is_ours(names: dict[str, Any]) -> bool:
    """Whether these are the globals of this module, of dnncore or of a backend."""
    return names is globals() or str(names.get("__name__")).startswith("dnncore")


def _unfit(error: DnnError) -> str:
    """Describe a fault in an error of dnncore; "" if there is none."""
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
    """Return values of all inputs; raises `_TooLarge` if an execution would take too long."""
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
    """Describe faults in the results of a program that raised nothing."""
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
    """Whether the program still runs its primitive, once, with its arguments."""
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
        or eval(repr(desc), {"MemoryDesc": dnn.MemoryDesc}) != desc  # noqa: S307 - our own text
    ):
        return f"{desc!r} cannot be made again from what it says of itself"
    return ""


def _differs(pd: dnn.PrimitiveDesc, before: dict[str, Any], arguments: dict[str, Any]) -> str:
    for name, right in expected_outputs(pd.op, pd.attr, before).items():
        result = right.check(arguments[name].numpy(), error_factor=believed_factor(pd))
        if not result.ok:
            return f"{pd.impl_name}: {name}: {result}"
    return ""


# -- many programs --------------------------------------------------------------------------------


def examiner() -> Process:
    """Return a process for `examine_in`."""
    return Process(MODULE)


def examine_in(
    process: Process, program: str, engine: str, level: str, timeout: float = HANGS
) -> tuple[str, str]:
    """Return how a program ends in a separate process, and a fault or "".

    timeout: the time limit in seconds.

    In addition to the results of `examine`, the result may be "fault", "slow" or "died".
    """
    try:
        end, reason = process.ask(_Request(program, engine, level), timeout)
    except Died as death:
        return "died", str(death)
    return end, reason


# -- in the process -------------------------------------------------------------------------------


class _Request(NamedTuple):
    program: str
    engine: str
    level: str


def _start(_: Callable[[object], None]) -> Callable[[_Request], tuple[str, str]]:
    opened: set[str] = set()

    def answer(request: _Request) -> tuple[str, str]:
        program, engine_name, level = request
        engine = dnn.engine(engine_name)
        if engine_name not in opened:
            _warm_up(engine)
            opened.add(engine_name)
        return _timed(program, engine, level)

    return answer


def _timed(program: str, engine: dnn.Engine, level: str) -> tuple[str, str]:
    started = time.process_time()
    end, reason = examine(program, engine)
    seconds = time.process_time() - started
    if level == "described" and seconds > SLOW and not reason:
        ranking.forget()
        gc.collect()  # so that neither a collection nor a first import is timed
        started = time.process_time()
        examine(program, engine)
        seconds = min(seconds, time.process_time() - started)
        if seconds > SLOW:
            return "slow", f"took {seconds * 1e3:.0f} ms"
    return ("fault", reason) if reason else (end, "")


def _warm_up(engine: dnn.Engine) -> None:
    """Make the imports and measurements of first uses, by a valid program of each operation."""
    chosen = valid_calls.described()[2]
    for program in chosen[:: len(chosen) // len(valid_calls.OPERATIONS)]:
        examine(program, engine)
    _limit_memory()


def _limit_memory() -> None:
    """Make absurd sizes fail immediately, as on a machine without memory overcommitment."""
    try:
        import resource
        from pathlib import Path

        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except (ImportError, OSError):  # the system has no such limit or no such file
        return
    limit = pages * resource.getpagesize() + HEADROOM
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))


if __name__ == "__main__":
    serve(_start)
