"""Random problems, drawn from a seed. A failing one is simplified.

A problem is drawn as text: options from lists, a shape from sizes. Then each of its tensors may get
another layout: an offset, gaps between elements, another order of dims. Each choice is one of some
values. The first value is the simplest, and the text omits it. A failing problem is simplified as
long as it fails: one choice after the other gets an earlier value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from dnncore.errors import DescriptorError
from dnncore.ops import ConvolutionForward, Operation
from dnncore.ops.window import effective_kernel
from dnncore.post_op import PostOp
from dnncore.problem import DRIVERS, Problem, read
from dnncore.problem.drivers.draws import TAGS, Options
from dnncore.problem.simpler import simplest
from dnncore.tensors.memory_desc import MemoryDesc
from dnncore.testing.problems.types_and_attributes import Choose, T, quantization, typed

__all__ = ["MOVES", "draw", "draw_words", "moved", "shortest_failure"]

NOTHING: Options = {}

ATTRIBUTES: Options = {
    "attr-scratchpad": ("library", "user"),
    "attr-scratchpad-limit": ("", "0", "4096"),
    "attr-deterministic": ("false", "true"),
}
# MASK, MORE: masks of any bits. TAG: a format. The first steps are the simplest.
STEPS = (
    "relu", "linear:1", "linear:2:1", "tanh", "square", "clip:-1:2", "elu:0.5", "gelu_erf",
    "swish:1", "linear:0.2345675:-1.2345675", "swish:1.2345675", "relu:0.2345675",
    "hardswish:0.2345675:0.5", "sum", "sum:0.5", "sum:-2", "sum:1.2345675",
    *(
        f"{name}:f32:MASK{tag}"
        for name in ("add", "sub", "mul", "max", "ge")
        for tag in ("", ":TAG")
    ),
    *("prelu:MASK", "prelu:MASK:TAG"),
    *("select:f32.MASK:MORE", "select:f32.MASK.TAG:MORE", "select:f32.MASK:MORE.TAG"),
)  # fmt: skip


DW_TYPES = ("f32", "f32", "bf16", "f16")
MOST_STEPS = 6
NO_STEP = ("",) * (2 * len(STEPS))  # two thirds of the steps are omitted


def _options(choose: Choose, options: Options, only: Options = NOTHING) -> list[str]:
    """Return `--name=value` for each option whose value is not the first.

    More than half of the values are the first, because implementations refuse rare combinations.

    only: the values to choose from, for some of the options.
    """
    values = {**options, **only}
    chosen = {
        name: choose([values[name][0]] * len(values[name]) + [*values[name]]) for name in options
    }
    return [f"--{name}={text}" for name, text in chosen.items() if text != options[name][0]]


def _attributes(choose: Choose, op: Operation) -> list[str]:
    """Return options of attributes."""
    chain = [step for _ in range(MOST_STEPS) if (step := _step(choose, op.result.ndims))]
    if isinstance(op, ConvolutionForward) and all(n == 1 for n in _fused_sizes(op)):
        place, step = choose(range(MOST_STEPS)), _depthwise(choose)
        if step:  # an earlier sum is not valid
            before = [one for one in chain[:place] if not one.startswith("sum")]
            chain = [*before, step, *chain[place:]]
    steps = [f"--attr-post-ops={'+'.join(chain)}"] if chain else []
    return steps + _options(choose, ATTRIBUTES)


def _fused_sizes(op: ConvolutionForward) -> tuple[int, ...]:
    """Return the sizes that are 1 if a depthwise convolution may follow."""
    groups, _, _, *kernel = op.grouped_weights
    return (groups, *kernel)


def _depthwise(choose: Choose) -> str:
    """Return a depthwise convolution, or ""."""
    sizes = choose(("", "k3s1p1", "k3s2p1", "k2s1p1", "k5s3p2", "k1s2p0", "k3s1p4"))
    words = [choose(DW_TYPES), choose(("abx", "axb", "xba")), choose(("f32", "undef"))]
    return ":".join(["dw", sizes, *words]) if sizes else ""


def _with_fused_types(problem: Problem, op: Operation) -> tuple[Any, ...]:
    """Return the chain; the weights of a depthwise convolution have the type of what it reads."""
    own = op.result.data_type
    return tuple(
        replace(step, weights=step.weights.with_data_type(own))
        if step.kind == "depthwise" and step.weights
        else step
        for step in problem.attr.post_ops
    )


def _step(choose: Choose, ndims: int) -> str:
    """Return a step, or "". Every step takes three more choices, so that a simpler step does not
    shift the choices after it.
    """
    text, masks = choose((*NO_STEP, *STEPS)), range(1 << ndims)
    for word, chosen in (("MASK", choose(masks)), ("MORE", choose(masks)), ("TAG", choose(TAGS))):
        text = text.replace(word, str(chosen))
    return text


# -- shapes ----------------------------------------------------------------------------------------

# Small sizes, to which failures are reduced, then sizes beyond the blocks of loops.
BATCHES = (1, 2, 3, 0, 5, 17, 66)
CHANNELS = (1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 24, 33, 40, 65, 100, 130, 200, 257, 520)
SIZES = (1, 2, 3, 4, 5, 8, 9, 17, 0, 33, 50, 65, 130, 257, 600, 1030)
SIZES_OF_MANY = (1, 2, 2, 3)  # of more than six dims
IMAGES = (1, 2, 3, 4, 5, 7, 14, 29, 60)
OUTPUTS = (1, 2, 3, 4, 6, 9, 15, 33)
KERNELS = (1, 2, 3, 3, 4, 5, 7, 11, 17)
STRIDES = (1, 1, 2, 2, 3, 4, 5, 6, 8)
DILATIONS = (0, 0, 0, 1, 2, 3, 5, 7)
PADDINGS = (0, 0, 1, 2, 3, 5, 9)
FEW_PADDINGS = (0, 0, 1, 2)
FEW_DIMS, MOST_DIMS = 6, 12
AXES = ("w", "hw", "dhw")


@dataclass(frozen=True)
class ChosenSizes:
    """`Draws` of sizes and shapes."""

    choose: Choose

    def one_of(self, values: Sequence[str]) -> str:
        return self.choose(values)

    def integer(self, low: int, high: int) -> int:
        return self.choose(range(low, high + 1))

    def batch(self) -> int:
        return self.choose(BATCHES)

    def channels(self) -> int:
        return self.choose(CHANNELS)

    def dims(self, least: int = 1) -> list[int]:
        """Return dims. Sizes are chosen for all possible dims, so that fewer dims do not shift
        later choices.
        """
        sizes = [self.choose(SIZES) for _ in range(FEW_DIMS)]
        many = [self.choose(SIZES_OF_MANY) for _ in range(MOST_DIMS)]
        few = range(least, FEW_DIMS + 1)
        count = self.choose((*few, *few, 8, 10, MOST_DIMS))
        return (sizes if count <= FEW_DIMS else many)[:count]

    def some_ones(self, dims: Sequence[int]) -> list[int]:
        flags = [self.choose((False, True)) for _ in range(MOST_DIMS)]
        return [1 if flag else n for flag, n in zip(flags, dims, strict=False)]

    def window(self) -> str:
        """Return a window. The size of the output determines the right padding.

        Some windows have one cell or the size of the image, because such windows have separate
        implementations.
        """
        axes = self.one_of(AXES)
        axis_text = self.choose(
            (self._any, self._any, self._any, self._cell, self._padded_cell, self._whole)
        )
        return "".join(axis_text(axis) for axis in axes)

    def _any(self, axis: str) -> str:
        o, k, s = self.choose(OUTPUTS), self.choose(KERNELS), self.choose(STRIDES)
        d, left, right = (self.choose(v) for v in (DILATIONS, PADDINGS, PADDINGS))
        span = (o - 1) * s + effective_kernel(k, d)
        size = max(1, span - left - right + self.integer(0, s - 1))
        return f"_i{axis}{size}o{axis}{o}k{axis}{k}s{axis}{s}d{axis}{d}p{axis}{left}"

    def _cell(self, axis: str) -> str:
        return f"_i{axis}{self.choose(IMAGES)}k{axis}1"

    def _padded_cell(self, axis: str) -> str:
        size, s = self.choose(IMAGES), self.choose((1, 1, 2))
        left, right = self.choose(FEW_PADDINGS), self.choose(FEW_PADDINGS)
        o = (left + size + right - 1) // s + 1
        return f"_i{axis}{size}o{axis}{o}k{axis}1s{axis}{s}p{axis}{left}"

    def _whole(self, axis: str) -> str:
        """Return a kernel of the image's size. With a dilation, it ends in the padding."""
        size, d, left = self.choose(IMAGES), self.choose((0, 0, 1, 2)), self.choose(FEW_PADDINGS)
        return f"_i{axis}{size}o{axis}1k{axis}{size}s{axis}1d{axis}{d}p{axis}{left}"

    def image(self) -> str:
        return "".join(f"_i{axis}{self.choose(IMAGES)}" for axis in self.one_of(("", *AXES)))


