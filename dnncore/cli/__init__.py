"""The command `dnncore`: lists backends, devices, implementations and gaps, and checks results.

The highest layer: no other package imports it.
"""

from __future__ import annotations

import click

import dnncore
from dnncore.cli.check import check
from dnncore.cli.checklist import checklist
from dnncore.cli.impls import impls
from dnncore.cli.rows import Row, as_json_option, show, show_json

__all__ = ["main"]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(dnncore.__version__, prog_name="dnncore")
def main() -> None:
    """List backends, devices and implementations, and check results."""


@main.command()
@as_json_option
def backends(as_json: bool) -> None:
    """List the backends. The status of each is ok, unavailable, failed or blocked."""
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
    show_json(rows) if as_json else show(rows, "version", "reason")


@main.command()
@as_json_option
def devices(as_json: bool) -> None:
    """List the devices. If an engine kind has no usable device, list the reason."""
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
                "type": device.type,
                "limits": dict(device.limits),
            }
        )
    show_json(rows) if as_json else show(
        rows, "device", "type", "vendor", "version", "limits", "reason"
    )


main.add_command(check)
main.add_command(checklist)
main.add_command(impls)
