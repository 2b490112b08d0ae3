"""The exceptions that dnncore raises.

A message states the object, the rule, the value that was passed, and a remedy.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import PurePath
from types import TracebackType
from typing import TYPE_CHECKING

from dnncore import observers
from dnncore.interrupts import after_work

if TYPE_CHECKING:
    from dnncore.backend import Refusal

__all__ = [
    "BackendNotFound",
    "BuildError",
    "CacheWarning",
    "CrossCheckError",
    "DataTypeError",
    "DescriptorError",
    "DnnError",
    "EngineUnavailable",
    "ExecutionError",
    "ExportError",
    "NoImplementation",
    "PluginError",
    "PluginWarning",
    "ReferenceWarning",
    "describe",
    "printable",
    "shortened",
    "shown",
]

MOST_LETTERS = 4000  # characters of a text of another library, such as a compiler log


class _Observed(Exception):
    """Base of exceptions and warnings that notify observers when they are created."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        for observer in observers.active:
            after_work(observer.raised, self)


class DnnError(_Observed):
    """Base of every error that dnncore raises."""


class DescriptorError(DnnError, ValueError):
    """A descriptor, an attribute or an argument that breaks a rule of its operation."""


class DataTypeError(DescriptorError):
    """Data types that an operation does not support; `feature` names the unsupported feature."""

    def __init__(self, message: str, feature: str = "data type") -> None:
        super().__init__(message)
        self.feature = feature


class ExportError(DescriptorError, BufferError):
    """A memory that cannot be exported in the form that another library requests."""


class NoImplementation(DnnError, LookupError):
    """No implementation accepts the problem; `refusals` lists the reason of each candidate."""

    def __init__(self, message: str, refusals: Sequence[Refusal] = ()) -> None:
        super().__init__(message)
        self.refusals = tuple(refusals)


class BackendNotFound(DnnError, LookupError):
    """No backend or engine kind of that name is registered."""


class EngineUnavailable(DnnError, RuntimeError):
    """The engine's name is known, but the engine cannot be opened on this machine."""


class PluginError(DnnError):
    """A plugin breaks the contract of `dnncore.backend`."""


class BuildError(DnnError, RuntimeError):
    """An implementation accepted a problem but could not build it."""


class ExecutionError(DnnError, RuntimeError):
    """A built primitive failed, or an engine ran out of memory."""


class CrossCheckError(DnnError, ArithmeticError):
    """The result of a launch diverges from another implementation's (`dnncore.crosscheck`)."""


class CacheWarning(_Observed, UserWarning):
    """A cache cannot be used; the program continues without it."""


class PluginWarning(_Observed, UserWarning):
    """A plugin returned something wrong; the program continues without it."""


class ReferenceWarning(_Observed, UserWarning):
    """The slow reference was selected, because no other implementation accepts the problem."""


def describe(error: BaseException) -> str:
    """Return type, text and place of `error` on one line; for dnncore's errors only the text."""
    try:
        text = shortened(str(error))
    except Exception:  # the error's class may come from anywhere
        text = "its text cannot be read"
    if isinstance(error, DnnError):
        return text
    place = _place(error.__traceback__)
    return f"{type(error).__name__}: {text}{f' ({place})' if place else ''}"


def _place(traceback: TracebackType | None) -> str:
    """Return the last file and line of the plugin in the traceback of an exception, or "".

    The plugin is the first package outside of dnncore and of the standard library, and all modules
    that are not installed. Libraries that the plugin calls do not belong to it.
    """
    place = plugin = ""
    while traceback is not None:
        code, line = traceback.tb_frame.f_code, traceback.tb_lineno
        module = str(traceback.tb_frame.f_globals.get("__name__", ""))
        package = module.partition(".")[0]
        if package and package != "dnncore" and package not in sys.stdlib_module_names:
            plugin = plugin or package
            path = PurePath(code.co_filename)
            if package == plugin or not {"site-packages", "dist-packages"} & {*path.parts}:
                parts = module.count(".") + 1 + (path.stem == "__init__")
                place = f"{'/'.join(path.parts[-parts:])}:{line}"
        traceback = traceback.tb_next
    return place


def shortened(text: str) -> str:
    """Return a foreign text on one line, without control characters, shortened to a readable
    length.
    """
    if len(text) > MOST_LETTERS:
        text = f"{text[:MOST_LETTERS]}... ({len(text)} characters)"
    return printable(" ".join(text.split()))


def printable(text: str) -> str:
    """Return a foreign text with escapes for characters that control a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def shown(value: object) -> str:
    """Return the representation of a plugin's object, which may be any object, on one line."""
    try:
        return shortened(repr(value))
    except Exception:
        return f"an object of type {type(value).__name__}"
