"""Missing parts of operations, algorithms, post-ops and data types.

A place is a file of the core that must contain an operation, or a backend on an engine that must
compute something. Backends are queried with problems of the kit's smoke list; nothing is compiled.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from types import FunctionType
from typing import Any

import dnncore
from dnncore import functional, ops
from dnncore.algorithms.binary import BINARY
from dnncore.algorithms.eltwise import USE_DST, eltwise_names
from dnncore.algorithms.post_ops import POST_OPS
from dnncore.algorithms.reduction import REDUCTION
from dnncore.attributes import Attributes
from dnncore.backend import Engine
from dnncore.comparison.fills import reads
from dnncore.ops import Operation
from dnncore.ops.types import Row
from dnncore.problem import DRIVERS, Problem, driver_of, read
from dnncore.selection.plugins import registry
from dnncore.selection.primitive_desc import primitive_descs
from dnncore.tensors.datatypes import DATA_TYPES
from dnncore.testing.checks.attributes import probes
from dnncore.testing.problems.cases import cases
from dnncore.testing.problems.types_and_attributes import types_of, with_types

__all__ = ["Gap", "gaps", "subjects"]

LISTS = ("tiny", "smoke", "full")


@dataclass(frozen=True)
class Gap:
    """One missing feature.

    subject: "operation Flip", "algorithm mish", "post-op prelu" or "data type f16".
    place: a file, or a backend and its engine.
    reason: a description of what is missing there.
    """

    subject: str
    place: str
    reason: str


def gaps(
    engines: Sequence[Engine], is_wanted: Callable[[str], bool] = lambda _subject: True
) -> Iterator[Gap]:
    """Return the gaps of the wanted subjects; backends are queried for these engines."""
    yield from _operations(engines, is_wanted)
    yield from _algorithms(engines, is_wanted)
    yield from _post_ops(engines, is_wanted)
    yield from _data_types(engines, is_wanted)


def subjects() -> list[str]:
    """Return the subjects that gaps can have."""
    return [
        *(f"operation {kind.__name__}" for kind in _kinds()),
        *(f"algorithm {name}" for names in _algorithm_names().values() for name in names),
        *(f"post-op {kind}" for kind in POST_OPS),
        *(f"data type {name}" for name in DATA_TYPES),
    ]


# -- operations ------------------------------------------------------------------------------------


def _operations(engines: Sequence[Engine], is_wanted: Callable[[str], bool]) -> Iterator[Gap]:
    for kind in _kinds():
        subject = f"operation {kind.__name__}"
        if is_wanted(subject):
            for place, reason in _places(kind, engines):
                yield Gap(subject, place, reason)


def _kinds() -> list[type[Operation]]:
    """Return all operations that the core defines."""
    found = (getattr(ops, name) for name in ops.__all__)
    return [
        kind
        for kind in found
        if isinstance(kind, type) and issubclass(kind, Operation) and kind is not Operation
    ]


def _places(kind: type[Operation], engines: Sequence[Engine]) -> Iterator[tuple[str, str]]:
    if kind.__name__ not in dnncore.__all__:
        yield "dnncore/__init__.py", "no public name"
    driver = next((d for d in DRIVERS.values() if kind in d.operations), None)
    if driver is None:
        yield "dnncore/problem/drivers", "no driver, so no problem text, error bound and oracle"
    else:
        if kind not in driver.oracles:
            yield f"dnncore/problem/drivers, {driver.name}", "no oracle"
        if not any(type(read(case.text)[0].op) is kind for case in driver.golden):
            yield f"dnncore/problem/drivers, {driver.name}", "no golden case"
    for size in LISTS:
        if not _has_case(size, partial(_is_of, kind)):
            yield f"dnncore/testing/problems, size {size}", "no case"
    if "Backward" not in kind.__name__ and not _has_function(kind):
        yield "dnncore/functional", "no function"
    for backend, engine in _asked(engines):
        found = registry.implementations(engine.kind, kind)
        if not any(owner.name == backend for owner, _ in found):
            yield f"{backend} on {engine.name}", "no implementation"


def _has_function(kind: type[Operation]) -> bool:
    """Whether a module of one-line functions uses the operation."""
    return any(value is kind for value in _function_values())


def _names_algorithm(name: str) -> bool:
    """Whether a one-line function has the algorithm's name as a constant."""
    functions = (value for value in _function_values() if isinstance(value, FunctionType))
    return any(name in function.__code__.co_consts for function in functions)


@cache
def _function_values() -> list[object]:
    """Return all values of the modules of one-line functions."""
    names = (row.name for row in pkgutil.iter_modules(functional.__path__))
    modules = (importlib.import_module(f"{functional.__name__}.{name}") for name in names)
    return [value for module in modules for value in vars(module).values()]


# -- what backends accept --------------------------------------------------------------------------


def _algorithm_names() -> dict[str, list[str]]:
    """Return the algorithms of each driver."""
    eltwise = dict.fromkeys([*eltwise_names(), *eltwise_names(gradient=True)])
    return {"eltwise": [*eltwise], "binary": [*BINARY], "reduction": [*REDUCTION]}


