"""Errors of results, compared with torch's results in float64 for the same values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.contestants.by_torch import Place, call_of
from benchmarks.contestants.contestant import Array
from dnncore.problem import Problem

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

    Raises `LeftOut` for a problem that torch cannot compute.
    """

    def __init__(self, problem: Problem) -> None:
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        # One computation does not justify a search for algorithms.
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, allow_tf32=False):
            self.expected = call_of(problem, Place(self.device, exact=True)).results()

    def errors(self, outputs: Mapping[str, Array]) -> Errors:
        """The errors of a contestant's outputs. NaN if an output contains NaN."""
        found = [self._errors(name, outputs[name]) for name in self.expected if name in outputs]
        return Errors(*np.max(found, axis=0).tolist())

    @torch.inference_mode()
    def _errors(self, name: str, output: Array) -> tuple[float, float]:
        expected = self.expected[name]
        difference = _tensor(output).to(self.device).double() - expected
        norm, largest = (
            (error / size).item() if error else 0.0
            for error, size in (
                (difference.norm(), expected.norm()),
                (difference.abs().max(), expected.abs().max()),
            )
        )
        return norm, largest


def _tensor(output: Array) -> Any:
    """The tensor of an array, converted if torch does not have its type, such as bf16."""
    known = output if output.dtype.isbuiltin else output.astype("f4")
    return torch.from_numpy(known)
