"""`python -m conditions`: runs a command and reports the conditions that had one outcome only."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import click

from conditions import opencl
from conditions.hook import FOLDER, PACKAGES, ROOT, conditions_of, outcomes
from conditions.source import Condition

STARTUP = Path(__file__).with_name("startup")
KNOWN = Path(__file__).with_name("known.toml")


@click.group()
def main() -> None:
    """Find conditions of the source that no test meets."""


@main.command(context_settings={"ignore_unknown_options": True})
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.argument("command", nargs=-1, required=True)
def run(folder: Path, command: tuple[str, ...]) -> None:
    """Run COMMAND and record outcomes in FOLDER.

    Several commands may share the folder, with a store of compiled code of its own. A change of the
    source needs a new folder. Linux only.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = filter(None, (str(STARTUP), os.environ.get("PYTHONPATH", "")))
    added = {
        FOLDER: str(folder.resolve()),
        "DNNCORE_CACHE_DIR": str(folder.resolve() / "store"),
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTEST_ADDOPTS": "--assert=plain",  # otherwise pytest loads modules of plugins itself
    }
    sys.exit(subprocess.run(command, env={**os.environ, **added}, check=False).returncode)


@main.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--packages", default=",".join(PACKAGES), help="Only these, separated by commas.")
def report(folder: Path, packages: str) -> None:
    """List the conditions that had one outcome only in FOLDER's records.

    Fails if one of them is not in `known.toml`, or if a condition of `known.toml` does not exist.
    """
    folders = [PACKAGES[name].relative_to(ROOT) for name in packages.split(",")]
    places = tuple(f"{place.as_posix()}/" for place in folders)
    seen = {c: both for c, both in outcomes(folder).items() if c.path.startswith(places)}
    known = read_known()
    new = [line for condition, both in seen.items() for line in _missing(condition, both, known)]
    old = [key for key in known if key[0].startswith(places) and not exists(*key[:2])]
    for line in new:
        print(line)
    for path, text, _ in old:
        print(f"{path} has no condition {text!r}; remove it from {KNOWN.name}")
    both = sum(false and true for false, true in seen.values())
    print(f"{len(seen)} conditions: {both} were true and false, {len(seen) - both} were not")
    if new:
        print("Add a test that decides each of them, or its reason to conditions/known.toml.")
    sys.exit(1 if new or old else 0)


def read_known() -> set[tuple[str, str, bool]]:
    """The conditions in `known.toml`: path, text and missing outcome."""
    found = set()
    for entry in tomllib.loads(KNOWN.read_text(encoding="utf-8")).get("known", []):
        for key, outcome in (("never_false", False), ("never_true", True)):
            found |= {(entry["path"], text, outcome) for text in entry.get(key, [])}
    return found


def _missing(
    condition: Condition, both: tuple[bool, bool], known: set[tuple[str, str, bool]]
) -> list[str]:
    return [
        f"{condition} was never {str(outcome).lower()}"
        for outcome, was_seen in zip((False, True), both, strict=True)
        if not was_seen and (condition.path, condition.text, outcome) not in known
    ]


def exists(path: str, text: str) -> bool:
    """Whether a file contains this condition."""
    file = ROOT / path
    if path == opencl.PLACE:
        return opencl.has(text)
    return file.exists() and any(text == condition.text for condition in conditions_of(file))


if __name__ == "__main__":
    main()
