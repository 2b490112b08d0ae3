"""Runs problems with small constants of plans, so that small tensors have many blocks and parts."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest
from instruction_sets import names_in_turn

from dnncore.attributes import Attributes
from dnncore.cache import primitives
from dnncore.engines.engine import Engine
from dnncore.problem import DRIVERS
from dnncore.selection import ranking
from dnncore.testing import run_case
from dnncore.testing.problems.random_problems import draw

__all__ = ["DRAWS", "failures", "shrunk"]

DRAWS = [(name, way) for name in DRIVERS for way in DRIVERS[name].options.get("dir", ("",))]
CHECKS = ("integers", "random", "guards", "inputs", "padding")
MOST_BYTES = 100_000  # of a problem


def shrunk(
    monkeypatch: pytest.MonkeyPatch, package: str, sizes: Mapping[str, Any]
) -> Iterator[None]:
    """Set constants "module:NAME", also in modules that import them. Removes cached plans."""
    found = pkgutil.walk_packages(import_module(package).__path__, f"{package}.")
    modules = {entry.name: import_module(entry.name) for entry in found}
    for place, value in sizes.items():
        path, name = place.split(":")
        known = vars(modules[f"{package}.{path}"])[name]
        for module in modules.values():
            if vars(module).get(name) is known:
                monkeypatch.setattr(module, name, value)
    _forget_plans()
    yield
    _forget_plans()


def _forget_plans() -> None:
    primitives.clear()
    ranking.forget()


def failures(
    driver: str, direction: str, count: int, engine: Engine, impl: str, types: tuple[str, ...] = ()
) -> tuple[list[str], int]:
    """Run random problems. Returns descriptions of failures and the number of executions.

    A problem that is refused, as gradients refuse post-ops, runs without its attributes.

    types: the data types that tensors may have; () permits all.
    """
    options = {"dir": (direction,)} if "dir" in DRIVERS[driver].options else {}
    found, executed = [], 0
    for problem in draw(count, driver, seed=7, only=options, types=types, most_bytes=MOST_BYTES):
        names = names_in_turn(problem, engine, impl)
        result = run_case(problem, engine, impl=names, checks=CHECKS)
        if not result.executed:
            plain = replace(problem, attr=Attributes())
            names = names_in_turn(plain, engine, impl)
            result = run_case(plain, engine, impl=names, checks=CHECKS)
        found += [str(failure) for failure in result.failures]
        executed += result.executed
    return found, executed
