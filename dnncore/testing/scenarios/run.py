"""Runs scenarios, and simplifies failing ones."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Sequence
from random import Random

import click

from dnncore.engines.engine import Engine
from dnncore.engines.threads import get_num_threads, set_num_threads
from dnncore.errors import DnnError, ReferenceWarning, describe
from dnncore.selection.plugins import engine as open_engine
from dnncore.testing.checks.lifetime import quick_collections
from dnncore.testing.scenarios.scene import Scene, Unsupported, Wrong
from dnncore.testing.scenarios.steps import STEPS

__all__ = ["failure", "main", "run", "shortest"]

COMMAND = "python -m dnncore.testing.scenarios"
LENGTH = 30  # steps


def run(
    engines: Sequence[Engine], seed: int, steps: Sequence[int] = range(LENGTH), impl: str = ""
) -> list[str]:
    """Run a scenario and return a line for each step.

    seed: determines the dims and all steps.
    impl: a pattern of the implementations that most calls use.
    steps: numbers of the steps that are executed. If earlier steps are left out, a step does the
        same as far as possible.

    Raises `Wrong` with the lines of all steps if a byte differs from the model, or if a step raises
    another exception.
    """
    scene = Scene(engines, seed, impl)
    threads = get_num_threads()
    try:
        with warnings.catch_warnings(), quick_collections():
            warnings.simplefilter("ignore", ReferenceWarning)
            for number in steps:
                own = Random(f"{seed} {number}")  # noqa: S311 - reproducible
                with contextlib.suppress(Unsupported):
                    own.choice(STEPS)(scene, own)
            scene.check_all()
            scene.check_freed()
    except Wrong as wrong:
        raise Wrong("\n".join([*scene.log, str(wrong)])) from None
    except Exception as error:
        raise Wrong("\n".join([*scene.log, f"the next step raised {describe(error)}"])) from error
    finally:
        set_num_threads(threads)
    return scene.log


def failure(
    engines: Sequence[Engine], seed: int, steps: Sequence[int] = range(LENGTH), impl: str = ""
) -> str:
    """Return the text of a failure; "" if the scenario ends without a failure."""
    try:
        run(engines, seed, steps, impl)
    except Wrong as wrong:
        return str(wrong)
    return ""


def shortest(engines: Sequence[Engine], seed: int, impl: str = "") -> tuple[list[int], str]:
    """Return the fewest steps of a failing scenario that fail, and the text of their failure."""
    steps, text = list(range(LENGTH)), failure(engines, seed, impl=impl)
    size = len(steps)
    while text and size:
        for start in range(0, len(steps), size):
            fewer = steps[:start] + steps[start + size :]
            found = failure(engines, seed, fewer, impl)
            if found:
                steps, text = fewer, found
                break
        else:
            size //= 2
    return steps, text


@click.command()
@click.option("--engines", default="cpu,opencl", show_default=True, help="Names of engines.")
@click.option("--impl", default="", help="Most calls use implementations with this name pattern.")
@click.option("--seconds", default=60.0, show_default=True, help="No scenario begins later.")
@click.option("--seed", default=0, show_default=True, help="The seed of the first scenario.")
@click.option("--count", default=0, help="The number of scenarios; 0 is no limit.")
def main(engines: str, impl: str, seconds: float, seed: int, count: int) -> None:
    """Run random sequences of calls on shared memories.

    A model in numpy predicts every byte of every buffer. A failing scenario is reduced to the
    fewest steps that fail.
    """
    try:
        opened = [open_engine(name) for name in engines.split(",")]
    except DnnError as error:
        raise click.ClickException(str(error)) from None
    end, number = time.monotonic() + seconds, seed
    while time.monotonic() < end and (not count or number < seed + count):
        if failure(opened, number, impl=impl):
            steps, text = shortest(opened, number, impl)
            raise click.ClickException(
                f"scenario {number}, reduced to {len(steps)} of {LENGTH} steps:\n"
                f"{text or 'it did not fail again'}\n"
                f"repeat: {COMMAND} --engines={engines} --impl='{impl}' --seed={number} --count=1"
            )
        number += 1
    click.echo(f"{number - seed} scenarios of {LENGTH} steps ended as the model says")
