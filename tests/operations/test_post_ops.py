"""Post-op chains: every kind of step, alone and together, on the operations that must fuse them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from checks import REFERENCE, Target, check, reference_outputs
from combinations import every_second
from problems import PARAMETERS
from test_convolution import PROBLEMS, Problem
from test_inner_product import inner_product
from test_matmul import matmul

import dnncore as dnn
from dnncore.algorithms.binary import BINARY
from dnncore.algorithms.eltwise import ELTWISE
from dnncore.comparison.fills import fill_inputs, fill_integers, fill_normal
from dnncore.testing.checks.torch_oracle import torch_outputs

DIMS = (2, 19, 5, 4)
NHWC = dnn.MemoryDesc(DIMS, "f32", "nhwc")

OPERATIONS = {
    "convolution": Problem((2, 8, 5, 4), (19, 8, 3, 3), padding_l=(1, 1)).op("forward"),
    "convolution_nhwc": Problem((2, 8, 5, 4), (19, 8, 3, 3), padding_l=(1, 1)).op(
        "forward", "nhwc", "any", "nhwc"
    ),
    "convolution_any": Problem((2, 8, 5, 4), (19, 8, 1, 1)).op("forward", "any", "any", "any"),
    "depthwise": Problem((2, 19, 5, 4), (19, 1, 1, 3, 3), padding_l=(1, 1)).op("forward"),
    "inner_product": inner_product("forward", (6, 33), 19),
    "matmul": matmul((6, 33), (33, 19)),
    "matmul_batch": matmul((3, 6, 33), (1, 33, 19)),
    "eltwise": dnn.EltwiseForward("forward_training", "relu", src=NHWC, dst=NHWC, alpha=2.0),
}


POOLING = {"src": NHWC, "dst": dnn.MemoryDesc((2, 19, 2, 2)), "kernel": (2, 2), "strides": (2, 2)}
ALL_OPERATIONS = {
    **OPERATIONS,
    "pooling": dnn.PoolingForward("forward_training", "max", **POOLING),
    "average": dnn.PoolingForward("forward_inference", "avg_exclude_padding", **POOLING),
    "binary": dnn.Binary("mul", src0=NHWC, src1=NHWC, dst=NHWC),
    "binary_broadcast": dnn.Binary(
        "sub", src0=NHWC, src1=dnn.MemoryDesc((1, 19, 1, 1)), dst=NHWC.with_format("nchw")
    ),
}


def over(op, *axes):
    """A descriptor that keeps these axes of the result and is 1 along the others."""
    dims = op.result.dims
    return dnn.MemoryDesc([d if i in axes else 1 for i, d in enumerate(dims)])


def channels(op):
    """What varies with the channel, dim 1 of images and the last of matrices."""
    return over(op, 1 if op.result.ndims == 4 else op.result.ndims - 1)


def whole(op):
    return over(op, *range(op.result.ndims))


eltwise, add, total, prelu = (
    dnn.PostOp.eltwise, dnn.PostOp.binary, dnn.PostOp.sum, dnn.PostOp.prelu,
)  # fmt: skip


def condition(desc):
    return desc.with_data_type("s8")


CHAINS = {
    "tanh_logistic": lambda op: [eltwise("tanh"), eltwise("logistic")],
    "sum_relu": lambda op: [total(), eltwise("relu")],
    "channels": lambda op: [add("mul", channels(op)), add("add", channels(op))],
    "broadcasts": lambda op: [
        add("add", over(op)),
        add("mul", over(op, 0)),
        add("add", over(op, 0, *range(2, op.result.ndims))),
        add("mul", whole(op)),
    ],
    "five": lambda op: [
        eltwise("linear", 2.0, 1.0),
        total(2.0),
        add("mul", channels(op)),
        eltwise("relu", -1.0),
        add("add", whole(op)),
    ],
    "mixed": lambda op: [
        prelu(channels(op)),
        add("sub", over(op, 0)),
        total(0.5),
        eltwise("swish", 1.0),
        add("select", whole(op), condition(whole(op))),
        eltwise("clip", -1.0, 2.0),
        prelu(whole(op)),
    ],
    "six": lambda op: [
        eltwise("relu", 1.0),
        add("add", over(op)),
        eltwise("linear", 0.125, 0.0),
        eltwise("tanh"),
        total(-2.0),
        eltwise("logistic"),
    ],
    "prelu": lambda op: [prelu(channels(op)), add("sub", whole(op)), prelu(over(op))],
    "prelu_whole": lambda op: [total(), prelu(whole(op)), add("max", over(op, 0))],
    "select": lambda op: [
        add("select", channels(op), condition(whole(op))),
        add("select", over(op), condition(channels(op))),
    ],
    "comparisons": lambda op: [
        add("min", whole(op)),
        add("ge", channels(op)),
        add("ne", over(op)),
        add("div", over(op, 0)),
    ],
    "two_sums": lambda op: [total(2.0), eltwise("relu"), total(-1.0)],
}

# Every chain on one convolution, one on all operations: a device compiles a program for each pair.
PAIRS = [("convolution", chain) for chain in CHAINS]
PAIRS += [(op, chain) for chain in ("five", "mixed") for op in OPERATIONS if op != "convolution"]
all_pairs = pytest.mark.parametrize(("operation", "chain"), PAIRS, ids=map("-".join, PAIRS))


@pytest.mark.in_turn(2)
@all_pairs
def test_agrees_with_the_reference(target: Target, operation, chain):
    op = OPERATIONS[operation]
    check(target, op, dnn.Attributes(CHAINS[chain](op)))


@pytest.mark.peer
@all_pairs
def test_the_reference_agrees_with_torch(operation, chain):
    op = OPERATIONS[operation]
    check(REFERENCE, op, dnn.Attributes(CHAINS[chain](op)), oracle=torch_outputs)


def on_two_operations(steps, others):
    """Each step on a convolution, and on one of the others, in turn.

    One OpenCL device takes the convolution and the other the other operation.
    """
    names = others.split()
    pairs = []
    for i, step in enumerate(steps):
        two = ("convolution", names[i % len(names)])
        pairs += [(name, step) for name in (two if i % 2 == 0 else reversed(two))]
    return pairs


PARAMETERS_INSIDE = {**PARAMETERS, "hardswish": (0.25, 0.5), "pow": (0.5, 2.0)}
POSITIVE = [eltwise("abs"), eltwise("linear", 1.0, 0.5)]  # where log and sqrt have values


@pytest.mark.in_turn(3)
@pytest.mark.parametrize(("name", "algorithm"), on_two_operations(ELTWISE, "matmul pooling binary"))
def test_every_eltwise_algorithm(target: Target, algorithm, name):
    step = eltwise(algorithm, *PARAMETERS_INSIDE[algorithm])
    check(target, ALL_OPERATIONS[name], dnn.Attributes([*POSITIVE, step]))


@pytest.mark.in_turn(3)
@pytest.mark.parametrize(("name", "algorithm"), on_two_operations(BINARY, "inner_product pooling"))
def test_every_binary_algorithm(target: Target, algorithm, name):
    op = ALL_OPERATIONS[name]
    src2 = condition(whole(op)) if algorithm == "select" else None
    check(target, op, dnn.Attributes([add(algorithm, channels(op), src2)]))


EVERY_BROADCAST = [axes for n in range(5) for axes in itertools.combinations(range(4), n)]


@pytest.mark.in_turn(3)
@every_second(("axes", EVERY_BROADCAST), ("name", ["convolution_nhwc", "pooling", "eltwise"]))
def test_every_broadcast(target: Target, name, axes):
    op = ALL_OPERATIONS[name]
    operand = over(op, *axes)
    check(target, op, dnn.Attributes([add("add", operand), prelu(operand)]))


@pytest.mark.parametrize("dims", [(8, 8), (3, 40, 40)])
def test_one_vector_is_an_operand_along_rows_and_along_columns(target: Target, dims):
    """Both operands have the same address and other strides."""
    size = dims[-1]
    row = dnn.MemoryDesc((*(1 for _ in dims[:-1]), size))
    column = dnn.MemoryDesc((*(1 for _ in dims[:-2]), size, 1))
    desc = dnn.MemoryDesc(dims)
    op = dnn.EltwiseForward("forward_inference", "linear", src=desc, dst=desc, alpha=1.0, beta=0.0)
    attr = dnn.Attributes([add("add", row), add("mul", column), add("add", row)])
    values, vector = fill_integers(desc, 1), np.arange(1, size + 1, dtype=np.float32)
    expected = (values + vector) * vector[:, None] + vector
    engine = target.engine
    shared = dnn.Memory.from_numpy(vector, engine=engine)
    for pd in target.primitive_descs(op, attr):
        dst = dnn.Memory(desc, engine)
        operands = {
            f"post_op_{i}_src": dnn.Memory(d, engine, shared.buffer)
            for i, d in enumerate((row, column, row))
        }
        src = dnn.Memory.from_numpy(values, engine=engine)
        pd.primitive().execute(engine.stream(), src=src, dst=dst, **operands).wait()
        np.testing.assert_array_equal(dst.numpy(), expected, pd.impl_name)


def test_a_sum_of_scale_zero_does_not_read_dst(target: Target):
    """dst is full of NaN before."""
    check(target, OPERATIONS["convolution"], dnn.Attributes([total(0.0), eltwise("relu")]))


@pytest.mark.parametrize("kind", ["eltwise", "binary", "matmul"])
def test_operands_may_be_views_of_one_buffer(target: Target, kind):
    """A scale of rows and the same scale of columns."""
    square = dnn.MemoryDesc((40, 40))
    op = {
        "eltwise": dnn.EltwiseForward("forward_inference", "abs", src=square, dst=square),
        "binary": dnn.Binary("add", src0=square, src1=square, dst=square),
        "matmul": matmul((40, 33), (33, 40)),
    }[kind]
    shapes = [(40, 1), (1, 40)]
    steps = [dnn.PostOp.binary("mul", dnn.MemoryDesc(shape)) for shape in shapes]
    attr = dnn.Attributes((*steps, *steps))
    scale = fill_normal(dnn.MemoryDesc((40,)), 3)
    inputs = fill_inputs(op, dnn.Attributes(), fill_normal)
    operands = {f"post_op_{i}_src": scale.reshape(shapes[i % 2]) for i in range(4)}
    expected = reference_outputs(op, inputs | operands, post_ops=attr.post_ops)["dst"]
    for pd in target.primitive_descs(op, attr):
        shared = dnn.Memory.from_numpy(scale, engine=pd.engine)
        memories = {
            argument.name: dnn.Memory(desc, pd.engine, shared.buffer)
            if argument.name in operands
            else dnn.Memory.from_numpy(inputs[argument.name], engine=pd.engine)
            if argument.name in inputs
            else dnn.Memory(desc, pd.engine)
            for argument, desc in pd.arguments
        }
        stream = pd.engine.stream()
        pd.primitive().execute(stream, **memories).wait()
        got = memories["dst"].numpy(stream)
        np.testing.assert_allclose(got, expected, 1e-4, 1e-4, err_msg=pd.impl_name)


def test_operands_in_other_formats(target: Target):
    for tag in ("nhwc", "nChw8c"):
        operand = dnn.MemoryDesc(DIMS, "f32", tag)
        attr = dnn.Attributes([add("add", operand), prelu(operand)])
        check(target, OPERATIONS["convolution"], attr)


def test_padding_stays_zero(target: Target):
    """A chain that takes 0 to 1 must not reach a blocked format's padding."""
    attr = dnn.Attributes([eltwise("linear", 1.0, 1.0)])
    op = Problem((2, 8, 5, 4), (19, 8, 3, 3)).op("forward", "nchw", "oihw", "nChw8c")
    check(target, op, attr)
    desc = dnn.MemoryDesc(DIMS, "f32", "nChw8c")
    op = dnn.EltwiseForward("forward_training", "relu", src=desc, dst=desc)
    check(target, op, attr)


