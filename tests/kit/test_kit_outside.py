"""The kit where a stranger has it: installed from the wheel, run in an empty folder."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OPTIONS = ("--strict-markers", "-p", "no:cacheprovider")


def run(*command, **options):
    """Run a command that sees nothing of this checkout's settings."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PYTEST"))}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=clean, **options
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def outside(tmp_path_factory):
    """Run Python with dnncore's wheel and the minimal backend, in a folder with nothing of ours.

    What they depend on is taken from here, so that no network is needed; behind a .pth file, an
    editable dnncore is not found.
    """
    folder = tmp_path_factory.mktemp("outside")
    shutil.copytree(ROOT / "examples" / "minimal_backend", folder / "toy")
    for source in (ROOT, folder / "toy"):
        build = ("-m", "build", "--wheel", "--no-isolation", "--outdir", folder, source)
        run(sys.executable, *build)
    python = environment(folder / "env", *folder.glob("*.whl"))
    (folder / "empty").mkdir()

    def run_python(*arguments):
        return run(python, *arguments, cwd=folder / "empty")

    found = Path(run_python("-c", "import dnncore; print(dnncore.__file__)").strip())
    assert found.is_relative_to(folder), found
    return run_python


def environment(folder, *wheels):
    """Make a virtual environment that holds these wheels; returns its Python."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / Path(sys.executable).relative_to(sys.prefix)
    pip = ("-m", "pip", "--python", python, "install", "--no-deps", "--no-index")
    run(sys.executable, *pip, *wheels)
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    (Path(site) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def test_the_minimal_backend_passes(outside):
    suite = ("--pyargs", "dnncore.testing.suite", "--dnncore-backend=toy", "--dnncore-size=tiny")
    output = outside("-m", "pytest", *OPTIONS, *suite)
    assert re.search(r"^backend toy 0.1.0: ", output, re.M)
    assert re.search(r"^engine toy:0: ", output, re.M)
    assert re.search(r"^eltwise +f32 +forward training +[1-9]\d*", output, re.M)
    assert re.search(r"^eltwise +f32 +backward +[1-9]\d*", output, re.M)
    assert "failed" not in output


def test_the_wheels_own_backends_are_checked_the_same_way(outside):
    options = ("--dnncore-backend=reference,cpu_numba", "--dnncore-match=--eltwise")
    suite = ("--pyargs", "dnncore.testing.suite", "--dnncore-size=tiny")
    output = outside("-m", "pytest", *OPTIONS, *suite, *options)
    assert re.search(r"^eltwise +f32 .* +[1-9]\d* +[1-9]\d*$", output, re.M)
