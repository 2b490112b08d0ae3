"""Problems drawn at random by hypothesis, which finds the shortest text of those that fail.

A problem is drawn as text: options from lists, a shape from sizes. Then each of its tensors may be
moved: behind the start of its buffer, apart in it, its dims in another order. All choices shrink to
the plainest, which the text leaves out. What is drawn depends on the seed alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, TypeAlias

from hypothesis import HealthCheck, Phase, assume, find, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from dnncore.algorithms.binary import BINARY
from dnncore.algorithms.reduction import REDUCTION
from dnncore.attributes import PostOp
from dnncore.errors import DescriptorError
from dnncore.ops.reorder import DATA_TYPES
from dnncore.ops.window import effective_kernel
from dnncore.problem import DRIVERS, Problem, read
from dnncore.problem.drivers.eltwise import ALGORITHMS as ELTWISE_WORDS
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["draw", "problems", "shortest_failure"]

Draw: TypeAlias = st.DrawFn
Options: TypeAlias = Mapping[str, Sequence[str]]

# -- options: the first of each list is what a driver's text is silent about -----------------------

PLAIN_TAGS = ("abx", "axb", "xba", "aBx8b", "aBx16b", "aBx4b")
TAGS = ("any", *PLAIN_TAGS)
LAYER_DIRECTIONS = ("FWD_B", "FWD_D", "FWD_I", "FWD_IB", "BWD_D", "BWD_W", "BWD_WB")
PAIR_DIRECTIONS = ("FWD_D", "FWD_I", "BWD_D")
NUMBERS = ("0", "1", "0.5", "2", "-1", "-0.25")
SCALES = ("1", "2", "-3", "0.5", "0")
TYPES = ("f32", "f32", "f32", "f16", "bf16")
# Of src, weights and dst, as forward, gradients of weights and of src take them.
MIXES = (*TYPES, "f16:f16:f32", "bf16:bf16:f32", "f16:f32:f16", "f32:bf16:bf16")
BIAS_TYPES = ("f32", "f32", "f16")

OPTIONS: dict[str, Options] = {
    "conv": {
        "dir": LAYER_DIRECTIONS, "dt": MIXES, "bia-dt": BIAS_TYPES,
        "stag": TAGS, "dtag": TAGS, "alg": ("direct", "auto", "wino"),
        "wtag": ("any", "abx", "axb", "xba", "ABx8b8a", "ABx16a16b", "Abx16a"),
    },
    "ip": {
        "dir": LAYER_DIRECTIONS, "dt": MIXES, "bia-dt": BIAS_TYPES,
        "stag": TAGS, "wtag": ("any", "abx", "axb", "bax"),
    },
    "matmul": {
        "dt": MIXES,
        "stag": ("any", "abx", "xba", "aBx8b"), "wtag": ("any", "abx", "xba", "aBx8b"),
        "dtag": ("any", "abx"), "bia-dt": ("undef", "f32"), "bia_mask": ("2", "0", "1", "3"),
    },
    "eltwise": {
        "dir": PAIR_DIRECTIONS, "dt": TYPES, "tag": PLAIN_TAGS, "alpha": NUMBERS, "beta": NUMBERS,
        "alg": ("relu", *ELTWISE_WORDS),
    },
    "pool": {
        "dir": PAIR_DIRECTIONS, "dt": TYPES, "tag": PLAIN_TAGS, "alg": ("max", "avg_np", "avg_p"),
    },
    "lrn": {"dir": PAIR_DIRECTIONS, "dt": TYPES, "tag": PLAIN_TAGS, "alg": ("ACROSS", "WITHIN")},
    "softmax": {
        "dir": PAIR_DIRECTIONS, "sdt": TYPES, "ddt": TYPES, "stag": PLAIN_TAGS,
        "dtag": PLAIN_TAGS, "alg": ("SOFTMAX", "LOGSOFTMAX"), "axis": ("1", "0", "2", "3"),
    },
    "binary": {
        "alg": [*BINARY], "sdt": (*TYPES, "f16:f32", "f32:bf16"), "ddt": TYPES,
        "stag": PLAIN_TAGS, "dtag": TAGS,
    },
    "sum": {"ddt": TYPES, "stag": PLAIN_TAGS, "dtag": TAGS},
    "reduction": {
        "sdt": TYPES, "ddt": TYPES,
        "alg": ("sum", *REDUCTION), "p": ("1", "2", "1.5", "3"), "eps": ("0", "0.5"),
        "stag": PLAIN_TAGS, "dtag": TAGS,
    },
    "reorder": {
        "sdt": ("f32", *DATA_TYPES), "ddt": ("f32", *DATA_TYPES),
        "stag": PLAIN_TAGS, "dtag": PLAIN_TAGS,
    },
}  # fmt: skip

ATTRIBUTES: Options = {
    "attr-scratchpad": ("library", "user"),
    "attr-scratchpad-limit": ("", "0", "4096"),
    "attr-deterministic": ("false", "true"),
}
MASKS = ("common", "per_oc", "per_dim_0", "per_tensor")
STEPS = (
    *("relu", "linear:2:1", "tanh", "square", "clip:-1:2", "elu:0.5", "gelu_erf", "swish:1"),
    *("sum", "sum:0.5", "sum:-2"),
    *(f"{name}:f32:{mask}" for name in ("add", "mul", "max", "ge") for mask in MASKS),
    *(f"prelu:{mask}" for mask in MASKS),
    *(f"select:f32.{mask}:per_tensor" for mask in MASKS),
)


def _options(draw: Draw, options: Options) -> list[str]:
    """`--name=value` for each option whose value is not the first."""
    drawn = {name: draw(st.sampled_from(values)) for name, values in options.items()}
    return [f"--{name}={text}" for name, text in drawn.items() if text != options[name][0]]


def _attributes(draw: Draw) -> list[str]:
    chain = draw(st.lists(st.sampled_from(STEPS), max_size=5))
    steps = [f"--attr-post-ops={'+'.join(chain)}"] if chain else []
    return steps + _options(draw, ATTRIBUTES)


# -- shapes ----------------------------------------------------------------------------------------

BATCHES = st.sampled_from((1, 2, 3, 0))
CHANNELS = st.sampled_from((1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 24, 33))
SIZES = st.sampled_from((1, 2, 3, 4, 5, 8, 9, 17, 0))
AXES = ("w", "hw", "dhw")


def _window(draw: Draw) -> str:
    """Up to three spatial dims; the right padding is what the output's size leaves over."""
    text = ""
    for axis in draw(st.sampled_from(AXES)):
        o, k, s = (draw(st.integers(1, high)) for high in (4, 4, 3))
        d, left, right = (draw(st.integers(0, 2)) for _ in range(3))
        span = (o - 1) * s + effective_kernel(k, d)
        size = max(1, span - left - right + draw(st.integers(0, s - 1)))
        text += f"_i{axis}{size}o{axis}{o}k{axis}{k}s{axis}{s}d{axis}{d}p{axis}{left}"
    return text


