"""Measures the cost that a bound call adds to oneDNN's functions: `python measure_calls.py`.

Both sides execute the same primitive on the same memories. One side is a bound call of dnncore. The
other one calls dnnl_primitive_execute and dnnl_stream_wait through ctypes, with arguments that were
prepared once. The samples of the two sides alternate.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import dnncore_onednn

import dnncore as dnn
from dnncore.problem import read

PROBLEMS = (
    "--sum --scales=2:-3 2x3",
    "--matmul --wtag=any 4x16:16x16",
    "--conv --dir=FWD_I mb1ic16oc16_ih8kh3ph1",
)
SAMPLES, CALLS = 31, 2000


def seconds(call: Callable[[], object]) -> float:
    """The seconds of one call, over `CALLS` calls."""
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - start) / CALLS


def sides(text: str) -> tuple[Callable[[], object], Callable[[], object]]:
    """The bound call and the bare calls of a problem."""
    from dnncore_onednn.call import new_stream

    (problem,) = read(text)
    engine = dnn.engine("cpu")
    pd = dnn.PrimitiveDesc(problem.op, engine, impl="onednn:*")
    primitive = pd.primitive()
    memories = {name: dnn.Memory(desc, engine) for name, desc in pd.descs.items()}
    for memory in memories.values():
        memory.fill(1.0)
    stream = engine.stream()
    bound = primitive.bind(**memories)
    bound(stream)
    executable: Any = primitive.executable
    functions, own = executable.library.functions, new_stream(executable.library)
    bare = executable.bind(list(memories.values()), stream.scratchpad)
    execute, wait = functions.dnnl_primitive_execute, functions.dnnl_stream_wait
    handle, queue, arguments = executable.primitive.handle, own.handle, bare.arguments
    count = len(arguments)

    def prepared(_keeps_alive: object = (bare, own)) -> None:
        if execute(handle, queue, count, arguments) or wait(queue):
            raise SystemExit("oneDNN failed")

    return lambda: bound(stream), prepared


def main() -> None:
    """Print a line per problem: medians in microseconds."""
    if "onednn" not in [status.name for status in dnn.backends()]:
        dnn.register(dnncore_onednn)
    for text in PROBLEMS:
        ours, bare = sides(text)
        pairs = [(seconds(ours), seconds(bare)) for _ in range(SAMPLES)]
        times = [statistics.median(column) * 1e6 for column in zip(*pairs, strict=True)]
        above = statistics.median(mine - theirs for mine, theirs in pairs) * 1e6
        print(f"{text}: dnncore {times[0]:.2f} us, oneDNN {times[1]:.2f} us, above {above:.2f} us")


if __name__ == "__main__":
    main()
