"""Runs calls that a cross-check saved, each in a separate process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Literal, TypeAlias

from dnncore.crosschecking.repeat import wrong_outputs
from dnncore.crosschecking.saved import SavedCall, load
from dnncore.errors import EngineUnavailable, NoImplementation, describe
from dnncore.selection.plugins import register
from dnncore.testing.running.process import Died, Process, serve

__all__ = ["Outcome", "outcome_of"]

Outcome: TypeAlias = tuple[Literal["ok", "failed", "refused"], str]
"""A status, and the reason if it is not "ok"."""


def outcome_of(path: Path, plugins: Sequence[str] = (), timeout: float = 60.0) -> Outcome:
    """Repeat a saved call and compare it with the reference.

    If its implementation refuses the problem or does not exist, all other implementations of the
    engine must be correct.

    plugins: modules to register, for backends that are not installed.
    timeout: the time limit in seconds.
    """
    process = Process(__name__, plugins, None)
    try:
        found: Outcome = process.ask(path, timeout)
    except Died as death:
        found = "failed", f"{path.name}: {death}"
    finally:
        process.close()
    return found


# -- in the process -------------------------------------------------------------------------------


def _start(_announce: Callable[[object], None]) -> Callable[[Path], Outcome]:
    for name in sys.argv[1:]:
        register(import_module(name))
    return _outcome


def _outcome(path: Path) -> Outcome:
    try:
        saved = load(path)
        wrong = wrong_outputs(_with_implementation(saved))
    except (EngineUnavailable, NoImplementation) as error:
        return "refused", str(error)
    except Exception as error:
        return "failed", f"{path.name}: {describe(error)}"
    text = "\n".join(wrong)
    return ("failed", f"{text}\nagain: dnncore check --inputs={path}") if text else ("ok", "")


def _with_implementation(saved: SavedCall) -> SavedCall:
    """Return the saved call, with all other implementations if its implementation refuses it."""
    try:
        saved.descriptors()
    except NoImplementation:
        return replace(saved, implementation="*", problem=str(replace(saved.parsed, impl="")))
    return saved


if __name__ == "__main__":
    serve(_start)
