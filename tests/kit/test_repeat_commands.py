"""The command at the end of a failure repeats the failure: same check, same values."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import subtle_faults

pytestmark = pytest.mark.long

SUPPORT = Path(__file__).parents[1] / "support"
SUITE = (
    "--pyargs",
    "dnncore.testing.suite",
    "--dnncore-size=tiny",
    "--dnncore-match=--eltwise --tag",
)
COMMAND = re.compile(r"^(?:E +)?((?:DNNCORE_\w+=\S+ )*)(dnncore check .*)$", re.M)


# The checks that find these add a post-op, and change the values of a bound call.
@pytest.mark.parametrize("name", ["ignores_beta", "stale_input"])
def test_a_printed_command_repeats_the_failure(kit, tmp_path, monkeypatch, name):
    others = [fault for fault in subtle_faults.FAULTS if fault != name]
    monkeypatch.setenv("DNNCORE_SKIP_IMPL", ",".join(f"subtle:{other}" for other in others))
    plugin = ("--dnncore-backend=subtle", "--dnncore-plugin=subtle_faults")
    code, output = kit(*SUITE, *plugin, "-x", "--dnncore-json=found.json")
    assert code == 1, output
    found = json.loads((tmp_path / "found.json").read_text())
    (failures,) = (case["failures"] for case in found["cases"] if case["failures"])
    monkeypatch.delenv("DNNCORE_SKIP_IMPL")
    settings, command = COMMAND.search(output).groups()
    repeated = repeat(settings, command, tmp_path)
    assert {f"{row['fill']}: {row['implementation']}: {row['reason']}" for row in repeated} == {
        *failures
    }


@pytest.mark.parametrize(
    ("fault", "size", "repeats"), [("stale", "tiny", True), ("second", "smoke", False)]
)
def test_a_command_is_tried_in_a_fresh_process(kit, tmp_path, monkeypatch, fault, size, repeats):
    monkeypatch.setenv("HISTORY", fault)
    plain = "--dnncore-match=^history@cpu --eltwise (?!.*(alg|attr|dir))"
    match = (plain, f"--dnncore-size={size}")
    plugin = ("--dnncore-backend=history", "--dnncore-plugin=history_faults")
    code, output = kit(*SUITE[:2], *plugin, *match, "-x")
    assert code == 1, output
    settings, command = COMMAND.search(output).groups()
    assert ("It passes alone" in output) is not repeats
    failed = repeat(settings, command, tmp_path, code=int(repeats))
    assert bool(failed) is repeats


def repeat(settings: str, command: str, folder: Path, code: int = 1) -> list[dict]:
    """Run a printed command in a shell. Return the rows of failures."""
    path = os.pathsep.join([*sys.path, str(SUPPORT)])
    command = command.replace("dnncore", f"'{sys.executable}' -P -m dnncore", 1)
    done = subprocess.run(
        f"{settings}{command} --json",
        shell=True, cwd=folder, env={**os.environ, "PYTHONPATH": path},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return [row for row in json.loads(done.stdout) if row["status"] == "failed"]
