"""The command `dnncore`: lists backends, devices, implementations, gaps and stored code,
and checks results.

The highest layer: no other package imports it.
"""

from __future__ import annotations

from typing import Any

import click

import dnncore
from dnncore.cli.backends import backends
from dnncore.cli.cache import cache
from dnncore.cli.check import check
from dnncore.cli.checklist import checklist
from dnncore.cli.crosscheck import crosscheck
from dnncore.cli.docs import docs
from dnncore.cli.impls import impls
from dnncore.cli.rows import Row, as_json_option, show, show_json
from dnncore.engines.measured import is_busy
from dnncore.errors import DnnError

__all__ = ["main"]

BUSY = (
    "the machine is busy, so the rates may be too low; they expire in an hour; repeat the command"
    " when the machine is idle"
)


class _Commands(click.Group):
    """Commands that report errors of dnncore, such as an invalid setting, without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except DnnError as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(dnncore.__version__, prog_name="dnncore")
def main() -> None:
    """List backends, devices and implementations, and check results."""


@main.command()
@as_json_option
@click.option("--measure", is_flag=True,
              help="Measure and store the rates of all devices, which estimates use.")  # fmt: skip
def devices(as_json: bool, measure: bool) -> None:
    """List the devices. If an engine kind has no usable device, list the reason."""
    if measure and is_busy():
        click.echo(BUSY, err=True)
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
                "rates": _rates(row.name) if measure and row.device else {},
            }
        )
    show_json(rows) if as_json else show(
        rows, "device", "type", "vendor", "version", "limits", "rates", "reason"
    )


def _rates(name: str) -> dict[str, str]:
    """Measure the rates of a device. Return the reason as text if the device cannot be opened."""
    try:
        peaks = dnncore.engine(name).measure_peaks()
    except DnnError as error:
        return {"unknown": str(error)}
    rates = {f"GFLOP/s of {kind}": f"{rate / 1e9:.4g}" for kind, rate in peaks.flops.items()}
    bandwidth, launch = f"{peaks.bandwidth / 1e9:.4g}", f"{peaks.launch * 1e6:.3g}"
    return {**rates, "GB/s": bandwidth, "us per launch": launch}


main.add_command(backends)
main.add_command(cache)
main.add_command(check)
main.add_command(checklist)
main.add_command(crosscheck)
main.add_command(docs)
main.add_command(impls)
