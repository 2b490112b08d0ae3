"""`dnncore crosscheck` runs a program on two engines and compares all calls."""

from __future__ import annotations

from pathlib import Path

import click

__all__ = ["crosscheck"]

SETTINGS = {"ignore_unknown_options": True, "allow_interspersed_args": False}
MEBIBYTE = 2**20


@click.command(context_settings=SETTINGS)
@click.option("--engines", required=True, metavar="FIRST,SECOND",
              help="The two engines; the first one is run first.")  # fmt: skip
@click.option("--folder", default="dnncore-divergences", show_default=True, type=Path,
              help="Where wrong calls are saved.")  # fmt: skip
@click.option(
    "--limit",
    default=2048,
    show_default=True,
    type=click.IntRange(1),
    help="The most MiB of recorded values of a run, in the folder of temporary files.",
)
@click.argument("script", type=click.Path(exists=True, dir_okay=False))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def crosscheck(
    engines: str, folder: Path, limit: int, script: str, arguments: tuple[str, ...]
) -> None:
    """Run SCRIPT on two engines and find the calls that are wrong.

    The script must open its engine with dnncore.engine(), whose default is DNNCORE_ENGINE. Each
    call of the second run is repeated on the inputs of the same call of the first run. A result
    within the error bound of this call is right: the runs differ by accumulated rounding only.

    The exit status is 0 if no call is wrong, else 1.
    """
    from dnncore.crosschecking.two_runs.program import run

    names = [name.strip() for name in engines.split(",") if name.strip()]
    if len(names) != 2:
        raise click.UsageError(f"--engines: expected two names, as in cpu,opencl; got {engines!r}")
    result = run(names, [script, *arguments], folder.absolute(), limit * MEBIBYTE)
    click.echo(result.text)
    if not result.is_right:
        raise SystemExit(1)
