"""The examples in the documents run and print the output that the documents show.

Each `python` block is a complete program. A `text` block after it shows its output.
`tests/support/shown_output.py` describes `console` blocks. The guide for backends has a test of its
own, since its blocks depend on each other.
"""

import dataclasses
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from shown_output import COMMAND, difference

from dnncore import backend
from dnncore.documents import contract
from dnncore.documents.operations import OPERATIONS
from dnncore.documents.problem_text import DIRECTIONS, SHAPES
from dnncore.ops.sources import Sources
from dnncore.problem import DRIVERS, read

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    str(path.relative_to(ROOT)) for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"))
)
GUIDE = "docs/write-a-backend.md"
PYTHON = re.compile(r"^```python\n(.*?)^```$(?:\n+^```text\n(.*?)^```$)?", re.M | re.S)
CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.M | re.S)


def blocks(document, language):
    """Return the fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / document).read_text(), re.M | re.S)


def examples():
    """Return a test parameter per example: the arguments of a process and the shown output."""
    found = []
    for document in (name for name in DOCUMENTS if name != GUIDE):
        text = (ROOT / document).read_text()
        for match in PYTHON.finditer(text):
            place = f"{document}:{text.count(chr(10), 0, match.start()) + 1}"
            found.append(pytest.param((sys.executable, "-c", match[1]), match[2] or "", id=place))
        for block in CONSOLE.finditer(text):
            for match in COMMAND.finditer(text, *block.span(1)):
                place = f"{document}:{text.count(chr(10), 0, match.start()) + 1}"
                found.append(pytest.param(("/bin/sh", "-c", match[1]), match[2], id=place))
    return found


def run_process(*arguments, **options):
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(("arguments", "shown"), examples())
def test_an_example_prints_what_the_document_shows(arguments, shown):
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    printed = run_process(*arguments, cwd=ROOT, env={**os.environ, "PATH": path})
    if differs := difference(shown, printed):
        pytest.fail(differs)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_each_shown_output_belongs_to_an_example(document):
    """A `text` block follows a `python` block. Commands are in `console` blocks."""
    text = (ROOT / document).read_text()
    assert blocks(document, "text") == [output for _, output in PYTHON.findall(text) if output]
    consoles = blocks(document, "console")
    assert all(block.startswith("$ ") for block in consoles)
    commands = re.findall(r"^\$ .*", text, re.M)
    assert commands == re.findall(r"^\$ .*", "".join(consoles), re.M)


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


@pytest.mark.parametrize("document", DOCUMENTS)
def test_documents_name_files_that_exist(document):
    text = (ROOT / document).read_text()
    links = {link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link}
    named = set(re.findall(r"`([\w./]+\.(?:py|toml|txt|cl))`", text))
    paths = [
        f"/{path.relative_to(ROOT)}" for path in ROOT.rglob("*.*") if ".venv" not in path.parts
    ]
    folder = (ROOT / document).parent
    assert not {link for link in links if not (folder / link).exists()}
    assert not {name for name in named if not any(path.endswith(f"/{name}") for path in paths)}


PAGES = {
    "algorithms.md": "dnncore.algorithms",
    "contract.md": "dnncore.documents.contract",
    "operations.md": "dnncore.documents.operations",
    "problem_text.md": "dnncore.documents.problem_text",
}


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_what_its_program_writes(page):
    written = run_process(sys.executable, "-m", PAGES[page])
    assert (ROOT / "docs" / page).read_text() == written


def test_the_page_on_problem_texts_explains_each_option_and_its_examples_can_be_read():
    text = (ROOT / "docs" / "problem_text.md").read_text()
    for driver in DRIVERS.values():
        section = text.partition(f"## `--{driver.name}`\n")[2].partition("\n## ")[0]
        for option in driver.defaults:
            assert f"| `--{option}` |" in section or f"`--{option}`" in text.partition("## Opt")[2]
        (example, *_) = re.findall(rf"`(--{driver.name} [^`]*)`", " ".join(section.split()))
        assert read(example), example
    commands = re.findall(r"^    dnncore (?:impls|check) (--matmul .*)$", text, re.M)
    assert all(map(read, commands))
    assert set(DIRECTIONS) == {
        word for row in DRIVERS.values() for word in row.options.get("dir", ())
    }
    assert set(SHAPES) == {name for name, row in DRIVERS.items() if not row.printed_shape}


def test_the_page_on_the_contract_has_each_name_of_it_once():
    listed = [name for section in contract.SECTIONS for name in section.names]
    assert sorted(listed) == sorted({*backend.__all__} - {op.__name__ for op in OPERATIONS})


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
def test_the_docstring_of_an_operation_has_each_field_and_each_tensor(operation):
    lists = re.findall(r"^([a-z]\w*(?:, \w+)*): ", inspect.getdoc(operation), re.M)
    described = {name for names in lists for name in names.split(", ")}
    is_usual = not issubclass(operation, Sources)  # these list their tensors in another way
    tensors = operation.ARGUMENTS if is_usual else ()
    names = {field.name for field in dataclasses.fields(operation)} | {row.name for row in tensors}
    assert described == names


@pytest.mark.long
@pytest.mark.skipif(not shutil.which("git"), reason="needs git to apply a diff")
def test_the_operation_added_by_the_diff_of_contributing_is_complete(tmp_path):
    for folder in ("dnncore", "backends/reference", "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder)  # with compiled modules, to save time
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    diff = "".join(blocks("CONTRIBUTING.md", "diff"))
    apply = ("git", "apply", "-C1", "-")  # one line of context: additions nearby do no harm
    subprocess.run(apply, cwd=tmp_path, input=diff, text=True, check=True)
    path = os.pathsep.join(map(str, (tmp_path, tmp_path / "backends" / "reference")))
    environment = {**os.environ, "PYTHONPATH": path, "PYTEST_ADDOPTS": ""}

    def run(module, *arguments):
        command = (sys.executable, "-m", module, *arguments)
        return run_process(*command, cwd=tmp_path, env=environment)

    pytest_options = ("-q", "--noconftest", "-p", "no:cacheprovider")
    assert "5 passed" in run("pytest", *pytest_options, "tests/operations/test_flip.py")
    lacking = json.loads(run("dnncore", "checklist", "--engine=cpu", "--json", "Flip"))
    assert {row["reason"] for row in lacking} <= {"no implementation"}
    assert not any("reference" in row["place"] for row in lacking)
    kit = ("--pyargs", "dnncore.testing.suite", "--dnncore-backend=reference", "--dnncore-floor=0")
    assert "30 passed" in run("pytest", *pytest_options, *kit, "--dnncore-match=flip")
    complete = ("tests/kit/test_kit_cases.py", "tests/kit/test_kit_checks.py",
                "tests/comparison/test_against_torch.py")  # fmt: skip
    chosen = ("-k", "Flip or floor or counts or golden_case or is_drawn")
    assert "failed" not in run("pytest", "-q", "-p", "no:cacheprovider", *complete, *chosen)