def test_eltwise_in_place_with_a_chain(target: Target):
    op = OPERATIONS["eltwise"]
    for chain in ("five", "sum_relu"):
        check(target, op, dnn.Attributes(CHAINS[chain](op)), in_place=("src", "dst"))


# Chains apply to every operation and direction; kernels may leave these to others.
OTHERS = {
    "convolution_backward_data": PROBLEMS["3x3"].op("backward_data"),
    "convolution_backward_weights": PROBLEMS["3x3"].op("backward_weights"),
    "inner_product_backward_data": inner_product("backward_data", (6, 33), 19),
    "inner_product_backward_weights": inner_product("backward_weights", (6, 33), 19),
    "eltwise_backward": dnn.EltwiseBackward("tanh", src=NHWC, diff_dst=NHWC, diff_src=NHWC),
    "softmax": dnn.SoftmaxForward("forward_inference", "log", src=NHWC, dst=NHWC, axis=1),
    "sum_operation": dnn.Sum((1.0, 2.0), srcs=(NHWC, NHWC), dst=NHWC),
    "reorder": dnn.Reorder(src=NHWC, dst=NHWC.with_format("nchw")),
}


# oneDNN's pooling takes no sum, and so it may be refused.
WITHOUT_SUM = {
    "eltwise_prelu": lambda op: [eltwise("linear", 2.0, 1.0), prelu(channels(op))],
    "binaries": lambda op: [
        add("sub", whole(op)),
        add("max", over(op)),
        add("select", channels(op), condition(whole(op))),
    ],
}


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("chain", [*WITHOUT_SUM, "mixed"])
@pytest.mark.parametrize("name", ["pooling", "average", "binary", "binary_broadcast"])
def test_on_pooling_and_binary(target: Target, name, chain):
    op = ALL_OPERATIONS[name]
    steps = {**CHAINS, **WITHOUT_SUM}[chain](op)
    refusable = chain == "mixed" and "binary" not in name
    check(target, op, dnn.Attributes(steps), may_refuse=refusable)


