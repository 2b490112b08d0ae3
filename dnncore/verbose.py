"""Verbose lines: one line on stdout for each refusal, creation, execution, error and warning.

    DNNCORE_VERBOSE=profile_exec python train.py

    dnncore_verbose,v1,primitive,exec,cpu,convolution,cpu_numba:brgemm:avx2,forward_training,
        src:f32::blocked:acdb::f0 ...,attr-post-ops:eltwise_relu,alg:convolution_direct,mb1...,0.2

Words and fields are oneDNN's (`dnncore.problem.verbose_fields`), so oneDNN's tools can read the
lines. `dnncore.problem.from_verbose` reads the lines of both libraries. DNNCORE_VERBOSE is a list
of words, separated by commas:

    none, 0          nothing; cancels the words before it
    error            errors other than those of `check`
    warn             warnings
    check            descriptors, attributes and arguments that break a rule
    dispatch         reasons for refusals, and the basis of backends' choices
    profile_create   primitives as they are created: built, loaded from disk or taken from the cache
    profile_exec     executions with their milliseconds
    profile          profile_create and profile_exec
    all, -1          everything
    1                error, warn, profile_exec
    2                error, warn, profile_exec, profile_create
    filter=REGEX     only kinds of primitives that contain a match of REGEX; alone, of profile

An unknown word causes a warning, and DNNCORE_VERBOSE is ignored. With DNNCORE_VERBOSE_TIMESTAMP=1
each line has the milliseconds since 1970 after its version.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dnncore import observers
from dnncore.engines.stream import Event
from dnncore.environment import flag
from dnncore.errors import DescriptorError, DnnError
from dnncore.forking import OUTPUT, hold_at_fork
from dnncore.interrupts import holding, locked
from dnncore.problem.verbose_fields import KINDS, Fields, kind_of, write

if TYPE_CHECKING:
    from dnncore.backend import Run
    from dnncore.engines.engine import Engine
    from dnncore.engines.memory import Memory
    from dnncore.engines.stream import Stream
    from dnncore.execution.primitive import Primitive
    from dnncore.selection.primitive_desc import PrimitiveDesc
    from dnncore.selection.ranking import Request, Selection

__all__ = ["MARK", "Verbose", "primitive_fields", "read_environment", "set_verbose"]

LEVELS = ("error", "warn", "check", "dispatch", "profile_create", "profile_exec")
WORDS = {
    **{level: (level,) for level in LEVELS},
    "profile": ("profile_create", "profile_exec"),
    "all": LEVELS,
    "-1": LEVELS,
    "1": ("error", "warn", "profile_exec"),
    "2": ("error", "warn", "profile_exec", "profile_create"),
}
NONE = ("none", "0", "")
MARK = "dnncore_verbose,v1,"
TEMPLATE = (
    "operation,engine,primitive,implementation,prop_kind,memory_descriptors,attributes,auxiliary,"
    "problem_desc,exec_time"
)


# -- switching -------------------------------------------------------------------------------------


class _Switch(contextlib.AbstractContextManager["_Switch"]):
    """Restores the former observer at the end of a `with` block."""

    def __init__(self, before: Verbose | None) -> None:
        self._before = before

    def __exit__(self, *error: object) -> None:
        _put(self._before)


_current: Verbose | None = None
_switching = threading.RLock()
hold_at_fork(_switching, OUTPUT)


TIMESTAMP = "DNNCORE_VERBOSE_TIMESTAMP"


def set_verbose(words: str) -> contextlib.AbstractContextManager[Any]:
    """Write verbose lines from now on, in all threads.

    words: as in DNNCORE_VERBOSE; "none" for no lines.

    `with set_verbose("profile_exec"):` writes these lines until the end of the block. Raises
    `DescriptorError` for an unknown word or a filter that is not a regular expression.
    """
    if not isinstance(words, str):
        raise DescriptorError(f"verbose: expected words, as in 'profile_exec'; got {words!r}")
    return _Switch(_written(words, timestamps=flag(TIMESTAMP, False)))


def _written(words: str, *, timestamps: bool) -> Verbose | None:
    """Write the lines of these words. Return the former observer that wrote."""
    levels, pattern = _read(words)
    return _put(Verbose(levels, pattern, timestamps=timestamps) if levels else None)


def read_environment() -> None:
    """Apply DNNCORE_VERBOSE and DNNCORE_VERBOSE_TIMESTAMP; warn of invalid values."""
    timestamps = False
    try:
        timestamps = flag(TIMESTAMP, False)
    except DescriptorError as error:
        warnings.warn(f"{error}; the lines have no time", stacklevel=2)
    try:
        _written(os.environ.get("DNNCORE_VERBOSE", ""), timestamps=timestamps)
    except DescriptorError as error:
        warnings.warn(f"DNNCORE_VERBOSE is ignored: {error}", stacklevel=2)


@holding(_switching)
def _put(verbose: Verbose | None) -> Verbose | None:
    """Make `verbose` the observer that writes. Return the former one."""
    global _current
    before, _current = _current, verbose
    if before is not None:
        observers.remove(before)
    if verbose is not None:
        observers.add(verbose)
    return before


def _read(text: str) -> tuple[frozenset[str], re.Pattern[str] | None]:
    """Return the levels and the filter of a text such as `profile,filter=conv|pool`."""
    levels: set[str] = set()
    pattern = None
    words = [word.strip() for word in text.split(",")]
    if all(word.startswith("filter=") for word in words):
        words.append("profile")
    for word in words:
        if word.startswith("filter="):
            pattern = _pattern(word.removeprefix("filter="))
        elif word.lower() in NONE:
            levels.clear()
        elif word.lower() in WORDS:
            levels.update(WORDS[word.lower()])
        else:
            known = ", ".join(["none", "0", *WORDS, "filter=REGEX"])
            raise DescriptorError(f"verbose: unknown word {word!r}; expected some of {known}")
    return frozenset(levels), pattern


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise DescriptorError(
            f"verbose: filter={text} must be a regular expression; got one with {error}"
        ) from None


# -- lines -----------------------------------------------------------------------------------------


class Verbose(observers.Observer):
    """The observer that writes lines of `levels` about kinds that contain a match of `pattern`."""

    def __init__(
        self, levels: Iterable[str], pattern: re.Pattern[str] | None, *, timestamps: bool
    ) -> None:
        self.levels = frozenset(levels)
        self.pattern = pattern
        self.timestamps = timestamps
        self._fields: weakref.WeakKeyDictionary[Primitive, str] = weakref.WeakKeyDictionary()

    def watch(self, primitive: Primitive, memories: Sequence[Memory], run: Run) -> Run:
        """Return a run that waits for its command and writes the time."""
        pd = primitive.pd
        if not self._wants("profile_exec", kind_of(type(pd.op))):
            return run
        fields = self._fields.get(primitive) or primitive_fields(pd)
        self._fields[primitive] = fields

        def timed(stream: Stream, wait_for: Sequence[Event] = ()) -> Event:
            wait_for = [_waited(event) for event in wait_for]
            moment, start = time.time(), time.perf_counter()
            event = run(stream, wait_for)
            if _wait(event) is None:
                self._profile(pd.engine, moment, "exec", fields, time.perf_counter() - start)
            return event

        return timed

    def created(self, pd: PrimitiveDesc, origin: str, seconds: float) -> None:
        """Write one line of profile_create."""
        if self._wants("profile_create", kind_of(type(pd.op))):
            moment = time.time() - seconds
            self._profile(pd.engine, moment, f"create:{origin}", primitive_fields(pd), seconds)

    def selected(self, request: Request, selection: Selection) -> None:
        """Write one line of dispatch for each refusal."""
        kind = kind_of(type(request.op))
        if not selection.refusals or not self._wants("dispatch", kind):
            return
        workspace = request.op.workspace_desc(request.hint)
        fields = write(request.op, request.attr, workspace)
        engines = _engines(request.engine, request.src_engine)
        lines = [
            f"primitive,create:dispatch,{kind},{engines},{_line(refusal.impl_name, fields)},"
            f"{refusal.kind}: {_one_line(refusal.reason)}"
            for refusal in selection.refusals
        ]
        self._write(request.engine, time.time(), lines)

    def raised(self, error: Exception) -> None:
        """Write one line of check, error or warn."""
        level = "error" if isinstance(error, DnnError) else "warn"
        level = "check" if isinstance(error, DescriptorError) else level
        what, _, reason = str(error).partition(": ")
        kind = what.removesuffix(" backward").replace(" ", "_")
        if kind in KINDS and self._wants(level, kind):
            self._write(None, time.time(), [f"primitive,{level},{kind},{_one_line(reason)}"])
        elif kind not in KINDS and self._wants(level, "common"):
            self._write(None, time.time(), [f"common,{level},{_one_line(str(error))}"])

    def remarked(self, engine: Engine, text: str) -> None:
        """Write one line of dispatch."""
        if self._wants("dispatch", "common"):
            line = f"info,{engine.name},{_one_line(text).replace(',', ';')}"
            self._write(engine, time.time(), [line])

    def _wants(self, level: str, kind: str) -> bool:
        return level in self.levels and (self.pattern is None or bool(self.pattern.search(kind)))

    def _profile(
        self, engine: Engine, moment: float, command: str, fields: str, seconds: float
    ) -> None:
        self._write(engine, moment, [f"primitive,{command},{fields},{seconds * 1e3:g}"])

    def _write(self, engine: Engine | None, moment: float, lines: Iterable[str]) -> None:
        """Write lines, after the header and the engine's line if they are not yet written."""
        stamp = f"{moment * 1e3:.3f}," if self.timestamps else ""
        locked(_writing, self._write_at_once, engine, [MARK + stamp + line for line in lines])

    def _write_at_once(self, engine: Engine | None, lines: list[str]) -> None:
        head = [MARK + line for line in _introduction(engine, timestamps=self.timestamps)]
        self._print("".join(f"{line}\n" for line in [*head, *lines]))

    def _print(self, text: str) -> None:
        """Write to stdout. If this fails, write no more lines and warn."""
        if sys.stdout is None:
            return
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except (OSError, ValueError) as error:  # the pipe's reader has ended, or stdout is closed
            observers.remove(self)
            text = f"verbose: lines end here, because stdout cannot be written: {error}"
            warnings.warn(text, stacklevel=2)


