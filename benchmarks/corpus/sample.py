"""Random samples of the layers of all networks.

Each network has the same weight, and its layers share it by their costs (`Layer.cost`). Layers of
several networks with the same text are one. A sample is drawn without replacement. Layers of
operations that dnncore does not have are drawn, too; they are skipped and counted. Batch size,
direction and type of each problem are drawn from lists.
"""

from __future__ import annotations

import functools
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from benchmarks.corpus.directions import DIRECTIONS, directed
from benchmarks.corpus.layers import Layer
from benchmarks.corpus.registry import networks
from benchmarks.problems.problem_sets import changed
from dnncore.errors import DescriptorError
from dnncore.problem import DRIVERS, Problem, read

__all__ = ["Choices", "Sample", "distinct_layers", "draw", "population"]


MOST_BYTES = 1e9  # of a problem; larger ones have smaller batches, down to 1


@dataclass(frozen=True)
class Choices:
    """The values from which batch size, direction and type of each problem are drawn.

    algorithm: that of convolutions, as in --alg.
    match: a regular expression; the text of a layer must contain a match.
    """

    directions: Sequence[str] = ("FWD_I", "BWD_D", "BWD_W")
    batches: Sequence[int] = (4,)
    types: Sequence[str] = ("f32",)
    algorithm: str = "direct"
    match: str = ""


@dataclass(frozen=True)
class Sample:
    """Drawn problems.

    skipped: the number of drawn layers of each missing operation.
    networks: the number of networks of the corpus at that time.
    """

    problems: list[Problem] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    networks: int = field(default_factory=lambda: len(networks()))

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Sample:
        """The sample of a record, also if the corpus has changed since then."""
        problems = [problem for text in record["problems"] for problem in read(text)]
        return cls(problems, Counter(record["skipped"]), record["networks"])

    def record(self) -> dict[str, Any]:
        """The sample as data for JSON."""
        texts = [str(problem) for problem in self.problems]
        return {"problems": texts, "skipped": dict(self.skipped), "networks": self.networks}


@functools.cache
def distinct_layers() -> Mapping[str, Layer]:
    """A layer for each text. A layer of several networks has the name in the first of them."""
    found: dict[str, Layer] = {}
    for network in networks().values():
        for layer in network.layers:
            found.setdefault(layer.key, layer)
    return MappingProxyType(found)


@functools.cache
def population(batch: int = 1, match: str = "") -> Mapping[str, float]:
    """The weights of all layers with a match, by their texts, at a batch size.

    All weights without `match` together are 1, those of a network 1 / the number of networks.
    """
    weights: Counter[str] = Counter()
    for network in networks().values():
        costs = [layer.cost(batch) for layer in network.layers]
        total = sum(costs) * len(networks())
        for layer, cost in zip(network.layers, costs, strict=True):
            weights[layer.key] += cost / total
    layers = distinct_layers()
    matching = (key for key in layers if re.search(match, layers[key].text()))
    return MappingProxyType({key: weights[key] for key in matching})


def draw(count: int, seed: int, choices: Choices | None = None) -> Sample:
    """Draw `count` problems. Equal arguments give the same sample.

    Raises `DescriptorError` if there are not as many, and for directions that no layer has.
    """
    choices = choices or Choices()
    for word in choices.directions:
        if word not in DIRECTIONS:
            raise DescriptorError(f"draw: expected some of {', '.join(DIRECTIONS)}; got {word!r}")
    if not population(match=choices.match):
        raise DescriptorError(
            f"draw: expected an expression that matches a layer of `python -m benchmarks.corpus`;"
            f" got {choices.match!r}"
        )
    chance = random.Random(seed)
    left = {batch: dict(population(batch, choices.match)) for batch in choices.batches}
    sample = Sample()
    while len(sample.problems) < count:
        batch = chance.choice(choices.batches)
        if not left[batch]:
            raise DescriptorError(
                f"draw: expected at most {len(sample.problems)} problems, as many as match and have"
                f" operations and directions of dnncore; got {count}"
            )
        (key,) = chance.choices([*left[batch]], [*left[batch].values()])
        for weights in left.values():
            del weights[key]
        layer = distinct_layers()[key]
        if layer.driver not in DRIVERS:
            sample.skipped[layer.primitive] += 1
            continue
        sample.problems.extend(_problem(layer, batch, chance, choices))
    return sample


def _problem(layer: Layer, batch: int, chance: random.Random, choices: Choices) -> list[Problem]:
    """The problem in a random direction that the layer has; none if it has none of them."""
    directions = [word for word in choices.directions if directed(layer, word, batch)]
    if not directions:
        return []
    direction = chance.choice(directions)
    options = {"dt": chance.choice(choices.types)}
    if layer.driver == "conv":
        options["alg"] = choices.algorithm
    (problem,) = read(directed(layer, direction, batch))
    while problem.op.bytes > MOST_BYTES and batch > 1:
        batch //= 2
        (problem,) = read(directed(layer, direction, batch))
    return [changed(problem, options)]
