"""The installed packages, the modules that an import loads, and the contents of the wheel."""

import configparser
import importlib.metadata
import os
import re
import subprocess
import sys
import types
import zipfile
from pathlib import Path

import pytest

import dnncore as dnn

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "dnncore": ROOT,
    "dnncore_reference": ROOT / "backends" / "reference",
    "dnncore_cpu_numba": ROOT / "backends" / "cpu_numba",
    "dnncore_opencl": ROOT / "backends" / "opencl",
}
BACKENDS = {
    "reference": "dnncore_reference",
    "cpu_numba": "dnncore_cpu_numba",
    "opencl": "dnncore_opencl",
}

FILES = "dnncore/documents/files/"  # the documents


def run_python(*arguments):
    done = subprocess.run(
        (sys.executable, *arguments), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_public_names_are_sorted_and_complete():
    assert dnn.__all__ == sorted(dnn.__all__)
    public = {
        name
        for name, value in vars(dnn).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert public <= set(dnn.__all__)
    assert all(hasattr(dnn, name) for name in dnn.__all__)


def test_every_operation_is_public():
    import dnncore.ops

    assert set(dnncore.ops.__all__) - {"Argument"} <= set(dnn.__all__)


FIRST = {
    "engines", "engines.allocation", "engines.processors", "engines.scratchpads", "engines.stream",
    "engines.threads", "errors", "forking",
    "interrupts", "observers", "tensors", "tensors.datatypes", "tensors.format_tags",
    "tensors.layout_rules", "tensors.memory_desc", "tensors.strides",
}  # fmt: skip


def test_importing_the_core_loads_descriptors_streams_and_errors_alone():
    before, after = (
        set(run_python("-c", f"import numpy, ml_dtypes{more}, sys; print(*sys.modules)").split())
        for more in ("", ", dnncore")
    )
    added = {name for name in after - before if name.startswith("dnncore")}
    assert added == {"dnncore", *(f"dnncore.{name}" for name in FIRST)}
    packages = {name.partition(".")[0] for name in after - before} - {"dnncore"}
    assert packages <= sys.stdlib_module_names


def test_every_public_name_can_be_the_first_import():
    code = """
import sys, dnncore
name = sys.argv[1]
assert name in dir(dnncore)
value = getattr(dnncore, name)
exec(f"from dnncore import {name} as again")
assert again is value is vars(dnncore)[name]
print(type(value).__name__)
"""
    modules = {"backend", "cache", "functional", "problem"}
    for name in ("Binary", "Memory", "compare", "engine", "reorder", "set_verbose", *modules):
        kind = run_python("-c", code, name).strip()
        assert kind == (
            "module" if name in modules else "type" if name[0].isupper() else "function"
        )
    assert set(dnn.__all__) | modules <= set(dir(dnn))
    listed = {name for name in dir(dnn) if not name.startswith("__")}
    assert listed - set(dnn.__all__) == {"backend", "ops", "problem", "testing"}


def test_no_public_function_has_the_name_of_a_module():
    modules = {path.stem for path in Path(dnn.__file__).parent.iterdir()}
    assert set(dnn.__all__) & modules == {"cache", "functional"}


def test_discovering_the_backends_loads_nothing_heavy():
    code = "import sys; from dnncore.selection.plugins import registry; registry.discover();"
    loaded = set(run_python("-c", f"{code} print(*sys.modules)").split())
    assert set(BACKENDS.values()) <= loaded
    assert not {"llvmlite", "numba", "pyopencl"} & loaded


def test_the_version_is_that_of_the_distribution():
    assert importlib.metadata.version("dnncore") == dnn.__version__


def test_built_in_backends_have_entry_points():
    entries = importlib.metadata.entry_points(group="dnncore.backends")
    assert {e.name: e.value for e in entries if e.dist.name == "dnncore"} == BACKENDS


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build the wheel once."""
    folder = tmp_path_factory.mktemp("wheel")
    run_python("-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT)
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


def test_the_wheel_contains_every_source_file_and_nothing_else(wheel):
    sources = {
        str(path.relative_to(folder))
        for name, folder in PACKAGES.items()
        for path in (folder / name).rglob("*")
        if path.suffix in (".py", ".cl", ".json", ".txt") or path.name == "py.typed"
    }
    held = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert {name for name in held if not name.startswith(FILES)} == sources
    assert "dnncore/py.typed" in held
    assert any(name.endswith(".cl") for name in held)


FOLDERS = (
    "templates", "examples/minimal_backend", "examples/opencl_kernel", "examples/remote_backend",
    "examples/third_party_backend",
)  # fmt: skip


def test_the_wheel_contains_documents_templates_and_examples_of_backends(wheel):
    held = {name.removeprefix(FILES) for name in wheel.namelist() if name.startswith(FILES)}
    for folder in FOLDERS:
        files = {p for p in (ROOT / folder).rglob("*") if p.is_file() and p.suffix != ".pyc"}
        assert {str(path.relative_to(ROOT)) for path in files} == {
            name for name in held if name.startswith(folder)
        }
    documents = [name for name in held if name.endswith(".md")]
    assert {"README.md", "docs/write-a-backend.md", "docs/contract.md"} <= {*documents}
    for name in documents:
        assert wheel.read(FILES + name) == (ROOT / name).read_bytes()


def test_links_of_documents_in_the_wheel_lead_to_files_in_the_wheel(wheel):
    """README.md describes the repository, too."""
    held = {name.removeprefix(FILES) for name in wheel.namelist() if name.startswith(FILES)}
    reached = held | {str(folder) for name in held for folder in Path(name).parents}
    for name in (n for n in held if n.startswith("docs/")):
        text = wheel.read(FILES + name).decode()
        links = {link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link}
        assert {os.path.normpath(f"docs/{link}") for link in links} <= reached, name


def test_the_description_of_the_wheel_names_the_command_that_lists_the_documents(wheel):
    (path,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    assert "dnncore docs" in wheel.read(path).decode()


def test_the_wheel_declares_backends_command_and_licence(wheel):
    (path,) = (name for name in wheel.namelist() if name.endswith("/entry_points.txt"))
    entries = configparser.ConfigParser()
    entries.read_string(wheel.read(path).decode())
    assert dict(entries["dnncore.backends"]) == BACKENDS
    assert dict(entries["pytest11"]) == {"dnncore": "dnncore.testing.plugin"}
    assert dict(entries["console_scripts"]) == {"dnncore": "dnncore.cli:main"}
    assert any(name.endswith("/licenses/LICENSE") for name in wheel.namelist())
