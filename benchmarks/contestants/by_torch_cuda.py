"""torch on CUDA: cuDNN for convolutions, cuBLAS for products, and torch's own kernels.

A call from Python takes longer than a short kernel, so the calls are in CUDA graphs. float32 is
computed without TF32, and cuDNN searches for its best algorithm.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch

import dnncore as dnn
from benchmarks.contestants.by_torch import calls
from benchmarks.contestants.by_torch_memory import Run
from benchmarks.contestants.contestant import Contestant, LeftOut, Terms
from benchmarks.measuring.sampling import Repeat
from dnncore.problem import Problem

__all__ = ["convolutions", "graph_of", "others", "without_tf32"]

CONVOLUTIONS = (
    dnn.ConvolutionForward, dnn.ConvolutionBackwardData, dnn.ConvolutionBackwardWeights,
)  # fmt: skip
CUDNN_ERROR_FACTOR = 10.0  # cuDNN may use Winograd's algorithm; measured: 3 on layers of VGG-16
GRAPH_SECONDS, GRAPH_CALLS = 2e-3, 20  # duration and largest number of calls of a graph


def convolutions(problem: Problem, _terms: Terms) -> Iterator[Contestant]:
    """Convolutions of cuDNN, one contestant per order of images."""
    if not isinstance(problem.op, CONVOLUTIONS):
        raise LeftOut("cuDNN is measured on convolutions")
    return _contestants(problem)


def others(problem: Problem, _terms: Terms) -> Iterator[Contestant]:
    """Other operations, one contestant per order of images."""
    if isinstance(problem.op, CONVOLUTIONS):
        raise LeftOut("torch's convolutions are cuDNN's")
    return _contestants(problem)


def without_tf32() -> None:
    """Switch TF32 off, and let cuDNN search among all of its algorithms."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.benchmark_limit = (
        0  # no limit; the default is the ten that cuDNN ranks first
    )


def _contestants(problem: Problem) -> Iterator[Contestant]:
    if not torch.cuda.is_available():
        raise LeftOut("this torch has no CUDA device")
    without_tf32()
    torch.cuda.empty_cache()
    for call in calls(problem, "cuda"):
        repeat = graph_of(call.run)
        yield Contestant(call.name, repeat, call.outputs, error_factor=CUDNN_ERROR_FACTOR)


def graph_of(run: Run) -> Repeat:
    """Replay a graph of several calls."""
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

    return repeat


def _seconds(run: Run) -> float:
    """Seconds of a call after three calls, in which cuDNN searches. Graphs need a side stream."""
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