def _image(draw: Draw) -> str:
    axes = draw(st.sampled_from(("", *AXES)))
    return "".join(f"_i{axis}{draw(st.integers(1, 5))}" for axis in axes)


def _convolution(draw: Draw) -> str:
    groups, ic, oc = draw(st.sampled_from((1, 1, 2, 3, 8))), draw(CHANNELS), draw(CHANNELS)
    group = f"g{groups}" if groups > 1 else ""
    return f"{group}mb{draw(BATCHES)}ic{groups * ic}oc{groups * oc}{_window(draw)}"


def _dims(draw: Draw, least: int = 1) -> list[int]:
    return draw(st.lists(SIZES, min_size=least, max_size=5))


def _text(*tensors: Sequence[int]) -> str:
    return ":".join("x".join(map(str, dims)) for dims in tensors)


def _some_ones(draw: Draw, dims: Sequence[int]) -> list[int]:
    """The same dims, some of them 1."""
    return [1 if draw(st.booleans()) else n for n in dims]


def _matmul(draw: Draw) -> str:
    m, k, n = draw(CHANNELS), draw(CHANNELS), draw(CHANNELS)
    batch = draw(st.lists(st.integers(1, 3), max_size=2))
    return _text([*_some_ones(draw, batch), m, k], [*_some_ones(draw, batch), k, n])


