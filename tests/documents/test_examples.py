"""The examples run as programs on every engine."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*command, **options):
    """Run Python from the root of the repository; return the exit code, output and errors."""
    done = subprocess.run(
        (sys.executable, *command), cwd=ROOT, capture_output=True, text=True, check=False, **options
    )
    return done.returncode, done.stdout, done.stderr


def example(name, *options):
    code, out, errors = run(f"examples/{name}.py", *options)
    assert code == 0, errors
    return out.splitlines()


def test_getting_started(target):
    lines = example("getting_started", "--engine", target.engine_name)
    assert lines[0].startswith(f"engine: {target.engine.name}, ")
    assert lines[1] == f"eltwise on {target.engine.name}"
    assert re.match(r"-> 1\. \S+: accepted, [\d.]+ us by ", lines[2])
    assert re.match(r"relu: \d+ of 507 values were negative and are 0 now", lines[-1])


def test_memory_format_propagation(target):
    lines = example("memory_format_propagation", "--engine", target.engine_name)
    text = "\n".join(lines)
    convolution, pooling = text.split("pooling by ")
    assert convolution.startswith("convolution by ")
    (chosen,) = re.findall(r"^  dst: (\w+)$", convolution, re.M)
    assert re.findall(r"^  src: (.*)$", pooling, re.M) == [f"{chosen}, not reordered"]
    assert lines[-2:] == ["result: abcd", "equal to the result in nchw"]


@pytest.mark.parametrize(
    "name",
    ["getting_started", "memory_format_propagation", "cnn_training_f32", "train_digits"],
)
def test_a_missing_engine_is_reported_in_one_line(name):
    code, out, errors = run(f"examples/{name}.py", "--engine", "tpu")
    assert code == 1
    assert out == ""
    assert errors.startswith("Error: unknown engine 'tpu'; there are: cpu")
    assert "Traceback" not in errors
