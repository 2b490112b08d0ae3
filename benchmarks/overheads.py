"""Measures dnncore's overheads: import, descriptors, calls, start of a process, allocations.

    python -m benchmarks.overheads [--engine cpu --engine opencl:0] [--json figures.json]

Each time is the median of at least 9 samples taken in turn. The table also has the limits.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
from rich.console import Console
from rich.table import Table

import dnncore as dnn
from dnncore.testing import null
from dnncore.testing.null import SAMPLES, median

os.environ.setdefault("NUMBA_NRT_STATS", "1")  # numba reads this when it is imported
EXECUTIONS = 1000  # training steps for counting allocations
ROOT = Path(__file__).parents[1]

IMPORTS = """
import time
start = time.perf_counter()
import numpy
middle = time.perf_counter()
import dnncore
print(time.perf_counter() - middle, middle - start)
"""

FIRST_RESULT = """
import json, time
import numpy as np
import dnncore as dnn
from examples.train_digits import Network
network = Network(dnn.engine({engine!r}))
images = np.random.default_rng(0).random((network.batch, 1, 8, 8), np.float32)
loss = network.train(images, np.arange(network.batch) % 10, min(network.updates))
network.stream.wait()
assert 1 < loss < 4, loss  # ln(10) is 2.3
print(json.dumps(dict(dnn.cache.stats(), seconds=time.time() - {start!r})))
"""


def above(work: Callable[[], object], base: Callable[[], object], loops: int) -> float:
    """The median of time(work) - time(base), in seconds. Both are measured in turn."""
    samples = []
    for _ in range(SAMPLES):
        both = []
        for call in (work, base):
            start = time.perf_counter()
            for _ in range(loops):
                call()
            both.append((time.perf_counter() - start) / loops)
        samples.append(both[0] - both[1])
    return statistics.median(samples)


def import_seconds() -> float:
    """Seconds that `import dnncore` adds to `import numpy`, both with compiled bytecode."""
    with tempfile.TemporaryDirectory() as bytecode:
        keep = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": bytecode}
        _, *samples = (_python(IMPORTS, **keep).split()[0] for _ in range(1 + SAMPLES))
    return statistics.median(map(float, samples))


def first_result(engine: str, cache: str, samples: int) -> list[dict]:
    """Run one training step of the digits' network in each of `samples` new processes."""
    results = []
    for _ in range(samples):
        code = FIRST_RESULT.format(engine=engine, start=time.time())
        results.append(json.loads(_python(code, DNNCORE_CACHE_DIR=cache)))
    return results


def _python(code: str, **environment: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, **environment},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout


class Small:
    """A primitive on one engine whose kernel takes almost no time."""

    def __init__(self, name: str) -> None:
        self.engine = dnn.engine(name)
        self.stream = self.engine.stream()
        desc = dnn.MemoryDesc((16,))
        self.op = dnn.EltwiseForward("forward_inference", "relu", src=desc, dst=desc)
        self.primitive = dnn.PrimitiveDesc(self.op, self.engine).primitive()
        self.src, self.dst = (dnn.Memory(desc, self.engine) for _ in range(2))
        self.src.fill(1)
        self.bound = self.primitive.bind(src=self.src, dst=self.dst)
        for value in (-2.0, 3.0):
            self.verify(value)

    def verify(self, value: float) -> None:
        """Raise `ValueError` if a call does not compute the relu of a value."""
        self.src.fill(value)
        self.bound(self.stream)
        self.stream.wait()
        found = self.dst.numpy()
        if not np.array_equal(found, np.full(16, max(value, 0.0), np.float32)):
            raise ValueError(f"relu of {value} must be {max(value, 0.0)}; got {found}")

    def launch(self) -> Callable[[], object]:
        """The call inside a bound call: the CPU's native driver or OpenCL's enqueue."""
        self.run = run = self.bound.run_on(self.stream)  # owns the arguments of the inner call
        if self.engine.is_host:
            return functools.partial(run.native, run.address)
        (ready,) = run.ready
        launch = ready.kernel, ready.global_size, ready.local_size
        return functools.partial(ready.enqueue, self.stream.native, *launch)

    def execute(self) -> None:
        """One call with argument names and checks."""
        self.primitive.execute(self.stream, src=self.src, dst=self.dst)


Row = tuple[str, float, float | None, str]  # name, value, limit, unit


def call_rows(name: str) -> list[Row]:
    """The overhead of calls on one engine."""
    small = Small(name)
    limit = 1.5 if name == "cpu" else 3.0
    loops = 2000 if name == "cpu" else 200
    base, stream = small.launch(), small.stream

    def drained(call: Callable[[], object]) -> Callable[[], object]:
        """A call that waits for the queue every 100 calls, so that enqueueing never blocks."""
        count = 0

        def work() -> None:
            nonlocal count
            call()
            count += 1
            if count % 100 == 0:
                stream.wait()

        return work if name != "cpu" else call

    bound, execute, bare = (
        drained(call) for call in (lambda: small.bound(stream), small.execute, base)
    )
    rows = [(f"{name}: bound call above its launch", above(bound, bare, loops) * 1e6, limit, "us")]
    if name == "cpu":
        seconds = above(execute, bare, loops)
        rows.append((f"{name}: execute above its launch", seconds * 1e6, 3, "us"))
    small.verify(-5.0)
    small.verify(7.0)
    return rows


