"""Random problems. Hypothesis draws them and reduces a failing problem to the shortest text.

A problem is drawn as text: options from lists, a shape from sizes. Then each of its tensors may
change its place: an offset, gaps between elements, another order of dims. All choices shrink to the
simplest, which the text omits. The seed alone determines what is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, TypeAlias

from hypothesis import HealthCheck, Phase, assume, find, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from dnncore.attributes import PostOp
from dnncore.errors import DescriptorError
from dnncore.ops.window import effective_kernel
from dnncore.problem import DRIVERS, Problem, read
from dnncore.problem.drivers.draws import TAGS, Options
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["draw", "problems", "shortest_failure"]

Draw: TypeAlias = st.DrawFn
NOTHING: Options = {}

ATTRIBUTES: Options = {
    "attr-scratchpad": ("library", "user"),
    "attr-scratchpad-limit": ("", "0", "4096"),
    "attr-deterministic": ("false", "true"),
}
# MASK, MORE: masks of any bits. TAG: a format. The first steps are the simplest.
STEPS = (
    *("relu", "linear:2:1", "tanh", "square", "clip:-1:2", "elu:0.5", "gelu_erf", "swish:1"),
    *(
        "linear:0.2345675:-1.2345675",
        "swish:1.2345675",
        "relu:0.2345675",
        "hardswish:0.2345675:0.5",
    ),
    *("sum", "sum:0.5", "sum:-2", "sum:1.2345675"),
    *(
        f"{name}:f32:MASK{tag}"
        for name in ("add", "sub", "mul", "max", "ge")
        for tag in ("", ":TAG")
    ),
    *("prelu:MASK", "prelu:MASK:TAG"),
    *("select:f32.MASK:MORE", "select:f32.MASK.TAG:MORE", "select:f32.MASK:MORE.TAG"),
)


def _options(draw: Draw, options: Options, only: Options = NOTHING) -> list[str]:
    """`--name=value` for each option whose value is not the first.

    only: the values to draw from, for some of the options.
    """
    choices = {**options, **only}
    drawn = {name: draw(st.sampled_from(choices[name])) for name in options}
    return [f"--{name}={text}" for name, text in drawn.items() if text != options[name][0]]


def _attributes(draw: Draw, ndims: int) -> list[str]:
    """Options of attributes for a result of this number of dims."""
    chain = [
        _step(draw, text, ndims) for text in draw(st.lists(st.sampled_from(STEPS), max_size=5))
    ]
    steps = [f"--attr-post-ops={'+'.join(chain)}"] if chain else []
    return steps + _options(draw, ATTRIBUTES)


def _step(draw: Draw, text: str, ndims: int) -> str:
    masks = st.integers(0, (1 << ndims) - 1)
    for word, values in (("MASK", masks), ("MORE", masks), ("TAG", st.sampled_from(TAGS))):
        text = text.replace(word, str(draw(values))) if word in text else text
    return text


# -- shapes ----------------------------------------------------------------------------------------

BATCHES = st.sampled_from((1, 2, 3, 0))
CHANNELS = st.sampled_from((1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 24, 33))
SIZES = st.sampled_from((1, 2, 3, 4, 5, 8, 9, 17, 0))
AXES = ("w", "hw", "dhw")


@dataclass(frozen=True)
class HypothesisDraws:
    """`Draws` by hypothesis."""

    draw: Draw

    def one_of(self, values: Sequence[str]) -> str:
        return self.draw(st.sampled_from(values))

    def integer(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def batch(self) -> int:
        return self.draw(BATCHES)

    def channels(self) -> int:
        return self.draw(CHANNELS)

    def dims(self, least: int = 1) -> list[int]:
        return self.draw(st.lists(SIZES, min_size=least, max_size=5))

    def some_ones(self, dims: Sequence[int]) -> list[int]:
        return [1 if self.draw(st.booleans()) else n for n in dims]

    def window(self) -> str:
        """The right padding is the remainder that the output's size leaves."""
        text = ""
        for axis in self.one_of(AXES):
            o, k, s = (self.integer(1, high) for high in (4, 4, 3))
            d, left, right = (self.integer(0, 2) for _ in range(3))
            span = (o - 1) * s + effective_kernel(k, d)
            size = max(1, span - left - right + self.integer(0, s - 1))
            text += f"_i{axis}{size}o{axis}{o}k{axis}{k}s{axis}{s}d{axis}{d}p{axis}{left}"
        return text

    def image(self) -> str:
        return "".join(f"_i{axis}{self.integer(1, 5)}" for axis in self.one_of(("", *AXES)))


