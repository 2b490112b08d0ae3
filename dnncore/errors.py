"""The exceptions that dnncore raises; a message says what, the rule, what was got, what to do."""

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
    """Base of exceptions and warnings that notify observers when they are made."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        for observer in observers.active:
            observer.raised(self)


class DnnError(_Observed):
    """Base of every error that dnncore raises."""


class DescriptorError(DnnError, ValueError):
    """A descriptor, an attribute or an argument that breaks a rule of its operation."""


class DataTypeError(DescriptorError):
    """Data types that an operation does not compute with; `feature` names what is missing."""

    def __init__(self, message: str, feature: str = "data type") -> None:
        super().__init__(message)
        self.feature = feature


class NoImplementation(DnnError, LookupError):
    """No implementation accepts the problem; `refusals` tells why, one per candidate."""

    def __init__(self, message: str, refusals: Sequence[Refusal] = ()) -> None:
        super().__init__(message)
        self.refusals = tuple(refusals)


class BackendNotFound(DnnError, LookupError):
    """No backend or engine kind of that name is registered."""


class EngineUnavailable(DnnError, RuntimeError):
    """The engine exists by name but cannot be opened here."""


class PluginError(DnnError):
    """A plugin breaks the contract of `dnncore.backend`."""


class BuildError(DnnError, RuntimeError):
    """An implementation accepted a problem but could not build it."""


class ExecutionError(DnnError, RuntimeError):
    """A primitive was built but failed, or was asked to run on unfit arguments."""


class CacheWarning(_Observed, UserWarning):
    """A cache cannot be used; work goes on without it."""


class ReferenceWarning(_Observed, UserWarning):
    """A slow reference implementation was chosen because nothing faster accepts the problem."""


def describe(error: BaseException) -> str:
    """Return the type and the text of `error` on one line; of a library error, the text alone."""
    text = " ".join(str(error).split())
    return text if isinstance(error, DnnError) else f"{type(error).__name__}: {text}"
