"""Environments as users have them: only wheels are installed, and this checkout is not visible.

    python tests/support/outside.py examples/third_party_backend PYTEST-OPTION...

runs pytest in an empty folder, in an environment with the wheels of dnncore and of the given
distribution. Each wheel is built from a copy. Dependencies come from the current environment
through a .pth file, so no network is needed. An editable installation of dnncore is not found
through it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def clean_environment() -> dict[str, str]:
    """The environment variables of this process without settings that refer to this checkout."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PYTEST"))}


def run(*command: str | Path, status: int = 0, **options: Any) -> str:
    """Run a command without settings that refer to this checkout. Returns its stdout."""
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=clean_environment(), **options
    )
    assert done.returncode == status, done.stdout + done.stderr
    return str(done.stdout)


def wheel(source: Path, folder: Path) -> Path:
    """Build the wheel of a project into a folder; returns its path."""
    build = ("-m", "build", "--wheel", "--no-isolation", "--outdir", folder, source)
    before = set(folder.glob("*.whl"))
    run(sys.executable, *build)
    (built,) = set(folder.glob("*.whl")) - before
    return built


def environment(folder: Path, *wheels: Path) -> Path:
    """Make a virtual environment that holds these wheels; returns its Python."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / Path(sys.executable).relative_to(sys.prefix)
    pip = ("-m", "pip", "--python", python, "install", "--no-deps", "--no-index")
    run(sys.executable, *pip, *wheels)
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    (Path(site) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def installed(folder: Path, *distributions: Path) -> Path:
    """Make an environment in `folder` with dnncore and these distributions. Returns its Python."""
    wheels = [wheel(ROOT, folder)]
    for source in distributions:
        copy = folder / source.name
        shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
        wheels.append(wheel(copy, folder))
    return environment(folder / "env", *wheels)


def main(distribution: str, *options: str) -> int:
    """Run pytest outside; returns its status."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        python = installed(folder, Path(distribution).resolve())
        (folder / "empty").mkdir()
        command = [python, "-m", "pytest", *options]
        return subprocess.run(
            command, check=False, cwd=folder / "empty", env=clean_environment()
        ).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
