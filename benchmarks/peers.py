"""dnncore's kernels beside torch's on the CPU, interleaved in one process: time and ratio.

    python benchmarks/peers.py [--engine cpu] [--impl 'cpu_numba:*']

A ratio above 1 means that dnncore is quicker. Both sides use all CPUs of the process, read and
write the same memories every time, and are timed in turn; a figure is the median of 9 samples.
torch's figure holds the allocation of its result, as its users pay for it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

import click
import numpy as np
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

import dnncore as dnn

SAMPLES = 9
SAMPLE_SECONDS = 0.02
CONVOLUTIONS = (  # batch, input channels, rows = columns, output channels, kernel, stride
    (4, 64, 56, 64, 3, 1),
    (4, 256, 14, 256, 3, 1),
    (4, 64, 56, 256, 1, 1),
    (4, 128, 56, 128, 3, 2),
    (64, 1, 8, 32, 3, 1),
    (64, 32, 4, 64, 3, 1),
)
SQUARES = (512, 1024)

Case = tuple[str, dnn.Operation, Callable[[], object]]


def cases() -> Iterator[Case]:
    """Problems with torch's way to compute them."""
    for shape in CONVOLUTIONS:
        yield from convolutions(*shape)
    import torch

    for n in SQUARES:
        a, b = (torch.randn(n, n) for _ in range(2))
        desc = dnn.MemoryDesc((n, n))
        op = dnn.MatMul(src=desc, weights=desc, dst=desc)
        yield f"matmul {n}", op, lambda a=a, b=b: a @ b
    x = torch.randn(16, 64, 56, 56)
    desc = dnn.MemoryDesc(tuple(x.shape))
    yield (
        "relu 13 MB",
        dnn.EltwiseForward("forward_inference", "relu", src=desc, dst=desc),
        lambda: torch.relu(x),
    )
    rows = torch.randn(8192, 1000)
    desc = dnn.MemoryDesc(tuple(rows.shape))
    yield (
        "softmax 8192 x 1000",
        dnn.SoftmaxForward("forward_inference", "accurate", src=desc, dst=desc, axis=1),
        lambda: torch.softmax(rows, 1),
    )


def convolutions(n: int, ic: int, size: int, oc: int, kernel: int, stride: int) -> Iterator[Case]:
    """One convolution in its three directions, each format left to the implementation."""
    import torch
    from torch.nn.grad import conv2d_input, conv2d_weight

    pad = kernel // 2
    out = (size + 2 * pad - kernel) // stride + 1
    x, w, y = (
        torch.randn(*dims)
        for dims in ((n, ic, size, size), (oc, ic, kernel, kernel), (n, oc, out, out))
    )
    src, weights, dst = (dnn.MemoryDesc(tuple(t.shape), "f32", "any") for t in (x, w, y))
    window = {"strides": stride, "padding_l": pad}
    name = f"{kernel}x{kernel} {ic}->{oc} {size}x{size} / {stride} n{n}"
    yield (
        f"{name} forward",
        dnn.ConvolutionForward("forward_training", src=src, weights=weights, dst=dst, **window),
        lambda: torch.conv2d(x, w, stride=stride, padding=pad),
    )
    yield (
        f"{name} backward data",
        dnn.ConvolutionBackwardData(diff_src=src, weights=weights, diff_dst=dst, **window),
        lambda: conv2d_input(x.shape, w, y, stride=stride, padding=pad),
    )
    yield (
        f"{name} backward weights",
        dnn.ConvolutionBackwardWeights(src=src, diff_weights=weights, diff_dst=dst, **window),
        lambda: conv2d_weight(x, w.shape, y, stride=stride, padding=pad),
    )


def bound(op: dnn.Operation, engine: dnn.Engine, impl: str | None) -> tuple[str, Callable]:
    """The best implementation's name and a call of it on memories of random numbers."""
    pd = dnn.PrimitiveDesc(op, engine, impl=impl)
    stream = engine.stream()
    random = np.random.default_rng(0)
    memories = {}
    for argument, desc in pd.arguments:
        values = random.standard_normal(desc.dims).astype(desc.dtype)
        memories[argument.name] = dnn.Memory.from_numpy(values, desc, engine)
    call = pd.primitive().bind(**memories)

    def run() -> None:
        call(stream)
        stream.wait()

    return pd.impl_name, run


def in_turn(*calls: Callable[[], object]) -> list[float]:
    """The median seconds of each call, sampled in turn."""
    loops = []
    for call in calls:
        call()
        start = time.perf_counter()
        call()
        loops.append(max(1, int(SAMPLE_SECONDS / (time.perf_counter() - start))))
    samples: list[list[float]] = [[] for _ in calls]
    for _ in range(SAMPLES):
        for call, count, taken in zip(calls, loops, samples, strict=True):
            start = time.perf_counter()
            for _ in range(count):
                call()
            taken.append((time.perf_counter() - start) / count)
    return [statistics.median(taken) for taken in samples]


@click.command()
@click.option("--engine", "name", default="cpu", show_default=True)
@click.option("--impl", help="Pattern of implementation names.")
def main(name: str, impl: str | None) -> None:
    """Time each problem on both sides."""
    engine = dnn.engine(name)
    table = Table(title=f"{name} beside torch", title_justify="left", box=SIMPLE)
    for column in ("problem", "implementation", "ms", "GFLOP/s", "torch ms", "ratio"):
        table.add_column(column, justify="left" if column[0] in "pi" else "right")
    ratios = []
    for what, op, peer in cases():
        chosen, run = bound(op, engine, impl)
        ours, theirs = in_turn(run, peer)
        ratios.append(theirs / ours)
        table.add_row(
            what, chosen, f"{ours * 1e3:.3f}", f"{op.flops / ours / 1e9:.0f}",
            f"{theirs * 1e3:.3f}", f"{ratios[-1]:.2f}",
        )  # fmt: skip
    Console(width=120).print(table)
    print(f"geometric mean of the ratios: {statistics.geometric_mean(ratios):.2f}")


if __name__ == "__main__":
    main()
