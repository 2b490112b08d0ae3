"""Random samples of the layers of all networks.

All networks have the same weight. The layers of a network divide its weight in proportion to their
costs (`Layer.cost`). Layers with the same text count as one layer, also in several networks. A
sample is drawn without replacement. Layers of operations that dnncore lacks are drawn, too; they
are skipped and counted. Batch size, direction and type of each problem are drawn from lists.
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


MOST_BYTES = 1e9  # of a problem; the batch of larger problems is reduced, down to 1


@dataclass(frozen=True)
class Choices:
    """The values from which batch size, direction and type of each problem are drawn.

    algorithm: the algorithm of convolutions, as in --alg.
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
    networks: the number of networks in the corpus when the sample was drawn.
    """

    problems: list[Problem] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    networks: int = field(default_factory=lambda: len(networks()))

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Sample:
        """The sample in a record. It does not depend on later changes of the corpus."""
        problems = [problem for text in record["problems"] for problem in read(text)]
        return cls(problems, Counter(record["skipped"]), record["networks"])

    def record(self) -> dict[str, Any]:
        """The sample as data for JSON."""
        texts = [str(problem) for problem in self.problems]
        return {"problems": texts, "skipped": dict(self.skipped), "networks": self.networks}


@functools.cache
def distinct_layers() -> Mapping[str, Layer]:
    """One layer for each text, with its name in the first network that contains it."""
    found: dict[str, Layer] = {}
    for network in networks().values():
        for layer in network.layers:
            found.setdefault(layer.key, layer)
    return MappingProxyType(found)


@functools.cache
def population(batch: int = 1, match: str = "") -> Mapping[str, float]:
    """The weights of layers whose texts match, by text, at a batch size.

    Without `match`, the sum of all weights is 1, and the sum for each network is 1 / the number of
    networks.
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

    Raises `DescriptorError` if there are fewer problems, and for directions that no layer has.
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
    """The problem in a random one of the directions that the layer has; None without any."""
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
