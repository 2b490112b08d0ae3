"""Measure the kernel and the implementations of the backend opencl, in turn.

python measure.py --engine=pocl
python measure.py --engine=nvidia --tune    writes the best sizes of work-groups for the device
"""

import argparse
import json
import re
import statistics
import time
from pathlib import Path

import numpy as np

import dnncore as dnn

SHAPES = ((2, 2, 2), (3, 3, 3), (4, 4, 4), (8, 8, 8), (1, 8, 8), (6, 1, 6))
TUNING = Path(__file__).parent / "dnncore_small_matmul" / "tuning"
RUNS = 9
TUNING_RUNS = 60  # the shortest time counts, because other processes can only lengthen a run


def matmul(engine, sizes, count, impl, knobs=None):
    """Return the primitive descriptor of a batch of products."""
    m, n, k = sizes
    descs = {"src": (count, m, k), "weights": (count, k, n), "dst": (count, m, n)}
    op = dnn.MatMul(**{name: dnn.MemoryDesc(dims) for name, dims in descs.items()})
    return dnn.PrimitiveDesc(op, engine, impl=impl, knobs=knobs)


def call(pd):
    """Return a function that computes the products once, waits, and returns the seconds."""
    engine, rng = pd.engine, np.random.default_rng(0)
    memories = {
        name: dnn.Memory.from_numpy(rng.standard_normal(desc.dims).astype("f4"), engine=engine)
        for name, desc in pd.descs.items()
    }
    bound, stream = pd.primitive().bind(**memories), engine.stream()

    def run():
        start = time.perf_counter()
        bound(stream)
        stream.wait()
        return time.perf_counter() - start

    run()
    return run


def times(calls, runs):
    """Return the seconds of all runs of each call; the calls run in turn."""
    return list(zip(*([run() for run in calls] for _ in range(runs)), strict=True))


def compare(engine, count):
    """Print the times of both."""
    print(f"{engine.device.name}: {count} products, microseconds, median of {RUNS}")
    for sizes in SHAPES:
        impls = ("opencl:*", "small_matmul:*")
        calls = [call(matmul(engine, sizes, count, impl)) for impl in impls]
        theirs, ours = map(statistics.median, times(calls, RUNS))
        m, n, k = sizes
        text = f"{m}x{k}:{k}x{n}"
        print(f"{text:>12}  opencl {theirs * 1e6:8.0f}  small_matmul {ours * 1e6:8.0f}"
              f"  ratio {theirs / ours:5.1f}")  # fmt: skip


def tune(engine, count):
    """Write the fastest size of a work-group for each shape."""
    table = {}
    for sizes in SHAPES:
        m, n, k = sizes
        impl = "small_matmul:*"
        (knob,) = matmul(engine, sizes, count, impl).knobs
        chosen = [{knob.name: value} for value in knob.values]
        calls = [call(matmul(engine, sizes, count, impl, knobs)) for knobs in chosen]
        least = list(map(min, times(calls, TUNING_RUNS)))
        table[f"m{m}n{n}k{k}"] = chosen[least.index(min(least))]
    name = re.sub(r"\W+", "_", engine.device.name.lower()).strip("_")
    TUNING.mkdir(exist_ok=True)
    path = TUNING / f"{name}.json"
    rows = ",\n".join(f"    {json.dumps(key)}: {json.dumps(row)}" for key, row in table.items())
    path.write_text(f'{{\n  "small_matmul": {{\n{rows}\n  }}\n}}\n')
    print(f"wrote {path}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", default="opencl")
    parser.add_argument("--count", type=int, default=20000)
    parser.add_argument("--tune", action="store_true")
    options = parser.parse_args()
    if "small_matmul" not in {backend.name for backend in dnn.backends()}:
        import dnncore_small_matmul  # from this folder, as the backend is not installed

        dnn.register(dnncore_small_matmul)
    (tune if options.tune else compare)(dnn.engine(options.engine), options.count)