def descriptor_rows() -> list[Row]:
    """The time to create descriptors and primitives, with empty and with filled caches."""
    from dnncore.selection import ranking

    src = dnn.MemoryDesc((8, 64, 28, 28), "f32", "any")
    op = dnn.ConvolutionForward(
        "forward_training", src=src, weights=dnn.MemoryDesc((64, 64, 3, 3), "f32", "any"),
        bias=dnn.MemoryDesc((64,)), dst=src, padding_l=(1, 1),
    )  # fmt: skip
    engine = dnn.engine("cpu")

    def first() -> None:
        ranking.forget()
        dnn.PrimitiveDesc(op, engine)

    pd = dnn.PrimitiveDesc(op, engine)
    pd.primitive()
    return [
        ("first primitive descriptor of a problem", median(first, 50) * 1e6, None, "us"),
        ("warm primitive descriptor",
         median(lambda: dnn.PrimitiveDesc(op, engine), 500) * 1e6, 150, "us"),
        ("cached primitive", median(pd.primitive, 500) * 1e6, 15, "us"),
    ]  # fmt: skip


def start_rows(name: str) -> list[Row]:
    """Seconds from process start to the first result, with an empty and with a filled cache."""
    with tempfile.TemporaryDirectory() as cache:
        (cold,) = first_result(name, cache, 1)
        warm = first_result(name, cache, SAMPLES)
    seconds = statistics.median(result["seconds"] for result in warm)
    compiled = max(result["compiled"] for result in warm)
    limit = 1.2 if name == "cpu" else 0.8
    return [
        (f"{name}: first result, empty cache", cold["seconds"], 20, "s"),
        (f"{name}: first result, second process", seconds, limit, "s"),
        (f"{name}: kernels compiled by the second process", compiled, 0, ""),
    ]


def allocation_rows(name: str) -> list[Row]:
    """Memory that 1,000 training steps allocate and keep after warm-up."""
    from examples.train_digits import Network

    network = Network(dnn.engine(name))
    stream, rate = network.stream, min(network.updates)

    def step() -> None:
        network.forward(stream)
        network.backward(stream)
        network.updates[rate](stream)
        stream.wait()

    for _ in range(5):
        step()
    buffers = _buffers(network.engine)
    natives = _native_allocations()
    tracemalloc.start()
    step()
    before = tracemalloc.take_snapshot()
    for _ in range(EXECUTIONS):
        step()
    after = tracemalloc.take_snapshot()
    tracemalloc.stop()
    grown = sum(s.size_diff for s in after.compare_to(before, "filename")
                if "tracemalloc" not in str(s.traceback))  # fmt: skip
    tensor = network.src.nbytes  # the smallest tensor of a step
    return [
        (f"{name}: leaked Python memory, in tensors", max(0, grown) // tensor, 0, ""),
        (f"{name}: leaked device buffers and native arrays",
         _buffers(network.engine) - buffers + _native_allocations() - natives, 0, ""),
    ]  # fmt: skip


def _buffers(engine: dnn.Engine) -> int:
    info = getattr(engine, "memory_info", None)
    return info().buffers if info else 0


def _native_allocations() -> int:
    from numba.core.registry import cpu_target
    from numba.core.runtime import rtsys

    rtsys.initialize(cpu_target.target_context)
    return rtsys.get_allocation_stats().alloc


@click.command()
@click.option("--engine", "engines", multiple=True, default=("cpu", "opencl:0"), show_default=True)
@click.option("--json", "path", type=Path, help="Also write the figures to this file.")
def main(engines: tuple[str, ...], path: Path | None) -> None:
    """Measure, and print each figure with its limit."""
    table = Table(title="Overheads (medians)", title_justify="left")
    for column in ("what", "measured", "at most", ""):
        table.add_column(column, justify="left" if column == "what" else "right")
    rows = [("import dnncore above import numpy", import_seconds(), 0.08, "s"), *descriptor_rows()]
    rows += [(f"core alone: {what}", s * 1e6, None, "us") for what, s in null.costs().items()]
    from benchmarks.creation import (  # imports numba
        creation_rows,
        launch_rows,
        operation_rows,
    )
    from benchmarks.function_calls import function_rows

    rows += creation_rows() + operation_rows() + launch_rows() + function_rows()
    for name in engines:
        rows += call_rows(name) + start_rows(name) + allocation_rows(name)
    if path:
        path.write_text(json.dumps(rows) + "\n")
    for what, value, limit, unit in rows:
        if limit is None:
            table.add_row(what, f"{value:.3g} {unit}", "", "")
        else:
            mark = "ok" if value <= limit else "over"
            table.add_row(what, f"{value:.3g} {unit}", f"{limit:g} {unit}", mark)
    Console().print(table)


if __name__ == "__main__":
    main()