# -- places in buffers -----------------------------------------------------------------------------

MOVES = (*[""] * 6, "offset", "gaps", "order")  # each also does those before it
MOST_MOVES = 8  # of a problem; as many are always drawn, so that fewer tensors are not simpler
OFFSETS = st.sampled_from((1, 2, 3, 5, 8, 16, 64))  # elements
GAPS = st.sampled_from((0, 1, 3))  # elements, or blocks of them


def _moved(draw: Draw, desc: MemoryDesc, move: str) -> MemoryDesc:
    """Return the same dims and blocks at an offset, perhaps with gaps or in another order."""
    if not move:
        return desc
    desc = desc.with_format(None) if desc.is_any else desc
    offset0 = draw(OFFSETS)
    if move == "offset":
        return desc.with_offset0(offset0)
    order: Sequence[int] = sorted(range(desc.ndims), key=lambda dim: -desc.strides[dim])
    if move == "order":
        order = draw(st.permutations(order))
    block = math.prod(size for _, size in desc.inner_blocks)
    strides, step = [0] * desc.ndims, block * draw(st.sampled_from((1, 1, 2)))
    for dim in reversed(order):
        strides[dim] = step
        step = step * max(1, desc.physical_shape[dim]) + block * draw(GAPS)
    tag = desc.order_tag
    return MemoryDesc(desc.dims, desc.data_type, tag, strides=strides, offset0=offset0)


def _with_moves(draw: Draw, problem: Problem) -> Problem:
    """Return the problem with some of its tensors moved, operands of post-ops included."""
    moves = iter(draw(st.tuples(*[st.sampled_from(MOVES)] * MOST_MOVES)))

    def moved(desc: MemoryDesc) -> MemoryDesc:
        return _moved(draw, desc, next(moves, ""))

    def step(post_op: PostOp) -> PostOp:
        operands: dict[str, Any] = {name: moved(desc) for name, desc in post_op.operands}
        return replace(post_op, **operands)

    op = problem.op.with_each(moved)
    attr = replace(problem.attr, post_ops=tuple(map(step, problem.attr.post_ops)))
    return replace(problem, op=op, attr=attr)


# -- problems --------------------------------------------------------------------------------------

MOST_BYTES = 100_000  # so that most of the time is spent on different problems, not on large ones


@st.composite
def problems(draw: Draw, driver: str = "", only: Options = NOTHING) -> Problem:
    """Draw problems of one driver, or of all; invalid ones are drawn again.

    only: the values to draw from, for options of this driver.
    """
    driver = driver or draw(st.sampled_from([*DRIVERS]))
    words = [f"--{driver}", *_options(draw, DRIVERS[driver].options, only)]
    words += DRIVERS[driver].draw_shape(HypothesisDraws(draw)).split()
    try:
        (problem,) = read(" ".join(words))
        attributes = _attributes(draw, problem.op.result.ndims)
        (problem,) = read(" ".join([*words[:-1], *attributes, words[-1]]))
        problem = _with_moves(draw, problem)
    except DescriptorError:
        assume(False)
        raise
    assume(problem.op.bytes < MOST_BYTES)
    return problem


def _settings(examples: int, *phases: Phase) -> settings:
    return settings(
        max_examples=examples,
        phases=phases,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


def draw(count: int, driver: str, *, seed: int = 0, only: Options = NOTHING) -> list[Problem]:
    """Return `count` different problems of a driver. only: as for `problems`."""
    found: dict[Problem, None] = {}

    def enough(problem: Problem) -> bool:
        found[problem] = None
        return len(found) == count

    limit = _settings(100 * count, Phase.generate)
    find(problems(driver, only), enough, settings=limit, random=Random(seed))  # noqa: S311 - reproducible
    return list(found)[:count]


def shortest_failure(
    fails: Callable[[Problem], bool], *, driver: str = "", examples: int = 200, seed: int = 0
) -> Problem | None:
    """Return the simplest problem for which `fails` is true, None if no example fails.

    driver: the driver of all problems tried, if given. A failing problem is simplified as long as
    it fails, so that its text is the shortest that hypothesis can find.
    """
    limit = _settings(examples, Phase.generate, Phase.shrink)
    try:
        return find(problems(driver), fails, settings=limit, random=Random(seed))  # noqa: S311 - reproducible
    except NoSuchExample:
        return None
