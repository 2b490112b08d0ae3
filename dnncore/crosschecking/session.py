"""`dnncore.crosscheck`: a `with` block whose launches are repeated by another implementation."""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Literal, TypeAlias

from dnncore import observers
from dnncore.crosschecking.observer import Crosscheck
from dnncore.crosschecking.repetition import REFERENCE, choice_of
from dnncore.crosschecking.report import Divergence, Report
from dnncore.errors import CrossCheckError, DescriptorError

__all__ = ["DEFAULT_FOLDER", "DEFAULT_SLOWDOWN", "Mode", "checked_slowdown", "crosscheck",
           "handler", "write"]  # fmt: skip

Mode: TypeAlias = Literal["report", "raise", "collect"]

DEFAULT_FOLDER = "dnncore-divergences"
DEFAULT_SLOWDOWN = 15.0


class crosscheck(contextlib.AbstractContextManager[Report]):  # noqa: N801 - used as a function
    """Repeat the launches in a `with` block by another implementation and compare the results.

    The launches of all primitives, bound calls and sequences in all threads are repeated, including
    those created before the block. The other implementation receives copies of the inputs.

        with dnncore.crosscheck("reference") as report:
            train_one_step()
        print(report)

    name: "reference"; name patterns of implementations, such as "onednn:*"; or the name of an
        engine, whose selection then repeats the launches.
    mode: "report" prints each divergence and a summary to stderr, "raise" raises `CrossCheckError`
        at the first divergence, "collect" prints the summary only.
    folder: where the inputs of divergent calls are saved, the first call per problem.
    slowdown: how many times longer the program may take. The first three launches of a primitive
        that write to one memory are always repeated. Further launches are repeated only within this
        limit. None repeats every launch.

    Raises `DescriptorError` for a name without a meaning and other wrong arguments.
    """

    def __init__(
        self,
        name: str = REFERENCE,
        *,
        mode: Mode = "report",
        folder: str | os.PathLike[str] = DEFAULT_FOLDER,
        slowdown: float | None = DEFAULT_SLOWDOWN,
    ) -> None:
        choice = choice_of(name)
        if not isinstance(folder, str | os.PathLike):
            raise DescriptorError(f"crosscheck: folder must be a path; got {folder!r}")
        self._mode = mode
        self.report = Report(choice.name)
        self._observer = Crosscheck(
            lambda: choice, self.report, Path(folder), checked_slowdown(slowdown), handler(mode)
        )

    def __enter__(self) -> Report:
        observers.add(self._observer)
        return self.report

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        observers.remove(self._observer)
        if self._mode != "raise":
            write(str(self.report))


def handler(mode: object) -> Callable[[Divergence], None]:
    """Return the function that is called with each divergence."""
    handlers = {"report": _print, "raise": _raise, "collect": _keep}
    if not isinstance(mode, str) or mode not in handlers:
        raise DescriptorError(
            f"crosscheck: mode must be one of {', '.join(handlers)}; got {mode!r}"
        )
    return handlers[mode]


def checked_slowdown(slowdown: object) -> float | None:
    """Return the limit. Raises `DescriptorError` unless it is None or a number above 1."""
    if slowdown is None:
        return None
    if not isinstance(slowdown, int | float) or not 1.0 < slowdown < math.inf:
        raise DescriptorError(
            f"crosscheck: slowdown must be None or a number above 1; got {slowdown!r}"
        )
    return float(slowdown)


def write(text: str) -> None:
    """Print to stderr, if there is one."""
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


def _print(divergence: Divergence) -> None:
    """Print the first divergence of a problem in full. Print further divergences in one line."""
    write(str(divergence) if divergence.is_first else f"crosscheck: {divergence.head}")


def _raise(divergence: Divergence) -> None:
    raise CrossCheckError(str(divergence))


def _keep(divergence: Divergence) -> None:
    """Do nothing: the report already contains the divergence."""