# -- places in buffers -----------------------------------------------------------------------------

MOVES = (*[""] * 5, "offset", "gaps", "gaps", "order", "blocks")
MOST_MOVES = 8  # per problem; always so many choices, so that fewer tensors are not simpler
OFFSETS = (1, 2, 3, 5, 8, 16, 64)  # elements
GAPS = (0, 1, 3)  # elements, or blocks of them
BLOCKS = (2, 3, 4, 6, 8, 12, 16)  # elements
MOST_BLOCKS = 6


def moved(choose: Choose, desc: MemoryDesc, move: str) -> MemoryDesc:
    """Return the same dims in another layout.

    move: "offset" adds an offset and keeps the blocks. "gaps" also adds gaps. "order" also changes
        the order of dims. "blocks" does none of these; it chooses other blocks, in any order of
        dims.
    """
    if not move:
        return desc
    desc = desc.with_format(None) if desc.is_any else desc
    if move == "blocks":
        return desc.with_format(_blocked(choose, desc.ndims))
    offset0 = choose(OFFSETS)
    if move == "offset":
        return desc.with_offset0(offset0)
    order = sorted(range(desc.ndims), key=lambda dim: -desc.strides[dim])
    if move == "order":
        order = [order.pop(choose(range(len(order)))) for _ in range(desc.ndims)]
    block = math.prod(size for _, size in desc.inner_blocks)
    strides, step = [0] * desc.ndims, block * choose((1, 2))
    for dim in reversed(order):
        strides[dim] = step
        step = step * max(1, desc.physical_shape[dim]) + block * choose(GAPS)
    tag = desc.order_tag
    return MemoryDesc(desc.dims, desc.data_type, tag, strides=strides, offset0=offset0)


