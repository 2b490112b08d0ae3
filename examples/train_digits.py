"""Train a convolutional network on handwritten digits, on one engine after the other.

The data are the 1,797 digits of scikit-learn (8x8 pixels). The network has two blocks of
convolution, relu and pooling with 32 and 64 channels, an inner product and a log-softmax. It is
trained by stochastic gradient descent with momentum. Instances of `dnncore.Sequence` compute the
forward pass, the backward pass and the update of the parameters. Python only computes the loss and
its gradient with respect to the log-probabilities.

    python examples/train_digits.py                       # the CPU and every OpenCL device
    python examples/train_digits.py --engine opencl:0
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

import click
import numpy as np
from rich.box import SIMPLE
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import dnncore as dnn

BATCH = 64
MOMENTUM = 0.9
LEARNING_RATES = (0.05, 0.02, 0.005)  # each rate is used for a third of the epochs


@dataclass
class Digits:
    """Images (n, 1, 8, 8) from 0 to 1, and labels. Every fifth sample is for testing."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray

    @classmethod
    def load(cls) -> Digits:
        """Load and split the data set."""
        from sklearn.datasets import load_digits

        data = load_digits()
        images = (data.images / 16).astype(np.float32)[:, None]
        held_out = np.arange(len(images)) % 5 == 0
        return cls(
            images[~held_out], data.target[~held_out], images[held_out], data.target[held_out]
        )


@dataclass
class Step:
    """One primitive of the network: its name, its descriptor, its memories and the bound call."""

    name: str
    pd: dnn.PrimitiveDesc
    arguments: dict[str, dnn.Memory]
    call: dnn.BoundPrimitive


@dataclass
class Parameter:
    """Weights or a bias in the user's plain format, and the velocity for the momentum."""

    value: dnn.Memory
    velocity: dnn.Memory
    gradient: dnn.Memory | None = None


