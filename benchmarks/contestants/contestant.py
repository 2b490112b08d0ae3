"""The interface of contestants: dnncore's implementations and its peers, ready to be timed.

Each contestant has its own memories, filled with the same values. A side has one or several
contestants, such as one per layout. The fastest of them counts.
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
PERIOD = (1 << 20) + 7  # number of drawn values; longer tensors repeat them; not a common size


class LeftOut(Exception):
    """A side cannot compute a problem. The message has the reason."""


@dataclass(frozen=True)
class Terms:
    """The conditions of a contest.

    engine: the name of dnncore's engine.
    reorders: whether a contestant may also compute in its own formats, with reorders included.
    exact: whether results are compared with float64. If not, they are compared with dnncore's.
    """

    engine: str = "cpu"
    reorders: bool = False
    exact: bool = False


@dataclass(frozen=True)
class Contestant:
    """One way to compute a problem.

    name: the name of the library's implementation.
    repeat: computes the problem at least n times and waits for the end. On a device, the
        computations are enqueued without gaps.
    outputs: the results in logical dims.
    scratchpad: its bytes, or None if unknown.
    error_factor: the claimed multiple of the plain rounding bound.
    nbytes: the bytes of all arguments, including a workspace.
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
    """The function that makes the contestants of a side, at least one.

    The function raises `LeftOut` for a problem that the side cannot compute.
    """
    module, _, function = SIDES[name].partition(":")
    found: Side = getattr(importlib.import_module(module), function)
    return found


def values_of(name: str, dims: tuple[int, ...]) -> Array:
    """Random float32 of the normal distribution, the same for the same name and dims."""
    return np.resize(period_of(name, dims), dims)


def period_of(name: str, dims: tuple[int, ...]) -> Array:
    """The values that `values_of` repeats in row-major order."""
    seed = [len(name), *name.encode(), *dims]
    count = min(math.prod(dims), PERIOD)
    return np.random.default_rng(seed).standard_normal(count, np.float32)


def is_arithmetic(problem: Problem | str) -> bool:
    """Whether arithmetic, not memory, limits a problem or problem text."""
    return str(problem).startswith(("--conv", "--ip", "--matmul"))


def activations(op: Any) -> list[str]:
    """The arguments that are no weights and no biases."""
    return [row.name for row, _ in op.tensors() if role_of(row.name) in ("src", "dst")]
