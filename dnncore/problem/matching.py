"""The text that `--match` searches: a problem as benchdnn prints it.

    --conv --dir=FWD_D g32ic32ih112oc32oh112kh3ph1n"layer"

The text contains the options that are not at their defaults, and some options that benchdnn always
prints. The letters of a shape are in benchdnn's order. Numbers equal to their defaults are omitted.
A square or a cube has only one axis. The text is written from settings, before an operation is
created.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from dnncore.errors import DescriptorError
from dnncore.problem.drivers.driver import Driver
from dnncore.problem.drivers.lrn import NUMBERS
from dnncore.problem.drivers.normalization import EPSILON
from dnncore.problem.settings import Settings, number_text
from dnncore.problem.shapes import read_letters
from dnncore.problem.windows import KINDS, WINDOW_LETTERS, axes_of

__all__ = ["pattern", "printed"]

LETTERS = f"g mb ic oc ls l t sic slc dhc dic {WINDOW_LETTERS}"
REALS = f"{' '.join(NUMBERS)} eps"
SILENT: Mapping[str, float] = {"mb": 2, "ls": 5, **NUMBERS, "eps": EPSILON}
SILENT_KINDS = {"s": 1, "d": 0}


def pattern(text: str) -> re.Pattern[str]:
    """Return the regular expression of `--match`. Raises `DescriptorError` if it is invalid."""
    try:
        with warnings.catch_warnings(action="ignore", category=FutureWarning):  # about [[ and --
            return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise DescriptorError(f"expected a regular expression; {error}") from None


def printed(driver: Driver, settings: Settings, defaults: Settings, name: str) -> str:
    """Return the text of a problem. Raises `Misread` for a shape that cannot be read.

    settings: all options and the shape.
    name: the name of the problem, or "".
    """
    options = [
        f"--{option}={settings[option]}"
        for option, default in defaults.items()
        if (settings[option] != default or option in driver.always_printed) and option != "mb"
    ]
    shape = _shape(
        driver.printed_shape, settings["shape"], settings.get("mb", ""), driver.is_transposed
    )
    quoted = f'n"{name}"' if name else ""
    between = "_" if name and not driver.printed_shape else ""
    return " ".join([f"--{driver.name}", *options, shape + between + quoted])


@lru_cache(maxsize=4096)
def _shape(order: str, shape: str, mb: str, transposed: bool) -> str:
    own_mb = mb.lstrip("0")
    if order:
        letters = read_letters({"shape": shape}, LETTERS, REALS, needed="")
        letters |= {"mb": int(own_mb)} if own_mb.isdecimal() else {}
        return "".join(_pieces(order.split(), letters, transposed))
    first, by, rest = shape.partition("x")
    return (own_mb or first) + by + rest


def _pieces(order: list[str], letters: dict[str, Any], transposed: bool) -> Iterator[str]:
    axes = axes_of(letters, has_window="k*" in order, transposed=transposed)
    distinct = len(set(axes.values())) > 1
    shown = axes if distinct else dict(list(axes.items())[:1])
    for word in order:
        kind = word.removesuffix("*")
        if kind == word:
            if word in letters and letters[word] != SILENT.get(word):
                yield word + _number(letters[word])
            continue
        place = KINDS.index(kind)
        if {row[place] for row in axes.values()} != {SILENT_KINDS.get(kind)}:
            yield from (f"{kind}{axis}{row[place]}" for axis, row in shown.items())


def _number(value: Any) -> str:
    return number_text(value) if isinstance(value, float) else str(value)
