"""Inference in 8-bit integers: train in f32, calibrate, quantize, run, compare.

The network is that of train_digits.py. A quantized tensor represents numbers by integers of 8 bits
and a scale: number = scale * integer. Such tensors take a quarter of the memory, and processors
multiply them faster than f32. The price is rounding.

    python examples/int8_inference.py                     # the CPU and every OpenCL device
    python examples/int8_inference.py --engine opencl:0

The steps are:

1. Train. The weights are f32.
2. Calibrate: run images through the f32 network and note the largest output of each layer. It
   determines the scale of the layer's output.
3. Quantize the weights. Each output channel has a scale of its own.
4. Run. A layer reads integers and writes integers. Only the scores of the digits are f32.

The program prints the time of each layer, and the error of its result: the norm of the difference
to the f32 network, divided by the norm of the result. It contains the errors of earlier layers.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from train_digits import BATCH, LEARNING_RATES, Digits, default_engines, opened
from train_digits import Network as Training

import dnncore as dnn

LARGEST_LOSS = 0.01  # of accuracy, from 0 to 1
LARGEST_U8, LARGEST_S8 = 255, 127
ROUNDS = 15  # of time measurements


# -- 1. training -----------------------------------------------------------------------------------


def trained(digits: Digits, epochs: int) -> list[np.ndarray]:
    """Train on the CPU. Returns weights and bias of conv1, conv2 and ip as arrays."""
    network = Training(dnn.engine("cpu"))
    order = np.random.default_rng(1)
    for epoch in range(epochs):
        rate = LEARNING_RATES[epoch * len(LEARNING_RATES) // epochs]
        samples = order.permutation(len(digits.train_images))
        for start in range(0, len(samples) - BATCH + 1, BATCH):
            rows = samples[start : start + BATCH]
            network.train(digits.train_images[rows], digits.train_labels[rows], rate)
    return [np.array(p.value.numpy(network.stream)) for p in network.parameters]


# -- 2. and 3. numbers and integers ----------------------------------------------------------------


def quantized(numbers: np.ndarray, scale: np.ndarray, data_type: type) -> np.ndarray:
    """The integers that represent numbers: the nearest ones, but not beyond the type's range."""
    limits = np.iinfo(data_type)
    return np.rint(numbers / scale).clip(limits.min, limits.max).astype(data_type)


def weights_scales(weights: np.ndarray) -> np.ndarray:
    """A scale per output channel, with dims (channels, 1, ...).

    Channels differ in size. With one scale for all of them, the small ones would be represented by
    few integers. The largest weight becomes 127 or -127.
    """
    largest = np.abs(weights).max(axis=tuple(range(1, weights.ndim)), keepdims=True)
    return (largest / LARGEST_S8).astype(np.float32)


def calibrated(parameters: list[np.ndarray], images: np.ndarray) -> dict[str, float]:
    """Run images on the CPU. Returns a scale for images and for each layer's output, by name.

    None of these numbers is negative: pixels are from 0 to 1, and relu removes negative outputs. So
    their type is u8, which uses all 256 integers for them. The largest number becomes 255. Tensors
    with negative numbers would be s8, or u8 with a zero point.
    """
    network = Inference(dnn.engine("cpu"), parameters, len(images))
    network.run(images)
    largest = {"images": images.max()}
    largest |= {layer.name: network.numbers(layer).max() for layer in network.layers}
    return {name: float(value) / LARGEST_U8 for name, value in largest.items()}


# -- 4. the network --------------------------------------------------------------------------------


@dataclass
class Layer:
    """A layer's name, primitive descriptor, bound call, result, and the scale of the result."""

    name: str
    pd: dnn.PrimitiveDesc
    call: dnn.BoundPrimitive
    dst: dnn.Memory
    scale: float


