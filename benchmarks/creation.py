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

__all__ = ["Row", "creation_rows", "launch_rows", "operation_rows"]

Row: TypeAlias = tuple[str, float, float | None, str]  # name, value, limit, unit
SET = "resnet_50"
WARM_SAMPLES = 5
TINY = "--conv --dir=FWD_I mb1ic16ih4oc16oh4kh1"  # its creation initialises numba

# A problem of each operation that the networks of convolutions lack.
OPERATIONS = {
    "batch normalization": "--bnorm --dir=FWD_D --flags=CH --tag=axb mb8ic64_ih28",
    "batch normalization backward": "--bnorm --dir=BWD_DW --flags=CH --tag=axb mb8ic64_ih28",
    "layer normalization": "--lnorm --dir=FWD_D --flags=CH 128x768",
    "layer normalization backward": "--lnorm --dir=BWD_DW --flags=CH 128x768",
    "group normalization": "--gnorm --dir=FWD_D --flags=CH g8mb8ic64_ih28",
    "group normalization backward": "--gnorm --dir=BWD_DW --flags=CH g8mb8ic64_ih28",
    "deconvolution": "--deconv --dir=FWD_B mb4ic64oc32_ih14oh28kh4sh2ph1",
    "deconvolution backward data": "--deconv --dir=BWD_D mb4ic64oc32_ih14oh28kh4sh2ph1",
    "deconvolution backward weights": "--deconv --dir=BWD_WB mb4ic64oc32_ih14oh28kh4sh2ph1",
    "PReLU": "--prelu --dir=FWD_D 8x64x28x28:1x64x1x1",
    "PReLU backward": "--prelu --dir=BWD_DW 8x64x28x28:1x64x1x1",
    "concat": "--concat --axis=1 8x32x28x28:8x64x28x28",
    "shuffle": "--shuffle --dir=FWD_D --group=4 8x64x28x28",
    "shuffle backward": "--shuffle --dir=BWD_D --group=4 8x64x28x28",
    "resampling": "--resampling --dir=FWD_D --alg=linear mb8ic64_ih14oh28",
    "resampling backward": "--resampling --dir=BWD_D --alg=linear mb8ic64_ih14oh28",
    "LSTM": "--rnn --dir=FWD_D --alg=VANILLA_LSTM l1t10mb16_sic128slc128dhc128dic128",
    "LSTM backward": "--rnn --dir=BWD_DW --alg=VANILLA_LSTM l1t10mb16_sic128slc128dhc128dic128",
    "GRU": "--rnn --dir=FWD_D --alg=LBR_GRU l1t10mb16_sic128slc128dhc128dic128",
    "GRU backward": "--rnn --dir=BWD_DW --alg=LBR_GRU l1t10mb16_sic128slc128dhc128dic128",
    "attention": "--sdpa --dir=FWD_D 1x4x128x64:1x4x64x128:1x4x128x64",
    "attention backward": "--sdpa --dir=BWD_D 1x4x128x64:1x4x64x128:1x4x128x64",
}
CREATE_EACH = """
import json, time
import dnncore as dnn
from dnncore.problem import read

engine = dnn.engine("cpu")

def create(text):
    (problem,) = read(text)
    start = time.perf_counter()
    dnn.PrimitiveDesc(problem.op, engine).primitive()
    return time.perf_counter() - start

create({tiny!r})
print(json.dumps({{name: create(text) for name, text in {texts!r}.items()}}))
"""

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


def operation_rows() -> list[Row]:
    """Times of a primitive of each operation, one after the other, in new processes.

    Operations share kernels, so a later one may find those of an earlier one.
    """
    code = CREATE_EACH.format(tiny=TINY, texts=OPERATIONS)
    with tempfile.TemporaryDirectory() as folder:
        cold = _created(folder, code)
        warm = [_created(folder, code) for _ in range(WARM_SAMPLES)]
    rows: list[Row] = []
    for name, seconds in cold.items():
        rows.append((f"{name}, empty cache", seconds, 2, "s"))
        least = min(run[name] for run in warm)
        rows.append((f"{name}, from disk", least * 1e3, 20, "ms"))
    return rows


def _created(folder: str, code: str = "") -> dict[str, float]:
    """Create primitives in a new process with this cache folder. Returns its measurements."""
    code = code or CREATE.format(tiny=TINY, name=SET)
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


if __name__ == "__main__":
    for what, value, most, unit in operation_rows():
        print(f"{value:8.3g} {unit:3} (at most {most})  {what}")
