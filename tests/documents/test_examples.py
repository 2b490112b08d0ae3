"""The examples run as programs on every engine."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import TARGETS

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]


@pytest.fixture(params=[own for own in TARGETS if own.role != "reference"], ids=str)
def target(request):
    """Each engine once: the reference's is the CPU's."""
    return request.param


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


def test_integers_recognise_as_many_digits_as_f32(target, tmp_path):
    options = "--epochs=3", f"--plot={tmp_path / 'picture.png'}"
    text = "\n".join(example("int8_inference", f"--engine={target.engine_name}", *options))
    rows = re.findall(r"^ (conv1|pool1|conv2|pool2|ip) .* ([\d.]+) %", text, re.M)
    assert [name for name, _ in rows] == ["conv1", "pool1", "conv2", "pool2", "ip"]
    assert all(0 < float(error) < 5 for _, error in rows)
    exact, integers = map(float, re.search(r"f32 ([\d.]+) %, int8 ([\d.]+) %", text).groups())
    assert exact > 80
    assert integers >= exact - 1
    assert "weights: 85120 bytes in f32, 21280 bytes in s8" in text
    assert (tmp_path / "picture.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("name", "epochs", "score", "best"),
    [
        ("train_residual", 2, r"accuracy ([\d.]+)%", lambda score: score > 85),
        ("predict_sunspots", 6, r"mean error ([\d.]+)", lambda score: score < 18),
        ("write_text", 1, r"bits per character ([\d.]+)", lambda score: score < 5),
    ],
)
def test_networks_learn(name, epochs, score, best, tmp_path):
    picture = tmp_path / "picture.png"
    options = "--engine=cpu", f"--epochs={epochs}", f"--plot={picture}"
    text = "\n".join(example(name, *options))
    scores = re.findall(rf" epoch +\d+: loss [\d.]+, {score}, [\d.]+ s", text)
    assert len(scores) == epochs
    assert best(float(scores[-1]))
    assert "WRONG" not in text
    assert picture.stat().st_size > 10_000


def test_an_lstm_learns_alike_on_each_engine(tmp_path):
    names = [own.engine_name for own in TARGETS if own.engine_name.startswith("opencl")][:1]
    engines = [f"--engine={name}" for name in ("cpu", *names)]
    options = (*engines, "--epochs=2", f"--plot={tmp_path / 'picture.png'}")
    text = "\n".join(example("predict_sunspots", *options))
    rows = re.findall(r"^(\S+) epoch +2: loss ([\d.]+), mean error ([\d.]+),", text, re.M)
    assert len(rows) == len(engines)
    for values in zip(*(row[1:] for row in rows), strict=True):
        assert max(map(float, values)) <= 1.02 * min(map(float, values))
    assert "WRONG" not in text


@pytest.mark.parametrize(
    "name",
    [
        "getting_started",
        "memory_format_propagation",
        "cnn_training_f32",
        "train_digits",
        "int8_inference",
        "train_residual",
        "predict_sunspots",
        "write_text",
    ],
)
def test_a_missing_engine_is_reported_in_one_line(name):
    code, out, errors = run(f"examples/{name}.py", "--engine", "tpu")
    assert code == 1
    assert out == ""
    assert errors.startswith("Error: unknown engine 'tpu'; there are: cpu")
    assert "Traceback" not in errors
