"""`dnncore backends` lists the backends, and their estimates that were wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime

import click

import dnncore
from dnncore.cli.lines import line, wrapped
from dnncore.cli.rows import Row, as_json_option, show, show_json
from dnncore.engines.estimates import FACTOR, STORE, WrongEstimate, wrong_estimates

__all__ = ["backends"]


@click.command()
@as_json_option
@click.option(
    "-v", "verbose", is_flag=True, help=f"Also list estimates that were wrong by over {FACTOR:g}."
)
def backends(as_json: bool, verbose: bool) -> None:
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
    names = {row["name"] for row in rows}
    wrong = [one for one in wrong_estimates() if _backend(one) in names] if verbose else []
    if as_json:
        for row in rows if verbose else ():
            own = [one for one in wrong if _backend(one) == row["name"]]
            row["wrong_estimates"] = [{**asdict(one), "factor": one.factor} for one in own]
        show_json(rows)
        return
    show(rows, "version", "reason")
    if verbose:
        _print(wrong)


def _backend(one: WrongEstimate) -> str:
    return one.implementation.partition(":")[0]


def _print(wrong: Sequence[WrongEstimate]) -> None:
    """Print the wrong estimates and the command that removes them."""
    if not wrong:
        line("no estimate is known to be wrong")
        return
    line(f"estimates that were wrong by more than a factor of {FACTOR:g}, newest first:")
    for one in wrong:
        what = "too short" if one.measured > one.estimate else "too long"
        line(f"  {one.factor:.3g} times {what}: {one.implementation} {one.problem}")
        times = f"estimated {_microseconds(one.estimate)}, measured {_microseconds(one.measured)}"
        when = datetime.fromtimestamp(one.time).isoformat(" ", "minutes")
        wrapped(f"{times}, {when}, {one.device}", 6)
    line(f"dnncore cache clear --store={STORE} forgets them")


def _microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:.3g} us" if seconds < 1e-3 else f"{seconds * 1e6:.0f} us"
