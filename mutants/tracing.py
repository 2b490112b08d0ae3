"""A pytest plugin: selects and orders tests, and records which tests reach which lines.

Tasks, which are compiled, execute no line of Python, and many tests use the same compiled
kernel. So a native function has the lines of its source and the lines that its compilation
executes. A test reaches these lines if it requests the function's address. A test reaches all lines
of a template that it renders.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
import types
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

__all__ = ["pytest_addoption", "pytest_collection_modifyitems", "pytest_configure"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of `make mutants`."""
    group = parser.getgroup("mutants")
    group.addoption("--mutants-target", default="", help="the engine of tests with a target")
    group.addoption("--mutants-tests", default="", help="a file of ids to run, in this order")
    group.addoption("--mutants-map", default="", help="write a map of lines to this file")
    group.addoption(
        "--mutants-seconds", type=float, default=60, help="map tests until this CPU time"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Record lines if the option --mutants-map is given."""
    if config.getoption("--mutants-map"):
        path, seconds = config.getoption("--mutants-map"), config.getoption("--mutants-seconds")
        config.pluginmanager.register(_Tracer(Path(path), seconds))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of the target (--mutants-target), or the listed tests in their order."""
    target = config.getoption("--mutants-target")
    if target:
        items[:] = _mixed(item for item in items if _is_of(item, target))
    listed = config.getoption("--mutants-tests")
    if listed:
        items[:] = _listed(items, json.loads(Path(listed).read_text()))


def _listed(items: list[pytest.Item], names: list[str]) -> list[pytest.Item]:
    """The items with these names, in this order.

    A mutant may change the parameters in a test's name. Then all tests of the function are taken.
    """
    known = {item.nodeid: item for item in items}
    functions: dict[str, list[pytest.Item]] = {}
    for item in items:
        functions.setdefault(item.nodeid.partition("[")[0], []).append(item)
    chosen: dict[pytest.Item, None] = {}
    for name in names:
        found = [known[name]] if name in known else functions.get(name.partition("[")[0], [])
        chosen |= dict.fromkeys(found)
    return list(chosen)


def _is_of(item: pytest.Item, target: str) -> bool:
    given = getattr(item, "callspec", None)
    name = str(given.params.get("target", target)) if given else target
    return name.endswith(target) and "-intel" not in item.nodeid


def _mixed(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Order tests: first one test of each function, then a second one of each, and so on."""
    ranks: dict[str, int] = {}
    order = []
    for item in sorted(items, key=lambda item: hashlib.sha256(item.nodeid.encode()).digest()):
        function = item.nodeid.partition("[")[0]
        rank = ranks[function] = ranks.get(function, -1) + 1
        order.append((rank, item))
    return [item for _, item in sorted(order, key=lambda entry: entry[0])]


class _Tracer:
    """Records the lines of each test with the contexts of the package coverage.

    seconds: no test begins after this CPU time.
    """

    def __init__(self, path: Path, seconds: float) -> None:
        import coverage

        self.path = path
        self.end = time.process_time() + seconds
        self.root = Path.cwd()
        include = [str(self.root / folder / "*") for folder in ("dnncore", "backends")]
        self.coverage = coverage.Coverage(data_file=None, config_file=False, include=include)
        self.collected: list[str] = []
        self.seconds: dict[str, float] = {}
        self.passed: set[str] = set()
        self.used: dict[str, set[str]] = defaultdict(set)  # test -> native functions, templates
        self.lines: dict[str, set[tuple[str, int]]] = defaultdict(set)  # by function or template
        self.test = ""
        self.coverage.start()
        _watch_natives(self)
        _watch_templates(self)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Record the names of all tests, including those that will not be mapped."""
        self.collected = [item.nodeid for item in session.items]

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Clear caches, so that each test executes what earlier tests have built."""
        started = time.process_time()
        if started > self.end:
            item.session.shouldstop = "the sample is complete"
        self.test = item.nodeid
        self.coverage.switch_context(item.nodeid)
        _forget()
        yield
        self.seconds[item.nodeid] = time.process_time() - started
        self.test = ""
        self.coverage.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record tests that pass, because only they can detect a mutant."""
        if report.when == "call" and report.passed:
            self.passed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Write the map: the CPU seconds of each test, and file -> line -> indices of tests.

        "rest" lists the names of tests that were not executed.
        """
        self.coverage.stop()
        names = sorted(self.passed)
        number = {name: i for i, name in enumerate(names)}
        found: dict[str, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
        data = self.coverage.get_data()
        for file in data.measured_files():
            path = Path(file).relative_to(self.root).as_posix()
            for line, contexts in data.contexts_by_lineno(file).items():
                for context in contexts:
                    if context in number:
                        found[path][line].add(number[context])
                    elif context.startswith("native "):
                        self.lines[context].add((path, line))
        for test, names_used in self.used.items():
            for path, line in set().union(*(self.lines[name] for name in names_used)):
                if test in number:
                    found[path][line].add(number[test])
        lines = {p: {n: sorted(t) for n, t in by.items()} for p, by in found.items()}
        tests = [[name, round(self.seconds[name], 4)] for name in names]
        rest = [name for name in self.collected if name not in self.seconds]
        self.path.write_text(json.dumps({"tests": tests, "lines": lines, "rest": rest}))


CLEARED = ("dnncore_cpu_numba.convolution", "dnncore.tensors")  # modules with cached formulas


def _forget() -> None:
    import dnncore as dnn

    dnn.cache.primitives.clear()
    modules = [module for name, module in sys.modules.items() if name.startswith(CLEARED)]
    for module in modules:
        for found in vars(module).values():
            if type(found).__name__ == "_lru_cache_wrapper":
                found.cache_clear()


# -- compiled code ---------------------------------------------------------------------------------


def _watch_natives(tracer: _Tracer) -> None:
    """Record which tests request a native function, and which lines its compilation executes."""
    from dnncore_cpu_numba.codegen import native

    load = native.function
    native._store.get = lambda _key: None  # type: ignore[method-assign]  # compile each anew

    def function(name: str, text: Any, *rest: Any) -> int:
        context = f"native {name}"
        tracer.used[tracer.test].add(context)
        owner = getattr(text, "__self__", None)
        if hasattr(owner, "function") and context not in tracer.lines:
            tracer.lines[context] |= _lines_of(owner.function, tracer.root)

        def traced(symbol: str) -> str:
            tracer.coverage.switch_context(context)
            try:
                return str(text(symbol))
            finally:
                tracer.coverage.switch_context(tracer.test)

        return load(name, traced, *rest)

    native.function = function


def _lines_of(function: Any, root: Path) -> set[tuple[str, int]]:
    """The lines of a function and of all functions of the source that it calls."""
    found: set[tuple[str, int]] = set()
    seen: set[Any] = set()
    waiting = [function]
    while waiting:
        each = waiting.pop()
        each = getattr(each, "function", getattr(each, "emit", each))
        if not isinstance(each, types.FunctionType) or each in seen:
            continue
        seen.add(each)
        path = Path(each.__code__.co_filename)
        if not path.is_relative_to(root):
            continue
        name = path.relative_to(root).as_posix()
        for code in _codes(each.__code__):
            found |= {(name, line) for *_, line in code.co_lines() if line}
            named = [each.__globals__[n] for n in code.co_names if n in each.__globals__]
            modules = [module for module in named if isinstance(module, types.ModuleType)]
            named += [getattr(m, n) for m in modules for n in code.co_names if hasattr(m, n)]
            waiting += named
        waiting += [cell.cell_contents for cell in each.__closure__ or () if _is_filled(cell)]
    return found


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _codes(inner)


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - an empty cell raises
    except ValueError:
        return False
    return True


def _watch_templates(tracer: _Tracer) -> None:
    """Record which tests render a template or read a template's text as a snippet."""
    from dnncore_opencl.runtime import launch

    load = launch.template

    def template(name: str) -> str:
        context = f"template {name}"
        if context not in tracer.lines:
            path = launch._templates()[name]
            count = path.read_text(encoding="utf-8").count("\n") + 1
            place = path.relative_to(tracer.root).as_posix()
            tracer.lines[context] = {(place, line) for line in range(1, count + 1)}
        tracer.used[tracer.test].add(context)
        return load(name)

    for module in tuple(sys.modules.values()):
        if getattr(module, "template", None) is load:
            module.template = template  # type: ignore[attr-defined]
