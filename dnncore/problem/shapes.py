"""Shapes in letters, `mb2ic3_ih5`, and in dims, `2x3:3x4`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NoReturn

from dnncore.problem.settings import Dims, Misread, Settings, misread, read_integer

__all__ = ["broadcast", "dims_text", "mask_of", "masked", "read_batch", "read_batched_dims",
           "read_dims", "read_letters"]  # fmt: skip

# -- letters ---------------------------------------------------------------------------------------

_LETTERS = re.compile(r"([a-z]+)(-?[0-9]{1,18}(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)_?")


def read_letters(
    settings: Settings, integers: str, reals: str = "", *, needed: str
) -> dict[str, Any]:
    """Read a shape such as `mb2ic3_ih5`. Returns letters -> number. If a letter is repeated, the
    last number counts.

    integers: the valid letters of integers, separated by spaces.
    reals: the valid letters of other numbers.
    needed: the letters that the shape must contain.
    """
    found = dict(_letters(settings["shape"], integers, reals))
    for name in needed.split():
        if name not in found:
            misread(settings, "shape", f"{name} and a number")
    return found


@lru_cache(maxsize=1024)  # a shape is read once per combination of options
def _letters(text: str, integers: str, reals: str) -> Mapping[str, Any]:
    found: dict[str, Any] = {}
    known, whole = f"{integers} {reals}".split(), integers.split()
    place = 0
    while place < len(text):
        match = _LETTERS.match(text, place)
        if match is None or match[1] not in known:
            _misread_at(text[place:], f"expected a number after one of {', '.join(known)}")
        name, number = match.groups()
        if name in whole and not number.removeprefix("-").isdecimal():
            _misread_at(text[place:], f"expected a whole number after {name}; got {number}")
        found[name] = int(number) if name in whole else float(number)
        place = match.end()
    return found


def _misread_at(rest: str, reason: str) -> NoReturn:
    raise Misread("shape", f"at {rest!r}: {reason}")


def read_batch(settings: Settings, letters: Mapping[str, int]) -> int:
    """Return the batch size: that of --mb unless 0, else that of the shape, else 2."""
    return read_integer(settings, "mb") or letters.get("mb", 2)


# -- dims ------------------------------------------------------------------------------------------


def read_dims(settings: Settings, *counts: int) -> list[Dims]:
    """Read a shape such as `2x3:2x1`. Returns the dims of each tensor; `counts` are permitted."""
    parts = settings["shape"].split(":")
    if len(parts) not in counts:
        number = " or ".join(map(str, counts))
        misread(settings, "shape", f"dims of {number} tensor(s), such as 2x3, with : between them")
    if not all(re.fullmatch(r"[0-9]{1,18}(x[0-9]{1,18})*", part) for part in parts):
        misread(settings, "shape", "dims such as 2x3")
    return [tuple(map(int, part.split("x"))) for part in parts]


def read_batched_dims(settings: Settings) -> Dims:
    """Return the dims of one tensor. --mb replaces the first dim unless it is 0."""
    ((first, *rest),) = read_dims(settings, 1)
    return (read_integer(settings, "mb") or first, *rest)


def dims_text(*tensors: Iterable[int]) -> str:
    """Return the text of dims: the inverse of `read_dims`."""
    return ":".join("x".join(map(str, dims)) for dims in tensors)


def broadcast(a: Dims, b: Dims) -> Dims:
    """Return the dims of the result of two tensors. Each dim of both is 1 or that of the result."""
    return tuple(n if m == 1 else m for m, n in zip(a, b, strict=False))


# -- masks: bit d is set if dim d is that of the whole tensor, not 1 -------------------------------


def mask_of(dims: Dims) -> int:
    """Return the mask of a broadcast tensor."""
    return sum(1 << d for d, n in enumerate(dims) if n != 1)


def masked(settings: Settings, setting: str, mask: int, dims: Dims) -> Dims:
    """Return the dims of a tensor that is broadcast to `dims`: dim d if bit d is set, else 1."""
    if mask < 0:
        misread(settings, setting, "a mask, at least 0")
    return tuple(n if mask >> d & 1 else 1 for d, n in enumerate(dims))
