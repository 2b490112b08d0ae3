"""A third-party backend, installed from outside the repository, works like a built-in one."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

CHOOSES_TOY = """
import numpy as np
import dnncore as dnn

toy = dnn.engine("toy")
desc = dnn.MemoryDesc((2, 3))
values = np.array([[-2, -1, 0], [1, 2, 3]], np.float32)
op = dnn.EltwiseForward("forward_training", "relu", src=desc, dst=desc, alpha=0.5)
pd = dnn.PrimitiveDesc(op, toy)
src, dst = dnn.Memory.from_numpy(values, engine=toy), dnn.Memory(desc, toy)
pd.primitive().execute(toy.stream(), src=src, dst=dst)
print(pd.impl_name, dst.numpy().tolist())
try:
    dnn.PrimitiveDesc(dnn.Sum((1, 1), srcs=(desc, desc), dst=desc), toy)
except dnn.NoImplementation as error:
    print("host_fallback=True" in str(error))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Run Python in a separate folder, with the backend installed from a copy of its source."""
    folder = tmp_path_factory.mktemp("stranger")
    source = shutil.copytree(EXAMPLES / "minimal_backend", folder / "source")
    environment = {**os.environ, "PYTHONPATH": str(folder / "site"), "COLUMNS": "200"}

    def run_python(*arguments):
        command = (sys.executable, *arguments)
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    pip = ("-m", "pip", "install", "--no-deps", "--no-build-isolation", "--no-index", "--target")
    run_python(*pip, folder / "site", source)
    return run_python


def test_two_files_of_less_than_eighty_lines():
    files = [f for f in (EXAMPLES / "minimal_backend").glob("*.*") if f.name != "claims.txt"]
    assert len(files) == 2
    assert sum(len(file.read_text().splitlines()) for file in files) < 80


def test_it_is_listed(run):
    rows = {row["name"]: row for row in json.loads(run("-m", "dnncore", "backends", "--json"))}
    assert rows["toy"]["status"] == "ok", rows["toy"]["reason"]
    assert rows["toy"]["version"] == "0.1.0"
    names = [row["name"] for row in json.loads(run("-m", "dnncore", "devices", "--json"))]
    assert "toy:0" in names


def test_its_implementation_is_selected_and_host_fallbacks_are_offered(run):
    chosen, announced = run("-c", CHOOSES_TOY).splitlines()
    assert chosen == "toy:numpy [[-1.0, -0.5, 0.0], [1.0, 2.0, 3.0]]"
    assert announced == "True"


def test_it_trains_the_digits_with_the_host_fallback(run):
    options = ("--engine", "toy", "--host-fallback", "--epochs", "2")
    output = run(EXAMPLES / "train_digits.py", *options)
    accuracies = [float(text) for text in re.findall(r"accuracy ([\d.]+) %", output)]
    assert len(accuracies) == 2
    assert accuracies[-1] > 85
    assert "toy:numpy" in output
    assert "host:" in output
