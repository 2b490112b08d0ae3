"""Tests of values run the CPU's instruction sets in turn. `make conformance` runs all of them."""

from __future__ import annotations

from collections.abc import Iterable
from zlib import crc32

import dnncore as dnn
from dnncore.problem import Problem


def in_turn(pds: Iterable[dnn.PrimitiveDesc]) -> list[dnn.PrimitiveDesc]:
    """Of each algorithm, the instruction set that ranks first and one of the others.

    The other one depends on the problem. Each set has code of its own, which takes about 0.1 s to
    compile. Implementations of one set only are kept.
    """
    algorithms: dict[str, list[dnn.PrimitiveDesc]] = {}
    for pd in pds:
        algorithms.setdefault(_algorithm(pd.impl_name), []).append(pd)
    chosen = []
    for first, *others in algorithms.values():
        chosen.append(first)
        if others:
            place = crc32(repr((first.op, first.attr)).encode()) % len(others)
            chosen.append(sorted(others, key=lambda pd: pd.impl_name)[place])
    return chosen


def names_in_turn(problem: Problem, engine: dnn.Engine, impl: str) -> str:
    """Name patterns of `in_turn` of the implementations `impl` that accept; `impl` if none does."""
    pds = dnn.primitive_descs(problem.op, engine, problem.attr, impl=impl)
    return ",".join(pd.impl_name for pd in in_turn(pds)) or impl


def _algorithm(impl_name: str) -> str:
    """Names of cpu_numba are backend:algorithm or backend:algorithm:set."""
    backend, *rest = impl_name.split(":")
    return f"{backend}:{rest[0]}" if backend == "cpu_numba" else impl_name
