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

from benchmarks.measuring.sampling import Repeat
from dnncore.problem import Problem
from dnncore.problem.tensors import role_of

__all__ = [
    "PEERS", "Array", "Contestant", "LeftOut", "Terms", "activations", "is_arithmetic", "period_of",
    "side", "values_of",
]  # fmt: skip

Array: TypeAlias = np.ndarray[Any, Any]
PERIOD = (1 << 20) + 7  # values drawn; longer tensors repeat them, in step with nothing


class LeftOut(Exception):
    """A side cannot compute a problem, and why."""


@dataclass(frozen=True)
class Terms:
    """On what a contest is held.

    engine: dnncore's, by name. reorders: whether a contestant may compute in formats of its own
    choice, between reorders that count. exact: whether results are compared with those of float64,
    rather than with our first.
    """

    engine: str = "cpu"
    reorders: bool = False
    exact: bool = False


@dataclass(frozen=True)
class Contestant:
    """One way to compute a problem.

    name: of the library's implementation. repeat: computes the problem so many times at least and
    returns when that is done; on a device they are queued back to back. outputs: what it wrote, in
    logical dims. scratchpad: its bytes, None where that is not known. error_factor: the multiple of
    the plain rounding bound that it claims to keep. nbytes: of all arguments, a workspace, too.
    """

    name: str
    repeat: Repeat
    outputs: Callable[[], Mapping[str, Array]]
    scratchpad: int | None = None
    error_factor: float = 1.0
    nbytes: int = 0


Side: TypeAlias = Callable[[Problem, Terms], Iterator[Contestant]]

SIDES = {
    "ours": "benchmarks.contestants.by_dnncore:chosen",
    "others": "benchmarks.contestants.by_dnncore:others",
    "cpu": "benchmarks.contestants.by_dnncore:on_cpu",
    "onednn": "benchmarks.contestants.by_onednn:contestants",
    "torch": "benchmarks.contestants.by_torch:contestants",
    "cudnn": "benchmarks.contestants.by_torch_cuda:convolutions",
    "torch-cuda": "benchmarks.contestants.by_torch_cuda:others",
    "numpy": "benchmarks.contestants.by_numpy:contestants",
}
PEERS = tuple(name for name in SIDES if name != "ours")


def side(name: str) -> Side:
    """The function that makes a side's contestants, of which there is at least one.

    It raises `LeftOut` for a problem that the side cannot compute.
    """
    module, _, function = SIDES[name].partition(":")
    found: Side = getattr(importlib.import_module(module), function)
    return found


def values_of(name: str, dims: tuple[int, ...]) -> Array:
    """Random float32 of the normal distribution, the same for the same name and dims."""
    return np.resize(period_of(name, dims), dims)


def period_of(name: str, dims: tuple[int, ...]) -> Array:
    """What those values repeat, in row-major order."""
    seed = [len(name), *name.encode(), *dims]
    count = min(math.prod(dims), PERIOD)
    return np.random.default_rng(seed).standard_normal(count, np.float32)


def is_arithmetic(problem: Problem | str) -> bool:
    """Whether arithmetic, not memory, is what a problem is about; it may be a text."""
    return str(problem).startswith(("--conv", "--ip", "--matmul"))


def activations(op: Any) -> list[str]:
    """The arguments that layers hand on: all but weights and biases."""
    return [row.name for row, _ in op.tensors() if role_of(row.name) in ("src", "dst")]