@dataclass
class Network:
    """The forward and backward passes of the network for one batch size on one engine."""

    engine: dnn.Engine
    host_fallback: bool = False
    batch: int = BATCH
    seed: int = 0
    parameters: list[Parameter] = field(default_factory=list)
    copies: dict[tuple, dnn.Memory] = field(default_factory=dict)
    forward_steps: list[Step] = field(default_factory=list)
    backward_steps: list[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.stream = self.engine.stream()
        self.random = np.random.default_rng(self.seed)
        self.steps = self.forward_steps
        self.src = self._memory((self.batch, 1, 8, 8))
        backward = []
        dst = self._convolution("conv1", self.src, 32, backward, needs_diff_src=False)
        dst = self._pooling("pool1", self._relu("relu1", dst, backward), backward)
        dst = self._convolution("conv2", dst, 64, backward)
        dst = self._pooling("pool2", self._relu("relu2", dst, backward), backward)
        dst = self._inner_product("ip", dst, 10, backward)
        self.log_probabilities = self._log_softmax("softmax", dst, backward)
        self.diff_log_probabilities = dnn.Memory(self.log_probabilities.desc, self.engine)
        self.steps = self.backward_steps
        diff = self.diff_log_probabilities
        for layer in reversed(backward):
            diff = layer(diff)
        self.forward = dnn.Sequence(step.call for step in self.forward_steps)
        self.backward = dnn.Sequence(step.call for step in self.backward_steps)
        self.updates = {rate: self._updates(rate) for rate in LEARNING_RATES}

    # -- layers: each adds its forward primitive and appends its gradient to `backward` -----------

    def _convolution(self, name, src, channels, backward, needs_diff_src=True):
        n, c, h, w = src.desc.dims
        weights, bias = self._parameters((channels, c, 3, 3), fan_in=9 * c)
        plain = weights.value.desc
        geometry = {"strides": (1, 1), "padding_l": (1, 1)}
        pd = self._choose(
            dnn.ConvolutionForward(
                "forward_training", src=_any(src.desc), weights=_any(plain), bias=bias.value.desc,
                dst=_any(src.desc, (n, channels, h, w)), **geometry,
            )
        )  # fmt: skip
        src = self._placed(f"{name} src", src, pd.src_desc)
        placed = self._placed(f"{name} weights", weights.value, pd.weights_desc)
        dst = self._add(name, pd, src=src, weights=placed, bias=bias.value)

        def gradient(diff_dst):
            by_weights = self._choose(
                dnn.ConvolutionBackwardWeights(
                    src=_any(src.desc), diff_weights=_any(plain), diff_bias=bias.value.desc,
                    diff_dst=_any(diff_dst.desc), **geometry,
                ),
                hint=pd,
            )  # fmt: skip
            self._add_weights_gradient(name, by_weights, src, diff_dst, weights, bias)
            if not needs_diff_src:
                return None
            by_data = self._choose(
                dnn.ConvolutionBackwardData(
                    diff_src=_any(src.desc), weights=_any(plain), diff_dst=_any(diff_dst.desc),
                    **geometry,
                ),
                hint=pd,
            )  # fmt: skip
            return self._add_data_gradient(name, by_data, weights, diff_dst)

        backward.append(gradient)
        return dst

    def _inner_product(self, name, src, channels, backward):
        dims = (channels, *src.desc.dims[1:])
        weights, bias = self._parameters(dims, fan_in=int(np.prod(dims[1:])))
        plain = weights.value.desc
        dst_desc = _any(src.desc, (self.batch, channels))
        pd = self._choose(
            dnn.InnerProductForward(
                "forward_training", src=_any(src.desc), weights=_any(plain),
                bias=bias.value.desc, dst=dst_desc,
            )
        )  # fmt: skip
        src = self._placed(f"{name} src", src, pd.src_desc)
        placed = self._placed(f"{name} weights", weights.value, pd.weights_desc)
        dst = self._add(name, pd, src=src, weights=placed, bias=bias.value)

        def gradient(diff_dst):
            by_weights = self._choose(
                dnn.InnerProductBackwardWeights(
                    src=_any(src.desc), diff_weights=_any(plain), diff_bias=bias.value.desc,
                    diff_dst=_any(diff_dst.desc),
                ),
                hint=pd,
            )  # fmt: skip
            self._add_weights_gradient(name, by_weights, src, diff_dst, weights, bias)
            by_data = self._choose(
                dnn.InnerProductBackwardData(
                    diff_src=_any(src.desc), weights=_any(plain), diff_dst=_any(diff_dst.desc)
                ),
                hint=pd,
            )
            return self._add_data_gradient(name, by_data, weights, diff_dst)

        backward.append(gradient)
        return dst

    def _relu(self, name, src, backward):
        desc = src.desc
        pd = self._choose(dnn.EltwiseForward("forward_training", "relu", src=desc, dst=desc))
        dst = self._add(name, pd, src=src, dst=src)  # in place; dst has the sign of src

        def gradient(diff_dst):
            diff_dst = self._placed(f"{name} diff_dst", diff_dst, desc)
            op = dnn.EltwiseBackward("relu", src=desc, diff_dst=desc, diff_src=desc)
            pd_backward = self._choose(op, hint=pd)
            return self._add(
                f"{name} backward", pd_backward, src=dst, diff_dst=diff_dst, diff_src=diff_dst
            )

        backward.append(gradient)
        return dst

    def _pooling(self, name, src, backward):
        n, c, h, w = src.desc.dims
        window = {"kernel": (2, 2), "strides": (2, 2)}
        dst_desc = _any(src.desc, (n, c, h // 2, w // 2))
        pd = self._choose(
            dnn.PoolingForward("forward_training", "max", src=src.desc, dst=dst_desc, **window)
        )
        workspace = dnn.Memory(pd.workspace_desc, self.engine)
        dst = self._add(name, pd, src=src, workspace=workspace)

        def gradient(diff_dst):
            op = dnn.PoolingBackward("max", diff_src=src.desc, diff_dst=dst.desc, **window)
            pd_backward = self._choose(op, hint=pd)
            diff_dst = self._placed(f"{name} diff_dst", diff_dst, pd_backward.diff_dst_desc)
            return self._add(
                f"{name} backward", pd_backward, diff_dst=diff_dst, workspace=workspace
            )

        backward.append(gradient)
        return dst

    def _log_softmax(self, name, src, backward):
        desc = src.desc
        pd = self._choose(
            dnn.SoftmaxForward("forward_training", "log", src=desc, dst=_any(desc), axis=1)
        )
        dst = self._add(name, pd, src=src)

        def gradient(diff_dst):
            op = dnn.SoftmaxBackward(
                "log", dst=dst.desc, diff_dst=dst.desc, diff_src=_any(desc), axis=1
            )
            return self._add(f"{name} backward", self._choose(op, hint=pd), dst=dst,
                             diff_dst=diff_dst)  # fmt: skip

        backward.append(gradient)
        return dst

    # -- building blocks ------------------------------------------------------------------------

    def _choose(self, op, hint=None):
        return dnn.PrimitiveDesc(op, self.engine, hint=hint, host_fallback=self.host_fallback)

    def _memory(self, dims):
        return dnn.Memory(dnn.MemoryDesc(dims), self.engine)

    def _parameters(self, dims, fan_in):
        """He-initialised weights and a zero bias, both in plain formats."""
        scale = np.sqrt(2 / fan_in)
        values = scale * self.random.standard_normal(dims), np.zeros(dims[0])
        found = []
        for value in values:
            memory = dnn.Memory.from_numpy(value.astype(np.float32), engine=self.engine)
            velocity = self._memory(value.shape)
            velocity.fill(0)
            found.append(Parameter(memory, velocity))
        self.parameters += found
        return found

    def _add(self, name, pd, **arguments):
        """Bind `pd` and make the outputs that are not given. Return its first output."""
        for argument, desc in pd.arguments:
            if argument.name not in arguments:
                arguments[argument.name] = dnn.Memory(desc, self.engine)
        call = pd.primitive().bind(**arguments)
        self.steps.append(Step(name, pd, arguments, call))
        return arguments[pd.op.result_name]

    def _placed(self, name, memory, desc):
        """The memory, or a copy in the format of `desc`, which a reorder updates in each step."""
        if memory.desc == desc:
            return memory
        if (memory, desc) not in self.copies:
            op = dnn.Reorder(src=memory.desc, dst=desc)
            copy = self._add(f"{name} reorder", self._choose(op), src=memory)
            self.copies[memory, desc] = copy
        return self.copies[memory, desc]

    def _add_weights_gradient(self, name, pd, src, diff_dst, weights, bias):
        src = self._placed(f"{name} src", src, pd.src_desc)
        diff_dst = self._placed(f"{name} diff_dst", diff_dst, pd.diff_dst_desc)
        bias.gradient = dnn.Memory(bias.value.desc, self.engine)
        diff_weights = self._add(
            f"{name} backward weights", pd, src=src, diff_dst=diff_dst, diff_bias=bias.gradient
        )
        weights.gradient = self._placed(f"{name} diff_weights", diff_weights, weights.value.desc)

    def _add_data_gradient(self, name, pd, weights, diff_dst):
        placed = self._placed(f"{name} weights", weights.value, pd.weights_desc)
        diff_dst = self._placed(f"{name} diff_dst", diff_dst, pd.diff_dst_desc)
        return self._add(f"{name} backward data", pd, weights=placed, diff_dst=diff_dst)

    def _updates(self, rate):
        """velocity = MOMENTUM * velocity + gradient; value = value - rate * velocity."""
        calls = []
        for p in self.parameters:
            desc = p.value.desc
            velocity = dnn.Sum((MOMENTUM, 1), srcs=(desc, desc), dst=desc)
            value = dnn.Sum((1, -rate), srcs=(desc, desc), dst=desc)
            calls.append(
                self._choose(velocity)
                .primitive()
                .bind(src0=p.velocity, src1=p.gradient, dst=p.velocity)
            )
            calls.append(
                self._choose(value).primitive().bind(src0=p.value, src1=p.velocity, dst=p.value)
            )
        return dnn.Sequence(calls)

    # -- running --------------------------------------------------------------------------------

    def predict(self, images):
        """Log-probabilities (batch, 10) of a full batch of images."""
        _write(self.src, images, self.stream)
        self.forward(self.stream)
        return np.array(self.log_probabilities.numpy(self.stream))

    def train(self, images, labels, rate):
        """One step of gradient descent. Returns the mean cross-entropy before the step."""
        log_probabilities = self.predict(images)
        rows = np.arange(self.batch)
        diff = np.zeros_like(log_probabilities)
        diff[rows, labels] = -1 / self.batch
        _write(self.diff_log_probabilities, diff, self.stream)
        self.backward(self.stream)
        self.updates[rate](self.stream)
        return -float(log_probabilities[rows, labels].mean(dtype=np.float64))

    def accuracy(self, images, labels):
        """The share of recognised images, from 0 to 1."""
        right = 0
        for start in range(0, len(images), self.batch):
            rows = np.arange(start, start + self.batch) % len(images)
            guesses = self.predict(images[rows]).argmax(axis=1)
            valid = min(self.batch, len(images) - start)
            right += int((guesses[:valid] == labels[rows[:valid]]).sum())
        return right / len(images)

    def errors(self):
        """The largest norm-wise error of each primitive, compared with the reference."""
        for step in [*self.forward_steps, *self.backward_steps]:
            found = dnn.against_reference(step.pd, step.arguments, self.stream)
            yield step, max(found.values(), key=lambda comparison: comparison.error)


def _any(desc, dims=None):
    return dnn.MemoryDesc(dims or desc.dims, desc.data_type, "any")


def _write(memory, array, stream):
    with memory.map(stream, "w") as buffer:
        memory.desc.pack(array, buffer)


@dataclass
class Result:
    """The results of training on one engine."""

    engine: dnn.Engine
    epoch_seconds: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)
    first_loss: float = 0.0
    checks: list = field(default_factory=list)


def train(engine, digits, epochs, host_fallback, console):
    """Train on one engine, with a progress bar per epoch, then check every primitive."""
    network = Network(engine, host_fallback)
    result = Result(engine)
    order = np.random.default_rng(1)
    batches = len(digits.train_images) // network.batch
    for epoch in range(epochs):
        rate = LEARNING_RATES[epoch * len(LEARNING_RATES) // epochs]
        samples = order.permutation(len(digits.train_images))
        start, losses = time.perf_counter(), []
        with _progress(console) as progress:
            bar = progress.add_task(f"{engine.name} epoch {epoch + 1:2}", total=batches, result="")
            for i in range(batches):
                rows = samples[i * network.batch : (i + 1) * network.batch]
                images, labels = digits.train_images[rows], digits.train_labels[rows]
                losses.append(network.train(images, labels, rate))
                progress.advance(bar)
            result.epoch_seconds.append(time.perf_counter() - start)
            result.losses.append(float(np.mean(losses)))
            result.accuracies.append(network.accuracy(digits.test_images, digits.test_labels))
            text = f"loss {result.losses[-1]:.4f}  accuracy {100 * result.accuracies[-1]:.2f} %"
            progress.update(bar, result=text)
        if epoch == 0:
            result.first_loss = losses[0]
    result.checks = list(network.errors())
    return result


def _progress(console):
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TimeElapsedColumn(),
        TextColumn("{task.fields[result]}"),
    )
    return Progress(*columns, console=console)


def summary(results):
    """A table with a row for each engine."""
    table = Table(
        title="Training the digits", title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0)
    )
    for column in ("engine", "device", "s / epoch", "first loss", "accuracy", "largest error"):
        table.add_column(column, justify="left" if column in ("engine", "device") else "right")
    for r in results:
        worst = max(comparison.error for _, comparison in r.checks)
        table.add_row(
            r.engine.name, r.engine.device.name, f"{np.median(r.epoch_seconds):.3f}",
            f"{r.first_loss:.6f}", f"{100 * r.accuracies[-1]:.2f} %", f"{worst:.1e}",
        )  # fmt: skip
    return table


def primitives(result):
    """A table of the primitives of one engine: implementations, and errors."""
    title = f"{result.engine.name}: norm-wise error against the reference on the same inputs"
    table = Table(title=title, title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0))
    for column in ("primitive", "implementation", "error", "worst at"):
        table.add_column(column, justify="right" if column == "error" else "left", no_wrap=True)
    for step, comparison in result.checks:
        index = ",".join(map(str, comparison.index)) if comparison.error else ""
        mark = "" if comparison.ok else " WRONG"
        table.add_row(step.name, step.pd.impl_name, f"{comparison.error:.1e}{mark}", index)
    return table


