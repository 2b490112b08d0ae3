"""The exceptions that dnncore raises.

A message states the object, the rule, the value that was passed, and a remedy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dnncore import observers

if TYPE_CHECKING:
    from dnncore.backend import Refusal

__all__ = [
    "BackendNotFound",
    "BuildError",
    "CacheWarning",
    "DataTypeError",
    "DescriptorError",
    "DnnError",
    "EngineUnavailable",
    "ExecutionError",
    "NoImplementation",
    "PluginError",
    "ReferenceWarning",
    "describe",
]


class _Observed(Exception):
    """Base of exceptions and warnings that notify observers when they are created."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        for observer in observers.active:
            observer.raised(self)


class DnnError(_Observed):
    """Base of every error that dnncore raises."""


class DescriptorError(DnnError, ValueError):
    """A descriptor, an attribute or an argument that breaks a rule of its operation."""


class DataTypeError(DescriptorError):
    """Data types that an operation does not support; `feature` names the unsupported feature."""

    def __init__(self, message: str, feature: str = "data type") -> None:
        super().__init__(message)
        self.feature = feature


class NoImplementation(DnnError, LookupError):
    """No implementation accepts the problem; `refusals` has the reason of each candidate."""

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


class CacheWarning(_Observed, UserWarning):
    """A cache cannot be used; the program continues without it."""


class ReferenceWarning(_Observed, UserWarning):
    """The slow reference was selected, because no other implementation accepts the problem."""


def describe(error: BaseException) -> str:
    """Return type and text of `error` on one line; for errors of dnncore only the text."""
    text = " ".join(str(error).split())
    return text if isinstance(error, DnnError) else f"{type(error).__name__}: {text}"