class Inference:
    """The forward pass on one engine: in f32, or in integers if scales are given."""

    def __init__(
        self,
        engine: dnn.Engine,
        parameters: list[np.ndarray],
        images: int,
        scales: dict[str, float] | None = None,
    ) -> None:
        self.engine, self.stream, self.scales = engine, engine.stream(), scales
        self.layers: list[Layer] = []
        self.calls: list[dnn.BoundPrimitive] = []
        self.scale = scales["images"] if scales else 1.0  # scale of the tensor that a layer reads
        self.src = dnn.Memory(self._desc((images, 1, 8, 8), "abcd"), engine)
        conv1, conv2, ip = zip(parameters[::2], parameters[1::2], strict=True)
        dst = self._convolution("conv1", self.src, *conv1)
        dst = self._pooling("pool1", dst)
        dst = self._convolution("conv2", dst, *conv2)
        dst = self._pooling("pool2", dst)
        self.scores = self._inner_product("ip", dst, *ip)
        self.sequence = dnn.Sequence(self.calls)

    def _desc(self, dims: tuple[int, ...], tag: str = "any") -> dnn.MemoryDesc:
        return dnn.MemoryDesc(dims, "u8" if self.scales else "f32", tag)

    def _convolution(self, name, src, weights, bias):
        n, c, h, w = src.desc.dims
        op = dnn.ConvolutionForward(
            "forward_inference",
            src=self._desc((n, c, h, w)),
            weights=self._weights_desc(weights),
            bias=dnn.MemoryDesc(bias.shape),
            dst=self._desc((n, len(weights), h, w)),
            strides=(1, 1),
            padding_l=(1, 1),
        )
        # The product of integers is exact. It becomes a number, which the scales of src and weights
        # multiply. Bias and relu follow in f32. Then the scale of dst divides the number, and it is
        # rounded to u8. All this is one primitive.
        post_ops = [dnn.PostOp.eltwise("relu")]
        scales = {"src": dnn.Scales(), "weights": dnn.Scales(mask=1), "dst": dnn.Scales()}
        attr = dnn.Attributes(post_ops=post_ops, scales=scales if self.scales else {})
        return self._product(name, op, attr, src, weights, bias)

    def _pooling(self, name, src):
        # The maximum of integers is exact, so the scale stays the same.
        n, c, h, w = src.desc.dims
        window = {"kernel": (2, 2), "strides": (2, 2)}
        dst = self._desc((n, c, h // 2, w // 2))
        op = dnn.PoolingForward("forward_inference", "max", src=src.desc, dst=dst, **window)
        return self._add(name, self._choose(op), src=src)

    def _inner_product(self, name, src, weights, bias):
        # The scores are f32. So dst has no scale.
        op = dnn.InnerProductForward(
            "forward_inference",
            src=self._desc(src.desc.dims),
            weights=self._weights_desc(weights),
            bias=dnn.MemoryDesc(bias.shape),
            dst=dnn.MemoryDesc((src.desc.dims[0], len(weights)), "f32", "any"),
        )
        scales = {"src": dnn.Scales(), "weights": dnn.Scales(mask=1)}
        attr = dnn.Attributes(scales=scales if self.scales else {})
        return self._product(name, op, attr, src, weights, bias)

    # -- building blocks -------------------------------------------------------------------------

    def _weights_desc(self, weights: np.ndarray) -> dnn.MemoryDesc:
        return dnn.MemoryDesc(weights.shape, "s8" if self.scales else "f32", "any")

    def _choose(self, op, attr=None):
        return dnn.PrimitiveDesc(op, self.engine, attr or dnn.Attributes())

    def _product(self, name, op, attr, src, weights, bias):
        """Add a convolution or an inner product, with its scales as arguments."""
        pd = self._choose(op, attr)
        arguments = {}
        if self.scales:
            own = weights_scales(weights)
            arguments["src_scales"] = self._of_numbers(self.scale, pd.src_scales_desc)
            arguments["weights_scales"] = self._of_numbers(own, pd.weights_scales_desc)
            weights = quantized(weights, own, np.int8)
        if "dst" in attr.scales:
            self.scale = self.scales[name]
            arguments["dst_scales"] = self._of_numbers(self.scale, pd.dst_scales_desc)
        elif self.scales:
            self.scale = 1.0
        plain = dnn.Memory.from_numpy(weights, engine=self.engine)
        arguments["weights"] = dnn.reorder(plain, pd.weights_desc, self.engine, self.stream)
        arguments["bias"] = self._of_numbers(bias, pd.bias_desc)
        return self._add(name, pd, src=self._placed(src, pd.src_desc), **arguments)

    def _of_numbers(self, numbers, desc: dnn.MemoryDesc) -> dnn.Memory:
        """A memory of f32. The values of scales are arguments, like tensors."""
        array = np.full(desc.dims, numbers, np.float32)
        return dnn.Memory.from_numpy(array, engine=self.engine)

    def _placed(self, memory, desc):
        """The memory, or a copy in the format that the next layer chose, made in each run."""
        if memory.desc == desc:
            return memory
        copy = dnn.Memory(desc, self.engine)
        pd = self._choose(dnn.Reorder(src=memory.desc, dst=desc))
        self.calls.append(pd.primitive().bind(src=memory, dst=copy))
        return copy

    def _add(self, name, pd, **arguments):
        dst = arguments["dst"] = dnn.Memory(pd.dst_desc, self.engine)
        call = pd.primitive().bind(**arguments)
        self.calls.append(call)
        self.layers.append(Layer(name, pd, call, dst, self.scale))
        return dst

    # -- running -----------------------------------------------------------------------------------

    def run(self, images: np.ndarray) -> np.ndarray:
        """The scores of the digits for each image."""
        if self.scales:
            images = quantized(images, self.scales["images"], np.uint8)
        with self.src.map(self.stream, "w") as buffer:
            self.src.desc.pack(images, buffer)
        self.sequence(self.stream)
        return np.array(self.scores.numpy(self.stream))

    def numbers(self, layer: Layer) -> np.ndarray:
        """The numbers that a layer's result represents."""
        return layer.dst.numpy(self.stream) * np.float32(layer.scale)

    def seconds(self) -> list[float]:
        """The least time of each layer."""
        found = []
        for layer in self.layers:
            times = []
            for _ in range(ROUNDS):
                start = time.perf_counter()
                layer.call(self.stream).wait()
                times.append(time.perf_counter() - start)
            found.append(min(times))
        return found


# -- comparison ------------------------------------------------------------------------------------


@dataclass
class Result:
    """What one engine computed: f32 first, then integers."""

    engine: dnn.Engine
    networks: tuple[Inference, Inference]
    scores: tuple[np.ndarray, np.ndarray]
    seconds: tuple[list[float], list[float]]
    errors: list[float]

    def accuracies(self, labels: np.ndarray) -> list[float]:
        """The shares of recognised images, from 0 to 1."""
        return [float((own.argmax(axis=1) == labels).mean()) for own in self.scores]


def compared(engine, parameters, scales, images) -> Result:
    """Run both networks on one engine."""
    exact = Inference(engine, parameters, len(images))
    integers = Inference(engine, parameters, len(images), scales)
    scores = exact.run(images), integers.run(images)
    errors = [
        float(np.linalg.norm(integers.numbers(own) - wanted) / np.linalg.norm(wanted))
        for own, wanted in zip(integers.layers, map(exact.numbers, exact.layers), strict=True)
    ]
    seconds = exact.seconds(), integers.seconds()
    return Result(engine, (exact, integers), scores, seconds, errors)


def table_of(result: Result) -> Table:
    """A table with a row for each layer."""
    title = f"{result.engine.name}: {result.engine.device.name}"
    table = Table(title=title, title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0))
    for column in ("layer", "in integers by", "f32 us", "int8 us", "faster", "error"):
        left = column in ("layer", "in integers by")
        table.add_column(column, justify="left" if left else "right", no_wrap=True)
    for layer, slow, fast, error in zip(
        result.networks[1].layers, *result.seconds, result.errors, strict=True
    ):
        table.add_row(
            layer.name, layer.pd.impl_name, f"{1e6 * slow:.0f}", f"{1e6 * fast:.0f}",
            f"{slow / fast:.1f} x", f"{100 * error:.2f} %",
        )  # fmt: skip
    return table


def plot(results: list[Result], path: Path) -> None:
    """Draw the times and the errors of the layers of all engines."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, grid = plt.subplots(
        2, len(results), figsize=(4.5 * len(results) + 1, 6.5), layout="constrained", squeeze=False
    )
    for column, result in enumerate(results):
        names = [layer.name for layer in result.networks[1].layers]
        places = np.arange(len(names))
        above, below = grid[:, column]
        for i, (label, seconds) in enumerate(zip(("f32", "int8"), result.seconds, strict=True)):
            times = [1e6 * own for own in seconds]
            above.bar(places + 0.4 * i - 0.2, times, 0.4, label=label)
        above.set(title=result.engine.name, ylabel="time, us", yscale="log")
        above.legend()
        below.bar(places, [100 * error for error in result.errors], 0.5, color="tab:red")
        below.set(ylabel="error of int8, % of the norm")
        for axes in (above, below):
            axes.set_xticks(places, names)
            axes.grid(axis="y", alpha=0.3)
    figure.savefig(path, dpi=120)


@click.command()
@click.option("--engine", "engines", multiple=True,
              help="Engine to run on; may be repeated. Default: the CPU and all OpenCL devices."
              )  # fmt: skip
@click.option("--epochs", default=9, show_default=True, type=click.IntRange(1),
              help="The number of passes of the training.")  # fmt: skip
@click.option("--plot", "picture", type=Path, default="int8.png", show_default=True,
              help="The file for the picture of times and errors.")  # fmt: skip
def main(engines, epochs, picture):
    """Run the digits in f32 and in 8-bit integers on each engine, and compare."""
    console = Console()
    digits = Digits.load()
    targets = opened(engines or default_engines())
    parameters = trained(digits, epochs)
    # The images for testing must not take part in the calibration.
    images = digits.test_images
    scales = calibrated(parameters, digits.train_images[: len(images)])
    results = [compared(engine, parameters, scales, images) for engine in targets]
    for result in results:
        console.print(table_of(result))
        exact, integers = result.accuracies(digits.test_labels)
        console.print(f"accuracy: f32 {100 * exact:.2f} %, int8 {100 * integers:.2f} %\n")
        if integers < exact - LARGEST_LOSS:
            raise click.ClickException("integers recognise too few images")
    # Sums of f32 depend on their order. Sums of integers do not, and docs/types.md fixes each
    # rounding after them. So all engines compute the same bits.
    if not all(np.array_equal(result.scores[1], results[0].scores[1]) for result in results):
        raise click.ClickException("the engines computed different scores in integers")
    console.print(f"int8 scores: the same bits on {', '.join(own.engine.name for own in results)}")
    size = sum(math.prod(p.shape) for p in parameters[::2])
    console.print(f"weights: {4 * size} bytes in f32, {size} bytes in s8")
    plot(results, picture)
    console.print(f"picture: {picture}")


if __name__ == "__main__":
    main()
