"""AlexNet's training step with random values: dnncore, oneDNN and torch compute the same results.

The net is that of examples/cnn_training_f32.py. On the example's own data, 0 to 1636 in a row, the
results of the convolution reach 1e9. Then the base of LRN exceeds 7e12, the cube root of the
largest float32. The blocked LRN of oneDNN computes the cube, which is infinite, and returns 0. Here
weights are scaled as in training (He et al., https://arxiv.org/abs/1502.01852), so all values are
near 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

import dnncore as dnn
from benchmarks.contestants.contestant import Array, values_of
from examples.cnn_training_f32 import LRN, POOLED, SRC, STRIDES, WEIGHTS, WINDOW, Net

__all__ = ["DrawnNet", "TorchNet", "errors", "wrong"]

# Permitted norm-wise errors. In some pooling windows, two values differ by less than their errors.
# Then either value may become the maximum, and the gradient goes to another element.
FORWARD, GRADIENT = 1e-5, 2e-2
OUTPUTS = {
    "convolution": "dst", "relu": "dst", "lrn": "dst", "pooling": "dst",
    "pooling backward": "diff_src", "lrn backward": "diff_src", "relu backward": "diff_src",
}  # fmt: skip
RESULTS = ("diff_weights", "diff_bias")


def values(dims: tuple[int, ...], draw: int) -> Array:
    """The values of the user's tensor with these dims."""
    scale = math.sqrt(2 / math.prod(WEIGHTS[1:])) if dims == WEIGHTS else 1.0
    return values_of("net", dims, draw) * np.float32(scale)


class DrawnNet(Net):
    """The net on an engine, with random values."""

    def _counting(self, dims: tuple[int, ...]) -> dnn.Memory:
        return dnn.Memory.from_numpy(values(dims, 0), engine=self.engine)

    def refill(self, draw: int) -> None:
        """Fill the inputs with the values of a draw and all other tensors with NaN."""
        inputs = (self.src, self.weights, self.bias, self.diff_dst)
        known = {id(memory): values(memory.desc.dims, draw) for memory in inputs}
        written = {id(m): m for step in self.steps for m in step.memories.values()}
        for memory in {**written, **{id(memory): memory for memory in inputs}}.values():
            with memory.map(mode="w") as buffer:
                if id(memory) in known:
                    memory.desc.pack(known[id(memory)], buffer)
                else:
                    buffer[:] = 0xFF

    def outputs(self) -> dict[str, Array]:
        """All results of the last step, by name, with logical dims."""
        steps = {step.name: step for step in self.steps}
        found = {name: self.values(steps[name][argument]) for name, argument in OUTPUTS.items()}
        return found | {name: self.values(getattr(self, name)) for name in RESULTS}

    def values(self, memory: dnn.Memory) -> Array:
        """The values of a tensor, with logical dims."""
        if memory.desc.format_kind != "blocked":
            memory = dnn.reorder(memory, memory.desc.with_format(None))
        return np.array(memory.numpy())


class TorchNet:
    """The net in torch, with one data type and one order of images."""

    LAYOUTS = ("plain", "channels_last")

    def __init__(self, batch: int, data_type: str, layout: str, device: str, draw: int = 0) -> None:
        import torch

        self.torch, self.name = torch, f"torch {layout}"

        def tensor(*dims: int) -> Any:
            found = torch.from_numpy(values(dims, draw)).to(device, getattr(torch, data_type))
            if len(dims) == 4 and layout == "channels_last":
                return found.contiguous(memory_format=torch.channels_last)
            return found

        self.src, self.diff_dst = tensor(batch, *SRC), tensor(batch, *POOLED)
        self.weights = tensor(*WEIGHTS).requires_grad_()
        self.bias = tensor(WEIGHTS[0]).requires_grad_()
        self.last: list[Any] = []

    def run(self) -> list[Any]:
        """Run forward and backward. Returns dst and the gradients of weights and bias."""
        *_, dst = self._forward()
        gradients = self.torch.autograd.grad(dst, (self.weights, self.bias), self.diff_dst)
        self.last = [dst, *gradients]
        return self.last

    def outputs(self) -> dict[str, Any]:
        """The results of the last run, by name, in float64."""
        names = ("pooling", *RESULTS)
        return {n: t.detach().double().cpu().numpy() for n, t in zip(names, self.last, strict=True)}

    def everything(self) -> dict[str, Any]:
        """All results, including the tensors between the layers."""
        tensors = self._forward()
        inner = [tensors[2], tensors[1], tensors[0]]  # results of LRN, relu and convolution
        found = self.torch.autograd.grad(
            tensors[3], [*inner, self.weights, self.bias], self.diff_dst
        )
        every = [*tensors, *found]
        names = (*OUTPUTS, *RESULTS)
        return {n: t.detach().double().cpu().numpy() for n, t in zip(names, every, strict=True)}

    def _forward(self) -> list[Any]:
        functional = self.torch.nn.functional
        convolved = functional.conv2d(self.src, self.weights, self.bias, STRIDES["strides"])
        relu = functional.relu(convolved)
        normalised = functional.local_response_norm(relu, *LRN.values())
        dst = functional.max_pool2d(normalised, WINDOW["kernel"], WINDOW["strides"])
        return [convolved, relu, normalised, dst]


def errors(found: Mapping[str, Array], expected: Mapping[str, Array]) -> dict[str, float]:
    """For each result, the norm of the difference divided by the norm of the result."""
    return {
        name: float(np.linalg.norm(values - expected[name]) / np.linalg.norm(expected[name]))
        for name, values in found.items()
    }


def wrong(found: Mapping[str, float]) -> str:
    """A description of the results with too large errors or NaN; "" if there are none."""
    texts = []
    for name, error in found.items():
        is_gradient = "backward" in name or name in RESULTS
        if not error <= (GRADIENT if is_gradient else FORWARD):
            texts.append(f"{name} differs from float64 by {error:.1e}")
    return ", ".join(texts)
