"""The private names of numba, llvmlite and pyopencl that the backends use.

If a test fails after an update, adapt the place that it names and the bounds in pyproject.toml.
"""

import importlib.metadata
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

compiler_lock = pytest.importorskip("numba.core.compiler_lock")

ROOT = Path(__file__).parents[2]


def bounds(name):
    """The bounds of a package among all requirements."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    lines = [*project["dependencies"], *(line for lines in extras for line in lines)]
    return next(r.specifier for r in map(Requirement, lines) if r.name == name)


@pytest.mark.parametrize("name", ["numba", "pyopencl"])
def test_a_package_with_used_private_names_has_an_upper_bound(name):
    assert any(bound.operator == "<" for bound in bounds(name))
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{name} is not installed")
    assert version in bounds(name), f"{name} {version} is outside of the tested versions"


def test_the_lock_of_the_compiler_can_be_held():
    lock = compiler_lock.global_compiler_lock
    for name in ("acquire", "release", "is_locked", "__enter__", "__exit__"):
        assert hasattr(lock, name), f"numba's lock lacks {name}; codegen/native.py holds it"


def test_pyopencl_has_the_module_of_its_driver():
    cl = pytest.importorskip("pyopencl")
    assert Path(cl._cl.__file__).exists(), "runtime/raw_queue.py of opencl loads pyopencl._cl"


# -- requirements by system ------------------------------------------------------------------------

SYSTEMS = {
    "Linux on x86-64": ("linux", "x86_64", True),
    "Linux on ARM": ("linux", "aarch64", False),
    "Windows": ("win32", "AMD64", False),
    "macOS on ARM": ("darwin", "arm64", False),
    "macOS on x86-64": ("darwin", "x86_64", False),
}


def required(extra, environment):
    """All requirements of an extra in an environment."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for requirement in map(Requirement, extras[extra]):
        if requirement.name == "dnncore":
            for own in requirement.extras:
                yield from required(own, environment)
        elif requirement.marker is None or requirement.marker.evaluate(environment):
            yield requirement


@pytest.mark.parametrize("extra", ["opencl", "all"])
@pytest.mark.parametrize("system", SYSTEMS)
def test_extras_require_pocl_only_where_it_exists(extra, system):
    platform, machine, has_pocl = SYSTEMS[system]
    found = list(required(extra, {"sys_platform": platform, "platform_machine": machine}))
    assert "pyopencl" in {r.name for r in found}
    assert ("pocl-binary-distribution" in {r.name for r in found}) == has_pocl
    assert not any("pocl" in r.extras for r in found)
