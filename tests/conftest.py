"""Fixtures of all tests. The targets are all engines of the machine and the reference."""

from __future__ import annotations

import gc
import math
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from zlib import crc32

import pytest
from opencl_runtimes import reveal_opencl_runtimes

reveal_opencl_runtimes()

from checks import REFERENCE, Target  # noqa: E402

import dnncore as dnn  # noqa: E402 - the runtimes must be registered first
from dnncore.testing.checks import torch_oracle  # noqa: E402


def _targets() -> list[Target]:
    """The reference, the CPU's other implementations, and every other device that works."""
    cpu = [
        REFERENCE,
        Target("cpu", "cpu", skip_impl="reference:*"),
    ]
    others = [d for d in dnn.devices() if d.status == "ok" and d.name != "cpu"]
    # A runtime that is registered twice lists its devices twice.
    distinct = {(d.device.name, d.device.version): d for d in reversed(others)}
    return cpu + [Target(_label(d.name, d.device), d.name) for d in reversed(distinct.values())]


def _label(name: str, device: dnn.Device) -> str:
    """A readable test id: opencl0-pocl, opencl1-intel, opencl2-nvidia."""
    text = f"{device.vendor} {device.version}".lower()
    known = [word for word in ("pocl", "intel", "nvidia", "amd") if word in text]
    maker = known[0] if known else re.sub(r"\W+", "", device.vendor.lower()) or "device"
    return f"{name.replace(':', '')}-{maker}"


TARGETS = _targets()

SHARE = int(os.environ.get("TEST_SHARE", "1"))
SEED = os.environ.get("TEST_SEED", "0")
LONG_LIST = 4  # cases of a test function, of which one in SHARE is drawn
LONG_SHARE = 3  # one in this many tests with the marker `long` is drawn


