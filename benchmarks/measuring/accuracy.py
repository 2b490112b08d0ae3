"""Errors of results, compared with results in float64 for the same values.

torch computes the float64 results. If torch is not installed or lacks the operation, the backend
with the role "reference" computes them, rounded to the type of the results.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.contestants.contestant import Array, LeftOut, typed, values_of
from dnncore.attributes import Attributes
from dnncore.comparison.compare import expected_outputs
from dnncore.comparison.fills import reads
from dnncore.problem import Problem
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["Errors", "Exact"]


@dataclass(frozen=True)
class Errors:
    """The largest errors over all outputs of a contestant.

    norm: the norm of the difference divided by the norm of the result.
    largest: the largest difference divided by the largest value.
    """

    norm: float
    largest: float


class Exact:
    """The results of a problem in float64, computed on CUDA if available.

    draw: the number of the draw of the inputs' values.
    """

    def __init__(self, problem: Problem, draw: int = 0) -> None:
        rows = problem.op.tensors()
        written = {row.name: desc.dims for row, desc in rows if row.direction == "out"}
        written.pop("workspace", None)
        try:
            found = _by_torch(problem, draw)
        except LeftOut:
            found = _by_reference(problem, draw)
        self.expected = {name: found[name] for name in written}

    def errors(self, outputs: Mapping[str, Array]) -> Errors:
        """The errors of a contestant's outputs. NaN if an output contains NaN.

        An output that is missing or has other dims has an infinite error.
        """
        found = [self._errors(expected, outputs.get(n)) for n, expected in self.expected.items()]
        return Errors(*np.max(found, axis=0).tolist())

    def _errors(self, expected: Any, output: Array | None) -> tuple[float, float]:
        if output is None or tuple(output.shape) != tuple(expected.shape):
            return np.inf, np.inf
        if isinstance(expected, np.ndarray):
            return _of_arrays(output, expected)
        return _of_tensors(output, expected)


def _by_torch(problem: Problem, draw: int) -> Mapping[str, Any]:
    """The results as tensors of torch. Raises `LeftOut` if torch cannot compute the problem."""
    if importlib.util.find_spec("torch") is None:
        raise LeftOut("torch is not installed")
    import torch

    from benchmarks.contestants.by_torch import Place, call_of

    device = "cuda" if torch.cuda.is_available() else "cpu"
    # A search for the fastest algorithm takes longer than one computation.
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, allow_tf32=False):
        call = call_of(problem, Place(device, exact=True, draw=draw))
        call.run()
        return call.results()


def _by_reference(problem: Problem, draw: int) -> Mapping[str, Array]:
    """The results as arrays of their type. Raises `LeftOut` for a problem that changes inputs."""
    op, attr = problem.op, problem.attr
    if attr.reads_dst:
        raise LeftOut("a post-op sum adds the result of the call before")
    inputs = {n: _values(n, desc, draw) for n, desc in reads(op, attr).items()}
    if "workspace" in op.saved or "mean" in op.saved:
        forward = op.forward_op
        drawn = {n: _values(n, desc, draw) for n, desc in reads(forward, Attributes()).items()}
        made = expected_outputs(forward, Attributes(), drawn)
        inputs |= {name: made[name].values for name in op.saved}
    return {name: found.values for name, found in expected_outputs(op, attr, inputs).items()}


def _values(name: str, desc: MemoryDesc, draw: int) -> Array:
    return typed(name, values_of(name, desc.dims, draw), desc.data_type).astype(desc.dtype)


def _of_arrays(output: Array, expected: Array) -> tuple[float, float]:
    """The errors of arrays. NaN at the same places agree; equal infinities agree, too."""
    got, exact = output.astype(np.float64), expected.astype(np.float64)
    same = (got == exact) | (np.isnan(got) & np.isnan(exact))
    with np.errstate(invalid="ignore"):
        difference = np.where(same, 0.0, got - exact)
    size = exact[np.isfinite(exact)]
    return (
        _ratio(np.linalg.norm(difference), np.linalg.norm(size)),
        _ratio(np.abs(difference).max(initial=0.0), np.abs(size).max(initial=0.0)),
    )


def _of_tensors(output: Array, expected: Any) -> tuple[float, float]:
    """The errors of tensors, computed by torch on the device of `expected`."""
    got = _tensor(output).to(expected.device).double()
    same = (got == expected) | (got.isnan() & expected.isnan())
    difference = (got - expected).masked_fill(same, 0.0)
    size = expected.masked_fill(~expected.isfinite(), 0.0)
    return (
        _ratio(difference.norm().item(), size.norm().item()),
        _ratio(difference.abs().max().item(), size.abs().max().item()),
    )


def _ratio(difference: float, size: float) -> float:
    if difference == 0:
        return 0.0
    return float(difference / size) if size else np.inf


def _tensor(output: Array) -> Any:
    """Convert an array to a tensor. bf16 becomes f32, because torch cannot read numpy's bf16."""
    import torch

    return torch.from_numpy(output if output.dtype.char in "efd" else output.astype(np.float32))
