"""A tape of layers for training: each layer adds primitives to a forward and a backward pass.

`Tape` is shared by the examples that train a network of the newer operations. A layer's method
takes and returns `Tensor`s, binds the forward primitive at once, and records how its gradients are
made. `Tape.finish` makes the backward pass, which adds the gradients of a tensor that several
layers read, and the update of the parameters. All three are instances of `dnncore.Sequence`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import dnncore as dnn

FIRST_DECAY, SECOND_DECAY = 0.9, 0.99  # of Adam; the first step is then exactly the rate
TINY = 1e-8  # Adam's epsilon


@dataclass(eq=False)
class Tensor:
    """A value on the engine, and its gradient as soon as the backward pass is made.

    needs_gradient: whether a parameter or an earlier layer reads the gradient.
    gradient_is_shared: whether the memory is another tensor's gradient, too.
    """

    value: dnn.Memory
    gradient: dnn.Memory | None = None
    needs_gradient: bool = True
    gradient_is_shared: bool = False

    @property
    def dims(self) -> tuple[int, ...]:
        """The dims of the value."""
        return self.value.desc.dims


@dataclass(eq=False)
class Step:
    """One bound primitive: the layer's name, the descriptor, the memories."""

    name: str
    pd: dnn.PrimitiveDesc
    arguments: dict[str, dnn.Memory]
    call: dnn.BoundPrimitive


