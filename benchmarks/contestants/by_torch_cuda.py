"""torch on CUDA: cuDNN for convolutions, cuBLAS for products, and torch's own kernels.

A call from Python takes longer than a short kernel, so the calls are in CUDA graphs. float32 is
computed without TF32, and cuDNN searches for its fastest algorithm. On some problems that algorithm
gives wrong results. Then `other_convolutions` searches among the ten algorithms that cuDNN ranks
first, and again among the deterministic ones of these ten. torch caches the algorithm that it found
for a problem, so this side needs its own process.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import torch

import dnncore as dnn
from benchmarks.contestants.by_torch import Call, contestant, places
from benchmarks.contestants.by_torch_memory import Run
from benchmarks.contestants.contestant import Contestant, LeftOut, Terms
from benchmarks.measuring.sampling import Repeat, timed
from dnncore.problem import Problem

__all__ = [
    "convolutions", "graph_of", "other_convolutions", "others", "row_major",
    "without_tf32",
]  # fmt: skip

CONVOLUTIONS = (
    dnn.ConvolutionForward, dnn.ConvolutionBackwardData, dnn.ConvolutionBackwardWeights,
)  # fmt: skip
CUDNN_ERROR_FACTOR = 10.0  # cuDNN may use Winograd's algorithm; measured: 3 on layers of VGG-16
FIRST = 10  # number of algorithms in the search of `other_convolutions`
GRAPH_SECONDS, GRAPH_CALLS = 2e-3, 20  # duration and largest number of calls of a graph


def convolutions(problem: Problem, _terms: Terms) -> Iterator[Contestant]:
    """Convolutions of cuDNN, one contestant per order of images."""
    _require_convolution(problem)
    return _contestants(problem)


def other_convolutions(problem: Problem, _terms: Terms) -> Iterator[Contestant]:
    """Convolutions of cuDNN by algorithms from smaller searches, per order of images."""
    _require_convolution(problem)
    yield from _contestants(problem, FIRST)
    yield from _contestants(problem, FIRST, deterministic=True)


def others(problem: Problem, _terms: Terms) -> Iterator[Contestant]:
    """Other operations, one contestant per order of images."""
    if isinstance(problem.op, CONVOLUTIONS):
        raise LeftOut("torch's convolutions are cuDNN's")
    return _contestants(problem)


def row_major(problem: Problem, terms: Terms) -> Iterator[Contestant]:
    """Other operations on row-major tensors for any format of the problem, without reorders.

    torch's average pooling gives wrong results in channels-last order.
    """
    op = problem.op.with_each(lambda desc: desc.with_format(None))
    for found in others(replace(problem, op=op), terms):
        yield replace(found, name=f"{found.name}, without the reorders")


def _require_convolution(problem: Problem) -> None:
    if not isinstance(problem.op, CONVOLUTIONS):
        raise LeftOut("cuDNN is measured on convolutions")


def without_tf32(limit: int = 0, *, deterministic: bool = False) -> None:
    """Switch TF32 off, and let cuDNN search for its fastest algorithm.

    limit: the number of algorithms in the search, in cuDNN's order; 0 means all.
    """
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.benchmark_limit = limit
    torch.backends.cudnn.deterministic = deterministic


def _contestants(
    problem: Problem, limit: int = 0, *, deterministic: bool = False
) -> Iterator[Contestant]:
    if not torch.cuda.is_available():
        raise LeftOut("this torch has no CUDA device")
    torch.cuda.empty_cache()
    without_tf32(limit, deterministic=deterministic)  # for forward passes before the measurement
    name = f", {limit} algorithms" if limit else ""
    name += ", deterministic" if deterministic else ""

    def repeat_of(call: Call) -> Repeat:
        without_tf32(limit, deterministic=deterministic)
        return graph_of(call.run)

    for place in places(problem, "cuda"):
        yield contestant(problem, place, repeat_of, name, CUDNN_ERROR_FACTOR)


def graph_of(run: Run) -> Repeat:
    """Capture several calls in a graph. Returns a function that replays the graph."""
    count = min(GRAPH_CALLS, max(1, round(GRAPH_SECONDS / _seconds(run))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(count):
            run()

    def repeat(wanted: int) -> int:
        replays = -(-wanted // count)
        for _ in range(replays):
            graph.replay()
        torch.cuda.synchronize()
        return replays * count

    return timed(repeat)


def _seconds(run: Run) -> float:
    """Seconds of one call. cuDNN searches during three calls before it.

    The calls run in a side stream, which CUDA requires before the capture of a graph.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
    return time.perf_counter() - start
