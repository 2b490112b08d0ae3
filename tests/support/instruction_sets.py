"""The instruction sets with which a test of values runs. `make conformance` runs all of them."""

from __future__ import annotations

from collections.abc import Iterable
from zlib import crc32

import dnncore as dnn
from dnncore.problem import Problem


def in_turn(pds: Iterable[dnn.PrimitiveDesc]) -> list[dnn.PrimitiveDesc]:
    """Keep two instruction sets of each algorithm: the first in rank, and one of the others.

    The problem determines the second one. Code is compiled for each instruction set, which takes
    about 0.1 s. Implementations with a single set are kept.
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
    """Name patterns for `in_turn` among accepting implementations that match `impl`.

    Returns `impl` if none accepts.
    """
    pds = dnn.primitive_descs(problem.op, engine, problem.attr, impl=impl)
    return ",".join(pd.impl_name for pd in in_turn(pds)) or impl


def _algorithm(impl_name: str) -> str:
    """The name without an instruction set: "cpu_numba:brgemm" for "cpu_numba:brgemm:avx2"."""
    backend, *rest = impl_name.split(":")
    return f"{backend}:{rest[0]}" if backend == "cpu_numba" else impl_name