@pytest.mark.parametrize("op", OTHERS.values(), ids=OTHERS)
def test_on_other_operations(target: Target, op):
    check(target, op, dnn.Attributes(CHAINS["five"](op)), may_refuse=True)


# -- the reference itself -------------------------------------------------------------------------


def test_golden():
    desc = dnn.MemoryDesc((1, 3))
    op = dnn.EltwiseForward("forward_inference", "linear", src=desc, dst=desc, alpha=1.0)
    chain = [total(2.0), add("mul", dnn.MemoryDesc((1, 1))), eltwise("relu", 0.5)]
    inputs = {
        "src": np.array([[1.0, 2.0, -30.0]]),
        "dst": np.array([[10.0, -10.0, 0.0]]),
        "post_op_1_src": np.array([[3.0]]),
    }
    # (1 + 20) * 3, (2 - 20) * 3 / 2, (-30 + 0) * 3 / 2
    got = reference_outputs(op, inputs, post_ops=chain)["dst"]
    assert got.tolist() == [[63.0, -27.0, -45.0]]


def test_a_comparison_gives_numbers():
    """A truth value would be 1 + 1 = 1, and its exponential of half precision."""
    desc = dnn.MemoryDesc((1, 2))
    op = dnn.Binary("gt", src0=desc, src1=desc, dst=desc)
    inputs = {"src0": np.array([[2.0, 0.0]]), "src1": np.ones((1, 2))}
    got = reference_outputs(op, inputs, post_ops=[eltwise("exp")])["dst"]
    assert np.array_equal(got, np.exp(np.array([[1.0, 0.0]])).astype(np.float32))


