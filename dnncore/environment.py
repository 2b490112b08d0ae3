"""Values of environment variables. An empty value means the same as no value."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from difflib import get_close_matches

from dnncore.errors import DescriptorError

__all__ = ["flag", "values", "warn_of_misspelled", "whole_number"]

VARIABLES = (
    "DNNCORE_BACKENDS", "DNNCORE_CACHE_DIR", "DNNCORE_CACHE_MAX_BYTES", "DNNCORE_CROSSCHECK",
    "DNNCORE_CROSSCHECK_FOLDER", "DNNCORE_CROSSCHECK_MODE", "DNNCORE_CROSSCHECK_SLOWDOWN",
    "DNNCORE_DISABLE_BACKENDS", "DNNCORE_DISK_CACHE", "DNNCORE_ENGINE", "DNNCORE_HOST_FALLBACK",
    "DNNCORE_IMPL", "DNNCORE_NUM_THREADS", "DNNCORE_PREFER", "DNNCORE_PRIMITIVE_CACHE_CAPACITY",
    "DNNCORE_SKIP_IMPL", "DNNCORE_VERBOSE", "DNNCORE_VERBOSE_TIMESTAMP",
)  # fmt: skip
"""The variables that the core reads. Backends may read others."""

SIMILAR = 0.85  # a ratio of difflib; swapping two letters gives 0.93


def flag(name: str, default: bool) -> bool:
    """Return whether the variable is 1. Raises `DescriptorError` unless it is 0, 1 or empty."""
    text = os.environ.get(name, "").strip()
    if text in ("", "0", "1"):
        return text == "1" if text else default
    raise DescriptorError(f"{name} must be 0 or 1; got {text!r}; unset it for {int(default)}")


def values(*names: str) -> Callable[[], tuple[object, ...]]:
    """Return a function that returns the present values of variables, to compare or to hash.

    Reading an unset variable takes 1 us in `os.environ`, and 0.03 us in its dict of encoded values.
    """
    encoded = getattr(os.environ, "_data", None)
    if encoded is None:
        return lambda: tuple(map(os.environ.get, names))
    get = encoded.get
    keys = tuple(map(os.environ.encodekey, names))
    return lambda: tuple(map(get, keys))


def warn_of_misspelled() -> None:
    """Warn of variables whose names are similar to those of variables that the core reads."""
    for name in os.environ:
        if name.startswith("DNNCORE_") and name not in VARIABLES:
            for meant in get_close_matches(name, VARIABLES, 1, SIMILAR):
                text = f"{name} is not a variable of dnncore and has no effect; {meant} is one"
                warnings.warn(text, stacklevel=1)


def whole_number(name: str, default: int, what: str) -> int:
    """Return the variable's number, at least 0. Raises `DescriptorError` for other texts.

    what: the quantity, for the message, as in "of bytes".
    """
    text = os.environ.get(name, "").strip()
    if not text:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise DescriptorError(
            f"{name} must be a whole number {what}, at least 0 and below 10**18; got {text!r};"
            f" unset it for {default}"
        )
    return int(text)
