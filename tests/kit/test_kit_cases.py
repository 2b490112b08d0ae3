"""The kit's lists of problems: as many as promised, and nothing that the library has left out."""

from __future__ import annotations

import itertools
import math
import re
import sys
from collections import Counter, defaultdict
from functools import cache
from typing import get_args

import pytest

import dnncore as dnn
from dnncore import ops
from dnncore.algorithms.binary import BINARY
from dnncore.algorithms.eltwise import ELTWISE, eltwise_names
from dnncore.algorithms.post_ops import POST_OPS
from dnncore.algorithms.reduction import REDUCTION
from dnncore.attributes import FpMath, ScratchpadMode
from dnncore.ops.normalization import NormalizationBackward
from dnncore.ops.operation import FORWARD
from dnncore.problem import DRIVERS, read
from dnncore.problem.tensors import role_of
from dnncore.testing.problems.cases import SIZES, cases
from dnncore.testing.problems.random_problems import draw, shortest_failure
from dnncore.testing.running.plan import FLOORS

LISTS = [size for size in SIZES if size != "random"]
OPERATIONS = [
    kind
    for kind in (getattr(ops, name) for name in ops.__all__)
    if isinstance(kind, type) and issubclass(kind, dnn.Operation) and hasattr(kind, "ARGUMENTS")
]
RECORDED = {
    dnn.Binary: BINARY,
    dnn.EltwiseForward: ELTWISE,
    dnn.EltwiseBackward: eltwise_names(gradient=True),
    dnn.Reduction: REDUCTION,
}


@cache
def listed(size):
    return cases(size, drawn=False)


def of(kind, size="full"):
    """The problems of a list whose operation is of this type."""
    return [problem for problem in listed(size) if type(problem.op) is kind]


# -- lists -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "least", "most"), [
    ("tiny", 60, 12), ("smoke", 250, 240), ("full", 3000, 1300), ("types", 1000, 450),
    ("networks", 300, 150),
])  # fmt: skip
def test_counts(size, least, most):
    """most: cases of one operation."""
    counts = Counter(type(problem.op) for problem in listed(size))
    assert counts.total() >= least
    assert max(counts.values()) <= most


@pytest.mark.parametrize("size", SIZES)
def test_whoever_serves_one_operation_in_f32_gets_to_the_floor(size):
    def kind(op):
        others = {d.data_type for a, d in op.tensors() if a.name != "src2"} - {"f32"}
        return "" if others and op.KIND != "reorder" else op.KIND.removesuffix(" backward")

    counts = Counter(kind(problem.op) for problem in listed(size))
    del counts[""]
    least = min(counts.values())
    assert FLOORS[size] <= least
    assert size == "random" or FLOORS[size] >= 0.85 * least


@pytest.mark.parametrize("size", SIZES)
def test_texts_are_names(size):
    """A text stands for one problem, and reads as this one."""
    problems = listed(size)
    texts = [str(problem) for problem in problems]
    assert len(set(texts)) == len(problems)
    assert read(" ".join(word for text in texts for word in text.split())) == problems


def test_tiny_is_tiny():
    descs = [desc for p in listed("tiny") for _, desc in p.op.tensors()]
    assert max(math.prod(desc.dims) for desc in descs) <= 512


def test_full_is_small():
    """The reference computes each case in a second, and most in milliseconds."""
    flops = sorted(p.op.flops for p in listed("full"))
    assert flops[-1] <= 1e8
    assert flops[int(0.98 * len(flops))] <= 5e6


def test_there_is_no_other_size():
    with pytest.raises(dnn.DescriptorError, match="size must be one of tiny, smoke"):
        cases("huge")


def is_prime(n):
    return n > 1 and all(n % factor for factor in range(2, math.isqrt(n) + 1))


SIZES_OF_SMOKE = {
    "more than 64 images": lambda dims: dims[0] > 64,
    "more than 64 in a row": lambda dims: dims[-1] > 64,
    "more than 2**16 elements": lambda dims: math.prod(dims) > 2**16,
    "a large prime": lambda dims: any(n > 256 and is_prime(n) for n in dims),
    "a multiple of 64": lambda dims: any(n and n % 64 == 0 for n in dims),
}


@pytest.mark.parametrize("kind", OPERATIONS)
@pytest.mark.parametrize("what", SIZES_OF_SMOKE)
def test_sizes_beyond_the_blocks_of_loops(kind, what):
    dims = (desc.dims for p in of(kind, "smoke") for _, desc in p.op.tensors())
    assert any(map(SIZES_OF_SMOKE[what], dims))


# -- what they cover -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", OPERATIONS)
@pytest.mark.parametrize("size", ["tiny", "smoke", "full"])
def test_operations(kind, size):
    assert of(kind, size), f"{size} has no case of {kind.__name__}"


