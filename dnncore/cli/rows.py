"""Rows as text, with details below each line, or as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import click

from dnncore.cli.lines import STYLES, line, wrapped

__all__ = ["Row", "as_json_option", "show", "show_json"]

Row = dict[str, Any]

as_json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print a JSON list of objects."
)


def show_json(rows: Sequence[Row]) -> None:
    """Print the rows with all their keys."""
    click.echo(json.dumps([_plain(row) for row in rows], indent=2, default=str))


def show(rows: Sequence[Row], title: str, *details: str) -> None:
    """Print the name, status and `title` of each row, aligned, and its `details` below."""
    names = max((len(row["name"]) for row in rows), default=0)
    statuses = max((len(row["status"]) for row in rows), default=0)
    for row in rows:
        status = (row["status"].ljust(statuses), STYLES[row["status"]])
        line(f"{row['name']:{names}}  ", status, f"  {row[title]}")
        for detail in details:
            wrapped(_text(row[detail]), 4)


def _plain(value: Any) -> Any:
    """Return the value for JSON. NaN and infinity become text, because JSON lacks them."""
    if isinstance(value, Mapping):
        return {name: _plain(entry) for name, entry in value.items()}
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {limit}" for name, limit in value.items())
    return str(value)