@dataclass(eq=False)
class Tape:
    """The layers of one network on one engine.

    engine: the engine of all primitives.
    trained: another tape with the same layers. This one reads its parameters and states, has its
        stream and only a forward pass, for inference.
    seed: of the first values of the parameters.
    parameters, states: the tensors that training changes by gradients or otherwise, in the order
        of the layers.
    """

    engine: dnn.Engine
    trained: Tape | None = None
    seed: int = 0
    parameters: list[Tensor] = field(default_factory=list)
    states: list[dnn.Memory] = field(default_factory=list)
    forward_steps: list[Step] = field(default_factory=list)
    backward_steps: list[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        # one stream, so that a pass reads the parameters after the training has changed them
        self.stream = self.trained.stream if self.trained else self.engine.stream()
        self.random = np.random.default_rng(self.seed)
        self.steps = self.forward_steps
        self.gradients: list[Callable[[], None]] = []

    # -- tensors ------------------------------------------------------------------------------

    def memory(self, dims: tuple[int, ...], data_type: str = "f32") -> dnn.Memory:
        """A memory in the plain format."""
        return dnn.Memory(dnn.MemoryDesc(dims, data_type), self.engine)

    def tensor(self, dims: tuple[int, ...]) -> Tensor:
        """A tensor that a layer writes."""
        return Tensor(self.memory(dims))

    def source(self, dims: tuple[int, ...]) -> Tensor:
        """A tensor that the program writes. It has no gradient."""
        return Tensor(self.memory(dims), needs_gradient=False)

    def view(self, memory: dnn.Memory, desc: dnn.MemoryDesc) -> dnn.Memory:
        """A memory with the same bytes in another layout."""
        found = dnn.Memory(desc, self.engine, buffer=memory.buffer)
        found.owner = memory  # the bytes live as long as the view
        return found

    def parameter(self, values: np.ndarray) -> Tensor:
        """A tensor that training changes by gradients, with its first values."""
        if self.trained:
            found = self.trained.parameters[len(self.parameters)]
        else:
            found = Tensor(self._from(values))
        self.parameters.append(found)
        return found

    def state(self, values: np.ndarray) -> dnn.Memory:
        """A tensor that forward passes of the training change, with its first values."""
        found = self.trained.states[len(self.states)] if self.trained else self._from(values)
        self.states.append(found)
        return found

    def _from(self, values: np.ndarray) -> dnn.Memory:
        return dnn.Memory.from_numpy(np.array(values, np.float32), engine=self.engine)

    def normal(self, dims: tuple[int, ...], fan_in: int, gain: float = 1.0) -> Tensor:
        """A parameter of normal random values with the deviation gain / sqrt(fan_in)."""
        return self.parameter(gain / np.sqrt(fan_in) * self.random.standard_normal(dims))

    def zeros(self, *dims: int) -> Tensor:
        """A parameter of zeros."""
        return self.parameter(np.zeros(dims))

    def ones(self, *dims: int) -> Tensor:
        """A parameter of ones."""
        return self.parameter(np.ones(dims))

    def write(self, memory: dnn.Memory, values: np.ndarray) -> None:
        """Copy an array into a memory, as f32."""
        with memory.map(self.stream, "w") as buffer:
            memory.desc.pack(np.asarray(values, np.float32), buffer)

    def read(self, memory: dnn.Memory) -> np.ndarray:
        """Copy a memory into an array."""
        return np.array(memory.numpy(self.stream))

    def reshaped(self, src: Tensor, dims: tuple[int, ...]) -> Tensor:
        """A tensor of the same bytes with other dims."""
        dst = Tensor(self.view(src.value, dnn.MemoryDesc(dims)))
        self.record(lambda: self.flow(src, self.view(dst.gradient, src.value.desc)))
        return dst

    # -- primitives ---------------------------------------------------------------------------

    @property
    def prop_kind(self) -> str:
        """The prop kind of forward operations."""
        return "forward_inference" if self.trained else "forward_training"

    def choose(self, op: Any, **options: Any) -> dnn.PrimitiveDesc:
        """The primitive descriptor of an operation on this engine.

        The CPU computes operations that the engine lacks.
        """
        return dnn.PrimitiveDesc(op, self.engine, host_fallback=True, **options)

    def add(self, name: str, pd: dnn.PrimitiveDesc, **given: dnn.Memory) -> dict[str, dnn.Memory]:
        """Bind a primitive as the next step. Memories that are not given are made."""
        memories = {
            argument.name: given.get(argument.name) or dnn.Memory(desc, self.engine)
            for argument, desc in pd.arguments
        }
        self.steps.append(Step(name, pd, memories, pd.primitive().bind(**memories)))
        return memories

    def record(self, gradient: Callable[[], None]) -> None:
        """Call a function when the backward pass is made, after those of later layers."""
        self.gradients.append(gradient)

    def flow(self, tensor: Tensor, gradient: dnn.Memory, is_shared: bool = False) -> None:
        """Add a gradient to those that the tensor already has.

        is_shared: whether the memory is the gradient of several tensors, so that no later step may
            write to it.
        """
        if tensor.gradient is None:
            tensor.gradient, tensor.gradient_is_shared = gradient, is_shared
            return
        desc = gradient.desc
        both = self.choose(dnn.Sum((1, 1), srcs=(desc, desc), dst=desc))
        place = {} if tensor.gradient_is_shared else {"dst": tensor.gradient}
        found = self.add("sum of gradients", both, src0=tensor.gradient, src1=gradient, **place)
        tensor.gradient, tensor.gradient_is_shared = found["dst"], False

    # -- the passes ---------------------------------------------------------------------------

    def finish(self, result: Tensor, rate: float = 0.0) -> None:
        """Make the passes. The program writes the gradient of `result` before the backward pass.

        rate: of Adam, the size of a step of each parameter.
        """
        self.forward = dnn.Sequence(step.call for step in self.forward_steps)
        if self.trained:
            return
        result.gradient = dnn.Memory(result.value.desc, self.engine)
        self.steps = self.backward_steps
        for gradient in reversed(self.gradients):
            gradient()
        self.backward = dnn.Sequence(step.call for step in self.backward_steps)
        self.update = dnn.Sequence(
            call for parameter in self.parameters for call in self._adam(parameter, rate)
        )

    def _adam(self, parameter: Tensor, rate: float) -> list[dnn.BoundPrimitive]:
        """value -= rate * mean / (sqrt(square) + TINY), with decaying means of gradients.

        Without the usual correction of the first steps: mean / sqrt(square) is 1 in the first step
        since 1 - FIRST_DECAY is sqrt(1 - SECOND_DECAY).
        """
        value, gradient = parameter.value, parameter.gradient
        desc = value.desc
        mean, square, work = (dnn.Memory(desc, self.engine) for _ in range(3))
        mean.fill(0)
        square.fill(0)
        calls = []

        def add(op: Any, attr: dnn.Attributes | None = None, **memories: dnn.Memory) -> None:
            calls.append(self.choose(op, attr=attr).primitive().bind(**memories))

        def weighted(first: float, second: float) -> dnn.Sum:
            return dnn.Sum((first, second), srcs=(desc, desc), dst=desc)

        pair = {"src0": desc, "src1": desc, "dst": desc}
        add(weighted(FIRST_DECAY, 1 - FIRST_DECAY), src0=mean, src1=gradient, dst=mean)
        add(dnn.Binary("mul", **pair), src0=gradient, src1=gradient, dst=work)
        add(weighted(SECOND_DECAY, 1 - SECOND_DECAY), src0=square, src1=work, dst=square)
        plus_tiny = dnn.Attributes(post_ops=[dnn.PostOp.eltwise("linear", alpha=1, beta=TINY)])
        root = dnn.EltwiseForward("forward_inference", "sqrt", src=desc, dst=desc)
        add(root, plus_tiny, src=square, dst=work)
        step = [dnn.PostOp.eltwise("linear", alpha=-rate), dnn.PostOp.sum()]
        add(
            dnn.Binary("div", **pair), dnn.Attributes(post_ops=step),
            src0=mean, src1=work, dst=value,
        )  # fmt: skip
        return calls

    def errors(self):
        """Each step with its largest norm-wise error, compared with the reference."""
        for step in [*self.forward_steps, *self.backward_steps]:
            found = dnn.against_reference(step.pd, step.arguments, self.stream)
            yield step, max(found.values(), key=lambda comparison: comparison.error)
