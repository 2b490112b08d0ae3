"""Environments of strangers: dnncore from its wheel, and folders with nothing of this checkout."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(*command, status=0, **options):
    """Run a command that sees nothing of this checkout's settings; returns its stdout."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PYTEST"))}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=clean, **options
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


def wheel(source, folder):
    """Build the wheel of a project into a folder; returns its path."""
    build = ("-m", "build", "--wheel", "--no-isolation", "--outdir", folder, source)
    before = set(folder.glob("*.whl"))
    run(sys.executable, *build)
    (built,) = set(folder.glob("*.whl")) - before
    return built


def environment(folder, *wheels):
    """Make a virtual environment that holds these wheels; returns its Python.

    What they depend on is taken from here, so that no network is needed; behind a .pth file, an
    editable dnncore is not found.
    """
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / Path(sys.executable).relative_to(sys.prefix)
    pip = ("-m", "pip", "--python", python, "install", "--no-deps", "--no-index")
    run(sys.executable, *pip, *wheels)
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    (Path(site) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python