_writing = threading.RLock()
hold_at_fork(_writing, OUTPUT)
_introduced: set[str] = set()


def _introduction(engine: Engine | None, *, timestamps: bool) -> Iterator[str]:
    """Yield the header lines, each only once in a process."""
    from dnncore import __version__

    if "" not in _introduced:
        _introduced.add("")
        yield f"info,dnncore v{__version__}"
        yield f"primitive,info,template:{'timestamp,' if timestamps else ''}{TEMPLATE}"
    if engine is not None and engine.name not in _introduced:
        _introduced.add(engine.name)
        device = engine.device
        words = _one_line(f"{device.name} {device.vendor} {device.version}").replace(",", ";")
        yield f"info,{engine.name},{words}"


def primitive_fields(pd: PrimitiveDesc) -> str:
    """Return all fields of a primitive except the command and the time."""
    fields = write(pd.op, pd.attr, pd.workspace_desc, pd.asked)
    return f"{_engines(pd.engine, pd.src_engine)},{_line(pd.impl_name, fields)}"


def _engines(engine: Engine, src_engine: Engine | None) -> str:
    crosses = src_engine is not None and src_engine is not engine
    return f"{src_engine.name}2{engine.name}" if src_engine and crosses else engine.name


def _line(impl_name: str, fields: Fields) -> str:
    kind, *others = fields.texts
    return ",".join([kind, impl_name, *others])


def _one_line(text: str) -> str:
    return " ".join(text.split())


class _Failed(Event):
    """An event whose wait has raised, and raises again."""

    __slots__ = ("_error",)

    def __init__(self, error: DnnError) -> None:
        self._error = error

    def wait(self, timeout: float | None = None) -> None:
        raise self._error

    @property
    def error(self) -> BaseException:
        return self._error


def _waited(event: Event) -> Event:
    """Wait for the end. Return the event, or one that fails if the wait raised."""
    error = _wait(event)
    return _Failed(error) if isinstance(error, DnnError) and event.error is None else event


def _wait(event: Event) -> Exception | None:
    """Wait for the end; return the error of the command. The caller gets the error later."""
    if not isinstance(event, Event):  # a backend returned something else
        return TypeError(f"expected an Event; got {type(event).__name__}")
    try:
        event.wait()
    except DnnError as error:
        return error
    return None
