"""Tuning tables: parameters that were measured to be best on a device, in files.

`tuning/<slug of the device>.json` contains the tables of one device by name. A table maps the text
of a problem to named parameters:

    {
      "tiled": {
        "f32 b1 m64 n64x56x56 k64x3x3 s1x1 ak bk cm": {"rows": 64, "columns": 128, "parts": 1}
      }
    }

The module that reads a table defines its keys and parameters, and a rule for problems that are not
in the table.
"""

from __future__ import annotations

import functools
import importlib.resources
import json
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from dnncore.backend import Engine, PluginError, remark

Table: TypeAlias = Mapping[str, Mapping[str, Any]]
"""From the text of a problem to named parameters."""

PACKAGE = "dnncore_opencl"
_EMPTY: Table = MappingProxyType({})
_missing: set[tuple[str, str]] = set()  # packages and devices without a file, already reported


def table(engine: Engine, name: str, package: str = PACKAGE) -> Table:
    """Return a table of the engine's device from `tuning/` in an importable package.

    The table is empty if the package has no file for the device. Verbose output reports this once
    for each device and package. Raises `PluginError` for a file without tables.
    """
    device = slug(engine.device.name)
    tables = _read(package, device)
    if tables is None and (package, device) not in _missing:
        _missing.add((package, device))
        remark(engine, f"tuning: {package} has no tuning/{device}.json: defaults are used")
    return (tables or {}).get(name, _EMPTY)


def slug(device_name: str) -> str:
    """Return the file name of a device without suffix: `nvidia_h200` for `NVIDIA H200`."""
    return re.sub(r"\W+", "_", device_name.lower()).strip("_")


def read(path: Path) -> Mapping[str, Table]:
    """Return the tables of a device's file by name; an empty mapping if there is no file."""
    return _parsed(path.read_text(), str(path)) if path.is_file() else {}


def write(path: Path, name: str, entries: Table) -> None:
    """Replace the table `name` in a device's file. Each problem is one line."""
    tables = {**read(path), name: entries}
    path.parent.mkdir(exist_ok=True)
    path.write_text(_text(dict(sorted(tables.items()))))


@functools.cache
def _read(package: str, device: str) -> Mapping[str, Table] | None:
    file = importlib.resources.files(package) / "tuning" / f"{device}.json"
    if not file.is_file():
        return None
    return _parsed(file.read_text(), f"{package}/tuning/{device}.json")


def _parsed(text: str, place: str) -> Mapping[str, Table]:
    """Return immutable tables, because all callers share them."""
    try:
        tables = json.loads(text)
        return {
            name: MappingProxyType({key: MappingProxyType(found) for key, found in entries.items()})
            for name, entries in tables.items()
        }
    except (ValueError, AttributeError, TypeError) as error:
        raise PluginError(
            f"opencl: {place} must hold tables of named parameters by problem, as JSON; got"
            f" {type(error).__name__}: {error}; remove it to fall back to defaults"
        ) from error


def _text(tables: Mapping[str, Table]) -> str:
    blocks = []
    for name, entries in tables.items():
        lines = (
            f"    {json.dumps(key)}: {json.dumps(dict(entries[key]))}" for key in sorted(entries)
        )
        blocks.append(f"  {json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n  }")
    return "{\n" + ",\n".join(blocks) + "\n}\n"
