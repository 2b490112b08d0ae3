"""Measured rates in the store: when they expire, and how they are corrected.

Other processes can only make a rate appear lower. So a measurement on a busy machine is repeated
soon, and the better of two measurements is kept.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from dnncore.engines.processors import available_processors
from dnncore.store import DiskStore

__all__ = ["correct", "figures", "is_busy"]

DAYS = 86400.0  # seconds
EXPIRES = 30 * DAYS  # systems and drivers change
EXPIRES_IF_BUSY = DAYS / 24

Figures = dict[str, Any]


def figures(
    key: str, measure: Callable[[], Figures], better: Callable[[Any, Any], Any] = max, *,
    again: bool = False,
) -> Figures:  # fmt: skip
    """Return what `measure` returned for a key, from the store or measured now.

    better: takes two values of a figure and returns the one that other processes disturbed less.
        Figures may be nested mappings.
    again: whether to measure even if the store has a value.
    """
    entry = _load(key)
    if entry is not None and not again and _holds(entry):
        return dict(entry["figures"])
    busy, found = is_busy(), measure()
    if busy and entry is not None:
        found = _merged(entry["figures"], found, better)
    _save(key, found, busy=busy)
    return found


def correct(key: str, changed: Figures) -> None:
    """Store figures that an execution proved, with the time of the former measurement."""
    entry = _load(key)
    if entry is not None:
        _store().put(_name(key), json.dumps({**entry, "figures": changed}).encode())


def is_busy() -> bool:
    """Whether other processes use most of the processors; False if unknown."""
    try:
        return bool(os.getloadavg()[0] > available_processors())
    except (AttributeError, OSError):
        return False


def _holds(entry: Mapping[str, Any]) -> bool:
    age = time.time() - entry["time"]
    return bool(0 <= age < (EXPIRES_IF_BUSY if entry["busy"] else EXPIRES))


def _merged(old: Figures, new: Figures, better: Callable[[Any, Any], Any]) -> Figures:
    return {
        name: _merged(old[name], value, better) if isinstance(value, dict)
        else better(old[name], value)
        for name, value in new.items()
    }  # fmt: skip


def _store() -> DiskStore:
    return DiskStore("peaks")


def _name(key: str) -> str:
    return f"figures\0{key}"


def _load(key: str) -> dict[str, Any] | None:
    data = _store().get(_name(key))
    return None if data is None else dict(json.loads(data))


def _save(key: str, found: Figures, *, busy: bool) -> None:
    entry = {"figures": found, "time": time.time(), "busy": busy}
    _store().put(_name(key), json.dumps(entry).encode())
