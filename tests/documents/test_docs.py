"""What the documents show is true: their examples run and print what they say."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def blocks(document, language):
    """Return the fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / document).read_text(), re.M | re.S)


def run_python(*arguments, **options):
    done = subprocess.run(
        (sys.executable, *arguments), capture_output=True, text=True, check=False, **options
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_readme_prints_what_it_says():
    examples, outputs = blocks("README.md", "python"), blocks("README.md", "text")
    for example, output in zip(examples, outputs, strict=True):
        said, printed = output.splitlines(), run_python("-c", example).splitlines()
        assert printed[-1] == said[-1]
        assert set(printed) <= set(said)  # not every machine has every instruction set


def test_ci_runs_the_commands_of_the_readme_unchanged_and_in_their_order():
    block = (ROOT / "README.md").read_text().partition("## First commands")[2].partition("\n## ")[0]
    commands = re.findall(r"^    (make [^#\n]*?) *(?:#.*)?$", block, re.M)
    stages = re.findall(r"\brun (make .*)$", (ROOT / ".ci" / "run").read_text(), re.M)
    assert len(commands) >= 3
    assert [stage for stage in stages if stage in commands] == commands


def test_the_readme_names_every_backend_and_setting():
    readme = (ROOT / "README.md").read_text()
    sources = [
        p.read_text() for folder in ("dnncore", "backends") for p in (ROOT / folder).rglob("*.py")
    ]
    settings = set(re.findall(r"DNNCORE_[A-Z_]*[A-Z]", "".join(sources)))
    assert not {name for name in settings if f"`{name}`" not in readme}


def test_the_microkernel_is_as_it_is_described():
    pytest.importorskip("numba")
    (example,), (output,) = (blocks("docs/microkernel.md", kind) for kind in ("python", "text"))
    assert run_python("-c", example) == output


@pytest.mark.parametrize(
    "document", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "docs/microkernel.md"]
)
def test_documents_name_files_that_exist(document):
    text = (ROOT / document).read_text()
    links = {link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link}
    named = set(re.findall(r"`([\w./]+\.(?:py|toml|txt|cl))`", text))
    paths = [
        f"/{path.relative_to(ROOT)}" for path in ROOT.rglob("*.*") if ".venv" not in path.parts
    ]
    assert not {link for link in links if not (ROOT / link).exists()}
    assert not {name for name in named if not any(path.endswith(f"/{name}") for path in paths)}


@pytest.mark.skipif(not shutil.which("git"), reason="needs git to apply a diff")
def test_the_operation_that_is_added_by_a_diff_works(tmp_path):
    for folder in ("dnncore", "backends/reference", "tests"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignored)
    diff = "".join(blocks("CONTRIBUTING.md", "diff"))
    subprocess.run(("git", "apply", "-"), cwd=tmp_path, input=diff, text=True, check=True)
    path = os.pathsep.join(map(str, (tmp_path, tmp_path / "backends" / "reference")))
    options = ("-q", "--noconftest", "-p", "no:cacheprovider", "tests/operations/test_flip.py")
    environment = {**os.environ, "PYTHONPATH": path, "PYTEST_ADDOPTS": ""}
    assert "5 passed" in run_python("-m", "pytest", *options, cwd=tmp_path, env=environment)
