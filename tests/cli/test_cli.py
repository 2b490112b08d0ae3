"""The command `dnncore`: tables, JSON, exit codes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from toy import Relu, registered

import dnncore as dnn
from dnncore.cli import main
from dnncore.engines import threads


def invoke(*arguments, code=0):
    result = CliRunner().invoke(main, arguments, env={"COLUMNS": "80"})
    assert result.exit_code == code, result.output
    return result.output


def rows(command):
    return {row["name"]: row for row in json.loads(invoke(command, "--json"))}


def test_backends_as_json_have_name_status_reason_version():
    found = rows("backends")
    assert {"cpu_numba", "opencl", "reference"} <= set(found)
    reference = found["reference"]
    assert (reference["status"], reference["reason"]) == ("ok", "")
    assert (reference["version"], reference["distribution"]) == (dnn.__version__, "dnncore")


def test_devices_as_json_can_all_be_opened_by_name():
    found = rows("devices")
    assert found["cpu"]["status"] == "ok"
    assert found["cpu"]["limits"]["threads"] >= 1
    for name, row in found.items():
        assert {"name", "status", "reason", "version", "device", "vendor", "limits"} <= set(row)
        if row["status"] == "ok":
            engine = dnn.engine(name)
            assert (engine.name, engine.device.name) == (name, row["device"])


@pytest.mark.parametrize("command", ["backends", "devices"])
def test_text_output_contains_every_row_in_80_columns(command):
    text = invoke(command)
    for name, row in rows(command).items():
        line = next(line for line in text.splitlines() if line.startswith(name))
        assert row["status"] in line
        assert " ".join(row["reason"].split()) in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("busy", [False, True])
def test_rates_of_a_busy_machine_are_measured_with_a_warning(monkeypatch, busy):
    monkeypatch.setattr(dnn, "devices", list)
    monkeypatch.setattr("dnncore.cli.is_busy", lambda: busy)
    found = CliRunner().invoke(main, ["devices", "--measure"])
    assert found.exit_code == 0
    assert ("the machine is busy" in found.output) == busy


def test_a_broken_backend_and_its_devices_are_listed_with_the_reason():
    broken = registered(Relu("toybackend:a"), kind="toy", engines={"toy": "no_such_module:Engine"})
    with broken:
        for row in (rows("backends")["toybackend"], rows("devices")["toy"]):
            assert row["status"] == "unavailable"
            assert "No module named 'no_such_module'" in row["reason"]
        assert "no_such_module" in invoke("backends")


def test_a_bad_setting_is_reported_without_a_traceback(monkeypatch):
    monkeypatch.setenv("DNNCORE_NUM_THREADS", "many")
    monkeypatch.setattr(threads, "_state", threads._State())  # the setting has not been read yet
    cpu = rows("devices")["cpu"]
    assert cpu["status"] == "failed"
    assert "must be a whole number from 1 to 1024; got 'many'" in cpu["reason"]


def test_help_and_usage_errors():
    assert "backends" in invoke("--help")
    assert dnn.__version__ in invoke("--version")
    assert "No such command" in invoke("nonsense", code=2)


def test_the_module_runs_as_the_command_does():
    command = (sys.executable, "-m", "dnncore", "backends", "--json")
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert {row["name"] for row in json.loads(done.stdout)} == set(rows("backends"))


def test_docs_lists_the_documents_with_their_titles():
    lines = invoke("docs").splitlines()
    assert ["write-a-backend", "Writing", "a", "backend"] in [line.split() for line in lines]


def test_docs_prints_a_document_or_the_folder():
    folder = Path(invoke("docs", "--folder").strip())
    text = (folder / "docs" / "contract.md").read_text()
    assert invoke("docs", "contract") == text
    assert (folder / "templates" / "backend" / "copier.yml").is_file()


def test_docs_without_such_a_document_lists_the_others():
    assert "there is no 'tract'; there are " in invoke("docs", "tract", code=2)
