"""Executes problems on PoCL between fences. An access to memory beside a tensor ends the process.

    python tests/opencl/fences.py OPERATION...

PoCL uses the host's memory of a buffer directly. The last line of the output is the problem.
Kernels are compiled without optimization, which takes a fifth of the time.
"""

from __future__ import annotations

import random
import sys
import warnings
from collections import Counter
from typing import Any

import numpy as np
import pyopencl as cl  # noqa: TID251 - buffers of the memory of the host
from dnncore_opencl.runtime import build

import dnncore as dnn
from dnncore.problem import Problem, driver_of
from dnncore.testing.checks.case import Case
from dnncore.testing.checks.fences import fenced_memories
from dnncore.testing.problems.cases import cases

MOST_BYTES = 2**16
DRAWN = 4  # problems of an operation, since some are built for seconds


def problems(operation: str) -> list[Problem]:
    """Drawn problems of `smoke`, of each direction and combination of types in turn."""
    found = [
        problem
        for problem in cases("smoke")
        if driver_of(type(problem.op)).name == operation and problem.op.bytes < MOST_BYTES
    ]
    random.Random(11).shuffle(found)
    counts: Counter[tuple[Any, ...]] = Counter()
    turns = []
    for problem in found:
        kind = (type(problem.op), *(desc.data_type for _, desc in problem.op.tensors()))
        turns.append(counts[kind])
        counts[kind] += 1
    order = sorted(range(len(found)), key=turns.__getitem__)
    return [found[place] for place in order[:DRAWN]]


def main(operation: str) -> None:
    """Execute the problems with all implementations of the backend opencl."""
    engine = dnn.engine("pocl")

    def wrap(array: np.ndarray[Any, Any]) -> Any:
        if not array.size:
            return engine.allocate(0)
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
        return cl.Buffer(engine.native.context, flags, hostbuf=array)

    for problem in problems(operation):
        case = Case(problem, engine, "opencl:*")
        for trial in case.trials:
            for at_end in (True, False):
                print(f"{trial.pd.impl_name}, fence {'behind' if at_end else 'before'}: {problem}")
                sys.stdout.flush()
                inputs = case.round("integers").inputs
                memories = fenced_memories(trial, inputs, at_end=at_end, wrap=wrap)
                trial.primitive.execute(engine.stream(), **memories).wait()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    build.LITTLE_WORK = sys.maxsize
    for name in sys.argv[1:]:
        main(name)
