"""Runs a program in this process and records its calls, then compares them with a first run.

    python -m dnncore.crosschecking.two_runs.program SETTINGS SCRIPT ARGUMENT...

SETTINGS is a JSON object: `folder` of the recording, `most_bytes`, and for the second run `first`,
the folder of the first run, and `divergences`, the folder of wrong calls. The outcome of the second
run is written to its folder as `outcome.json`. `run` starts this program for two engines.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dnncore import observers
from dnncore.crosschecking.two_runs.comparing import compared
from dnncore.crosschecking.two_runs.recording import LIST, Recorder, Recording
from dnncore.errors import ExecutionError

__all__ = ["Result", "run"]

OUTCOME = "outcome.json"


@dataclass(frozen=True)
class Result:
    """The text about two runs, and whether no call was wrong."""

    text: str
    is_right: bool


def run(
    engines: Sequence[str], program: Sequence[str], divergences: Path, most_bytes: int
) -> Result:
    """Run a script with its arguments on two engines, one after the other, and compare the runs.

    divergences: the folder where wrong calls are saved.
    most_bytes: the limit for the bytes of the recorded values of each run.

    The output of the program goes to stdout and stderr. Raises `ExecutionError` if a run fails.
    """
    with tempfile.TemporaryDirectory(prefix="dnncore-crosscheck-") as name:
        folders = [Path(name) / "first", Path(name) / "second"]
        for engine, folder in zip(engines, folders, strict=True):
            folder.mkdir()
            settings = {"folder": str(folder), "most_bytes": most_bytes}
            if folder is folders[1]:
                settings |= {"first": str(folders[0]), "divergences": str(divergences)}
            _start(engine, settings, program)
            if not (folder / LIST).exists():
                raise ExecutionError(
                    f"crosscheck: {program[0]} ended its process on {engine}, as os._exit does,"
                    " before its calls were recorded; let the script return instead"
                )
        found = json.loads((folders[1] / OUTCOME).read_text())
        return Result(found["text"], found["is_right"])


def _start(engine: str, settings: dict[str, object], program: Sequence[str]) -> None:
    command = [sys.executable, "-m", __spec__.name, json.dumps(settings), *program]
    environment = {**os.environ, "DNNCORE_ENGINE": engine}
    environment.pop("DNNCORE_CROSSCHECK", None)
    status = subprocess.run(command, env=environment, check=False).returncode  # noqa: S603 - this Python
    if status:
        raise ExecutionError(
            f"crosscheck: {program[0]} ended with status {status} on {engine}; it must end with 0"
            " on both engines"
        )


def _main(settings_text: str, script: str, *arguments: str) -> int:
    settings = json.loads(settings_text)
    recording = Recording(Path(settings["folder"]), [])
    recorder = Recorder(recording, settings["most_bytes"])
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).resolve().parent)
    observers.add(recorder)
    status = _run_script(script)
    observers.remove(recorder)
    recording.write()
    if "first" in settings and not status:
        first = Recording.read(Path(settings["first"]))
        outcome = compared(first, recorder, Path(settings["divergences"]))
        found = {"text": str(outcome), "is_right": not outcome.faults}
        (recording.folder / OUTCOME).write_text(json.dumps(found))
    return status


def _run_script(script: str) -> int:
    """Run a script as the main program. Return its exit status."""
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except Exception:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
