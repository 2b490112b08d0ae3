"""Rows for people, as a table, or for programs, as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = ["Row", "as_json_option", "show"]

Row = dict[str, Any]

STATUS_STYLES = {
    "ok": "green",
    "accepted": "green",
    "unavailable": "yellow",
    "refused": "yellow",
    "unchecked": "yellow",
    "failed": "bold red",
    "wrong": "bold red",
    "blocked": "dim",
}

as_json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print a JSON list of objects."
)


def show(
    rows: Sequence[Row], columns: Sequence[str], *, as_json: bool = False, title: str = ""
) -> None:
    """Print the rows: all their keys as JSON, or a table of `columns` without the empty ones."""
    if as_json:
        click.echo(json.dumps([_plain(row) for row in rows], indent=2, default=str))
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    shown = [column for column in columns if any(row.get(column) for row in rows)]
    for column in shown:
        table.add_column(column, overflow="fold")
    for row in rows:
        style = STATUS_STYLES[row["status"]]
        table.add_row(*(Text(_text(row.get(c)), style if c == "status" else "") for c in shown))
    console = Console()
    if title:
        console.print(Text(title, "bold"))
    console.print(table)


def _plain(value: Any) -> Any:
    """JSON has no NaN and no infinity; they become text."""
    if isinstance(value, Mapping):
        return {name: _plain(entry) for name, entry in value.items()}
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {limit}" for name, limit in value.items())
    return "" if value is None else str(value)
