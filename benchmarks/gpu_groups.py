"""Compares depthwise and grouped convolutions of an OpenCL GPU with cuDNN's.

    python -m benchmarks.gpu_groups --build --shard=0/14  # compile a part of the kernels
    python -m benchmarks.gpu_groups                       # verify and time all

Each row has the norm-wise error and the microseconds of dnncore with nchw and with nhwc tensors, of
calls that follow each other, and of torch with cuDNN in a CUDA graph, in its faster order of
tensors. The ratio is cuDNN's time divided by dnncore's faster one. f32 is computed without TF32.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import click

import dnncore as dnn

TAGS = {"nchw": "nchw", "nhwc": "nhwc"}
DIRECTIONS = ("forward", "data", "weights")
SECONDS = 0.03  # of a sample of calls
SAMPLES = 5
CALLS = 20  # of a sequence, or of a graph


class Layer(NamedTuple):
    """A layer with square images."""

    net: str
    groups: int
    inputs: int
    outputs: int
    size: int
    kernel: int
    stride: int = 1
    dilation: int = 1
    batch: int = 32

    @property
    def padding(self) -> int:
        """That keeps the size with stride 1."""
        return self.dilation * (self.kernel - 1) // 2

    @property
    def out(self) -> int:
        """The size of the result."""
        extent = self.dilation * (self.kernel - 1) + 1
        return (self.size + 2 * self.padding - extent) // self.stride + 1


def depthwise(net: str, channels: int, size: int, kernel: int, stride: int = 1) -> Layer:
    """A layer of groups of one channel."""
    return Layer(net, channels, channels, channels, size, kernel, stride)


LAYERS = (
    depthwise("mobilenet_v2", 32, 112, 3),
    depthwise("mobilenet_v2", 96, 112, 3, 2),
    depthwise("mobilenet_v2", 144, 56, 3),
    depthwise("mobilenet_v2", 192, 28, 3),
    depthwise("mobilenet_v2", 384, 14, 3),
    depthwise("mobilenet_v2", 576, 14, 3, 2),
    depthwise("mobilenet_v2", 960, 7, 3),
    depthwise("mobilenet_v3", 72, 56, 5, 2),
    depthwise("mobilenet_v3", 120, 28, 5),
    depthwise("efficientnet_b0", 240, 28, 5),
    depthwise("efficientnet_b0", 672, 14, 5),
    depthwise("efficientnet_b0", 1152, 7, 5),
    depthwise("convnext", 96, 56, 7),
    depthwise("convnext", 384, 14, 7),
    Layer("resnext50", 32, 128, 128, 56, 3),
    Layer("resnext50", 32, 256, 256, 28, 3),
    Layer("resnext50", 32, 512, 512, 14, 3),
    Layer("resnext50", 32, 1024, 1024, 7, 3),
    Layer("resnext50", 32, 256, 256, 56, 3, 2),
)
HOLD_OUT = (
    Layer("hold_out", 37, 37, 37, 45, 5, 1, 1, 16),
    Layer("hold_out", 100, 100, 100, 31, 3, 1, 2, 16),
    Layer("hold_out", 48, 48, 96, 33, 3, 2, 1, 16),
    Layer("hold_out", 68, 68, 68, 63, 7, 2, 1, 16),
    Layer("hold_out", 16, 96, 96, 37, 5, 1, 1, 16),
    Layer("hold_out", 20, 240, 160, 25, 3, 1, 1, 16),
)


class Problem(NamedTuple):
    """A layer in a direction, a type and an order."""

    layer: Layer
    direction: str
    kind: str
    tag: str

    @property
    def op(self) -> Any:
        """The operation."""
        a = self.layer
        src = dnn.MemoryDesc((a.batch, a.inputs, a.size, a.size), self.kind, self.tag)
        dst = dnn.MemoryDesc((a.batch, a.outputs, a.out, a.out), self.kind, self.tag)
        dims = (a.groups, a.outputs // a.groups, a.inputs // a.groups, a.kernel, a.kernel)
        weights = dnn.MemoryDesc(dims, self.kind, "goihw")
        window = {
            "strides": (a.stride, a.stride),
            "padding_l": (a.padding, a.padding),
            "dilations": (a.dilation - 1, a.dilation - 1),
        }
        if self.direction == "forward":
            return dnn.ConvolutionForward(
                "forward_training", src=src, weights=weights, dst=dst, **window
            )
        if self.direction == "data":
            return dnn.ConvolutionBackwardData(
                diff_src=src, weights=weights, diff_dst=dst, **window
            )
        return dnn.ConvolutionBackwardWeights(src=src, diff_weights=weights, diff_dst=dst, **window)


def problems(kinds: list[str], layers: tuple[Layer, ...]) -> Iterator[Problem]:
    """All, those of one row after each other."""
    for layer in layers:
        for kind in kinds:
            for direction in DIRECTIONS:
                for tag in TAGS:
                    yield Problem(layer, direction, kind, tag)


class Torch:
    """A layer's tensors and results on CUDA."""

    def __init__(self, layer: Layer, kind: str) -> None:
        import torch

        self.torch, self.layer, self.kind = torch, layer, kind
        torch.backends.cudnn.benchmark = True
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
        self.dtype = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[kind]
        a = layer
        dims = (a.outputs, a.inputs // a.groups, a.kernel, a.kernel)
        self.src = self._drawn(a.batch, a.inputs, a.size, a.size)
        self.dst = self._drawn(a.batch, a.outputs, a.out, a.out)
        self.weights = self._drawn(*dims)
        self.exact = {name: self._call(name, wide=True)() for name in DIRECTIONS}

    def _drawn(self, *dims: int) -> Any:
        return self.torch.randn(dims, device="cuda").to(self.dtype)

    def _call(self, direction: str, order: Any = None, *, wide: bool = False) -> Any:
        torch, a = self.torch, self.layer
        tensors = [self.src, self.dst, self.weights]
        if wide:
            tensors = [tensor.double() for tensor in tensors]
        if order is not None:
            tensors = [tensor.contiguous(memory_format=order) for tensor in tensors]
        src, dst, weights = tensors
        window = ([a.stride] * 2, [a.padding] * 2, [a.dilation] * 2)
        if direction == "forward":
            return lambda: torch.convolution(src, weights, None, *window, False, [0, 0], a.groups)
        mask = [direction == "data", direction == "weights", False]
        place = DIRECTIONS.index(direction) - 1
        return lambda: torch.ops.aten.convolution_backward(
            dst, src, weights, None, *window, False, [0, 0], a.groups, mask
        )[place]

    def seconds(self, direction: str) -> float:
        """Of a call in a graph, in the faster order."""
        torch = self.torch
        return min(
            self._graph_seconds(self._call(direction, order))
            for order in (torch.contiguous_format, torch.channels_last)
        )

    def _graph_seconds(self, call: Any) -> float:
        torch, count = self.torch, CALLS
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(count):
                call()
        return sampled(graph.replay, torch.cuda.synchronize) / count


def sampled(call: Any, wait: Any) -> float:
    """The median seconds of a call of many, over samples."""
    found, count = [], 1
    for sample in range(SAMPLES + 2):
        start = time.perf_counter()
        for _ in range(count):
            call()
        wait()
        seconds = (time.perf_counter() - start) / count
        if sample >= 2:
            found.append(seconds)
        count = max(3, min(2000, round(SECONDS / SAMPLES / seconds)))
    return sorted(found)[len(found) // 2]


def measured(problem: Problem, given: Torch, engine: Any, impl: str | None) -> tuple[Any, ...]:
    """The implementation, the seconds and the error of dnncore."""
    stream = engine.stream()
    pd = dnn.PrimitiveDesc(problem.op, engine, impl=impl)
    roles = {"src": given.src, "diff_dst": given.dst, "weights": given.weights}
    memories = {}
    for argument, desc in pd.op.tensors():
        if argument.direction == "out":
            memories[argument.name] = dnn.Memory(desc, engine)
            continue
        array = roles[argument.name].float().cpu().numpy().reshape(desc.dims)
        plain = dnn.Memory.from_numpy(array, dnn.MemoryDesc(desc.dims, "f32", None), engine)
        memories[argument.name] = dnn.reorder(plain, desc, engine, stream)
    run = pd.primitive().bind(**memories)
    run(stream)
    (result,) = (memories[row.name] for row, _ in pd.op.tensors() if row.direction == "out")
    wide = dnn.MemoryDesc(result.desc.dims, "f32", None)
    got = dnn.reorder(result, wide, engine, stream)
    stream.wait()
    torch, exact = given.torch, given.exact[problem.direction]
    values = torch.from_numpy(got.numpy()).cuda().double().reshape(exact.shape)
    error = float((values - exact).norm() / exact.norm())
    calls = dnn.Sequence([run] * CALLS)
    return pd.impl_name, sampled(lambda: calls(stream), stream.wait) / CALLS, error


@click.command()
@click.option("--engine", "name", default="gpu")
@click.option("--build", is_flag=True, help="Compile only.")
@click.option("--shard", default="0/1", help="Of --build: which part of how many.")
@click.option("--kinds", default="f32,f16,bf16")
@click.option("--impl", default=None, help="A pattern of implementations.")
@click.option("--match", default="", help="A part of the layers' names.")
@click.option("--hold-out", "hold_out", is_flag=True, help="Layers of no network.")
def main(
    name: str, build: bool, shard: str, kinds: str, impl: str | None, match: str, hold_out: bool
) -> None:
    """Print rows, and geometric means."""
    engine = dnn.engine(name)
    layers = tuple(a for a in (HOLD_OUT if hold_out else LAYERS) if match in a.net)
    wanted = list(problems(kinds.split(","), layers))
    if build:
        place, count = map(int, shard.split("/"))
        for problem in wanted[place::count]:
            dnn.PrimitiveDesc(problem.op, engine, impl=impl).primitive()
        return
    ratios: dict[tuple[str, str, str], list[float]] = {}
    given = None
    for first, second in zip(wanted[::2], wanted[1::2], strict=True):
        layer, direction, kind, _ = first
        if given is None or (given.layer, given.kind) != (layer, kind):
            given = Torch(layer, kind)
        rows = [measured(problem, given, engine, impl) for problem in (first, second)]
        peer = given.seconds(direction)
        ratio = peer / min(row[1] for row in rows)
        family = "depthwise" if layer.groups == layer.inputs else "grouped"
        ratios.setdefault((family, direction, kind), []).append(ratio)
        text = "  ".join(f"{r[0]:22} {r[1] * 1e6:7.1f} us {r[2]:.0e}" for r in rows)
        shape = f"{layer.groups}g {layer.inputs}-{layer.outputs}@{layer.size} k{layer.kernel}"
        shape += f"s{layer.stride}d{layer.dilation}"
        print(f"{layer.net:15} {shape:28} {direction:8} {kind:5} {text}  peer {peer * 1e6:7.1f}"
              f" ratio {ratio:.2f}", flush=True)  # fmt: skip
    for key, found in ratios.items():
        mean = math.exp(sum(map(math.log, found)) / len(found))
        print(f"{' '.join(key):28} mean {mean:.2f} least {min(found):.2f}")


if __name__ == "__main__":
    main()
