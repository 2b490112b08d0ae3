"""Post-op chains: every kind of step, alone and together, on the operations that must fuse them."""

from __future__ import annotations

import numpy as np
import pytest
from checks import Target, check, reference_outputs
from oracles import torch_outputs
from test_convolution import PROBLEMS, Problem
from test_inner_product import inner_product
from test_matmul import matmul

import dnncore as dnn

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


def over(op, *axes):
    """A descriptor that keeps these axes of the result and is 1 along the others."""
    dims = op.result.dims
    return dnn.MemoryDesc([d if i in axes else 1 for i, d in enumerate(dims)])


def channels(op):
    """What varies with the channel, dim 1 of images and the last of matrices."""
    return over(op, 1 if op.result.ndims == 4 else op.result.ndims - 1)


def whole(op):
    return over(op, *range(op.result.ndims))


eltwise, add, total = dnn.PostOp.eltwise, dnn.PostOp.binary, dnn.PostOp.sum

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
    "six": lambda op: [
        eltwise("relu", 1.0),
        add("add", over(op)),
        eltwise("linear", 0.125, 0.0),
        eltwise("tanh"),
        total(-2.0),
        eltwise("logistic"),
    ],
    "two_sums": lambda op: [total(2.0), eltwise("relu"), total(-1.0)],
}

# Every chain on one convolution, one on all operations: a device compiles a program for each pair.
PAIRS = [("convolution", chain) for chain in CHAINS]
PAIRS += [(op, "five") for op in OPERATIONS if op != "convolution"]
all_pairs = pytest.mark.parametrize(("operation", "chain"), PAIRS, ids=map("-".join, PAIRS))


@all_pairs
def test_agrees_with_the_reference(target: Target, operation, chain):
    op = OPERATIONS[operation]
    check(target, op, dnn.Attributes(CHAINS[chain](op)))


@pytest.mark.peer
@all_pairs
def test_agrees_with_torch(target: Target, operation, chain):
    op = OPERATIONS[operation]
    check(target, op, dnn.Attributes(CHAINS[chain](op)), oracle=torch_outputs)


def test_a_sum_of_scale_zero_does_not_read_dst(target: Target):
    """dst is full of NaN before."""
    check(target, OPERATIONS["convolution"], dnn.Attributes([total(0.0), eltwise("relu")]))


def test_operands_in_other_formats(target: Target):
    for tag in ("nhwc", "nChw8c"):
        operand = dnn.MemoryDesc(DIMS, "f32", tag)
        attr = dnn.Attributes([add("add", operand)])
        check(target, OPERATIONS["convolution"], attr, may_refuse=True)


def test_padding_stays_zero(target: Target):
    """A chain that takes 0 to 1 must not reach a blocked format's padding."""
    attr = dnn.Attributes([eltwise("linear", 1.0, 1.0)])
    op = Problem((2, 8, 5, 4), (19, 8, 3, 3)).op("forward", "nchw", "oihw", "nChw8c")
    check(target, op, attr, may_refuse=True)
    desc = dnn.MemoryDesc(DIMS, "f32", "nChw8c")
    op = dnn.EltwiseForward("forward_training", "relu", src=desc, dst=desc)
    check(target, op, attr, may_refuse=True)


def test_eltwise_in_place_with_a_chain(target: Target):
    op = OPERATIONS["eltwise"]
    for chain in ("five", "sum_relu"):
        check(target, op, dnn.Attributes(CHAINS[chain](op)), in_place=("src", "dst"))


# Chains apply to every operation and direction; kernels may leave these to others.
pooled = dnn.MemoryDesc((2, 19, 2, 2))
OTHERS = {
    "convolution_backward_data": PROBLEMS["3x3"].op("backward_data"),
    "convolution_backward_weights": PROBLEMS["3x3"].op("backward_weights"),
    "inner_product_backward_data": inner_product("backward_data", (6, 33), 19),
    "inner_product_backward_weights": inner_product("backward_weights", (6, 33), 19),
    "eltwise_backward": dnn.EltwiseBackward("tanh", src=NHWC, diff_dst=NHWC, diff_src=NHWC),
    "softmax": dnn.SoftmaxForward("forward_inference", "log", src=NHWC, dst=NHWC, axis=1),
    "pooling": dnn.PoolingForward(
        "forward_training",
        "max",
        src=NHWC,
        dst=pooled,
        kernel=(2, 2),
        strides=(2, 2),
    ),
    "binary": dnn.Binary("mul", src0=NHWC, src1=NHWC, dst=NHWC),
    "sum_operation": dnn.Sum((1.0, 2.0), srcs=(NHWC, NHWC), dst=NHWC),
    "reorder": dnn.Reorder(src=NHWC, dst=NHWC.with_format("nchw")),
}


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


def test_rounding_happens_once_after_the_chain():
    """1 + 2**-30 is no float32, but the float64 result of the product times 2**30 - 2**30 is."""
    op = dnn.MatMul(src=dnn.MemoryDesc((1, 2)), weights=dnn.MemoryDesc((2, 1)),
                    dst=dnn.MemoryDesc((1, 1)))  # fmt: skip
    inputs = {"src": np.array([[1.0, 2.0**-30]]), "weights": np.ones((2, 1))}
    chain = [eltwise("linear", 2.0**30, -(2.0**30))]
    assert reference_outputs(op, inputs, post_ops=chain)["dst"].tolist() == [[1.0]]
