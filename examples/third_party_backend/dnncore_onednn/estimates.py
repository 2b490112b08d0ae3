"""Estimates of seconds, as a share of what the engine's peaks permit."""

from __future__ import annotations

from dnncore import backend
from dnncore.backend import Operation

__all__ = ["efficiency"]

# The efficiency of optimised code on an AMD EPYC with AVX-512 and two threads, from the problems of
# docs/benchmarks.md.
EFFICIENCY: dict[type[Operation], float] = {}
OTHERS = 0.5
PLAIN = 0.01  # of oneDNN's plain loops, whose names begin with `ref` or `simple`


def efficiency(op: Operation, impl_name: str) -> float:
    """The estimate for one of oneDNN's implementations."""
    if impl_name.startswith(("ref", "simple")):
        return PLAIN
    return EFFICIENCY.get(type(op), OTHERS)