def _algorithms(engines: Sequence[Engine], is_wanted: Callable[[str], bool]) -> Iterator[Gap]:
    for driver, names in _algorithm_names().items():
        for name in names:
            subject = f"algorithm {name}"
            if not is_wanted(subject):
                continue
            problems: dict[type[Operation], Problem] = {}
            for problem in _plain_problems():
                if (driver_of(type(problem.op)).name, getattr(problem.op, "algorithm", "")) == (
                    driver,
                    name,
                ):
                    problems.setdefault(type(problem.op), problem)
            if not name.endswith(USE_DST) and not _names_algorithm(name):
                yield Gap(subject, "dnncore/functional", "no function")
            yield from _refused(subject, list(problems.values()), engines)


def _post_ops(engines: Sequence[Engine], is_wanted: Callable[[str], bool]) -> Iterator[Gap]:
    for kind in POST_OPS:
        subject = f"post-op {kind}"
        if not is_wanted(subject):
            continue
        problems = []
        for problem, *_ in _of_each_operation():
            steps = [own for own in probes(problem.op.result.dims) if own.kind == kind]
            problems += [replace(problem, attr=Attributes((own,))) for own in steps]
        if not _has_case("full", partial(_has_post_op, kind)):
            yield Gap(subject, "dnncore/testing/problems, size full", "no case")
        yield from _refused(subject, problems, engines)


def _data_types(engines: Sequence[Engine], is_wanted: Callable[[str], bool]) -> Iterator[Gap]:
    for name in DATA_TYPES:
        subject = f"data type {name}"
        if not is_wanted(subject):
            continue
        allowed, forbidden = [], []
        for problems in _of_each_operation():
            typed = next(filter(None, (_retyped(problem, name) for problem in problems)), None)
            if typed is None:
                forbidden.append(type(problems[0].op).__name__)
            else:
                allowed.append(typed)
        if forbidden:
            yield Gap(subject, "dnncore/ops", f"not a type of {', '.join(forbidden)}")
        if not _has_case("full", partial(_has_type, name)):
            yield Gap(subject, "dnncore/testing/problems, size full", "no case")
        yield from _refused(subject, allowed, engines)


def _retyped(problem: Problem, name: str) -> Problem | None:
    """Return the problem with as many tensors of a type as a row permits; None without any.

    Another problem of the operation may permit the type, such as inference.
    """
    op = problem.op
    tensors = types_of(op)

    def own(row: Row) -> list[str]:
        return [tensor for tensor in tensors if name in row.get(tensor, ())]

    row = max(op.type_rows, key=lambda row: len(own(row)))
    if not own(row):
        return None
    types = {t: name if t in own(row) else row[t][0] for t in tensors if t in row}
    return replace(problem, op=with_types(op, types))


def _refused(subject: str, problems: Sequence[Problem], engines: Sequence[Engine]) -> Iterator[Gap]:
    """Yield a gap per backend and engine. It names the operations that no implementation accepts.

    An operation without any implementation is a gap of the operation and is omitted here.
    """
    for backend, engine in _asked(engines):
        refused = []
        for problem in problems:
            found = registry.implementations(engine.kind, type(problem.op))
            own = any(owner.name == backend for owner, _ in found)
            if own and not _is_accepted(problem, backend, engine):
                refused.append(type(problem.op).__name__)
        if refused:
            yield Gap(subject, f"{backend} on {engine.name}", f"refuses {', '.join(refused)}")


def _is_accepted(problem: Problem, backend: str, engine: Engine) -> bool:
    wishes: dict[str, Any] = {"impl": f"{backend}:*", "skip_impl": ""}
    return any(True for _ in primitive_descs(problem.op, engine, problem.attr, **wishes))


def _asked(engines: Sequence[Engine]) -> Iterator[tuple[str, Engine]]:
    """Yield each backend that has implementations for an engine, with the engine."""
    registry.discover()
    for engine in engines:
        for loaded in registry.loaded.values():
            backend = loaded.backend
            if any(kind == engine.kind for kind, _ in backend.implementations):
                yield backend.name, engine


def _of_each_operation() -> list[list[Problem]]:
    """Return the plain problems of each operation; each has at least one."""
    found: dict[type[Operation], list[Problem]] = {}
    for problem in _plain_problems():
        found.setdefault(type(problem.op), []).append(problem)
    return list(found.values())


@cache
def _plain_problems() -> list[Problem]:
    """Return the problems of the smoke list in f32 without attributes and empty tensors."""
    without = Attributes()

    def is_plain(problem: Problem) -> bool:
        if problem.attr != without or not problem.op.result.nelems:
            return False
        inputs = reads(problem.op, problem.attr).items()
        return {desc.data_type for name, desc in inputs if name != "src2"} == {"f32"}  # src2: s8

    return [problem for problem in _listed("smoke") if is_plain(problem)]


def _is_of(kind: type[Operation], problem: Problem) -> bool:
    return type(problem.op) is kind


def _has_post_op(kind: str, problem: Problem) -> bool:
    return any(step.kind == kind for step in problem.attr.post_ops)


def _has_type(name: str, problem: Problem) -> bool:
    return any(desc.data_type == name for _, desc in problem.op.tensors())


def _has_case(size: str, has_property: Callable[[Problem], bool]) -> bool:
    """Whether a problem of a size has a property.

    "full" contains "smoke" and "types". It takes far longer to read, so it is read only if neither
    has such a problem. Its random problems do not count.
    """
    sizes = ("smoke", "types", "full") if size == "full" else (size,)
    return any(has_property(problem) for each in sizes for problem in _listed(each))


@cache
def _listed(size: str) -> list[Problem]:
    return cases(size, drawn=False)