def test_rounding_happens_once_after_the_chain():
    """1 + 2**-30 is no float32, but the float64 result of the product times 2**30 - 2**30 is."""
    op = dnn.MatMul(src=dnn.MemoryDesc((1, 2)), weights=dnn.MemoryDesc((2, 1)),
                    dst=dnn.MemoryDesc((1, 1)))  # fmt: skip
    inputs = {"src": np.array([[1.0, 2.0**-30]]), "weights": np.ones((2, 1))}
    chain = [eltwise("linear", 2.0**30, -(2.0**30))]
    assert reference_outputs(op, inputs, post_ops=chain)["dst"].tolist() == [[1.0]]


STEPS_BEFORE = [
    dnn.PostOp.eltwise("linear", 1.0, 0.0),
    dnn.PostOp.eltwise("relu"),
    dnn.PostOp.sum(1.0),
    dnn.PostOp.binary("mul", dnn.MemoryDesc((1, 1))),
]


@pytest.mark.parametrize("before", STEPS_BEFORE, ids=str)
def test_names_of_operands_count_all_steps_before(before):
    """Also those that change nothing."""
    operand = dnn.MemoryDesc((1, 3))
    attr = dnn.Attributes((before, dnn.PostOp.binary("add", operand)))
    assert attr.operands()[-1] == ("post_op_1_src", operand)
