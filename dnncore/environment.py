"""Values of environment variables. An empty value means the same as no value."""

from __future__ import annotations

import os

from dnncore.errors import DescriptorError

__all__ = ["flag", "whole_number"]


def flag(name: str, default: bool) -> bool:
    """Return whether the variable is 1. Raises `DescriptorError` unless it is 0, 1 or empty."""
    text = os.environ.get(name, "").strip()
    if text in ("", "0", "1"):
        return text == "1" if text else default
    raise DescriptorError(f"{name} must be 0 or 1; got {text!r}; unset it for {int(default)}")


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