def plot(results, path):
    """Draw loss and accuracy of all engines over the epochs."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    styles = ("-", "--", ":", "-.")
    for i, r in enumerate(results):
        epochs = range(1, len(r.losses) + 1)
        width = 2.5 - 0.5 * (i % 4)  # different widths keep equal curves visible
        line = {"label": r.engine.name, "linestyle": styles[i % 4], "linewidth": width}
        left.semilogy(epochs, r.losses, **line)
        right.plot(epochs, [100 * a for a in r.accuracies], **line)
    left.set(title="training loss", xlabel="epoch", ylabel="cross-entropy per image")
    right.set(title="held-out accuracy", xlabel="epoch", ylabel="images recognised, %")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=120)


def default_engines():
    """The CPU and every OpenCL device that can be opened."""
    kinds = ("cpu", "opencl")
    return [d.name for d in dnn.devices() if d.status == "ok" and d.name.split(":")[0] in kinds]


def opened(names):
    """Open all engines with these names before the training begins."""
    try:
        return [dnn.engine(name) for name in names]
    except (dnn.BackendNotFound, dnn.EngineUnavailable) as error:
        raise click.ClickException(str(error)) from None


@click.command()
@click.option("--engine", "engines", multiple=True,
              help="Engine to train on; may be repeated. Default: the CPU and all OpenCL devices."
              )  # fmt: skip
@click.option("--epochs", default=15, show_default=True, type=click.IntRange(1),
              help="The number of passes over the training images.")  # fmt: skip
@click.option("--host-fallback", is_flag=True,
              help="Let the CPU compute operations that an engine lacks.")  # fmt: skip
@click.option("--plot", "picture", type=Path, default="digits.png", show_default=True,
              help="The file for the curves of loss and accuracy.")  # fmt: skip
def main(engines, epochs, host_fallback, picture):
    """Train the digits on each engine and compare."""
    console = Console()
    digits = Digits.load()
    results = []
    for engine in opened(engines or default_engines()):
        console.rule(f"{engine.name}: {engine.device.name}")
        results.append(train(engine, digits, epochs, host_fallback, console))
    console.print(*map(primitives, results), summary(results), sep="\n")
    plot(results, picture)
    console.print(f"curves: {picture}")


if __name__ == "__main__":
    main()
