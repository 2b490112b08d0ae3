"""Environment variables that are empty or invalid."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from toy import relu_op

import dnncore as dnn
from dnncore import environment
from dnncore.cli import main
from dnncore.environment import flag, whole_number
from dnncore.selection.plugins import Registry

EMPTY = """
import numpy as np
import dnncore as dnn
assert dnn.engine() is dnn.engine("cpu")
assert (dnn.functional.relu(np.float32([-1, 2])) == [0, 2]).all()
assert dnn.cache.primitives.capacity == 1024
print([row.name for row in dnn.backends() if row.status == "blocked"])
"""
USE = """
import numpy as np
import dnncore as dnn
dnn.functional.relu(np.float32([-1, 2]))
"""
CORE = [path.read_text() for path in Path(dnn.__file__).parent.rglob("*.py")]
VARIABLES = (
    "ENGINE", "NUM_THREADS", "MAX_CPU_ISA", "BACKENDS", "DISABLE_BACKENDS", "IMPL", "SKIP_IMPL",
    "PREFER", "HOST_FALLBACK", "PRIMITIVE_CACHE_CAPACITY", "DISK_CACHE", "CACHE_MAX_BYTES",
    "WAIT_TIMEOUT", "VERBOSE", "VERBOSE_TIMESTAMP",
)  # fmt: skip


def run(program, **variables):
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **variables},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


def test_empty_variables_mean_the_defaults():
    done = run(EMPTY, **{f"DNNCORE_{name}": "" for name in VARIABLES})
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("DNNCORE_VERBOES", "DNNCORE_VERBOSE"),
        ("DNNCORE_SKIP_IMPLS", "DNNCORE_SKIP_IMPL"),
        ("DNNCORE_DISABLE_BACKEND", "DNNCORE_DISABLE_BACKENDS"),
        ("DNNCORE_NUM_THREAD", "DNNCORE_NUM_THREADS"),
    ],
)
def test_a_misspelled_name_is_reported(name, meant):
    done = run(USE, **{name: "1"})
    assert done.returncode == 0
    assert f"{name} is not a variable of dnncore and has no effect; {meant} is one" in done.stderr


def test_other_names_are_not_reported():
    done = run(USE, DNNCORE_MINE="1", DNNCORE_MAX_CPU_ISA="avx2", DNNCORE_WAIT_TIMEOUT="60")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_list_of_variables_is_complete():
    names = set(re.findall(r"DNNCORE_[A-Z_]*[A-Z]", "".join(CORE)))
    assert names == set(environment.VARIABLES)


@pytest.mark.parametrize("text", ["", " ", ","])
def test_a_list_of_no_backends_means_all(monkeypatch, text):
    monkeypatch.setenv("DNNCORE_BACKENDS", text)
    registry = Registry()
    registry.discover()
    assert {"reference", "cpu_numba", "opencl"} <= set(registry.loaded)


@pytest.mark.parametrize("value", ["no", "true", "2", "-1", "0x1"])
def test_a_flag_is_0_or_1(monkeypatch, value):
    monkeypatch.setenv("DNNCORE_HOST_FALLBACK", value)
    text = f"DNNCORE_HOST_FALLBACK must be 0 or 1; got '{value}'; unset it for 0"
    with pytest.raises(dnn.DescriptorError, match=text):
        dnn.PrimitiveDesc(relu_op(), dnn.engine("cpu"))
    done = CliRunner().invoke(main, ["impls", "--eltwise", "--alg=relu", "4x5"])
    assert (done.exit_code, text in done.output) == (1, True)
    monkeypatch.setenv("DNNCORE_VERBOSE_TIMESTAMP", value)
    with pytest.raises(dnn.DescriptorError, match="DNNCORE_VERBOSE_TIMESTAMP must be 0 or 1"):
        dnn.set_verbose("profile")


def test_flags_and_numbers_with_spaces_around_are_read(monkeypatch):
    monkeypatch.setenv("SOME", " 1 ")
    assert flag("SOME", False) is True
    assert whole_number("SOME", 5, "of things") == 1
    monkeypatch.setenv("SOME", "0")
    assert flag("SOME", True) is False


@pytest.mark.parametrize("value", ["many", "-1", "1.5", "\u0663", "9" * 5000])
def test_an_invalid_capacity_warns_and_the_default_holds(value):
    program = "import dnncore; print(dnncore.cache.primitives.capacity)"
    done = run(program, DNNCORE_PRIMITIVE_CACHE_CAPACITY=value, PYTHONIOENCODING="utf-8")
    assert done.stdout == "1024\n"
    assert "DNNCORE_PRIMITIVE_CACHE_CAPACITY must be a whole number of primitives" in done.stderr


def test_an_invalid_timestamp_setting_warns_and_lines_have_no_time():
    done = run(USE, DNNCORE_VERBOSE="profile_exec", DNNCORE_VERBOSE_TIMESTAMP="on")
    assert done.returncode == 0
    assert "dnncore_verbose,v1,primitive,exec,cpu," in done.stdout
    assert "DNNCORE_VERBOSE_TIMESTAMP must be 0 or 1; got 'on'" in done.stderr
