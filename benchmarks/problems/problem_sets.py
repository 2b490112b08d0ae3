"""Sets of problems: files with problem texts. Options change all problems of a set.

The files are in `benchmarks/problems/sets/` and among the networks of the conformance kit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from dnncore.errors import DescriptorError
from dnncore.ops import Operation
from dnncore.problem import Problem, driver_of, read, read_files
from dnncore.testing.problems.cases import case_files

__all__ = ["changed", "distinct", "pass_of", "read_set", "set_files"]

FOLDER = Path(__file__).parent / "sets"


def set_files() -> dict[str, Path]:
    """The file of each set, by name."""
    files = [*case_files("networks"), *sorted(FOLDER.glob("*.txt"))]
    return {file.stem: file for file in files}


def read_set(name: str, options: Mapping[str, str]) -> tuple[Problem, ...]:
    """The problems of a set, with options replaced. Invalid problems are left out.

    `dir` selects the problems of the same pass: forward, gradient of data or gradient of weights.
    For example, the first layer of a network has no gradient of data. Raises `DescriptorError` for
    an unknown name, and if all problems of the pass are left out.
    """
    return _read(name, tuple(options.items()))


@cache
def _read(name: str, options: tuple[tuple[str, str], ...]) -> tuple[Problem, ...]:
    return tuple(_changed_set(name, dict(options)))


def _changed_set(name: str, options: Mapping[str, str]) -> Iterator[Problem]:
    files = set_files()
    if name not in files:
        raise DescriptorError(f"set: expected one of {', '.join(files)}; got {name!r}")
    direction = options.get("dir")
    found, reason = False, ""
    for problem in read_files(files[name]):
        if direction is None or pass_of(problem.op) == _pass_named(direction):
            try:
                new = changed(problem, options)
            except DescriptorError as error:
                reason = str(error)  # for example, a format does not fit the rank
                continue
            found = True
            yield new
    if reason and not found:
        raise DescriptorError(f"set {name}: no problem can have these options: {reason}")


def pass_of(op: Operation) -> str:
    """The pass of an operation: forward, data or weights."""
    if op.forward_op is None:
        return "forward"
    return "weights" if op.result_name == "diff_weights" else "data"


def _pass_named(direction: str) -> str:
    """The pass that a value of --dir means, such as BWD_WB."""
    if direction.startswith("FWD"):
        return "forward"
    return "weights" if direction.startswith("BWD_W") else "data"


def changed(problem: Problem, options: Mapping[str, str]) -> Problem:
    """The problem with some options replaced. Options that its driver lacks are ignored.

    `tag` sets stag and dtag. `dt` sets the types of all tensors. Raises `DescriptorError` for an
    invalid value.
    """
    driver = driver_of(type(problem.op))
    wanted = dict(options)
    if "tag" in wanted and "tag" not in driver.defaults:
        tag = wanted.pop("tag")
        wanted |= {"stag": tag, "dtag": tag}
    if "dt" in wanted and "dt" not in driver.defaults:
        wanted |= _types(driver.defaults, wanted.pop("dt"))
    wanted = {name: text for name, text in wanted.items() if name in driver.defaults}
    words = [f"--{driver.name}"]
    words += [w for w in str(problem).split()[1:] if _option_of(w) not in wanted]
    words[1:1] = [f"--{name}={text}" for name, text in wanted.items()]
    (new,) = read(words)
    return replace(new, name=problem.name)


def _types(defaults: Mapping[str, str], data_type: str) -> dict[str, str]:
    """Options that set the types of all tensors. Colons separate the types of several sources."""
    texts = {name: defaults[name] for name in ("sdt", "ddt") if name in defaults}
    return {name: ":".join([data_type] * len(text.split(":"))) for name, text in texts.items()}


def _option_of(word: str) -> str:
    return word.removeprefix("--").partition("=")[0] if word.startswith("--") else ""


def distinct(problems: Iterable[Problem]) -> list[Problem]:
    """The problems without repetitions. Problems that differ only in names are equal."""
    found: dict[Problem, Problem] = {}
    for problem in problems:
        found.setdefault(replace(problem, name=""), problem)
    return list(found.values())
