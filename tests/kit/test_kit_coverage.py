"""Each value of a parameter that a wrong implementation may confuse occurs in the list "smoke"."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest

import dnncore as dnn
from dnncore.algorithms.binary import BINARY
from dnncore.algorithms.eltwise import ELTWISE
from dnncore.algorithms.reduction import REDUCTION
from dnncore.attributes import WORDS
from dnncore.ops.types import HALF_TYPES
from dnncore.problem import DRIVERS
from dnncore.testing.problems import type_cases
from dnncore.testing.problems.cases import cases
from dnncore.testing.problems.random_problems import draw
from dnncore.testing.problems.types_and_attributes import types_of

KINDS = [kind for driver in DRIVERS.values() for kind in driver.operations]
FORWARD = [kind for kind in KINDS if "Backward" not in kind.__name__]
CONVOLUTIONS = DRIVERS["conv"].operations


@cache
def listed(size):
    return cases(size, drawn=False)


def of(kind, size="smoke"):
    return [problem for problem in listed(size) if type(problem.op) is kind]


def is_f32(op):
    return all(desc.data_type == "f32" for a, desc in op.tensors() if a.name != "workspace")


# -- windows ---------------------------------------------------------------------------------------


def _groups(op):
    groups, oc, ic, *_ = op.grouped_weights
    if groups == 1:
        return "dense"
    return "groups" if ic > 1 else "depthwise" if oc == 1 else "multiplier"


def _remainder(op):
    """The cells of each axis that lie behind the last window."""
    spans = [(k - 1) * (d + 1) + 1 for k, d in zip(_kernel(op), op.dilations, strict=True)]
    sizes = map(sum, zip(op.src_role.dims[2:], op.padding_l, op.padding_r, strict=True))
    return tuple((n - span) % s for n, span, s in zip(sizes, spans, op.strides, strict=True))


def _kernel(op):
    return op.kernel if hasattr(op, "kernel") else tuple(op.grouped_weights[3:])


PARAMETERS = {
    "kernel": _kernel,
    "strides": lambda op: op.strides,
    "padding_l": lambda op: op.padding_l,
    "padding_r": lambda op: op.padding_r,
    "image": lambda op: op.src_role.dims[2:],
}
FAMILIES = {
    **dict.fromkeys(CONVOLUTIONS, (_groups, ("dense", "groups", "depthwise", "multiplier"))),
    **{
        kind: (lambda op: op.algorithm, ("max", "avg_exclude_padding", "avg_include_padding"))
        for kind in DRIVERS["pool"].operations
    },
}


@pytest.mark.parametrize("kind", FAMILIES)
def test_axes_of_windows_differ(kind):
    """In every parameter, with every kind of groups. Either the first or the last axis has more."""
    family, names = FAMILIES[kind]
    found = set()
    for op in (p.op for p in of(kind) if is_f32(p.op)):
        for name, values in ((n, values_of(op)) for n, values_of in PARAMETERS.items()):
            found |= {(family(op), name, int(np.sign(values[0] - values[-1])))}
        found |= {(family(op), "sides", 1)} if op.padding_l != op.padding_r else set()
        found |= {(family(op), "dilations", 1)} if len(set(op.dilations)) > 1 else set()
        found |= {(family(op), "remainder", 1)} if len(set(_remainder(op))) > 1 else set()
        found |= {(family(op), "dims", len(op.strides))}
    for name in names:
        orders = {(name, parameter, sign) for parameter in PARAMETERS for sign in (-1, 1)}
        others = {(name, what, 1) for what in ("sides", "remainder", "dilations")}
        assert found >= orders | others, sorted((orders | others) - found)
    dims = {(name, ndims) for name, what, ndims in found if what == "dims"}
    assert dims >= {(names[0], n) for n in (1, 2, 3)}


@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_depthwise_convolutions_of_every_number_of_dims(kind):
    ops = [p.op for p in of(kind) if _groups(p.op) == "depthwise"]
    assert {len(op.strides) for op in ops} == {1, 2, 3}
    assert {3} <= {len(set(op.strides)) for op in ops}


@pytest.mark.parametrize("kind", DRIVERS["pool"].operations)
def test_places_in_windows_of_maxima_beyond_each_type(kind):
    """Also beyond s8, as which an implementation may read a u8."""
    cells = {math.prod(p.op.kernel) for p in of(kind) if p.op.algorithm == "max"}
    for low, high in ((129, 255), (256, 257), (258, 2**15)):
        assert any(low <= count <= high for count in cells), (low, high)


# -- many terms and many tensors -------------------------------------------------------------------


def test_biases_of_every_mask():
    ops = [p.op for p in of(dnn.MatMul) if p.op.bias is not None and p.op.dst.ndims == 4]
    masks = {_mask(op.bias, op.dst) for op in ops if min(op.dst.dims) > 1}
    assert masks >= {1, 2, 3, 5, 9, 10, 12}


@pytest.mark.parametrize("algorithm", REDUCTION)
def test_long_reductions(algorithm):
    """Each algorithm reduces a long row and a long column."""
    ops = [p.op for p in of(dnn.Reduction) if p.op.algorithm == algorithm]
    lengths = [
        (op.src.nelems // max(1, op.dst.nelems), op.dst.dims[-1] == op.src.dims[-1]) for op in ops
    ]
    for inner in (True, False):
        assert any(length > 1000 for length, kept in lengths if kept is inner)


@pytest.mark.parametrize("least", [17, 33, 129])
def test_sums_of_many_tensors_with_operands(least):
    """Each number is beyond the tensors that one kernel of a backend adds."""
    sums = [p for p in of(dnn.Sum) if p.attr.operands()]
    assert any(len(p.op.srcs) >= least for p in sums)


@pytest.mark.parametrize("kind", [dnn.MatMul, dnn.InnerProductForward])
def test_few_rows_and_many_weights(kind):
    """Weights beyond a second-level cache, and sums in several parts."""
    ops = [p.op for p in of(kind)]
    rows = [(op.dst.nelems // max(1, op.dst.dims[-1]), op.weights.nelems) for op in ops]
    assert any(8 < count <= 64 and nelems > 2**18 for count, nelems in rows)


# -- operands of post-ops --------------------------------------------------------------------------


# Results of inner products and recurrent cells have two and three dims.
OF_FOUR_DIMS = [k for k in FORWARD if k not in (dnn.InnerProductForward, dnn.RNNForward)]


@pytest.mark.parametrize("kind", OF_FOUR_DIMS)
def test_operands_of_every_mask(kind):
    """Of results with at least four dims, in chains and alone."""
    found, alone = set(), set()
    for problem in of(kind):
        if problem.op.result.ndims >= 4 and min(problem.op.result.dims) > 0:
            masks = {_mask(d, problem.op.result) for d in _broadcast_operands(problem.attr)}
            found |= masks
            alone |= masks if len(problem.attr.post_ops) == 1 else set()
    assert found >= set(range(1, 15))
    assert alone >= {4, 12}


def _broadcast_operands(attr):
    steps = (step for step in attr.post_ops if step.kind != "depthwise")
    return [desc for step in steps for _, desc in step.operands]


def _mask(desc, result):
    pairs = zip(desc.dims, result.dims, strict=True)
    return sum(1 << d for d, (own, whole) in enumerate(pairs) if own == whole > 1)


def test_operands_of_inner_products():
    problems = of(dnn.InnerProductForward)
    masks = {_mask(d, p.op.result) for p in problems for _, d in p.attr.operands()}
    assert masks >= {1, 2, 3}


@pytest.mark.parametrize("kind", FORWARD)
def test_kinds_of_post_ops_and_formats_of_operands(kind):
    attrs = [p.attr for p in of(kind)]
    kinds = {step.kind for attr in attrs for step in attr.post_ops}
    assert kinds >= {"eltwise", "sum", "binary", "prelu"}
    assert any(step.algorithm == "select" for attr in attrs for step in attr.post_ops)
    operands = [desc for attr in attrs for _, desc in attr.operands()]
    assert any(desc.order_tag != "abcdef"[: desc.ndims] for desc in operands)


@pytest.mark.parametrize("kind", [k for k in KINDS if k not in FORWARD])
def test_gradients_have_post_ops(kind):
    chains = [{step.kind for step in p.attr.post_ops} for p in of(kind)]
    assert {"sum", "binary", "prelu"} in chains


# -- numbers ---------------------------------------------------------------------------------------


def has_all_digits(number):
    """Whether six digits of the number are another f32 number."""
    return np.float32(f"{number:.6g}") != np.float32(number)


@pytest.mark.parametrize("kind", [dnn.EltwiseForward, dnn.EltwiseBackward])
def test_parameters_of_eltwise(kind):
    ops = [p.op for p in of(kind)]
    wanted = {n for n, record in ELTWISE.items() if any(map(any, record.probes))}
    found = {op.function for op in ops if has_all_digits(op.alpha) and has_all_digits(op.beta)}
    assert found == wanted
    if kind is dnn.EltwiseForward:
        assert {op.function for op in ops if op.alpha < 0 and op.beta < 0} >= wanted


@pytest.mark.parametrize("kind", DRIVERS["lrn"].operations)
def test_parameters_of_lrn(kind):
    ops = [p.op for p in of(kind)]
    for algorithm in ("across_channels", "within_channel"):
        own = [op for op in ops if op.algorithm == algorithm]
        assert any(all(map(has_all_digits, (op.alpha, op.beta, op.k))) for op in own)
        assert {op.local_size % 2 for op in own} == {0, 1}
        assert {op.src.ndims for op in own} >= {3, 4}
        assert any(op.src.dims[2:] != op.src.dims[:1:-1] for op in own)
    assert any(op.local_size > 2 * op.src.dims[1] for op in ops)


def test_scales_of_sums():
    scales = [scale for p in of(dnn.Sum) for scale in p.op.scales]
    assert any(map(has_all_digits, scales))
    assert {0.0, 1.0} <= set(scales)


@pytest.mark.parametrize("kind", KINDS)
def test_scales_of_post_ops(kind):
    steps = [step for p in of(kind) for step in p.attr.post_ops]
    assert any(step.kind == "sum" and has_all_digits(step.scale) for step in steps)
    if kind in FORWARD and kind is not dnn.InnerProductForward:
        assert any(step.kind == "eltwise" and has_all_digits(step.alpha) for step in steps)


def test_parameters_of_norms():
    for name, record in REDUCTION.items():
        ops = [p.op for p in of(dnn.Reduction) if p.op.algorithm == name]
        if record.is_norm:
            assert any(has_all_digits(op.p) and has_all_digits(op.eps) for op in ops)


# -- sizes and axes --------------------------------------------------------------------------------


def test_products_without_terms_have_biases_and_post_ops():
    empty = [p for p in of(dnn.MatMul) if p.op.src.dims[-1] == 0 and p.op.dst.nelems]
    assert {p.op.bias.dims for p in empty if p.op.bias} >= {(1, 1), (3, 1), (1, 4), (3, 4)}
    assert any(p.op.bias and len(p.attr.post_ops) > 2 for p in empty)
    empty = [p for p in of(dnn.InnerProductForward) if p.op.src.dims[1] == 0 and p.op.dst.nelems]
    assert any(p.op.bias for p in empty)
    assert any(len(p.attr.post_ops) > 2 for p in empty)


def test_batches_of_products():
    """Each side repeats, with one and two batch dims, and both at once."""
    found = set()
    for op in (p.op for p in of(dnn.MatMul)):
        pairs = zip(op.src.dims[:-2], op.weights.dims[:-2], strict=True)
        found.add(tuple((a > b) - (a < b) for a, b in pairs))
    assert found >= {(), (0,), (1,), (-1,), (1, -1), (0, 1), (0, -1), (1, 0), (-1, 0)}


def test_bias_masks():
    masks = {
        _mask(p.op.bias, p.op.dst) for p in of(dnn.MatMul) if p.op.bias and p.op.dst.ndims == 3
    }
    assert masks >= {1, 2, 4, 6, 7}


@pytest.mark.parametrize("kind", DRIVERS["softmax"].operations)
def test_axes_of_softmax(kind):
    for name in ("accurate", "log"):
        ops = [p.op for p in of(kind) if p.op.algorithm == name]
        assert {op.axis for op in ops} >= {1, 3}
    ops = [p.op for p in of(kind) if p.op.result.ndims == 4]
    assert {op.axis for op in ops} == {0, 1, 2, 3}


def test_axes_of_reductions():
    """Each alone, and two with a kept one between them."""
    ops = [p.op for p in of(dnn.Reduction) if p.op.src.ndims == 4]
    assert {op.reduced_dims for op in ops} >= {(0,), (1,), (2,), (3,), (0, 2), (1, 3), (0, 2, 3)}


def test_sides_of_binary():
    """Each source repeats along each axis."""
    found = [set(), set()]
    for op in (p.op for p in of(dnn.Binary)):
        for side, desc in enumerate((op.src0, op.src1)):
            pairs = zip(desc.dims, op.dst.dims, strict=True)
            found[side] |= {
                (op.dst.ndims, d) for d, (own, whole) in enumerate(pairs) if own < whole
            }
    for dims in found:
        assert {d for n, d in dims if n == 4} == {0, 1, 2, 3}


# -- formats and types -----------------------------------------------------------------------------


NAMES = {
    "src", "src0", "src1", "weights", "dst", "diff_src", "diff_weights", "diff_dst", "queries",
    "keys", "values", "diff_queries", "diff_keys", "diff_values",
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_formats_of_one_argument(kind):
    """Each tensor of an operation with several has another order of dims than another one."""
    found, every = set(), set()
    for op in (p.op for p in of(kind)):
        descs = {a.name: d for a, d in op.tensors() if d.ndims > 2 and math.prod(d.dims) > 1}
        descs = {name: d for name, d in descs.items() if name in NAMES}
        every |= descs.keys()
        known = {n: d.order_tag for n, d in descs.items() if not d.is_any and d.is_plain}
        found |= {n for n, tag in known.items() if any(other != tag for other in known.values())}
    assert found >= every


HALVES = {"f32", *HALF_TYPES}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not dnn.Reorder])
def test_half_types_that_go_together(kind):
    """All combinations in the lines of the list "full"."""
    generated = set(type_cases.problems("types"))

    def combinations(size):
        problems = [p for p in of(kind, size) if p not in generated]
        named = [
            [(a.name, d.data_type) for a, d in p.op.tensors() if a.name != "src2"] for p in problems
        ]
        named = [row for row in named if HALVES.issuperset(dict(row).values())]
        return {tuple(row) for row in named if len(row) <= 4}

    assert combinations("smoke") >= combinations("full")


@pytest.mark.parametrize("kind", KINDS)
def test_types_of_the_table(kind):
    """The list "types" has all of the result with each of the inputs, "smoke" has each type."""
    inputs = {"forward": "src src0 src1 weights", "backward": "src dst weights diff_dst"}
    names = inputs["backward" if "Backward" in kind.__name__ else "forward"].split()
    found, results = {}, {}
    for size in ("types", "smoke"):
        ops = [p.op for p in of(kind, size)]
        pairs = [types_of(op) for op in ops]
        found[size] = {(n, own[n]) for own in pairs for n in names if n in own}
        results[size] = {
            (n, own[n], op.result.data_type)
            for op, own in zip(ops, pairs, strict=True) for n in names if n in own
        }  # fmt: skip
    result = of(kind)[0].op.result_name
    wanted = {(n, own) for row in kind.TYPES for n in names for own in row.get(n, ())}
    present = {n for n in names if all(n in types_of(p.op) for p in of(kind, "types"))}
    wanted = {pair for pair in wanted if pair[0] in present}
    assert found["types"] >= wanted
    assert found["smoke"] >= wanted
    together = {
        (n, own, other)
        for row in kind.TYPES for n in names for own in row.get(n, ()) for other in row[result]
    }  # fmt: skip
    assert results["types"] >= {row for row in together if row[:2] in wanted}


HAVING = {
    "scales": lambda op: op.scale_masks,
    "zero_points": lambda op: op.zero_point_masks,
    "groups": lambda op: op.GROUPED,
    "dropout": lambda op: op.HAS_DROPOUT,
    "stochastic_rounding": lambda _: True,
    "rnn_qparams": lambda op: any("u8" in row.get("src_layer", ()) for row in op.TYPES),
}
IN_POST_OPS = {"operand_types", "sum_zero_point", "depthwise"}


def test_post_ops_that_depend_on_types():
    for size in ("full", "smoke"):
        assert {w for p in listed(size) for w in p.attr.words} >= IN_POST_OPS


@pytest.mark.parametrize("word", [word for word in WORDS if word not in IN_POST_OPS])
def test_attributes_that_depend_on_types(word):
    """Each operation that has them has them in the list "types", some in "smoke"."""
    wanted = {kind for kind in KINDS if HAVING[word](of(kind)[0].op)}
    assert {type(p.op) for p in listed("types") if word in p.attr.words} == wanted
    assert any(word in p.attr.words for p in listed("smoke"))


@pytest.mark.parametrize("size", ["types", "smoke"])
@pytest.mark.parametrize("kind", KINDS)
def test_each_tensor_has_its_scales_and_zero_points(kind, size):
    """And each operation has dropout and stochastic rounding, if it can have them."""
    op = of(kind)[0].op
    wanted = {f"{name}_scales" for name in op.scale_masks}
    wanted |= {f"{name}_zero_points" for name in op.zero_point_masks}
    wanted |= {"rounding_seed", *(["dropout_seed"] if op.HAS_DROPOUT else [])}
    assert {a.name for p in of(kind, size) for a, _ in p.attr.arguments(p.op)} >= wanted


# -- random problems -------------------------------------------------------------------------------


@pytest.mark.parametrize("driver", DRIVERS)
def test_drawn_operands_have_any_mask(driver):
    problems = [p for p in draw(100, driver) if "depthwise" not in p.attr.words]
    masks = {_mask(desc, p.op.result) for p in problems for _, desc in p.attr.operands()}
    assert len(masks) >= (3 if driver == "ip" else 5)


def test_drawn_convolutions_are_depthwise_with_unequal_strides():
    ops = [p.op for p in draw(100, "conv")]
    assert any(_groups(op) == "depthwise" and len(set(op.strides)) > 1 for op in ops)
    assert any(_groups(op) == "multiplier" for op in ops)


def test_drawn_convolutions_have_the_post_op_depthwise():
    problems = [p for seed in range(5) for p in draw(100, "conv", seed=seed)]
    chains = [p.attr.post_ops for p in problems if "depthwise" in p.attr.words]
    assert any(len(chain) > 1 for chain in chains)
    fused = [step for chain in chains for step in chain if step.kind == "depthwise"]
    types = {step.weights.data_type for step in fused if step.weights}
    assert types >= {"f32", "f16"}


@pytest.mark.parametrize("driver", ["matmul", "ip"])
def test_drawn_products_without_terms(driver):
    assert any(p.op.flops == 0 and p.op.result.nelems for p in draw(100, driver))


# -- the list "full": sizes ------------------------------------------------------------------------

LARGE = 1000
MANY_DIMS = [*DRIVERS["eltwise"].operations, dnn.Binary, dnn.Sum, dnn.Reduction, dnn.Reorder,
             dnn.MatMul, *DRIVERS["softmax"].operations]  # fmt: skip
STREAMED = [*MANY_DIMS, *DRIVERS["pool"].operations, *DRIVERS["lrn"].operations]


def test_full_has_the_cases_of_smoke():
    assert set(listed("smoke")) <= set(listed("full"))


@pytest.mark.parametrize(
    "kind",
    [k for k in KINDS if k not in (dnn.RNNForward, dnn.RNNBackward)],  # weights have 5 dims
)
def test_each_dim_is_large_while_others_are_small(kind):
    """Batch, channels, and the first of the others; of products M, N and K."""
    found = set()
    for op in (p.op for p in of(kind, "full")):
        dims = op.result.dims
        found |= {
            axis for axis, dim in enumerate(dims[:3]) if dim > 256 and dim**2 > math.prod(dims)
        }
    assert found >= set(range(2 if "Inner" in kind.__name__ or kind is dnn.MatMul else 3))


@pytest.mark.parametrize("kind", MANY_DIMS)
def test_there_are_twelve_dims(kind):
    assert any(len(p.op.result.dims) == 12 for p in of(kind, "full"))


@pytest.mark.parametrize("kind", STREAMED)
def test_there_are_results_larger_than_caches(kind):
    least = 2**18 if kind in (dnn.Reduction, dnn.MatMul) else 2**20
    assert any(p.op.result.nelems > least for p in of(kind, "full"))


@pytest.mark.parametrize("name", ELTWISE)
def test_each_parameter_of_eltwise_is_one_of_a_post_op(name):
    steps = {
        (step.alpha, step.beta)
        for p in of(dnn.MatMul)
        for step in p.attr.post_ops
        if step.kind == "eltwise" and step.algorithm == name
    }
    wanted = np.array(ELTWISE[name].probes)
    assert all(any(np.allclose(pair, step) for step in steps) for pair in wanted)


@pytest.mark.parametrize("name", BINARY)
def test_each_binary_algorithm_is_a_post_op(name):
    steps = [step for p in of(dnn.InnerProductForward) for step in p.attr.post_ops]
    assert any(step.kind == "binary" and step.algorithm == name for step in steps)