def _broadcast(draw: Draw) -> str:
    dims = _dims(draw)
    inputs = [_some_ones(draw, dims), dims, dims]
    return _text(*inputs[: draw(st.sampled_from((2, 3)))])


def _reduced(draw: Draw) -> str:
    dims = _dims(draw)
    return _text(dims, _some_ones(draw, dims))


def _sum(draw: Draw) -> str:
    scales = draw(st.lists(st.sampled_from(SCALES), min_size=1, max_size=4))
    types = [draw(st.sampled_from(TYPES)) for _ in scales]
    options = [f"--sdt={':'.join(types)}", f"--scales={':'.join(scales)}"]
    return " ".join([*options, _text(_dims(draw))])


SHAPES: dict[str, Callable[[Draw], str]] = {
    "conv": _convolution,
    "ip": lambda draw: f"mb{draw(BATCHES)}ic{draw(CHANNELS)}{_image(draw)}oc{draw(CHANNELS)}",
    "matmul": _matmul,
    "eltwise": lambda draw: _text(_dims(draw)),
    "pool": lambda draw: f"mb{draw(BATCHES)}ic{draw(CHANNELS)}{_window(draw)}",
    "lrn": lambda draw: (
        f"mb{draw(BATCHES)}ic{draw(CHANNELS)}{_image(draw)}ls{draw(st.integers(1, 7))}"
        f"alpha{draw(st.sampled_from(('0.5', '1', '0.001')))}"
        f"beta{draw(st.sampled_from(('0.75', '1', '0.5', '0.3')))}"
    ),
    "softmax": lambda draw: _text(_dims(draw, least=2)),
    "binary": _broadcast,
    "sum": _sum,
    "reduction": _reduced,
    "reorder": lambda draw: _text(_dims(draw)),
}


# -- places in buffers -----------------------------------------------------------------------------

MOVES = (*[""] * 6, "offset", "gaps", "order")  # each does what those before it do, too
MOST_MOVES = 8  # of a problem; always as many are drawn, so that fewer tensors are not plainer
OFFSETS = st.sampled_from((1, 2, 3, 5, 8, 16, 64))  # elements
GAPS = st.sampled_from((0, 1, 3))  # elements, or blocks of them


def _moved(draw: Draw, desc: MemoryDesc, move: str) -> MemoryDesc:
    """The same dims and blocks at an offset, perhaps with gaps, perhaps in another order."""
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
    """The problem with some of its tensors moved, operands of post-ops among them."""
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

MOST_BYTES = 100_000  # so that most of the time goes into different problems, not into large ones


@st.composite
def problems(draw: Draw, driver: str = "") -> Problem:
    """Problems of one driver, or of all; what the library's rules forbid is drawn again."""
    driver = driver or draw(st.sampled_from([*DRIVERS]))
    words = [f"--{driver}", *_options(draw, OPTIONS[driver]), *_attributes(draw)]
    try:
        (problem,) = read(" ".join([*words, SHAPES[driver](draw)]))
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


def draw(count: int, driver: str, *, seed: int = 0) -> list[Problem]:
    """That many problems of a driver, no two alike."""
    found: dict[Problem, None] = {}

    def enough(problem: Problem) -> bool:
        found[problem] = None
        return len(found) == count

    limit = _settings(100 * count, Phase.generate)
    find(problems(driver), enough, settings=limit, random=Random(seed))  # noqa: S311 - reproducible
    return list(found)[:count]


def shortest_failure(
    fails: Callable[[Problem], bool], *, driver: str = "", examples: int = 200, seed: int = 0
) -> Problem | None:
    """The simplest problem for which `fails` is true, None if none of so many examples is.

    driver: that of all problems tried, if given. A failure that is found is made simpler as long as
    it fails, so that its text is the shortest that hypothesis can reach.
    """
    limit = _settings(examples, Phase.generate, Phase.shrink)
    try:
        return find(problems(driver), fails, settings=limit, random=Random(seed))  # noqa: S311 - reproducible
    except NoSuchExample:
        return None
