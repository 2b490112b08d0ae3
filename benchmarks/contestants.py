"""Who can compute a problem: dnncore's implementations and its peers, ready to be timed.

Each contestant holds its own memories, filled with the same values. A side has one contestant or
several, such as one a layout; the strongest of them is what it is judged by.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from dnncore.problem import Problem
from dnncore.problem.tensors import role_of

__all__ = ["PEERS", "Array", "Contestant", "LeftOut", "activations", "side", "values_of"]

Array: TypeAlias = np.ndarray[Any, Any]
PERIOD = (1 << 20) + 7  # values drawn; longer tensors repeat them, in step with nothing


class LeftOut(Exception):
    """A side cannot compute a problem, and why."""


@dataclass(frozen=True)
class Contestant:
    """One way to compute a problem.

    name: of the library's implementation. run: computes the problem once and returns when that is
    done. outputs: what it wrote, in logical dims. scratchpad: its bytes, None where that is not
    known. error_factor: the multiple of the plain rounding bound that it claims to keep.
    """

    name: str
    run: Callable[[], object]
    outputs: Callable[[], Mapping[str, Array]]
    scratchpad: int | None = None
    error_factor: float = 1.0


Side: TypeAlias = Callable[[Problem, bool], Iterator[Contestant]]

SIDES = {
    "ours": "benchmarks.by_dnncore:chosen",
    "others": "benchmarks.by_dnncore:others",
    "onednn": "benchmarks.by_onednn:contestants",
    "torch": "benchmarks.by_torch:contestants",
    "numpy": "benchmarks.by_numpy:contestants",
}
PEERS = tuple(name for name in SIDES if name != "ours")


def side(name: str) -> Side:
    """The function that makes a side's contestants, of which there is at least one.

    It takes a problem, and whether a contestant may compute in formats of its own choice, between
    reorders that count. It raises `LeftOut` for a problem that the side cannot compute.
    """
    module, _, function = SIDES[name].partition(":")
    found: Side = getattr(importlib.import_module(module), function)
    return found


def values_of(name: str, dims: tuple[int, ...]) -> Array:
    """Random float32 of the normal distribution, the same for the same name and dims."""
    count = math.prod(dims)
    seed = [len(name), *name.encode(), *dims]
    drawn = np.random.default_rng(seed).standard_normal(min(count, PERIOD), np.float32)
    return np.resize(drawn, dims)


def activations(op: Any) -> list[str]:
    """The arguments that layers hand on: all but weights and biases."""
    return [row.name for row, _ in op.tensors() if role_of(row.name) in ("src", "dst")]
