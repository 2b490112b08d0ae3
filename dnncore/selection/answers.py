"""Checks of the values that plugins return: one function per kind of value.

Each function returns a checked value or raises `PluginError`. Any other exception of a plugin, such
as SystemExit, becomes an `Exception` here. KeyboardInterrupt is raised unchanged, because the user
caused it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from numbers import Integral, Real
from typing import Any, NoReturn, TypeVar, get_args

import numpy as np

from dnncore.attributes import WORDS, Attributes
from dnncore.backend import (
    Accepted,
    Backend,
    Executable,
    Implementation,
    RefusalKind,
    Refused,
)
from dnncore.engines.device import Device
from dnncore.engines.engine import Engine
from dnncore.engines.peaks import Peaks
from dnncore.errors import PluginError, describe, shortened, shown
from dnncore.interrupts import pass_on
from dnncore.knobs import Knob, KnobValue
from dnncore.notes import NOTES
from dnncore.ops import Operation
from dnncore.selection.contract_version import checked_version
from dnncore.tensors.datatypes import DATA_TYPES
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = [
    "answer",
    "backends_of",
    "devices_of",
    "engine_class",
    "estimate",
    "executable",
    "guarded",
    "implementations_of",
    "is_lost",
    "opened",
    "tuned",
]

T = TypeVar("T")
MOST_BYTES = 1 << 62
MOST_LETTERS = 100  # of a name
REQUIRED = ("devices", "peaks", "allocate", "copy_in", "copy_out", "stream")  # of an engine class
NAME = re.compile(rf"[A-Za-z0-9_.-]{{1,{MOST_LETTERS}}}")


def guarded(call: Callable[..., T], *arguments: Any) -> T:
    """Call code of a plugin. Exceptions such as SystemExit become `PluginError`.

    An `Exception` and the user's KeyboardInterrupt are raised unchanged.
    """
    try:
        return call(*arguments)
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:
        pass_on(error)
        raise PluginError(f"it raised {describe(error)}") from error


# -- backends --------------------------------------------------------------------------------------


def backends_of(results: Sequence[object], plugin: str) -> list[Backend]:
    """Return the backends that the hook of a plugin returned, as plain objects."""
    if not results:
        _fail(f"plugin {plugin!r}: dnncore_backends must return Backend objects; got None")
    given = [item for result in results for item in _as_sequence(result)]
    found = [guarded(_backend, item, plugin) for item in given]
    for what, names in (
        ("backend", [backend.name.casefold() for backend in found]),
        ("engine kind", [kind.casefold() for backend in found for kind in backend.engines]),
    ):
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            _fail(f"plugin {plugin!r}: {what} {twice!r} is returned twice; use different names")
    return found


def _as_sequence(result: object) -> Sequence[object]:
    return result if isinstance(result, list | tuple) else (result,)


def _backend(given: object, plugin: str) -> Backend:
    if not isinstance(given, Backend):
        _fail(
            f"plugin {plugin!r}: dnncore_backends must return Backend objects;"
            f" got {type(given).__name__}"
        )
    copy = Backend(**{field.name: getattr(given, field.name) for field in fields(Backend)})
    name = _name(copy.name, f"plugin {plugin!r}: the name of a backend")
    what = f"backend {name!r}"
    version = checked_version(copy.api_version, what)
    if copy.role is not None and not isinstance(copy.role, str):
        _fail(f"{what}: role must be a string or None; got {shown(copy.role)}")
    engines: dict[str, str] = {}
    for given_kind, path in _mapping(copy.engines, f"{what}: engines").items():
        kind = _name(given_kind, f"{what}: an engine kind")
        engines[kind] = _path(path, f"{what}: engines[{kind!r}]")
    tables: dict[tuple[str, type[Operation]], str] = {}
    for key, path in _mapping(copy.implementations, f"{what}: implementations").items():
        if not (
            isinstance(key, tuple)
            and len(key) == 2
            and isinstance(key[0], str)
            and isinstance(key[1], type)
            and issubclass(key[1], Operation)
        ):
            _fail(
                f"{what}: a key of implementations must be (engine kind, operation class);"
                f" got {shown(key)}"
            )
        table = _path(path, f"{what}: implementations of {key[1].__name__}")
        tables[str(key[0]), key[1]] = table
    kinds = {
        _path(theirs, f"{what}: a key of array_kinds"): _path(ours, f"{what}: array_kinds")
        for theirs, ours in _mapping(copy.array_kinds, f"{what}: array_kinds").items()
    }
    role = None if copy.role is None else str(copy.role)
    return Backend(name, version, role, engines, tables, kinds)


def _mapping(value: object, what: str) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        _fail(f"{what} must be a mapping; got {type(value).__name__}")
    return value


def _path(value: object, what: str) -> str:
    module, _, attribute = value.partition(":") if isinstance(value, str) else ("", "", "")
    if not (module and attribute.isidentifier()):
        _fail(f'{what} must be "module:attribute"; got {shown(value)}')
    return str(value)


def _name(value: object, what: str) -> str:
    """Return a valid name. Names stand in lists with commas and before colons, and are printed."""
    if not isinstance(value, str):
        _fail(f"{what} must be a string; got {shown(value)}")
    text = str(value)
    if not NAME.fullmatch(text):
        _fail(
            f"{what} must have 1 to {MOST_LETTERS} letters, digits and characters of '_.-', in"
            f" ASCII; got {shown(value)}"
        )
    return text


# -- tables ----------------------------------------------------------------------------------------


def implementations_of(
    table: object, backend: str, path: str
) -> tuple[list[Implementation[Any]], list[str]]:
    """Return the valid implementations of a table, and texts about the other entries."""
    if not isinstance(table, Sequence) or isinstance(table, str | bytes):
        _fail(f"{path} must be a sequence of Implementation objects; got {shown(table)}")
    found: list[Implementation[Any]] = []
    faults: list[str] = []
    taken: set[str] = set()
    entries: list[Any] = guarded(list, table)
    for place, entry in enumerate(entries):
        try:
            guarded(_check_entry, entry, backend, taken)
            found.append(entry)
        except Exception as error:
            faults.append(f"{path}: entry {place} is left out: {describe(error)}")
    return found, faults


def _check_entry(entry: object, backend: str, taken: set[str]) -> None:
    if not isinstance(entry, Implementation):
        _fail(f"it must be an Implementation; got {shown(entry)}")
    name: Any = entry.name
    start, _, rest = name.partition(":") if type(name) is str else ("", "", "")
    if start != backend or not rest or not _is_printable(name):
        _fail(f"its name must be a text such as '{backend}:algorithm'; got {shown(name)}")
    if name in taken:
        _fail(f"the name {name!r} is taken by an entry before it; use another one")
    taken.add(name)
    types: Any = entry.data_types
    if isinstance(types, str) or not isinstance(types, Collection) or set(types) - set(DATA_TYPES):
        _fail(f"{name}: data_types must contain names such as 'f32'; got {shown(types)}")
    if not isinstance(entry.takes_repeats, bool):
        _fail(f"{name}: takes_repeats must be True or False; got {shown(entry.takes_repeats)}")
    words: Any = entry.attributes
    if isinstance(words, str) or not isinstance(words, Collection) or set(words) - set(WORDS):
        _fail(f"{name}: attributes must contain words of {', '.join(WORDS)}; got {shown(words)}")


def _is_printable(text: str) -> bool:
    return text.isprintable() and len(text) <= MOST_LETTERS and not set(text) & {",", " "}


# -- engines ---------------------------------------------------------------------------------------


def engine_class(found: object, kind: str) -> type[Engine]:
    """Return the class of an engine kind."""
    if not (isinstance(found, type) and issubclass(found, Engine)):
        _fail(f"engine {kind!r}: its class must derive from Engine; got {shown(found)}")
    own = getattr(found, "kind", None)
    if own != kind:
        _fail(f"engine {kind!r}: the attribute `kind` of its class must be {kind!r}; got {own!r}")
    defined = {name for base in found.__mro__ if base is not Engine for name in vars(base)}
    missing = [name for name in REQUIRED if name not in defined]
    if missing:
        required, lacks = ", ".join(REQUIRED), ", ".join(missing)
        _fail(f"engine {kind!r}: its class must define {required}; it lacks {lacks}")
    return found


def devices_of(engine: type[Engine], kind: str) -> list[Device]:
    """Return the devices of an engine class. Raises the error of `devices`, as an `Exception`."""
    found: object = guarded(engine.devices)
    if not isinstance(found, Sequence) or isinstance(found, str | bytes):
        _fail(f"{kind}: devices() must return a sequence of Device objects; got {shown(found)}")
    devices: list[Any] = guarded(list, found)
    strange = [device for device in devices if not isinstance(device, Device)]
    if strange:
        _fail(f"{kind}: devices() must return Device objects; got {shown(strange[0])}")
    return devices


def opened(engine: type[Engine], kind: str, index: int) -> Engine:
    """Return a new engine. Raises the error of its constructor, as an `Exception`."""
    found: object = guarded(engine, index)
    if not isinstance(found, Engine):
        _fail(f"engine '{kind}:{index}': its class must make an Engine; got {shown(found)}")
    return found


def is_lost(engine: Engine) -> bool:
    """Whether the device of an engine can no longer be used."""
    try:
        found: object = guarded(lambda: engine.is_lost)
    except Exception as error:
        pass_on(error)
        raise PluginError(f"an engine's is_lost raised {describe(error)}") from error
    if not isinstance(found, bool):
        _fail(f"an engine's is_lost must be True or False; got {shown(found)}")
    return found


# -- implementations -------------------------------------------------------------------------------


def answer(
    implementation: Implementation[Any], op: Operation, attr: Attributes, engine: Engine, hint: Any
) -> Accepted | Refused:
    """Return the answer of an implementation. Raises its error, as an `Exception`."""
    return guarded(
        lambda: _checked(implementation.answer(op, attr, engine, hint), op, method="accept")
    )


def tuned(
    accepted: Accepted, op: Operation, requested: Mapping[str, KnobValue]
) -> Accepted | Refused:
    """Return the acceptance with the requested values of knobs, and defaults for all other knobs.

    Raises the error of `tune`, as an `Exception`.
    """
    known = {knob.name: knob for knob in accepted.knobs}
    for name, value in requested.items():
        if name not in known:
            return Refused(
                "attribute", f"has no knob {name!r}; it has {', '.join(known) or 'none'}"
            )
        if not known[name].takes(value):
            values = shortened(", ".join(map(str, known[name].values)))
            return Refused("attribute", f"knob {name!r} must be one of {values}; got {value!r}")
    tune = accepted.tune
    assert tune is not None  # `_broken` refuses acceptances with knobs and without `tune`
    all_values = {knob.name: requested.get(knob.name, knob.default) for knob in accepted.knobs}
    found = guarded(lambda: _checked(tune(all_values), op, method="tune"))
    # The problem's knobs and their defaults do not depend on the values.
    return found if isinstance(found, Refused) else replace(found, knobs=accepted.knobs, tune=tune)


def _checked(given: object, op: Operation, method: str) -> Accepted | Refused:
    if isinstance(given, Refused):
        reason: object = given.reason
        if not isinstance(reason, str):
            _fail(f"{method} returned a Refused whose reason must be a text; got {shown(reason)}")
        if given.kind not in get_args(RefusalKind):
            return Refused("failed", shortened(f"unknown kind {shown(given.kind)}: {reason}"))
        return Refused(given.kind, shortened(reason))
    if not isinstance(given, Accepted):
        _fail(f"{method} returned {type(given).__name__}, not Accepted or Refused")
    copy = Accepted(**{field.name: getattr(given, field.name) for field in fields(Accepted)})
    for rule, got in _broken(copy, op):
        _fail(f"{method} returned a bad Accepted: {rule}; got {shown(got)}")
    if copy.notes or copy.knobs:
        return replace(copy, notes=tuple(sorted(set(copy.notes))), knobs=tuple(copy.knobs))
    return copy


def _broken(accepted: Any, op: Operation) -> Iterator[tuple[str, object]]:
    """Yield the rules that an acceptance breaks, with the value."""
    if type(accepted.op) is not type(op):
        yield f"op must be the {type(op).__name__} of the request", accepted.op
        return
    for field in fields(op):
        asked, got = getattr(op, field.name), getattr(accepted.op, field.name)
        if not _fits(asked, got):
            yield f"op.{field.name} must remain {asked}, except for the format 'any'", got
    for argument, desc in accepted.op.tensors():
        if desc.is_any:
            _fail(f"accept left the format of {argument.name} unresolved")
    if not callable(accepted.build):
        yield "build must be callable", accepted.build
    for name in ("efficiency", "seconds"):
        number = getattr(accepted, name)
        if number is not None and not (_is_finite(number) and number > 0):
            yield f"{name} must be a finite number above 0, or None", number
    if (accepted.efficiency is None) == (accepted.seconds is None):
        got = accepted.efficiency, accepted.seconds
        yield "either efficiency or seconds must be given, and not both", got
    if not (_is_whole(accepted.scratchpad_bytes) and 0 <= accepted.scratchpad_bytes < MOST_BYTES):
        yield "scratchpad_bytes must be a whole number, at least 0", accepted.scratchpad_bytes
    workspace = accepted.workspace
    if workspace is not None and not (isinstance(workspace, MemoryDesc) and not workspace.is_any):
        yield "workspace must be a MemoryDesc with a format, or None", workspace
    for name in ("deterministic", "exact"):
        if not isinstance(getattr(accepted, name), bool | np.bool_):
            yield f"{name} must be True or False", getattr(accepted, name)
    if not (_is_finite(accepted.error_factor) and accepted.error_factor >= 1):
        yield "error_factor must be a finite number, at least 1", accepted.error_factor
    notes = accepted.notes
    if not isinstance(notes, Collection) or not all(
        isinstance(note, str) and note in NOTES for note in notes
    ):
        yield f"notes must contain words of {', '.join(NOTES)}", notes
    if not isinstance(accepted.detail, str) or not _is_detail(accepted.detail):
        yield f"detail must be a text of at most {MOST_LETTERS} characters", accepted.detail
    yield from _broken_knobs(accepted.knobs, accepted.tune)


def _is_detail(text: str) -> bool:
    return text.isprintable() and len(text) <= MOST_LETTERS and "," not in text


def _broken_knobs(knobs: Any, tune: object) -> Iterator[tuple[str, object]]:
    if not isinstance(knobs, list | tuple) or not all(type(knob) is Knob for knob in knobs):
        yield "knobs must be a sequence of Knob", knobs
        return
    names = [knob.name for knob in knobs]
    if len(set(names)) < len(names):
        yield "knobs must have different names", names
    if names and not callable(tune):
        yield "knobs must come with a function `tune`", tune
    if not names and tune is not None:
        yield "tune must be None without knobs", tune


def _fits(asked: object, got: object) -> bool:
    """Whether a field of the answer equals that of the request, or resolves its `any` or auto."""
    if isinstance(asked, MemoryDesc) and isinstance(got, MemoryDesc) and asked.is_any:
        return (asked.dims, asked.data_type) == (got.dims, got.data_type)
    if isinstance(asked, tuple) and isinstance(got, tuple) and len(asked) == len(got):
        return all(map(_fits, asked, got))
    return bool(asked == got) or asked == "auto"


def _is_finite(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)


def _is_whole(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, Integral)


def estimate(accepted: Accepted, engine: Engine) -> tuple[float, str]:
    """Return the estimated seconds of an execution on `engine`, and the origin of the estimate."""
    if accepted.seconds is not None:
        return float(accepted.seconds), "its own estimate"
    assert accepted.efficiency is not None  # `_broken` refuses acceptances without an estimate
    op, efficiency = accepted.op, float(accepted.efficiency)
    ideal = peaks(engine).ideal_seconds(op.flops, op.bytes, op.data_type)
    return ideal / efficiency, f"efficiency {efficiency:.3g} of {engine.name}'s peaks"


def peaks(engine: Engine) -> Peaks:
    """Return the engine's peaks."""
    found: object = guarded(lambda: engine.peaks)
    if not isinstance(found, Peaks):
        _fail(f"engine {engine.name}: peaks must be a Peaks object; got {shown(found)}")
    return found


def executable(accepted: Accepted) -> Executable:
    """Build and return the executable. Raises the error of `build`, as an `Exception`."""
    found: object = guarded(accepted.build)
    if not isinstance(found, Executable):
        _fail(f"build returned {shown(found)}, not an Executable")
    return found


def _fail(text: str) -> NoReturn:
    raise PluginError(text)
