"""The interface of contestants: dnncore's implementations and its peers, ready to be timed.

Each contestant has its own memories, filled with the same values. A side has one or several
contestants, such as one per layout. The fastest of them counts. On the CPU, each peer computes in a
process of its own. On a GPU, the peers share the process with dnncore.
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
    "CPU_PEERS",
    "INTEGERS",
    "PEERS",
    "SIDES",
    "Array",
    "Contestant",
    "LeftOut",
    "Maker",
    "Terms",
    "activations",
    "imported",
    "is_arithmetic",
    "period_of",
    "side",
    "typed",
    "values_of",
    "without_page_faults",
]  # fmt: skip

Array: TypeAlias = np.ndarray[Any, Any]
CELL_WEIGHTS = 32.0  # weights of recurrent cells are divided by it
PERIOD = (1 << 20) + 7  # drawn values, which longer tensors repeat; no dim is a multiple of it


INTEGERS = {
    "s32": (-(2**31), 2**31 - 1), "s8": (-128, 127), "u8": (0, 255), "s4": (-8, 7), "u4": (0, 15),
}  # fmt: skip
"""The range of each type of integers."""


ARITHMETIC = ("--conv", "--deconv", "--ip", "--matmul", "--rnn", "--sdpa")


class LeftOut(Exception):
    """A side cannot compute a problem. The message has the reason."""


@dataclass(frozen=True)
class Terms:
    """The conditions of a contest.

    engine: the name of dnncore's engine.
    reorders: whether a contestant may also select its formats. Its time then includes reorders.
    """

    engine: str = "cpu"
    reorders: bool = False


@dataclass(frozen=True)
class Contestant:
    """One way to compute a problem.

    name: the name of the library's implementation.
    repeat: computes the problem at least n times and waits for the end. On a device, the
        computations are enqueued without gaps.
    outputs: returns the results in logical dims.
    refill: fills the inputs with the values of a draw, and the outputs with NaN.
    scratchpad: bytes of the scratchpad, or None if unknown.
    error_factor: the claimed multiple of the plain rounding bound.
    nbytes: the bytes of all arguments, including a workspace.
    """

    name: str
    repeat: Repeat
    outputs: Callable[[], Mapping[str, Array]]
    refill: Callable[[int], object]
    scratchpad: int | None = None
    error_factor: float = 1.0
    nbytes: int = 0


Side: TypeAlias = Callable[[Problem, Terms], Iterator[Contestant]]


@dataclass(frozen=True)
class Maker:
    """The function that makes the contestants of a side.

    path: the function's "module:name".
    alone: whether the side computes in its own process.
    environment: "module:name" of a function that returns further environment variables for that
        process, or "".
    otherwise: the side that replaces this side on problems with wrong results, or "".
    """

    path: str
    alone: bool = False
    environment: str = ""
    otherwise: str = ""


ONEDNN = "benchmarks.contestants.by_onednn"
CUDA = "benchmarks.contestants.by_torch_cuda"
SIDES = {
    "ours": Maker("benchmarks.contestants.by_dnncore:chosen"),
    "untuned": Maker("benchmarks.contestants.by_dnncore:untuned"),
    "others": Maker("benchmarks.contestants.by_dnncore:others"),
    "cpu": Maker("benchmarks.contestants.by_dnncore:on_cpu"),
    "onednn-3.2": Maker(f"{ONEDNN}:openmp", alone=True),
    "onednn-3.13": Maker(
        f"{ONEDNN}:newest", True, "benchmarks.contestants.onednn_packages:newest_environment"
    ),
    "torch": Maker(
        "benchmarks.contestants.by_torch:contestants", True, f"{__name__}:without_page_faults"
    ),
    "cudnn": Maker(f"{CUDA}:convolutions", otherwise="cudnn-10"),
    "cudnn-10": Maker(f"{CUDA}:other_convolutions", alone=True),
    "torch-cuda": Maker(f"{CUDA}:others", otherwise="torch-cuda-row-major"),
    "torch-cuda-row-major": Maker(f"{CUDA}:row_major"),
    "numpy": Maker("benchmarks.contestants.by_numpy:contestants"),
}
PEERS = tuple(name for name in SIDES if name not in ("ours", "untuned"))
CPU_PEERS = ("onednn-3.2", "onednn-3.13", "torch")


def side(name: str) -> Side:
    """The function that makes the contestants of a side, at least one.

    It raises `LeftOut` for a problem that the side cannot compute.
    """
    if not SIDES[name].alone:
        found: Side = imported(SIDES[name].path)
        return found
    from benchmarks.contestants.remote import contestants_of

    return contestants_of(SIDES[name])


def imported(path: str) -> Any:
    """The object of "module:name". Raises `LeftOut` if a package is not installed."""
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith(("benchmarks", "dnncore")):
            raise
        how = "python -m pip install 'dnncore[peers]'"
        raise LeftOut(f"{error.name} is not installed: {how}") from None


def values_of(name: str, dims: tuple[int, ...], draw: int = 0) -> Array:
    """Random float32 from the normal distribution; equal for equal name, dims and draw."""
    return np.resize(period_of(name, dims, draw), dims)


def period_of(name: str, dims: tuple[int, ...], draw: int = 0) -> Array:
    """The values that `values_of` repeats in row-major order."""
    seed = [draw, len(name), *name.encode(), *dims]
    count = min(math.prod(dims), PERIOD)
    return np.random.default_rng(seed).standard_normal(count, np.float32)


def typed(name: str, values: Array, data_type: str) -> Array:
    """Convert drawn values to a tensor's values: integers in the type's range, or positive scales.

    Variances are positive. Weights of cells are small, so that no state grows. Values of other
    tensors stay as they are. Products of two integers and their scales have a size of about 1.
    """
    if name == "variance":
        return np.float32(0.5 + np.abs(values))
    if name.startswith("weights_"):
        return np.float32(values / CELL_WEIGHTS)
    if name.endswith("_scales"):
        return np.float32((1 + np.abs(values)) / (1 if name.startswith("dst") else 64))
    if data_type not in INTEGERS:
        return values
    least, most = INTEGERS[data_type]
    numbers = np.rint(values * (4 if name.endswith("_zero_points") else min(most, 127) / 3))
    return np.clip(np.abs(numbers) if least == 0 else numbers, least, most)


def is_arithmetic(problem: Problem | str) -> bool:
    """Whether arithmetic, not memory, limits a problem or problem text."""
    return str(problem).startswith(ARITHMETIC)


def without_page_faults() -> dict[str, str]:
    """Environment variables with which malloc keeps large blocks for the next results.

    Without them, each new tensor of torch consists of pages that the system has to fill with zeros.
    """
    return {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}


def activations(op: Any) -> list[str]:
    """The names of the arguments that are neither weights nor biases."""
    return [row.name for row, _ in op.tensors() if role_of(row.name) in ("src", "dst")]