@pytest.mark.parametrize("kind", OPERATIONS)
@pytest.mark.parametrize("size", ["smoke", "full"])
def test_algorithms(kind, size):
    found = {getattr(p.op, "algorithm", "") for p in of(kind, size)}
    known = RECORDED.get(kind) or getattr(sys.modules[kind.__module__], "ALGORITHMS", ())
    assert ("" in found) == (not known), "the module of the operation lists its ALGORITHMS"
    assert found >= set(known)


@pytest.mark.parametrize("kind", OPERATIONS)
@pytest.mark.parametrize("size", ["smoke", "full"])
def test_optional_fields(kind, size):
    """Every prop kind; every optional tensor, there and not."""
    problems = of(kind, size)
    if hasattr(problems[0].op, "prop_kind"):
        assert {p.op.prop_kind for p in problems} == set(FORWARD)
    tensors = {a.name for a in kind.ARGUMENTS} if isinstance(kind.ARGUMENTS, tuple) else set()
    optional = [
        name
        for name, f in kind.__dataclass_fields__.items()
        if f.default is None and name in tensors
    ]
    if issubclass(kind, NormalizationBackward):  # None is replaced by a descriptor
        optional = [name for name in optional if role_of(name) != "statistics"]
    for name in optional:
        assert {getattr(p.op, name) is None for p in problems} == {False, True}


FAMILIES = {
    "row-major": lambda desc: desc.order_tag == "abcdef"[: desc.ndims] and desc.is_dense,
    "permuted": lambda desc: desc.is_dense and desc.order_tag in ("acdb", "acb", "ba"),
    "gaps": lambda desc: desc.is_plain and not desc.is_dense,
    "offset": lambda desc: desc.offset0 > 0,
    "blocked": lambda desc: bool(desc.inner_blocks),
    "padded": lambda desc: desc.has_padding,
    "empty": lambda desc: 0 in desc.dims,
}


