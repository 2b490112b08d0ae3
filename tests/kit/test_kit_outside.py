"""The kit where a stranger has it: installed from the wheel, run in an empty folder."""

import re
import shutil
from pathlib import Path

import pytest
from outside import ROOT, environment, run, wheel

OPTIONS = ("--strict-markers", "-p", "no:cacheprovider")


@pytest.fixture(scope="module")
def outside(tmp_path_factory):
    """Run Python with dnncore's wheel and the minimal backend, in a folder with nothing of ours."""
    folder = tmp_path_factory.mktemp("outside")
    shutil.copytree(ROOT / "examples" / "minimal_backend", folder / "toy")
    wheels = [wheel(source, folder) for source in (ROOT, folder / "toy")]
    python = environment(folder / "env", *wheels)
    (folder / "empty").mkdir()

    def run_python(*arguments):
        return run(python, *arguments, cwd=folder / "empty")

    found = Path(run_python("-c", "import dnncore; print(dnncore.__file__)").strip())
    assert found.is_relative_to(folder), found
    return run_python


def test_the_minimal_backend_passes(outside):
    suite = ("--pyargs", "dnncore.testing.suite", "--dnncore-backend=toy", "--dnncore-size=tiny")
    output = outside("-m", "pytest", *OPTIONS, *suite, "--dnncore-claims=../toy/claims.txt")
    assert re.search(r"^backend toy 0.1.0: ", output, re.M)
    assert re.search(r"^engine toy:0: ", output, re.M)
    assert re.search(r"^eltwise +f32 +forward training +[1-9]\d*", output, re.M)
    assert re.search(r"^eltwise +f32 +backward +[1-9]\d*", output, re.M)
    assert re.search(r"^claims: [1-9]\d+ kept, 0 lost", output, re.M)
    assert "failed" not in output


def test_the_wheels_own_backends_are_checked_the_same_way(outside):
    options = ("--dnncore-backend=reference,cpu_numba", "--dnncore-match=--eltwise")
    suite = ("--pyargs", "dnncore.testing.suite", "--dnncore-size=tiny")
    output = outside("-m", "pytest", *OPTIONS, *suite, *options)
    assert re.search(r"^eltwise +f32 .* +[1-9]\d* +[1-9]\d*$", output, re.M)
