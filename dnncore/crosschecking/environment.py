"""Cross-check of an unchanged program, by environment variables.

    DNNCORE_CROSSCHECK=reference python program.py

DNNCORE_CROSSCHECK is the name that `dnncore.crosscheck` takes. DNNCORE_CROSSCHECK_MODE is report,
raise or collect, DNNCORE_CROSSCHECK_FOLDER the folder of saved calls. DNNCORE_CROSSCHECK_SLOWDOWN
is a number above 1, or 0 for no limit. The summary is printed at the end of the process.

The name is looked up at the first launch, because the program may register backends before it. A
wrong value causes a warning, and DNNCORE_CROSSCHECK is ignored.
"""

from __future__ import annotations

import atexit
import os
import warnings
from pathlib import Path

from dnncore import observers
from dnncore.crosschecking.call import NotComparable
from dnncore.crosschecking.observer import Crosscheck
from dnncore.crosschecking.repetition import Choice, choice_of
from dnncore.crosschecking.report import Report
from dnncore.crosschecking.session import (
    DEFAULT_FOLDER,
    DEFAULT_SLOWDOWN,
    checked_slowdown,
    handler,
    write,
)
from dnncore.errors import DescriptorError, DnnError

__all__ = ["read_environment"]

NAME = "DNNCORE_CROSSCHECK"


def read_environment() -> None:
    """Begin the cross-check that DNNCORE_CROSSCHECK requests. Warn of invalid values."""
    name = os.environ.get(NAME, "").strip()
    if not name:
        return
    mode = _value("MODE") or "report"
    folder = Path(_value("FOLDER") or DEFAULT_FOLDER)
    report = Report(name)
    try:
        observer = Crosscheck(lambda: _chosen(name), report, folder, _slowdown(), handler(mode))
    except DescriptorError as error:
        warnings.warn(f"{NAME} is ignored: {error}", stacklevel=2)
        return

    def _chosen(name: str) -> Choice:
        try:
            return choice_of(name)
        except DnnError as error:
            observers.remove(observer)
            warnings.warn(f"{NAME} is ignored: {error}", stacklevel=2)
            raise NotComparable("the cross-check ended") from error

    observers.add(observer)
    if mode != "raise":
        atexit.register(lambda: write(str(report)))


def _value(suffix: str) -> str:
    return os.environ.get(f"{NAME}_{suffix}", "").strip()


def _slowdown() -> float | None:
    text = _value("SLOWDOWN")
    try:
        number = float(text) if text else DEFAULT_SLOWDOWN
    except ValueError:
        raise DescriptorError(
            f"{NAME}_SLOWDOWN must be 0 or a number above 1; got {text!r}"
        ) from None
    return checked_slowdown(number or None)