def _blocked(choose: Choose, ndims: int) -> str:
    """Return a format tag with up to `MOST_BLOCKS` blocks of any dims and sizes."""
    letters = list("abcdefghijkl"[:ndims])
    order = [letters.pop(choose(range(len(letters)))) for _ in range(ndims)]
    count = choose(range(1, MOST_BLOCKS + 1))
    blocks = [(choose(order), choose(BLOCKS)) for _ in range(count)]
    split = {letter for letter, _ in blocks}
    outer = "".join(letter.upper() if letter in split else letter for letter in order)
    return outer + "".join(f"{size}{letter}" for letter, size in blocks)


def _with_moves(choose: Choose, problem: Problem) -> Problem:
    """Return the problem with some of its tensors moved, operands of post-ops included.

    In one of six problems, all tensors have blocks, so that blocks of all sizes are combined.
    """
    chosen = [choose(MOVES) for _ in range(MOST_MOVES)]
    moves = iter(["blocks"] * MOST_MOVES if choose((False,) * 5 + (True,)) else chosen)

    def change(desc: MemoryDesc) -> MemoryDesc:
        return moved(choose, desc, next(moves, ""))

    def step(post_op: PostOp) -> PostOp:
        operands: dict[str, Any] = {name: change(desc) for name, desc in post_op.operands}
        return replace(post_op, **operands)

    op = problem.op.with_each(change)
    attr = replace(problem.attr, post_ops=tuple(map(step, problem.attr.post_ops)))
    return replace(problem, op=op, attr=attr)


# -- problems --------------------------------------------------------------------------------------

# These limits let most of the time be spent on different problems, not on large ones.
MOST_BYTES = 300_000
MOST_FLOPS = 30  # per byte of this limit
MOST_SPACE = 1 << 22  # bytes of a tensor with its gaps and the padding of its blocks
TRIES = 100  # for each problem


@dataclass(frozen=True)
class _Limits:
    """The parameters of `draw` that restrict problems."""

    only: Options = field(default_factory=dict)
    types: Sequence[str] = ()
    most_bytes: int = MOST_BYTES


def draw_words(choose: Choose, driver: str, only: Options = NOTHING) -> list[str]:
    """Return the words of a problem in f32 without attributes. The problem may be invalid."""
    words = [f"--{driver}", *_options(choose, DRIVERS[driver].options, only)]
    return [*words, *DRIVERS[driver].draw_shape(ChosenSizes(choose)).split()]


