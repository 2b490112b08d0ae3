"""Train the first layers of AlexNet: convolution, relu, LRN and max pooling, forward and backward.

The user's tensors have plain formats (nchw, oihw, x). The convolution and the pooling select their
formats. The layers between them use the format that the convolution selected. `Net._add` adds a
reorder if a user's tensor does not have the format of the primitive.

    python examples/cnn_training_f32.py
    python examples/cnn_training_f32.py --engine opencl:0 --compare reference
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import click
import numpy as np
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

import dnncore as dnn

BATCH = 8
SRC = (3, 227, 227)  # channels, rows, columns
WEIGHTS = (96, 3, 11, 11)
CONVOLVED = (96, 55, 55)
POOLED = (96, 27, 27)
STRIDES = {"strides": (4, 4)}
LRN = {"local_size": 5, "alpha": 1e-4, "beta": 0.75, "k": 1.0}
WINDOW = {"kernel": (3, 3), "strides": (2, 2)}
PERIOD = 1637  # the data are 0, 1, ..., 1636, 0, 1, ... in row-major order


@dataclass
class Step:
    """One primitive of the net, and its memories by argument name."""

    name: str
    pd: dnn.PrimitiveDesc
    memories: dict[str, dnn.Memory]
    call: dnn.BoundPrimitive

    def __getitem__(self, argument: str) -> dnn.Memory:
        """The memory of one argument."""
        return self.memories[argument]

    @property
    def is_reorder(self) -> bool:
        """Whether this step is a reorder."""
        return isinstance(self.pd.op, dnn.Reorder)


class Net:
    """The net for one batch size on one engine, ready to run.

    wishes: keyword arguments of `dnn.PrimitiveDesc` for every primitive, such as impl=.

    The user's memories are the inputs `src`, `weights`, `bias`, `diff_dst` and the outputs `dst`,
    `diff_weights`, `diff_bias`. `forward` and `backward` are sequences of the calls in
    `forward_steps` and `backward_steps`.
    """

    def __init__(self, engine: dnn.Engine, batch: int = BATCH, **wishes: object) -> None:
        self.engine = engine
        self.batch = batch
        self.wishes = wishes
        self.src = self._counting((batch, *SRC))
        self.weights = self._counting(WEIGHTS)
        self.bias = self._counting(WEIGHTS[:1])
        self.diff_dst = self._counting((batch, *POOLED))
        self.dst = dnn.Memory(self.diff_dst.desc, engine)
        self.diff_weights = dnn.Memory(self.weights.desc, engine)
        self.diff_bias = dnn.Memory(self.bias.desc, engine)
        self.steps: list[Step] = []
        self._add_forward()
        self.forward_steps, self.steps = self.steps, []
        self._add_backward(*(step for step in self.forward_steps if not step.is_reorder))
        self.backward_steps = self.steps
        self.steps = self.forward_steps + self.backward_steps
        self.forward = self._sequence(self.forward_steps)
        self.backward = self._sequence(self.backward_steps)

    def step(self, stream: dnn.Stream) -> dnn.Event:
        """Launch one iteration: the gradients of the weights and of the bias from src."""
        self.forward(stream)
        # A real program computes diff_dst from dst here.
        return self.backward(stream)
        # A real program then updates weights and bias with diff_weights and diff_bias.

    # -- layers ---------------------------------------------------------------------------------

    def _add_forward(self) -> None:
        convolution = self._add(
            "convolution",
            dnn.ConvolutionForward(
                "forward_training", src=_any(self.batch, *SRC), weights=_any(*WEIGHTS),
                bias=self.bias.desc, dst=_any(self.batch, *CONVOLVED), **STRIDES,
            ),
            src=self.src, weights=self.weights, bias=self.bias,
        )  # fmt: skip
        # Up to the pooling, tensors have the format that the convolution selected for its dst.
        desc = convolution["dst"].desc
        relu = self._add(
            "relu",
            dnn.EltwiseForward("forward_training", "relu", src=desc, dst=desc),
            src=convolution["dst"],
        )
        lrn = self._add(
            "lrn",
            dnn.LRNForward("forward_training", "across_channels", src=desc, dst=desc, **LRN),
            src=relu["dst"],
        )
        self._add(
            "pooling",
            dnn.PoolingForward(
                "forward_training", "max", src=desc, dst=_any(self.batch, *POOLED), **WINDOW
            ),
            src=lrn["dst"], dst=self.dst,
        )  # fmt: skip

    def _add_backward(self, convolution: Step, relu: Step, lrn: Step, pooling: Step) -> None:
        """Each backward primitive gets the forward descriptor as hint, and its workspace."""
        desc = lrn["dst"].desc
        pooling_backward = self._add(
            "pooling backward",
            dnn.PoolingBackward("max", diff_src=desc, diff_dst=pooling["dst"].desc, **WINDOW),
            hint=pooling.pd,
            diff_dst=self.diff_dst, workspace=pooling["workspace"],
        )  # fmt: skip
        lrn_backward = self._add(
            "lrn backward",
            dnn.LRNBackward("across_channels", src=desc, diff_dst=desc, diff_src=desc, **LRN),
            hint=lrn.pd,
            src=relu["dst"], diff_dst=pooling_backward["diff_src"], workspace=lrn["workspace"],
        )  # fmt: skip
        relu_backward = self._add(
            "relu backward",
            dnn.EltwiseBackward("relu", src=desc, diff_dst=desc, diff_src=desc),
            hint=relu.pd,
            src=convolution["dst"], diff_dst=lrn_backward["diff_src"],
        )  # fmt: skip
        self._add(
            "convolution backward weights",
            dnn.ConvolutionBackwardWeights(
                src=_any(self.batch, *SRC), diff_weights=_any(*WEIGHTS),
                diff_bias=self.bias.desc, diff_dst=_any(self.batch, *CONVOLVED), **STRIDES,
            ),
            hint=convolution.pd,
            src=convolution["src"], diff_dst=relu_backward["diff_src"],
            diff_weights=self.diff_weights, diff_bias=self.diff_bias,
        )  # fmt: skip

    # -- building blocks ------------------------------------------------------------------------

    def _counting(self, dims: tuple[int, ...]) -> dnn.Memory:
        """A memory in the plain format with the values 0, 1, ..., PERIOD - 1, 0, 1, ..."""
        values = np.resize(np.arange(PERIOD, dtype=np.float32), dims)
        return dnn.Memory.from_numpy(values, engine=self.engine)

    def _add(
        self, name: str, op: dnn.Operation, *, hint: dnn.PrimitiveDesc | None = None,
        **given: dnn.Memory,
    ) -> Step:  # fmt: skip
        """Append the best primitive for `op`, and reorders for memories in other formats.

        given: memories by argument name. If a memory does not have the selected format, an input is
            reordered before the primitive, and an output after it. Missing memories are made here.
        """
        pd = self._choose(op, hint)
        memories, before, after = dict(given), [], []
        for argument, desc in pd.arguments:
            memory = given.get(argument.name)
            if memory is not None and not pd.needs_reorder(memory, argument.name):
                continue
            made = memories[argument.name] = dnn.Memory(desc, self.engine)
            label = f"reorder {argument.name} of {name}"
            if memory is not None and argument.direction == "in":
                before.append((label, memory, made))
            elif memory is not None:
                after.append((label, made, memory))
        for reorder in before:
            self._add_reorder(*reorder)
        step = self._append(name, pd, memories)
        for reorder in after:
            self._add_reorder(*reorder)
        return step

    def _add_reorder(self, name: str, src: dnn.Memory, dst: dnn.Memory) -> None:
        pd = self._choose(dnn.Reorder(src=src.desc, dst=dst.desc))
        self._append(name, pd, {"src": src, "dst": dst})

    def _choose(self, op: dnn.Operation, hint: dnn.PrimitiveDesc | None = None):
        return dnn.PrimitiveDesc(op, self.engine, hint=hint, **self.wishes)

    def _sequence(self, steps: list[Step]) -> dnn.Sequence:
        return dnn.Sequence(step.call for step in steps)

    def _append(self, name: str, pd: dnn.PrimitiveDesc, memories: dict[str, dnn.Memory]) -> Step:
        self.steps.append(Step(name, pd, memories, pd.primitive().bind(**memories)))
        return self.steps[-1]


def _any(*dims: int) -> dnn.MemoryDesc:
    """A descriptor whose format the implementation selects."""
    return dnn.MemoryDesc(dims, "f32", "any")


# -- the command line ------------------------------------------------------------------------------


def measure(net: Net, iterations: int) -> tuple[float, list[float]]:
    """The median seconds of a whole iteration, and of each primitive alone."""
    stream = net.engine.stream()

    def seconds(call) -> float:
        start = time.perf_counter()
        call(stream)
        stream.wait()
        return time.perf_counter() - start

    calls = [net.step, *(step.call for step in net.steps)]
    seconds(net.step)  # the first run fills caches
    samples = [[seconds(call) for call in calls] for _ in range(iterations)]
    total, *parts = (statistics.median(taken) for taken in zip(*samples, strict=True))
    return total, parts


def errors(net: Net) -> list[dnn.Comparison]:
    """The worst output of each primitive, compared with the reference on the same inputs."""
    stream = net.engine.stream()
    found = []
    for step in net.steps:
        outputs = dnn.against_reference(step.pd, step.memories, stream).values()
        found.append(max(outputs, key=lambda output: (not output.ok, output.error)))
    return found


def formats(pd: dnn.PrimitiveDesc) -> str:
    """The format tags of inputs and outputs: "acdb, Acdb16a, a -> aBcd16b"."""
    tags = {"in": [], "out": []}
    for argument, desc in pd.arguments:
        tags[argument.direction].append(desc.tag or "strided")
    return " -> ".join(map(", ".join, tags.values()))


def report(net: Net, total: float, parts: list[float], checks: list[dnn.Comparison]) -> Table:
    """One row per primitive in the order of execution; `checks` may be empty."""
    reorders = sum(step.is_reorder for step in net.steps)
    table = Table(
        title=f"AlexNet's first layers, batch {net.batch}, on {net.engine.name}"
        f" ({net.engine.device.name})",
        caption="Formats list the dims a b c d from the outermost to the innermost in memory:"
        " abcd is nchw or oihw;\naBcd16b has blocks of 16 adjacent channels.",
        title_justify="left", caption_justify="left", box=SIMPLE, padding=(0, 1, 0, 0),
    )  # fmt: skip
    for column in ("primitive", "implementation", "formats: read -> written", "ms"):
        table.add_column(column, justify="right" if column == "ms" else "left")
    if checks:
        table.add_column("error", justify="right")
        table.add_column("worst at")
    for i, (step, seconds) in enumerate(zip(net.steps, parts, strict=True)):
        row = [step.name, step.pd.impl_name, formats(step.pd), f"{seconds * 1e3:.3f}"]
        table.add_row(*row, *verdict(checks[i] if checks else None))
    table.add_section()
    table.add_row("the whole iteration", "", f"{reorders} reorders inserted", f"{total * 1e3:.3f}")
    return table


def verdict(check: dnn.Comparison | None) -> tuple[str, ...]:
    """The cells for a comparison."""
    if check is None:
        return ()
    place = ",".join(map(str, check.index)) if check.error else ""
    return f"{check.error:.1e}" + ("" if check.ok else " WRONG"), place


@click.command()
@click.option("--engine", "name", default="cpu", show_default=True, help="Such as gpu or opencl:1.")
@click.option("--batch", default=BATCH, show_default=True, type=click.IntRange(1),
              help="The number of images.")  # fmt: skip
@click.option("--iterations", default=10, show_default=True, type=click.IntRange(1),
              help="The number of measured iterations.")  # fmt: skip
@click.option("--compare", type=click.Choice(["reference"]),
              help="Compare every primitive with the reference.")  # fmt: skip
@click.option("--host-fallback", is_flag=True,
              help="Let the CPU compute operations that the engine lacks.")  # fmt: skip
def main(name: str, batch: int, iterations: int, compare: str | None, host_fallback: bool) -> None:
    """Run iterations and print the implementation and the time of each primitive."""
    try:
        net = Net(dnn.engine(name), batch, host_fallback=host_fallback or None)
    except (dnn.BackendNotFound, dnn.EngineUnavailable, dnn.NoImplementation) as error:
        raise click.ClickException(str(error)) from None
    total, parts = measure(net, iterations)
    checks = errors(net) if compare else []
    Console(width=140).print(report(net, total, parts, checks))
    if compare:
        wrong = [step.name for step, c in zip(net.steps, checks, strict=True) if not c.ok]
        print(f"against the reference: {'WRONG: ' + ', '.join(wrong) if wrong else 'all agree'}")
        raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