@pytest.mark.parametrize("kind", OPERATIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_formats(kind, family):
    descs = [desc for p in of(kind) for _, desc in p.op.tensors()]
    if family != "empty":
        descs = [desc for desc in descs if not desc.is_any]
    assert any(FAMILIES[family](desc) for desc in descs)


LAID = {
    "row-major": lambda desc: desc.is_plain and desc.order_tag == "abcdef"[: desc.ndims],
    "permuted": lambda desc: desc.is_plain and desc.order_tag != "abcdef"[: desc.ndims],
    "blocked": lambda desc: bool(desc.inner_blocks),
}


def laid_at_offsets(problems):
    """{argument: how it is laid out where it begins behind the start of its buffer}."""
    found = defaultdict(set)
    for problem in problems:
        named = [(argument.name, desc) for argument, desc in problem.op.tensors()]
        named += [("operand", desc) for _, desc in problem.attr.operands()]
        for name, desc in named:
            if desc.offset0:
                found[name] |= {laid for laid, has in LAID.items() if has(desc)}
    return found


def arguments_of(kind):
    """The names of an operation's tensors; of a sum's alike ones three."""
    names = {a.name for p in of(kind) for a, _ in p.op.tensors()}
    return names - {f"src{i}" for i in range(3, 200)}


@pytest.mark.parametrize("kind", OPERATIONS)
def test_every_argument_has_offsets(kind):
    found = laid_at_offsets(of(kind))
    for name in arguments_of(kind):
        is_vector = "bias" in name and kind is not dnn.MatMul
        is_vector |= role_of(name) in ("statistics", "factors")
        wanted = {"row-major"} if is_vector else set(LAID)
        wanted -= {"blocked"} if name == "lse" else set()  # softmax permits no blocks of lse
        assert found[name] >= wanted, name
    assert "Backward" in kind.__name__ or found["operand"]


@pytest.mark.parametrize("kind", OPERATIONS)
def test_formats_left_open(kind):
    """Where an operation takes `any` at all."""
    open_ones = {a.name for p in of(kind) for a, desc in p.op.tensors() if desc.is_any}
    assert open_ones or kind is dnn.Reorder


def test_types_of_reorders():
    pairs = {(p.op.src.data_type, p.op.dst.data_type) for p in of(dnn.Reorder)}
    types = dnn.Reorder.TYPES[0]
    assert pairs == set(itertools.product(types["src"], types["dst"]))


@pytest.mark.parametrize("kind", OPERATIONS)
def test_attributes(kind):
    attrs = [p.attr for p in of(kind)]
    assert {attr.scratchpad for attr in attrs} == set(get_args(ScratchpadMode))
    assert {attr.deterministic for attr in attrs} == {False, True}
    assert {step.kind for attr in attrs for step in attr.post_ops} >= {"sum", "eltwise"}


@pytest.mark.parametrize("kind", [k for k in OPERATIONS if "Backward" not in k.__name__])
def test_post_ops_of_every_kind(kind):
    kinds = {step.kind for p in of(kind) for step in p.attr.post_ops}
    everywhere = {name for name, record in POST_OPS.items() if record.probe is not None}
    assert kinds == (set(POST_OPS) if kind is dnn.ConvolutionForward else everywhere)


def test_post_ops_of_convolutions():
    attrs = [p.attr for p in of(dnn.ConvolutionForward)]
    found = {step.algorithm for attr in attrs for step in attr.post_ops}
    assert found >= {*ELTWISE, *BINARY}
    assert {attr.fpmath for attr in attrs} == set(get_args(FpMath))
    assert max(len(attr.post_ops) for attr in attrs) >= 5


@pytest.mark.parametrize("kind", [k for k in OPERATIONS if hasattr(k, "_normalise_window")])
def test_windows(kind):
    windows = [p.op for p in of(kind)]
    assert {op.src_role.ndims for op in windows} == {3, 4, 5}
    assert any(min(op.padding_r) < 0 for op in windows)
    assert any(op.padding_l != op.padding_r for op in windows)
    assert any(max(op.dilations) for op in windows)
    assert any(len(set(op.strides)) > 1 for op in windows)


def test_convolutions_around_the_sizes_of_blocks():
    channels = {p.op.src.dims[1] for p in of(dnn.ConvolutionForward)}
    assert channels >= {1, 3, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 48}


# -- networks --------------------------------------------------------------------------------------

# Millions of weights and of multiply-adds for one image. Weights: AlexNet's section 3 says 60
# million, VGG's table 2 138, MobileNet's table 8 4.2, and GoogLeNet's table 1 adds up to 7.0; 25.6
# of ResNet-50's are 25.5 and batch normalization's. Multiply-adds: ResNet's table 1 says 3.8
# billion, MobileNet's table 8 569 million, GoogLeNet's section 1 1.5 billion; AlexNet's and VGG's
# follow from their layers.
PUBLISHED = {
    "alexnet": ((60, 61), (700, 740)),
    "vgg_16": ((138, 138.5), (15400, 15600)),
    "googlenet": ((6.8, 7.0), (1500, 1600)),
    "resnet_50": ((25.4, 25.6), (3800, 3900)),
    "mobilenet": ((4.2, 4.25), (568.5, 569.5)),
}


def layers(network):
    """(operation, how many of it) of the layers with weights, forward."""
    for problem in listed("networks"):
        name, _, count = problem.name.partition("*")
        is_layer = isinstance(problem.op, (dnn.ConvolutionForward, dnn.InnerProductForward))
        if name.startswith(f"{network}:") and is_layer:
            yield problem.op, int(count)


@pytest.mark.parametrize("network", PUBLISHED)
def test_networks_are_those_of_the_papers(network):
    weights, multiply_adds = PUBLISHED[network]
    parameters = sum(n * (op.weights.nelems + (op.bias.nelems if op.bias else 0))
                     for op, n in layers(network))  # fmt: skip
    flops = sum(n * op.flops / op.src.dims[0] for op, n in layers(network))
    assert weights[0] <= parameters / 1e6 <= weights[1]
    assert multiply_adds[0] <= flops / 2e6 <= multiply_adds[1]


def test_layers_are_named_once():
    """And go backward where they go forward, in all directions but the first layer's data."""
    kinds = defaultdict(list)
    for problem in listed("networks"):
        assert re.fullmatch(r"\w+:\w+\*[1-9]", problem.name)
        kinds[problem.name].append(type(problem.op).__name__)
    for name, found in kinds.items():
        assert len(set(found)) == len(found)
        assert {"Forward" in kind for kind in found} == {True, False}, name


# -- random ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("driver", DRIVERS)
def test_drawn_problems(driver):
    problems = draw(10, driver)
    assert len(set(problems)) == 10
    assert all(type(p.op) in DRIVERS[driver].operations for p in problems)
    assert draw(10, driver) == problems
    assert draw(10, driver, seed=1) != problems


@pytest.mark.parametrize("driver", DRIVERS)
def test_drawn_problems_have_offsets(driver):
    """On the tensors of every role."""
    problems = draw(80, driver)
    roles = {role_of(a.name) for p in problems for a, _ in p.op.tensors()}
    assert {role_of(name) for name in laid_at_offsets(problems)} >= roles


def test_failures_shrink_to_the_shortest_text():
    def has_slopes(problem):
        return any(step.kind == "prelu" for step in problem.attr.post_ops)

    found = shortest_failure(has_slopes, driver="eltwise", seed=3)
    assert str(found) == "--eltwise --attr-post-ops=prelu:0 1"


def test_a_failure_of_wide_strides():
    found = shortest_failure(lambda p: max(p.op.strides) > 1, driver="conv")
    assert "sw2" in str(found)
    assert "--" not in str(found).removeprefix("--conv ")


def test_nothing_fails():
    assert shortest_failure(lambda problem: False, driver="conv", tries=5) is None
