"""The command `dnncore`: what is installed and what can be opened, as tables or as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

import dnncore

__all__ = ["main"]

Row = dict[str, Any]

STATUS_STYLES = {"ok": "green", "unavailable": "yellow", "failed": "bold red", "blocked": "dim"}
BACKEND_COLUMNS = ("name", "status", "version", "reason")
DEVICE_COLUMNS = ("name", "status", "device", "vendor", "version", "limits", "reason")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(dnncore.__version__, prog_name="dnncore")
def main() -> None:
    """Deep-learning primitives on every engine."""


_as_json = click.option("--json", "as_json", is_flag=True, help="Print a JSON list of objects.")


@main.command()
@_as_json
def backends(as_json: bool) -> None:
    """List the backends: ok, unavailable, failed or blocked, and why."""
    rows: list[Row] = [
        {
            "name": backend.name,
            "status": backend.status,
            "reason": backend.reason,
            "version": backend.version,
            "distribution": backend.distribution,
        }
        for backend in dnncore.backends()
    ]
    _show(rows, BACKEND_COLUMNS, as_json=as_json)


@main.command()
@_as_json
def devices(as_json: bool) -> None:
    """List the devices, by the names that dnncore.engine takes, and what cannot be opened."""
    nothing = dnncore.Device("")
    rows: list[Row] = []
    for row in dnncore.devices():
        device = row.device or nothing
        rows.append(
            {
                "name": row.name,
                "status": row.status,
                "reason": row.reason,
                "version": device.version,
                "device": device.name,
                "vendor": device.vendor,
                "limits": dict(device.limits),
            }
        )
    _show(rows, DEVICE_COLUMNS, as_json=as_json)


def _show(rows: Sequence[Row], columns: Sequence[str], *, as_json: bool) -> None:
    """Print the rows: all their keys as JSON, or a table of `columns` without the empty ones."""
    if as_json:
        click.echo(json.dumps(rows, indent=2, default=str))
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    shown = [column for column in columns if any(row[column] for row in rows)]
    for column in shown:
        table.add_column(column, overflow="fold")
    for row in rows:
        style = STATUS_STYLES[row["status"]]
        table.add_row(*(Text(_text(row[c]), style if c == "status" else "") for c in shown))
    Console().print(table)


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {limit}" for name, limit in value.items())
    return str(value)
