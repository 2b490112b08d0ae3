"""Layers of networks: their problem texts, their inputs and their costs."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from dnncore.problem.options import MISSING_DRIVERS
from dnncore.problem.settings import Dims

__all__ = ["BALANCE", "Layer", "Value"]

BALANCE = 12.0  # operations in the time of moving a byte: 11 on the CPU of docs/benchmarks.md
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
    batch: how many of such tensors there are for one input of the network, such as windows.
    view: how it differs from what the layer computes: "" (not at all), "reshape" (other dims of the
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
    options: other words, without the direction.
    shape: the shape; `@3` means 3 times the batch size.
    inputs: the activations that it reads.
    output: the value that it computes.
    has_bias: whether it adds a bias, which benchdnn expresses by the direction.
    multiply_adds: those for one input of the network; 0 if the layer has no products.
    activations: elements that it reads and writes for one input of the network.
    weights: elements of its parameters.
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
        """The text of the layer, which does not contain batch, direction and type."""
        return " ".join([f"--{self.driver}", *self.options, self.shape])

    @property
    def primitive(self) -> str:
        """The name of the operation, also of one that dnncore does not have."""
        return MISSING_DRIVERS.get(self.driver, self.driver)

    def text(self, batch: int = 1, direction: str = "FWD_D") -> str:
        """The text as a problem of a batch size. A direction that can have a bias has the layer's.

        direction: FWD_D, FWD_I, BWD_D or BWD_W; ignored by operations without directions.
        """
        shape = re.sub(r"@(\d+)", lambda match: str(int(match[1]) * batch), self.shape)
        if self.has_bias and direction != "BWD_D":
            direction = {"FWD_D": "FWD_B"}.get(direction, f"{direction}B")
        words = [f"--dir={direction}"] if self.driver in DIRECTED else []
        return " ".join([f"--{self.driver}", *words, *self.options, f'{shape}n"{self.name}"'])

    def cost(self, batch: int = 1) -> float:
        """The bytes that can be moved in the time of the layer; see `BALANCE`.

        The time of a layer is that of its operations or that of moving its tensors, whichever is
        longer.
        """
        moved = ELEMENT * (batch * self.activations + self.weights)
        return max(2 * batch * self.multiply_adds / BALANCE, moved)