def pytest_report_header() -> str:
    """Return the line of the output that names the sample."""
    if SHARE == 1:
        return "all cases of all tests"
    return (
        f"seed {SEED}: one case in {SHARE} of lists longer than {LONG_LIST}, a third of long tests"
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect tests without collections of garbage, which would take a fifth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.fixture(scope="module", autouse=True)
def _leave_out_older_objects() -> None:
    """Leave all older objects, such as the tests themselves, out of collections of garbage.

    Many tests collect, to see what a program keeps. With all tests, each would take half a second.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _build_quickly(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let OpenCL's runtimes for CPUs compile without optimization.

    Building then takes a fifth of the time. Tests of this backend's kernels optimize, unless they
    have the marker `quick_builds`. Other processes and `make conformance` optimize.
    """
    build = sys.modules.get("dnncore_opencl.runtime.build")
    if build and ("opencl" not in request.path.parts or "quick_builds" in request.keywords):
        monkeypatch.setattr(build, "LITTLE_WORK", math.inf)


def behaviour(test: str) -> tuple[str, ...]:
    """What a test id is about: its function, and the operation and direction that it names.

    Engines, shapes, formats, types and other parameters do not make another behaviour.
    """
    function, _, parameters = test.partition("[")
    operation = re.search(r"(?:^|[-:])(--[a-z]+)(?= )(?:.*?(--dir=\w+))?", parameters)
    return (function, *(operation.groups("") if operation else ()))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select the cases for each engine, of tests of operations and of OpenCL, and with `in_turn`.

    All OpenCL devices have the same kernels. With n devices, each takes the cases whose places in
    the lists of parameters have a sum that is its own number modulo n: the fields of one colour.
    With `in_turn(2)` there are twice as many colours, no device takes every second one, and the
    CPU takes every second case. The reference takes all.
    """
    tests = [item for item in items if isinstance(item, pytest.Function) and _takes_turns(item)]
    engines: dict[object, set[str]] = {}
    for item in tests:
        engines.setdefault(item.function, set()).add(item.callspec.params["target"].engine_name)
    left_out = {item for item in tests if not _has_turn(item, engines[item.function])}
    left_out |= _not_drawn([item for item in items if item not in left_out])
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


def _not_drawn(items: list[pytest.Item]) -> set[pytest.Item]:
    """Return the cases of long lists, and the tests with the marker `long`, that the seed leaves
    out.

    None is left out for ever, because `make test` has another seed at each commit.
    """
    functions = [(item.parent, getattr(item, "originalname", item.name)) for item in items]
    counts = Counter(functions)
    return {
        item
        for item, function in zip(items, functions, strict=True)
        if crc32(f"{SEED} {item.nodeid}".encode()) % _share(item, counts[function])
    }


def _share(item: pytest.Item, cases: int) -> int:
    """Return n, if one in n of such tests is drawn."""
    if cases > LONG_LIST:
        return SHARE
    return min(LONG_SHARE, SHARE) if item.get_closest_marker("long") else 1


def _takes_turns(item: pytest.Function) -> bool:
    if item.get_closest_marker("in_turn"):
        return True
    parameters = set(item.callspec.params) if hasattr(item, "callspec") else set()
    return item.path.parent.name in ("opencl", "operations") and parameters > {"target"}


def _has_turn(item: pytest.Function, engines: set[str]) -> bool:
    """Whether the test's device takes this case. engines: the names of all engines of the test."""
    own = [target for target in TARGETS if target.engine_name in engines]
    devices = [target for target in own if target.engine_name.startswith("opencl")]
    target = item.callspec.params["target"]
    if target is REFERENCE:
        return True
    marker = item.get_closest_marker("in_turn")
    (share,) = marker.args if marker and marker.args else (1,)
    total, colours = 0, share
    if target in devices:
        total, colours = share * devices.index(target), share * len(devices)
    # A case has one number, pytest's index of each of its parameters but those of fixtures.
    index = next(n for name, n in item.callspec.indices.items() if name != "target")
    for mark in reversed(list(item.iter_markers("parametrize"))):  # the fastest first
        names, values = mark.args
        index, place = divmod(index, len(values))
        total += 0 if names == "target" else place
    return total % colours == 0


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many distinct behaviours the passed tests are about."""
    passed = {report.nodeid for report in terminalreporter.stats.get("passed", ())}
    distinct = len({behaviour(test) for test in passed})
    terminalreporter.write_line(f"{len(passed)} tests of {distinct} distinct behaviours passed")


@pytest.fixture(autouse=True)
def _torch_is_hidden(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests without the marker have the same results whether torch is installed or not."""
    if "peer" not in request.keywords:
        monkeypatch.setattr(torch_oracle, "is_available", lambda: False)


@pytest.fixture(scope="session", autouse=True)
def _no_program_is_stored() -> Iterator[None]:
    """Store no OpenCL programs: PoCL builds a program again if its binary is requested."""
    from dnncore_opencl.runtime.build import Builder

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Builder, "_put", lambda *_: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _other_processes_run_all_cases() -> Iterator[None]:
    """Tests of tests start pytest in other processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TEST_SHARE", raising=False)
        yield


@pytest.fixture(params=TARGETS, ids=str)
def target(request: pytest.FixtureRequest) -> Target:
    """Each engine with the implementations to test on it."""
    return request.param


@pytest.fixture
def cpu() -> dnn.Engine:
    """The CPU engine."""
    return dnn.engine("cpu")


@pytest.fixture
def planned_for_gpus(monkeypatch):
    """Kernels as for a GPU: work-groups, local memory, aligned vectors. All devices run them."""
    from dnncore_opencl.runtime.engine import OpenCLEngine

    monkeypatch.setattr(OpenCLEngine, "is_cpu", property(lambda _engine: False))
    dnn.cache.primitives.clear()
    yield
    dnn.cache.primitives.clear()


@pytest.fixture
def kit(tmp_path: Path) -> Callable[..., tuple[int, str]]:
    """Run pytest in an empty folder; returns its exit status and what it printed.

    disabled: backends that need not be imported, because no case executes them.
    """
    path = os.pathsep.join([*sys.path, str(Path(__file__).parent / "support")])

    def run(*options: str, disabled: str = "cpu_numba,opencl") -> tuple[int, str]:
        ours = {
            "PYTHONPATH": path, "PYTEST_ADDOPTS": "", "COLUMNS": "200",
            "DNNCORE_DISABLE_BACKENDS": disabled,
        }  # fmt: skip
        environment = {**os.environ, **ours}
        plain = ("--strict-markers", "-p", "no:cacheprovider", *options)
        done = subprocess.run(
            (sys.executable, "-P", "-m", "pytest", *plain),
            cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    return run


@pytest.fixture
def clock(monkeypatch):
    """A clock that only advances by its own calls, for samples without other work."""

    class Clock:
        now = 0.0

        def spend(self, seconds):
            self.now += seconds

    made = Clock()
    monkeypatch.setattr("benchmarks.measuring.sampling.time.perf_counter", lambda: made.now)
    return made
