"""Measures the creation of primitives, with an empty cache and from disk, and a launch."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import TypeAlias

from dnncore_cpu_numba.codegen.call_schema import Record
from dnncore_cpu_numba.codegen.task import task
from dnncore_cpu_numba.runtime.program import Program, Step

import dnncore as dnn
from dnncore.testing.null import median

__all__ = ["Row", "creation_rows", "launch_rows"]

Row: TypeAlias = tuple[str, float, float | None, str]  # name, value, limit, unit
SET = "resnet_50"
WARM_SAMPLES = 5
TINY = "--conv --dir=FWD_I mb1ic16ih4oc16oh4kh1"  # its creation initialises numba

CREATE = """
import json, time
start = time.perf_counter()
import dnncore as dnn
from dnncore.problem import read
from benchmarks.problems.problem_sets import read_set
imported = time.perf_counter()
engine = dnn.engine("cpu")

def create(problem):
    dnn.PrimitiveDesc(problem.op, engine).primitive()

create(*read({tiny!r}))
started, before = time.perf_counter(), dnn.cache.stats()["compiled"]
layers = read_set({name!r}, {{"dir": "FWD_I", "mb": "4"}})
problems = [layer for layer in layers if layer.op.KIND == "convolution"]
read_in = time.perf_counter()
for problem in problems:
    create(problem)
print(json.dumps({{
    "start": started - imported,
    "create": time.perf_counter() - read_in,
    "compiled": dnn.cache.stats()["compiled"] - before,
    "count": len(problems),
}}))
"""


def creation_rows() -> list[Row]:
    """Times of all forward convolutions of ResNet-50 at batch 4, in new processes."""
    with tempfile.TemporaryDirectory() as folder:
        cold = _created(folder)
        warm = [_created(folder) for _ in range(WARM_SAMPLES)]
    start, create = (statistics.median(run[name] for run in warm) for name in ("start", "create"))
    what = f"{SET}: {cold['count']} convolutions"
    return [
        ("numba's start, empty cache", cold["start"], None, "s"),
        ("numba's start, second process", start, 0.6, "s"),
        (f"{what}, empty cache", cold["create"], 2, "s"),
        (f"{what}, from disk", create * 1e3, 100, "ms"),
        (f"{what}: kernels compiled, empty cache", cold["compiled"], None, ""),
    ]


def _created(folder: str) -> dict[str, float]:
    """Create primitives in a new process with this cache folder. Returns its measurements."""
    code = CREATE.format(tiny=TINY, name=SET)
    environment = os.environ | {"DNNCORE_CACHE_DIR": folder}
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, check=True, stdout=subprocess.PIPE, text=True
    )
    found: dict[str, float] = json.loads(run.stdout)
    return found


@task(Record("nothing"))
def do_nothing(params, begin, end):
    """Do nothing."""


def launch_rows() -> list[Row]:
    """The time of a parallel step without work. Python calls it like a bound primitive."""
    engine = dnn.engine("cpu")
    stream = engine.stream()
    run = Program(lambda: [Step(do_nothing, {}, 64)], engine.num_threads).bind([], None)
    for _ in range(100):  # wake the helper threads
        run(stream)
        time.sleep(1e-5)
    what = f"launch of a parallel step on {engine.num_threads} threads"
    return [(what, median(lambda: run(stream), 2000) * 1e6, 5, "us")]
