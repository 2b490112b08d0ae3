"""Layers of networks: their problem texts, their inputs and their costs."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from dnncore.problem.options import MISSING_DRIVERS
from dnncore.problem.settings import Dims

__all__ = ["BALANCE", "Layer", "Value"]

BALANCE = 12.0  # operations per moved byte at equal time; 11 on the CPU of docs/benchmarks.md
ELEMENT = 4  # bytes of an element
DIRECTED = frozenset({
    "bnorm", "conv", "deconv", "eltwise", "gnorm", "ip", "lnorm", "lrn", "pool", "prelu",
    "resampling", "shuffle", "softmax",
})  # fmt: skip
"""The drivers with the option --dir."""


@dataclass(frozen=True)
class Value:
    """A tensor between layers.

    dims: its dims without the batch.
    source: the index of the layer that computes it; -1 for inputs of the network and parameters.
    batch: the number of such tensors for one input of the network, such as the number of windows.
    view: the difference to the tensor that the layer computes: "" (none), "reshape" (other dims,
        same number of elements) or "part" (some of the elements).
    """

    dims: Dims
    source: int = -1
    batch: int = 1
    view: str = ""


@dataclass(frozen=True)
class Layer:
    """One layer.

    name: unique in its network.
    driver: the operation, by the name of benchdnn's driver.
    options: the other words of the problem text, without the direction.
    shape: the shape; `@3` means 3 times the batch size.
    inputs: the activations that the layer reads.
    output: the value that the layer computes.
    has_bias: whether the layer adds a bias, which benchdnn expresses by the direction.
    multiply_adds: number for one input of the network; 0 if the layer has no products.
    activations: number of elements read and written for one input of the network.
    weights: number of elements of the layer's parameters.
    """

    name: str
    driver: str
    options: tuple[str, ...]
    shape: str
    inputs: tuple[Value, ...]
    output: Value
    has_bias: bool = False
    multiply_adds: int = 0
    activations: int = 0
    weights: int = 0

    @functools.cached_property
    def key(self) -> str:
        """The text of the layer without batch size, direction and type."""
        return " ".join([f"--{self.driver}", *self.options, self.shape])

    @property
    def primitive(self) -> str:
        """The name of the operation, even if dnncore lacks it."""
        return MISSING_DRIVERS.get(self.driver, self.driver)

    def text(self, batch: int = 1, direction: str = "FWD_D") -> str:
        """The problem text for a batch size, with the layer's bias if the direction has one.

        direction: FWD_D, FWD_I, BWD_D or BWD_W; ignored by operations without directions.
        """
        shape = re.sub(r"@(\d+)", lambda match: str(int(match[1]) * batch), self.shape)
        if self.has_bias and direction != "BWD_D":
            direction = {"FWD_D": "FWD_B"}.get(direction, f"{direction}B")
        words = [f"--dir={direction}"] if self.driver in DIRECTED else []
        return " ".join([f"--{self.driver}", *words, *self.options, f'{shape}n"{self.name}"'])

    def cost(self, batch: int = 1) -> float:
        """The estimated time of the layer, in units of the time that moves one byte; see `BALANCE`.

        It is the longer one of the times for the operations and for moving the tensors.
        """
        moved = ELEMENT * (batch * self.activations + self.weights)
        return max(2 * batch * self.multiply_adds / BALANCE, moved)