def _problem(choose: Choose, driver: str, limits: _Limits) -> Problem | None:
    """Choose a problem of a driver; None if it is invalid or large."""
    most_bytes = limits.most_bytes
    words = draw_words(choose, driver, limits.only)
    try:
        (problem,) = read(" ".join(words))
        if _bytes(problem) > most_bytes or problem.op.flops > MOST_FLOPS * most_bytes:
            return None
        attributes = _attributes(choose, problem.op)
        (problem,) = read(" ".join([*words[:-1], *attributes, words[-1]]))
        op = typed(choose, problem.op, limits.types)
        chain = _with_fused_types(problem, op)
        attr = replace(problem.attr, post_ops=chain, **quantization(choose, op))
        problem = _with_moves(choose, replace(problem, op=op, attr=attr))
    except DescriptorError:
        return None
    descs = [desc for _, desc in (*problem.op.tensors(), *problem.attr.operands())]
    return problem if all(desc.nbytes <= MOST_SPACE for desc in descs) else None


def _bytes(problem: Problem) -> int:
    """Return the bytes of all tensors, counting dims of 0 as 1: oracles iterate over the other
    dims.
    """
    return sum(
        desc.itemsize * math.prod(max(1, size) for size in desc.dims)
        for _, desc in problem.op.tensors()
    )


def draw(
    count: int,
    driver: str,
    *,
    seed: int = 0,
    only: Options = NOTHING,
    types: Sequence[str] = (),
    most_bytes: int = MOST_BYTES,
) -> list[Problem]:
    """Return `count` different problems of a driver. Only the seed determines them.

    only: the values to choose from, for options of this driver.
    types: the data types that tensors may have; () permits all.
    most_bytes: of all tensors of a problem in f32, where a dim of 0 counts as 1.
    """
    found: dict[Problem, None] = {}
    for problem, _ in _drawn(driver, seed, _Limits(only, types, most_bytes), TRIES * count):
        if len(found) == count:
            break
        found[problem] = None
    return list(found)


@dataclass
class _Choices:
    """A source of choices that returns given choices, then those of `source`, and records them.

    places: the indices of the chosen values. Without a source, the first value is chosen after the
        given choices.
    """

    places: list[int]
    source: Random | None = None
    made: int = 0

    def __call__(self, values: Sequence[T]) -> T:
        if self.made == len(self.places):
            self.places.append(self.source.randrange(len(values)) if self.source else 0)
        place = self.places[self.made] % len(values)
        self.made += 1
        return values[place]


def _drawn(
    driver: str, seed: int, limits: _Limits, tries: int
) -> Iterator[tuple[Problem, list[int]]]:
    """Yield the valid problems of some tries, with their choices."""
    source = Random(f"{seed} {driver}")  # noqa: S311 - reproducible
    for _ in range(tries):
        choices = _Choices([], source)
        if problem := _problem(choices, driver, limits):
            yield problem, choices.places


def shortest_failure(
    fails: Callable[[Problem], bool],
    *,
    driver: str,
    seed: int = 0,
    known: Problem | None = None,
    tries: int = 200,
) -> Problem | None:
    """Return a simple problem of a driver for which `fails` is true, None if no problem fails.

    known: a failing problem that `draw` returned for this seed. If it is not given, the problems of
        the seed are tried.
    tries: the largest number of problems to try, first to find a failing problem and then to
        simplify it.
    """
    drawn = _drawn(driver, seed, _Limits(), tries if known is None else TRIES * tries)
    is_wanted = fails if known is None else known.__eq__
    problem, places = next((pair for pair in drawn if is_wanted(pair[0])), (known, []))
    if problem is None:
        return None

    def simpler(current: Callable[[], tuple[Problem, list[int]]]) -> Iterator[Any]:
        tried = {problem}
        for changed in _simpler(lambda: current()[1]):
            choices = _Choices([*changed])
            other = _problem(choices, driver, _Limits())
            if other is not None and other not in tried:
                tried.add(other)
                yield other, choices.places[: choices.made]

    return simplest((problem, places), simpler, lambda pair: fails(pair[0]), tries)[0]


def _simpler(current: Callable[[], list[int]]) -> Iterator[list[int]]:
    """Yield lists with an earlier index in one choice. `current()` may change meanwhile."""
    before: list[int] = []
    while before != current():
        before = current()
        i = 0
        while i < len(current()):
            places = current()
            for place in sorted({0, places[i] // 2, places[i] - 1}):
                if 0 <= place < current()[i]:
                    yield [*current()[:i], place, *current()[i + 1 :]]
            i += 1
