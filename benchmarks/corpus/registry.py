"""The list of networks: each is a function of a `Net`, with its paper and published figures."""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from benchmarks.corpus import networks as package
from benchmarks.corpus.layers import Layer
from benchmarks.corpus.net import Net

__all__ = ["Network", "Published", "network", "networks"]

Build: TypeAlias = Callable[[Net], None]


@dataclass(frozen=True)
class Published:
    """A published figure of a network.

    what: "parameters", "multiply-adds", or "flops" (twice the multiply-adds). Multiply-adds of
        convolutions, deconvolutions, inner products and matrix products count.
    value: the figure.
    source: the publication and the place in the publication.
    """

    what: str
    value: float
    source: str


@dataclass(frozen=True)
class Network:
    """A network: name, title, paper, the function that builds the network, published figures."""

    name: str
    title: str
    paper: str
    build: Build
    figures: tuple[Published, ...]

    @functools.cached_property
    def net(self) -> Net:
        """The layers and the number of parameters."""
        net = Net(self.name)
        self.build(net)
        return net

    @property
    def layers(self) -> list[Layer]:
        """The layers in the order of execution."""
        return self.net.layers

    def figure(self, what: str) -> float:
        """Compute the figure `what` (see `Published`) from the layers."""
        if what == "parameters":
            return self.net.parameters
        products = sum(layer.multiply_adds for layer in self.layers)
        return products * {"multiply-adds": 1, "flops": 2}[what]


_networks: dict[str, Network] = {}


def network(*figures: tuple[str, float, str]) -> Callable[[Build], Build]:
    """Register a function as a network with the function's name.

    The docstring of the function is a title, an empty line and the paper.

    figures: the fields of `Published`.
    """

    def register(build: Build) -> Build:
        name = build.__name__
        title, _, paper = inspect.cleandoc(build.__doc__ or "").partition("\n\n")
        published = tuple(Published(*figure) for figure in figures)
        _networks[name] = Network(name, title, " ".join(paper.split()), build, published)
        return build

    return register


@functools.cache
def networks() -> dict[str, Network]:
    """All networks by name, sorted by name. Samples depend on this order."""
    for module in sorted(m.name for m in pkgutil.iter_modules(package.__path__)):
        importlib.import_module(f"{package.__name__}.{module}")
    return dict(sorted(_networks.items()))
