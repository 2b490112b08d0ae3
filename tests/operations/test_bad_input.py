"""Bad input ends in the library's own errors: what, the rule, what was got, what to do."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest
from toy import relu_op

import dnncore as dnn
from dnncore.problem import read

CPU = dnn.engine("cpu")
REFERENCE = "reference:*"


def desc(*dims, type="f32", format=None):
    return dnn.MemoryDesc(dims, type, format)


SRC, WEIGHTS, BIAS, DST = desc(2, 3, 8, 8), desc(4, 3, 3, 3), desc(4), desc(2, 4, 6, 6)
NOT_AN_INTEGER = (1.5, (1.0, 1.0), "ab", None)


def convolution(prop_kind="forward_training", **changes):
    fields = {"src": SRC, "weights": WEIGHTS, "bias": BIAS, "dst": DST, **changes}
    return dnn.ConvolutionForward(prop_kind, **fields)


def pooling(algorithm="max", **changes):
    fields = {"src": SRC, "dst": desc(2, 3, 4, 4), "kernel": 2, "strides": 2, **changes}
    return dnn.PoolingForward("forward_training", algorithm, **fields)


def softmax_with_lse(src, lse):
    return dnn.SoftmaxForward("forward_training", "log", src=src, dst=src, lse=lse, axis=1)


def prelu(weights, src=None, dst=None, **changes):
    src = src or desc(2, 3)
    fields = {"src": src, "weights": weights, "dst": dst or src, **changes}
    return dnn.PReLUForward(**{"prop_kind": "forward_training", **fields})


def prelu_backward(**changes):
    fields = dict.fromkeys(("src", "diff_dst", "diff_src"), desc(2, 3))
    fields |= dict.fromkeys(("weights", "diff_weights"), desc(1, 3))
    return dnn.PReLUBackward(**fields | changes)


def softmax(axis):
    return dnn.SoftmaxForward("forward_training", "log", src=BIAS, dst=BIAS, axis=axis)


def eltwise(algorithm="relu", src=SRC, dst=SRC, **changes):
    return dnn.EltwiseForward("forward_training", algorithm, src=src, dst=dst, **changes)


def eltwise_backward(algorithm, **kept):
    return dnn.EltwiseBackward(algorithm, **kept, diff_dst=SRC, diff_src=SRC)


def lrn(algorithm="across_channels", src=SRC, **changes):
    return dnn.LRNForward("forward_training", algorithm, src=src, dst=SRC, **changes)


def batch_norm(prop_kind="forward_training", src=SRC, **changes):
    return dnn.BatchNormalizationForward(prop_kind, src=src, dst=SRC, **changes)


def batch_norm_backward(**changes):
    return dnn.BatchNormalizationBackward(src=SRC, diff_dst=SRC, diff_src=SRC, **changes)


def layer_norm(**changes):
    return dnn.LayerNormalizationForward("forward_training", src=SRC, dst=SRC, **changes)


def group_norm(groups, **changes):
    return dnn.GroupNormalizationForward(
        "forward_training", src=SRC, dst=SRC, groups=groups, **changes
    )


def reduction(algorithm, dst=None, **changes):
    dst = dst or desc(2, 1, 8, 8)
    return dnn.Reduction(algorithm, src=SRC, dst=dst, **changes)


def inner_product(weights, dst, src=SRC):
    return dnn.InnerProductForward("forward_training", src=src, weights=weights, dst=dst)


def with_post_op(post_op):
    return dnn.PrimitiveDesc(eltwise(), CPU, dnn.Attributes([post_op]))


def matmul(*dims, bias=None, types=("f32", "f32", "f32")):
    src, weights, dst = (d and desc(*d, type=type) for d, type in zip(dims, types, strict=True))
    return dnn.MatMul(src=src, weights=weights, bias=bias, dst=dst)


def add(src0, src1, algorithm="add"):
    return dnn.Binary(algorithm, src0=src0, src1=src1, dst=desc(2, 3))


def concat(dst, *srcs):
    return dnn.Concat(srcs=srcs, dst=dst, axis=1)


def shuffle(dst, group_size):
    return dnn.ShuffleForward(
        "forward_training", src=desc(2, 6), dst=dst, axis=1, group_size=group_size
    )


def resampling(src, dst):
    return dnn.ResamplingForward("forward_training", "linear", src=src, dst=dst)


def weighted_sum(scales, *srcs):
    return dnn.Sum(scales, srcs=srcs, dst=desc(2, 3))


def reorder(dst, src=None):
    return dnn.Reorder(src=src or desc(2, 3), dst=dst)


# what is made: the message it ends in
SHAPES = {
    "convolution: src has 3 channels but weights expect 64 (weights dim 1 x groups 1)":
        lambda: convolution(weights=desc(4, 64, 3, 3)),
    "convolution: src has 3 channels but weights expect 6 (weights dim 2 x groups 2)":
        lambda: convolution(weights=desc(2, 2, 3, 3, 3)),
    "convolution: dst must be 6 along h, that is (src 8 - kernel 3 + padding 0 + 0) / stride 1 + 1;"
    " got 7":
        lambda: convolution(dst=desc(2, 4, 7, 6)),
    "convolution: dst must begin with (2, 4), src's batch and weights' output channels; got (1, 4)":
        lambda: convolution(dst=desc(1, 4, 6, 6)),
    "convolution: bias must be (4,) (one value per output channel); got (5,)":
        lambda: convolution(bias=desc(5)),
    "convolution: src must have 3 to 5 dims (N, C, [[D,] H,] W); got (2, 3)":
        lambda: convolution(src=desc(2, 3)),
    "weights must have 4 dims (OC, IC, kernel), or 5 with the groups first; got (4, 3)":
        lambda: convolution(weights=desc(4, 3)),
    "convolution: dst must have 4 dims as src has; got (2, 4, 6)":
        lambda: convolution(dst=desc(2, 4, 6)),
    "convolution: weights must not be empty; got (0, 3, 3, 3)":
        lambda: convolution(weights=desc(0, 3, 3, 3), bias=None, dst=desc(2, 0, 6, 6)),
    "convolution: unknown algorithm 'wino'; choose one of direct, winograd, auto":
        lambda: convolution(algorithm="wino"),
    "convolution: strides must hold 2 integers, one per spatial dim, or be one":
        lambda: convolution(strides=(1, 1, 1)),
    "convolution: strides[0] must be at least 1; got 0": lambda: convolution(strides=(0, 1)),
    "convolution: dilations[1] must be at least 0 (0 is dense); got -1":
        lambda: convolution(dilations=(0, -1)),
    "convolution: padding_l[0] must be at least 0; got -2": lambda: convolution(padding_l=(-2, 0)),
    "pooling: dst must have src's batch, channels and rank":
        lambda: pooling(dst=desc(2, 4, 4, 4)),
    "pooling: dst must have src's batch, channels and rank (2, 3), 4 dims; got (2, 3, 4)":
        lambda: pooling(dst=desc(2, 3, 4)),
    "pooling: src must have 3 to 5 dims (N, C, [[D,] H,] W); got (2, 3)":
        lambda: pooling(src=desc(2, 3)),
    "pooling: kernel must hold 2 positive integers; got (0, 2)": lambda: pooling(kernel=(0, 2)),
    "pooling: kernel must hold 2 integers, one per spatial dim": lambda: pooling(kernel=()),
    "weights must be (OC, 3, 8, 8), with src's dims after the batch; got (10, 3, 8, 7)":
        lambda: inner_product(desc(10, 3, 8, 7), desc(2, 10)),
    "dst must be (2, 10) (batch x output channels); got (2, 11)":
        lambda: inner_product(desc(10, 3, 8, 8), desc(2, 11)),
    "inner product: src must have 2 to 5 dims (N, IC, [[D,] H,] W); got (2,)":
        lambda: inner_product(desc(10), desc(2, 10), src=desc(2)),
    "inner product: src must have 2 to 5 dims (N, IC, [[D,] H,] W); got (2, 3, 1, 1, 1, 1)":
        lambda: inner_product(desc(10), desc(2, 10), src=desc(2, 3, 1, 1, 1, 1)),
    "matmul: src has K = 3 columns but weights have 4 rows": lambda: matmul((2, 3), (4, 5), (2, 5)),
    "matmul: each batch dim of src and weights must be equal or 1; got (2,) and (3,)":
        lambda: matmul((2, 2, 3), (3, 3, 5), (2, 2, 5)),
    "must have one rank, at least 2; got (2, 3), (1, 3, 5) and (2, 5)":
        lambda: matmul((2, 3), (1, 3, 5), (2, 5)),
    "matmul: bias must have dst's rank and each dim be 1 or dst's; got (5,) for dst (2, 5)":
        lambda: matmul((2, 3), (3, 5), (2, 5), bias=desc(5)),
    "softmax: axis must be an integer from 0 to 0; got 1": lambda: softmax(1),
    "softmax: axis must be an integer from 0 to 0; got -1": lambda: softmax(-1),
    "prelu: weights must have src's rank and each dim be 1 or src's; got (3,) for src (2, 3);"
    " reshape one weight per channel to (1, 3)": lambda: prelu(desc(3)),
    "prelu: weights must have src's rank and each dim be 1 or src's; got (1, 2) for src (2, 3)":
        lambda: prelu(desc(1, 2)),
    "prelu: dst must be (2, 3) (src's dims); got (3, 2)": lambda: prelu(desc(1, 3), dst=desc(3, 2)),
    "prelu: src must have a concrete format; got 'any'":
        lambda: prelu(desc(1, 3), src=dnn.MemoryDesc((2, 3), "f32", "any")),
    "prelu: dst must be of type f32, because src is f32; got f16":
        lambda: prelu(desc(1, 3), dst=dnn.MemoryDesc((2, 3), "f16")),
    "prelu: prop_kind must be one of forward_training, forward_inference; got 'backward'":
        lambda: prelu(desc(1, 3), prop_kind="backward"),
    "prelu backward: weights must have src's rank and each dim be 1 or src's":
        lambda: prelu_backward(weights=desc(2, 2)),
    "prelu backward: diff_dst must be (2, 3) (src's dims); got (1, 3)":
        lambda: prelu_backward(diff_dst=desc(1, 3)),
    "prelu backward: diff_src must be (2, 3) (src's dims); got (1, 3)":
        lambda: prelu_backward(diff_src=desc(1, 3)),
    "prelu backward: diff_weights must be (1, 3) (weights' dims); got (1, 1)":
        lambda: prelu_backward(diff_weights=desc(1, 1)),
    "prelu backward: src must have a concrete format; got 'any'":
        lambda: prelu_backward(src=dnn.MemoryDesc((2, 3), "f32", "any")),
    "prelu backward: diff_weights must be of type f32":
        lambda: prelu_backward(diff_weights=dnn.MemoryDesc((1, 3), "f16")),
    "softmax: lse must be (2, 1) (src's dims, but 1 along the axis); got (2, 3)":
        lambda: softmax_with_lse(desc(2, 3), desc(2, 3)),
    "softmax: lse needs elements along the axis; got src of (2, 0)":
        lambda: softmax_with_lse(desc(2, 0), desc(2, 1)),
    "softmax: lse must have a format without blocks; got 'Ab8a'":
        lambda: softmax_with_lse(desc(2, 3), dnn.MemoryDesc((2, 1), "f32", "Ab8a")),
    "softmax: lse must be of type f32":
        lambda: softmax_with_lse(desc(2, 3), dnn.MemoryDesc((2, 1), "f16")),
    "binary: src0 and src1 must have one rank and dims that are equal or 1; got (2, 3), (3, 3)":
        lambda: add(desc(2, 3), desc(3, 3)),
    "binary: src0 and src1 must have one rank and dims that are equal or 1; got (2, 3), (3,)":
        lambda: add(desc(2, 3), desc(3)),
    "sum: there must be one scale per src and at least one src; got 2 scales and 1 srcs":
        lambda: weighted_sum((1, 2), desc(2, 3)),
    "sum: src1 must be (2, 3) (dst's dims); got (3, 2)":
        lambda: weighted_sum((1, 2), desc(2, 3), desc(3, 2)),
    "concat: there must be at least one src; got none": lambda: concat(desc(2, 3)),
    "concat: src1 must be (2, 1) (dst's dims, except along the axis); got (3, 1)":
        lambda: concat(desc(2, 3), desc(2, 2), desc(3, 1)),
    "concat: dst must be (2, 4) (along the axis, the sizes of all srcs); got (2, 3)":
        lambda: concat(desc(2, 3), desc(2, 2), desc(2, 2)),
    "concat: axis must be an integer from 0 to 1; got 2":
        lambda: dnn.Concat(srcs=[desc(2, 3)], dst=desc(2, 3), axis=2),
    "shuffle: dst must be (2, 6) (src's dims); got (2, 3)": lambda: shuffle(desc(2, 3), 2),
    "shuffle: group_size must be a positive divisor of the 6 elements along axis 1; got 4":
        lambda: shuffle(desc(2, 6), 4),
    "shuffle: group_size must be a positive divisor of the 6 elements along axis 1; got 0":
        lambda: shuffle(desc(2, 6), 0),
    "shuffle: group_size must be a positive divisor of the 6 elements along axis 1; got 2.0":
        lambda: shuffle(desc(2, 6), 2.0),
    "resampling: src must have 3 to 5 dims (N, C, [[D,] H,] W); got (2, 3)":
        lambda: resampling(desc(2, 3), desc(2, 3)),
    "resampling: dst must have src's batch, channels and rank (2, 3), 3 dims; got (2, 4, 5)":
        lambda: resampling(desc(2, 3, 4), desc(2, 4, 5)),
    "resampling: src must have elements along each spatial dim if dst has; got (2, 3, 0) for"
    " (2, 3, 1)":
        lambda: resampling(desc(2, 3, 0), desc(2, 3, 1)),
    "reorder: dst must be (2, 3) (src's dims); got (3, 2)": lambda: reorder(desc(3, 2)),
    "lrn: src must have 3 to 5 dims for within_channel; got (4, 5)":
        lambda: lrn("within_channel", src=desc(4, 5)),
    "lrn: dst must be (2, 3, 8, 7) (src's dims); got (2, 3, 8, 8)":
        lambda: lrn(src=desc(2, 3, 8, 7)),
    "reduction: dst must have src's rank, each dim be 1 or src's, and one at least be reduced":
        lambda: reduction("sum", SRC),
    "one at least be reduced; got (2, 2, 8, 8) for src (2, 3, 8, 8)":
        lambda: reduction("sum", desc(2, 2, 8, 8)),
    "reduction: there is nothing to reduce along an empty dim, except by sum, which is 0; got mean"
    " of src (0, 3)":
        lambda: dnn.Reduction("mean", src=desc(0, 3), dst=desc(1, 3)),
    "binary: src2 must have dst's rank and each of its dims be 1 or dst's; got (3,) for dst (4,)":
        lambda: dnn.Binary("select", src0=BIAS, src1=BIAS, src2=desc(3, type="s8"), dst=BIAS),
    "padding_r[0] must be at least -2, because padding_r + stride 2 must be at least 0; got -3":
        lambda: pooling(strides=2, padding_r=(-3, 0)),
    "avg_exclude_padding needs paddings below the effective kernel and dilations below src":
        lambda: pooling("avg_exclude_padding", dst=desc(2, 3, 6, 6), padding_l=2),
    "so that no window is empty; got padding 2 and 0, effective kernel 2, dilation 0, src 8":
        lambda: pooling(
            "avg_exclude_padding", dst=desc(2, 3, 5, 4), padding_l=(2, 0), padding_r=(0, 0)
        ),
    "so that no window is empty; got padding 0 and 2, effective kernel 2, dilation 0, src 8":
        lambda: pooling("avg_exclude_padding", dst=desc(2, 3, 5, 4), padding_r=(2, 0)),
    "got padding 0 and 8, effective kernel 10, dilation 8, src 8":
        lambda: pooling(
            "avg_exclude_padding", dst=desc(2, 3, 4, 4), dilations=(8, 0), padding_r=(8, 0)
        ),
    "got padding 1 and 1, effective kernel 3, dilation 1, src 1":
        lambda: pooling(
            "avg_exclude_padding", src=desc(2, 3, 1, 1), dst=desc(2, 3, 1, 1), strides=1,
            dilations=1, padding_l=1,
        ),
    "eltwise: dst must be (4,) (src's dims); got (5,)": lambda: eltwise(src=BIAS, dst=desc(5)),
    "a dim is at least 0; got (-1, 2)": lambda: desc(-1, 2),
    "a tensor has at most 12 dims; got 13": lambda: desc(*(1,) * 13),
}  # fmt: skip

TYPES = {
    "convolution: src must be of type f64, f32, f16, bf16, s8 or u8; got s32":
        lambda: convolution(src=desc(2, 3, 8, 8, type="s32")),
    "convolution: weights must be of type f16, because src is f16; got f32":
        lambda: convolution(src=desc(2, 3, 8, 8, type="f16")),
    "convolution: weights must be of type f32, because src is f32; got bf16":
        lambda: convolution(weights=desc(4, 3, 3, 3, type="bf16")),
    "convolution: dst must be of type f32, s8 or u8, because src is f32; got f16":
        lambda: convolution(dst=desc(2, 4, 6, 6, type="f16")),
    "matmul: dst must be of type f32 or bf16, because src is bf16, weights is bf16; got f16":
        lambda: matmul((2, 3), (3, 5), (2, 5), types=("bf16", "bf16", "f16")),
    "matmul: bias must be of type f32 or f16, because src is f16, weights is f16; got s8":
        lambda: matmul((2, 3), (3, 5), (2, 5), bias=desc(1, 5, type="s8"), types=["f16"] * 3),
    "eltwise: dst must be of type f16, because src is f16; got f32":
        lambda: eltwise(src=desc(4, type="f16")),
    "eltwise: src must be of type f64, f32, f16 or bf16; got s8":
        lambda: dnn.EltwiseForward(
            "forward_training", "tanh", src=desc(4, type="s8"), dst=desc(4, type="s8")
        ),
    "sum: src1 must be of type f32, f16, bf16, s32, s8 or u8; got f64":
        lambda: weighted_sum((1, 2), desc(2, 3), desc(2, 3, type="f64")),
    "reorder: dst must be of type f64, f32, f16, bf16, f8_e5m2, f8_e4m3, s32, s8, u8, s4 or u4;"
    " got s64":
        lambda: reorder(desc(2, 3, type="s64")),
    "binary: src2 must be of type s8; got f32":
        lambda: dnn.Binary("select", src0=BIAS, src1=BIAS, src2=BIAS, dst=BIAS),
    "eltwise: post_op_0_weights must be of type f32, f16, bf16, s32, s8, u8; got f64":
        lambda: with_post_op(dnn.PostOp.prelu(desc(1, 1, 1, 1, type="f64"))),
    "data type: no such type; got 'f31'; use one of f64, f32": lambda: desc(1, type="f31"),
    "memory: the array must be of type f32 (float32); got float64; convert it with astype":
        lambda: dnn.Memory.from_numpy(np.ones(4), BIAS),
    "is not supported; convert to one of": lambda: dnn.Memory.from_numpy(np.array(["text"])),
}  # fmt: skip

FORMATS = {
    "format tag 'nchw': 2 dims need 2 letters, as in ab; got 4": lambda: desc(2, 3, format="nchw"),
    "eltwise: src must have a concrete format; got 'any'; give it a format tag":
        lambda: eltwise(src=desc(4, format="any"), dst=BIAS),
    "reorder: dst must have a concrete format; got 'any'; give it a format tag":
        lambda: reorder(desc(2, 3, format="any")),
    "convolution: src is an absent tensor; give it dims and a format":
        lambda: convolution(src=dnn.MemoryDesc.zero()),
    "memory: the descriptor must have a concrete layout; got 'any'; query it from a primitive":
        lambda: dnn.Memory(desc(4, format="any")),
}  # fmt: skip

VALUES = {
    "convolution: prop_kind must be one of forward_training, forward_inference; got 'forward'":
        lambda: convolution("forward"),
    "eltwise: unknown algorithm 'rleu'; choose one of abs, clip": lambda: eltwise("rleu"),
    "eltwise: unknown algorithm ['relu']; choose one of abs, clip": lambda: eltwise(["relu"]),
    "eltwise: clip needs beta >= alpha; got alpha 1.0, beta 0.5":
        lambda: eltwise("clip", alpha=1.0, beta=0.5),
    "eltwise: soft_relu needs alpha != 0, as in log(1 + exp(alpha * s)) / alpha; got alpha 0.0":
        lambda: eltwise("soft_relu"),
    "eltwise: relu_use_dst_for_bwd needs alpha >= 0; got alpha -1.0":
        lambda: eltwise("relu_use_dst_for_bwd", alpha=-1.0),
    "eltwise backward: round has no gradient; it exists forward only":
        lambda: eltwise_backward("round", src=SRC),
    "tanh_use_dst_for_bwd computes the gradient from dst, not from src; give dst= alone":
        lambda: eltwise_backward("tanh_use_dst_for_bwd", src=SRC),
    "eltwise backward: tanh computes the gradient from src, not from dst; give src= alone":
        lambda: eltwise_backward("tanh", src=SRC, dst=SRC),
    "batch normalization: epsilon must be at least 0; got -1": lambda: batch_norm(epsilon=-1),
    "batch normalization: epsilon must be a finite number of float32; got nan":
        lambda: batch_norm(epsilon=float("nan")),
    "batch normalization: use_global_stats must be True or False; got 1":
        lambda: batch_norm(use_global_stats=1),
    "batch normalization: fuse_relu must be True or False; got 'yes'":
        lambda: batch_norm(fuse_relu="yes"),
    "layer normalization: rms must be True or False; got None": lambda: layer_norm(rms=None),
    "batch normalization: src must have 2 to 5 dims; got (3,)":
        lambda: batch_norm(src=desc(3)),
    "batch normalization: src1 must be None without fuse_relu": lambda: batch_norm(src1=SRC),
    "batch normalization: scale must be (3,) (one number per channel of src); got (8,)":
        lambda: batch_norm(scale=desc(8)),
    "batch normalization: mean must be (3,) (one number per set of elements); got (2, 3)":
        lambda: batch_norm(mean=desc(2, 3)),
    "batch normalization: mean must be None, because inference keeps no statistics":
        lambda: batch_norm("forward_inference", mean=desc(3)),
    "layer normalization: mean must be None, because RMS normalization subtracts no mean":
        lambda: layer_norm(rms=True, mean=desc(2, 3, 8)),
    "batch normalization backward: diff_scale must be None without scale":
        lambda: batch_norm_backward(diff_scale=desc(3)),
    "batch normalization backward: diff_scale must be a MemoryDesc if diff_shift is":
        lambda: batch_norm_backward(scale=desc(3), diff_shift=desc(3)),
    "batch normalization backward: diff_src1 must be None without fuse_relu":
        lambda: batch_norm_backward(diff_src1=SRC),
    "groups must be a positive integer that divides the 3 channels of src; got 2":
        lambda: group_norm(2),
    "groups must be a positive integer that divides the 3 channels of src; got 'all'":
        lambda: group_norm("all"),
    "lrn: local_size must be an integer from 1 to 2147483647; got 0": lambda: lrn(local_size=0),
    "lrn: local_size must be an integer from 1 to 2147483647; got 2.5": lambda: lrn(local_size=2.5),
    "lrn: beta must be a finite number of float32; got inf": lambda: lrn(beta=float("inf")),
    "lrn: unknown algorithm 'across'; choose one of across_channels, within_channel":
        lambda: lrn("across"),
    "reduction: p must be at least 1; got 0.5": lambda: reduction("norm_lp_sum", p=0.5),
    "reduction: unknown algorithm 'average'; choose one of max, min, sum":
        lambda: reduction("average"),
    "post-op binary: src2, the s8 condition, belongs to select alone; got select without src2":
        lambda: dnn.PostOp.binary("select", BIAS),
    "binary: src2, the s8 condition, belongs to select alone; got add with src2":
        lambda: dnn.Binary("add", src0=BIAS, src1=BIAS, src2=BIAS, dst=BIAS),
    "eltwise: alpha must be a finite number of float32; got nan":
        lambda: eltwise(alpha=float("nan")),
    "eltwise: beta must be a finite number of float32; got 1e+39":
        lambda: eltwise("linear", beta=1e39),
    "eltwise: beta must be a finite number of float32; got 1000000000":
        lambda: eltwise("linear", beta=10**400),
    "lrn: local_size must be an integer from 1 to 2147483647; got 2147483648":
        lambda: lrn(local_size=2**31),
    "convolution: strides must be at most 2147483647; got 1000000000":
        lambda: convolution(strides=10**30),
    "pooling: kernel must be at most 2147483647; got (1, 2147483648)":
        lambda: pooling(kernel=(1, 2**31)),
    "post-op: kind must be one of eltwise, sum, binary, prelu, depthwise; got 'relu'; make a step":
        lambda: dnn.PostOp("relu"),
    "post-op eltwise: it has no scale; leave it out":
        lambda: dnn.PostOp("eltwise", "relu", scale=2.0),
    "post-op eltwise: unknown algorithm 'sine'": lambda: dnn.PostOp("eltwise", "sine"),
    "post-op sum: scale must be a finite number of float32; got 'x'":
        lambda: dnn.PostOp("sum", scale="x"),
    "attributes: deterministic must be one of False, True; got 'no'":
        lambda: dnn.Attributes(deterministic="no"),
    "eltwise: alpha must be a finite number of float32; got 'x'": lambda: eltwise(alpha="x"),
    "binary: unknown algorithm 'pow'; choose one of add, sub": lambda: add(BIAS, BIAS, "pow"),
    "pooling: unknown algorithm 'min'; choose one of max": lambda: pooling(algorithm="min"),
    "sum: scale of src0 must be a finite number of float32; got inf":
        lambda: weighted_sum((float("inf"),), desc(2, 3)),
    "attributes: scratchpad must be one of library, user; got 'mine'":
        lambda: dnn.Attributes(scratchpad="mine"),
    "attributes: fpmath must be one of strict, ieee, bf16, f16, tf32, any; got 'fast'":
        lambda: dnn.Attributes(fpmath="fast"),
    "attributes: scratchpad_limit must be a whole number of bytes, at least 0, or None for no":
        lambda: dnn.Attributes(scratchpad_limit=-1),
    "no limit; got 1.5": lambda: dnn.Attributes(scratchpad_limit=1.5),
    "no limit; got True": lambda: dnn.Attributes(scratchpad_limit=True),
    "post-op eltwise: unknown algorithm 'rleu'": lambda: dnn.PostOp.eltwise("rleu"),
    "scale must be a finite number of float32; got nan": lambda: dnn.PostOp.sum(float("nan")),
}  # fmt: skip

WRONG_THINGS = {
    "reorder: dst must have a place for each element; got MemoryDesc((2, 3), 'f32', 'ab', strides=":
        lambda: dnn.Reorder(src=desc(2, 3), dst=dnn.MemoryDesc((2, 3), strides=(0, 1))),
    "convolution: src must be a MemoryDesc; got ndarray": lambda: convolution(src=np.ones(3)),
    "convolution: src must be a MemoryDesc; got NoneType": lambda: convolution(src=None),
    "convolution: weights must be a MemoryDesc; got NoneType": lambda: convolution(weights=None),
    "weights must be a MemoryDesc; got NoneType": lambda: inner_product(None, desc(2, 10)),
    "matmul: dst must be a MemoryDesc; got NoneType": lambda: matmul((2, 3), (3, 5), None),
    "binary: src1 must be a MemoryDesc; got NoneType": lambda: add(BIAS, None),
    "sum: src1 must be a MemoryDesc; got NoneType":
        lambda: weighted_sum((1, 2), desc(2, 3), None),
    "sum: scales must be a sequence; got 1.0": lambda: weighted_sum(1.0, desc(2, 3)),
    "sum: srcs must be a sequence; got MemoryDesc":
        lambda: dnn.Sum((1.0,), srcs=desc(2, 3), dst=desc(2, 3)),
    "post-op prelu: weights must be a MemoryDesc; got NoneType": lambda: dnn.PostOp("prelu"),
    "reorder: dst must be a MemoryDesc; got NoneType": lambda: reorder(None),
    "post-op prelu: weights must be a MemoryDesc; got float": lambda: dnn.PostOp.prelu(0.1),
    "post-op binary: src must be a MemoryDesc; got ndarray":
        lambda: dnn.PostOp.binary("add", np.ones(3)),
    "post_ops must be a sequence of PostOp; got [1]": lambda: dnn.Attributes(post_ops=[1]),
    "op must be an operation descriptor; got str": lambda: dnn.PrimitiveDesc("convolution", CPU),
    "engine must be an Engine; got str": lambda: dnn.PrimitiveDesc(relu_op(), "cpu"),
    "attr must be Attributes; got dict": lambda: dnn.PrimitiveDesc(relu_op(), CPU, {}),
    "hint must be a PrimitiveDesc; got int": lambda: dnn.PrimitiveDesc(relu_op(), CPU, hint=5),
    "memory: desc must be a MemoryDesc; got tuple": lambda: dnn.Memory((2, 3)),
    "memory: desc must be a MemoryDesc; got CpuEngine; pass engine=...":
        lambda: dnn.Memory.from_numpy(np.ones(4, np.float32), CPU),
    "memory: engine must be an Engine; got str": lambda: dnn.Memory(BIAS, "cpu"),
    "memory: a buffer on cpu must be a contiguous, writable 1-D uint8 array":
        lambda: dnn.Memory(BIAS, CPU, np.ones(4)),
    "writable": lambda: dnn.Memory(BIAS, CPU, np.frombuffer(bytes(16), np.uint8)),
    "memory: the array must have the descriptor's dims (4,); got (5,)":
        lambda: dnn.Memory.from_numpy(np.ones(5, np.float32), BIAS),
    "reorder: memory must be a Memory; got ndarray": lambda: dnn.reorder(np.ones(3), BIAS),
    "each call must be a bound primitive or a sequence; got int": lambda: dnn.Sequence([1]),
}  # fmt: skip

ALL = [
    pytest.param(make, message, id=f"{name}-{message[:60]}")
    for name, table in (
        ("shape", SHAPES),
        ("type", TYPES),
        ("format", FORMATS),
        ("value", VALUES),
        ("thing", WRONG_THINGS),
    )
    for message, make in table.items()
]


@pytest.mark.parametrize(("make", "message"), ALL)
def test_a_descriptor_that_breaks_a_rule_is_refused(make, message):
    with pytest.raises(dnn.DescriptorError, match=re.escape(message)):
        make()


@pytest.mark.parametrize("value", NOT_AN_INTEGER)
@pytest.mark.parametrize("name", ["strides", "dilations", "padding_l", "padding_r"])
def test_windows_are_made_of_integers(name, value):
    with pytest.raises(dnn.DescriptorError, match=f"{name} must hold 2 integers, one per spatial"):
        convolution(**{name: value})


@pytest.mark.parametrize("value", NOT_AN_INTEGER)
def test_kernels_and_axes_are_integers(value):
    with pytest.raises(dnn.DescriptorError, match="kernel must hold 2 integers, one per"):
        pooling(kernel=value)
    with pytest.raises(dnn.DescriptorError, match="axis must be an integer from 0 to 0; got"):
        softmax(value)


def test_numpy_integers_are_integers():
    two = np.array([2, 2])
    assert pooling(kernel=two, strides=two) == pooling(kernel=(2, 2), strides=(2, 2))


# -- execution ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pool():
    """Return a pooling primitive: two outputs, none of which may be in place."""
    return dnn.PrimitiveDesc(pooling(), CPU, impl=REFERENCE).primitive()


@pytest.fixture
def arguments(pool):
    return {argument.name: dnn.Memory(d, CPU) for argument, d in pool.pd.arguments}


def refused(primitive, arguments, message):
    """Both ways of running a primitive refuse the arguments."""
    with pytest.raises(dnn.DescriptorError, match=re.escape(message)):
        primitive.execute(CPU.stream(), **arguments)
    with pytest.raises(dnn.DescriptorError, match=re.escape(message)):
        primitive.bind(**arguments)


@pytest.mark.parametrize("name", ["src", "dst", "workspace"])
def test_a_missing_argument_is_named(pool, arguments, name):
    del arguments[name]
    refused(pool, arguments, f"pooling: argument {name} is missing; it takes src, dst, workspace")


def test_a_descriptor_in_place_of_a_memory(pool, arguments):
    arguments["src"] = arguments["src"].desc
    got = "src must be a Memory; got MemoryDesc; make one with Memory(desc, engine)"
    refused(pool, arguments, f"pooling: {got}")


def test_an_unknown_argument_is_named(pool, arguments):
    arguments["weights"] = arguments["src"]
    refused(pool, arguments, "pooling: unknown argument weights; it takes src, dst, workspace")


def test_a_misnamed_argument_is_named_before_the_missing_one(pool, arguments):
    arguments["source"] = arguments.pop("src")
    refused(pool, arguments, "pooling: unknown argument source; it takes src, dst, workspace")


@pytest.mark.parametrize("thing", [np.ones(3), SRC, "src"])
def test_an_argument_must_be_a_memory(pool, arguments, thing):
    arguments["src"] = thing
    refused(pool, arguments, f"pooling: src must be a Memory; got {type(thing).__name__}")


@pytest.mark.parametrize(
    ("other", "remedy"),
    [
        (desc(2, 3, 8, 8, format="nhwc"), "reorder it to the primitive descriptor's src_desc"),
        (desc(2, 3, 8, 8, type="s32"), "reorder it"),
        (
            desc(2, 3, 64),
            r"its array must have the shape \(2, 3, 8, 8\), with elements in",
        ),
        (desc(2, 3, 8, 9), "make it of the primitive descriptor's src_desc"),
    ],
)
def test_a_memory_of_another_descriptor_is_refused(pool, arguments, other, remedy):
    arguments["src"] = dnn.Memory(other, CPU)
    text = f"pooling: src must be laid out as {SRC}; got {other}; "
    with pytest.raises(dnn.DescriptorError, match=re.escape(text) + remedy):
        pool.execute(CPU.stream(), **arguments)


def test_a_memory_or_stream_of_another_engine_is_refused(pool, arguments):
    class Other(dnn.backend.HostEngine):
        kind = "other"

    other = Other()
    with pytest.raises(dnn.DescriptorError, match=r"the stream must be one of cpu; got .*other:0"):
        pool.execute(other.stream(), **arguments)
    with pytest.raises(dnn.DescriptorError, match=r"the stream must be one of cpu; got .*other:0"):
        pool.bind(**arguments)(other.stream())
    with pytest.raises(dnn.DescriptorError, match="the stream must be one of cpu; got None"):
        pool.execute(None, **arguments)
    arguments["src"] = dnn.Memory(SRC, other)
    refused(pool, arguments, "pooling: src must be a memory of cpu; got one of other:0; move it")


def test_in_place_where_the_table_forbids_it_is_refused():
    square = desc(4, 4)
    op = dnn.MatMul(src=square, weights=square, dst=square)
    primitive = dnn.PrimitiveDesc(op, CPU, impl=REFERENCE).primitive()
    src, weights = dnn.Memory(square, CPU), dnn.Memory(square, CPU)
    message = "matmul: dst is the memory of src; an output must not overlap another argument"
    refused(primitive, {"src": src, "weights": weights, "dst": src}, message)


def test_only_the_pair_of_the_table_may_be_in_place():
    same = desc(2, 3)
    primitive = dnn.PrimitiveDesc(add(same, same), CPU, impl=REFERENCE).primitive()
    one, other = dnn.Memory(same, CPU), dnn.Memory(same, CPU)
    one.fill(1)
    other.fill(2)
    primitive.execute(CPU.stream(), src0=one, src1=other, dst=one)
    assert (one.numpy() == 3).all()
    refused(primitive, {"src0": one, "src1": other, "dst": other}, "dst is the memory of src1")


def test_partial_overlap_is_refused(pool, arguments):
    block = np.zeros(SRC.nbytes + 64, np.uint8)
    arguments["src"] = dnn.Memory(SRC, CPU, block[: SRC.nbytes])
    arguments["dst"] = dnn.Memory(pool.pd.dst_desc, CPU, block[64:])
    refused(
        pool, arguments, "pooling: dst overlaps src; an output must not overlap another argument"
    )


def test_two_outputs_may_not_share_a_memory(pool, arguments):
    dst = arguments["dst"]
    arguments["workspace"] = dnn.Memory(pool.pd.workspace_desc, CPU, dst.buffer)
    refused(pool, arguments, "overlaps")


def test_a_post_op_operand_must_fit_and_be_passed():
    attr = dnn.Attributes([dnn.PostOp.binary("add", desc(2, 5, 1, 1))])
    with pytest.raises(dnn.DescriptorError, match=r"post_op_0_src must have dst's rank.*\(2, 5,"):
        dnn.PrimitiveDesc(convolution(), CPU, attr)
    attr = dnn.Attributes([dnn.PostOp.binary("add", desc(1, 4, 1, 1))])
    primitive = dnn.PrimitiveDesc(convolution(), CPU, attr, impl=REFERENCE).primitive()
    arguments = {argument.name: dnn.Memory(d, CPU) for argument, d in primitive.pd.arguments}
    del arguments["post_op_0_src"]
    refused(primitive, arguments, "convolution: argument post_op_0_src is missing")


# -- engines and backends -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["opncl", "cuda:1", ":0"])
def test_an_unknown_engine_lists_what_there_is(name):
    with pytest.raises(dnn.BackendNotFound, match=f"unknown engine '{name}'; there are: cpu"):
        dnn.engine(name)


def test_a_backend_is_no_engine():
    with pytest.raises(dnn.BackendNotFound, match=r"'reference', which is a backend; .*impl='ref"):
        dnn.engine("reference")


def test_an_engine_is_named_by_a_string():
    with pytest.raises(dnn.BackendNotFound, match=r"must be a string.*got 1"):
        dnn.engine(1)


def test_an_unknown_backend_refuses_with_the_names_that_there_are():
    with pytest.raises(dnn.NoImplementation) as caught:
        dnn.PrimitiveDesc(relu_op(), CPU, impl="nosuch:*")
    assert {refusal.kind for refusal in caught.value.refusals} == {"filter"}
    text = str(caught.value)
    assert text.startswith(
        "eltwise: impl=nosuch:* matches no implementation on cpu;"
        " a pattern matches a whole name, as cpu_numba:* does; there are:\n  cpu_numba:"
    )
    assert "\n  reference:eltwise" in text


def test_a_pattern_of_a_variable_is_told_of_by_the_variables_name(monkeypatch):
    monkeypatch.setenv("DNNCORE_IMPL", "cpu_numba")
    with pytest.raises(
        dnn.NoImplementation, match="DNNCORE_IMPL=cpu_numba matches no implementation on cpu; a"
    ):
        dnn.PrimitiveDesc(relu_op(), CPU)


def test_an_unknown_backend_in_patterns_to_skip_warns(monkeypatch):
    monkeypatch.setenv("DNNCORE_SKIP_IMPL", "cpu_nmba:*,*:sse41,host:*,reference:lrn")
    with pytest.warns(UserWarning, match="DNNCORE_SKIP_IMPL: unknown backend cpu_nmba; there are"):
        dnn.PrimitiveDesc(relu_op(), CPU)


def test_a_fallback_that_is_allowed_is_not_advised():
    engine = next((d.name for d in dnn.devices() if d.status == "ok" and d.name != "cpu"), None)
    if engine is None:
        pytest.skip("no other engine than the CPU's")
    with pytest.raises(dnn.NoImplementation) as caught:
        dnn.PrimitiveDesc(relu_op(), dnn.engine(engine), impl="cpu_numba:*", host_fallback=True)
    assert "pass host_fallback=True" not in str(caught.value)
    assert "\n  host:cpu_numba:" in str(caught.value)


def test_numpys_name_of_a_type_is_told_of():
    with pytest.raises(dnn.DescriptorError, match=r"got 'float32'; .*; numpy's float32 is f32"):
        dnn.MemoryDesc((2, 3), "float32")


def test_a_reorder_takes_descriptors():
    memory = dnn.Memory(dnn.MemoryDesc((2, 3)), CPU)
    with pytest.raises(
        dnn.DescriptorError, match="desc must be a MemoryDesc; got Memory; pass its"
    ):
        dnn.reorder(memory, memory)


def test_a_primitive_is_no_descriptor_for_comparisons():
    primitive = dnn.PrimitiveDesc(relu_op(), CPU).primitive()
    with pytest.raises(
        dnn.DescriptorError, match=r"pd must be a PrimitiveDesc; got Primitive; .*pd"
    ):
        dnn.against_reference(primitive, {}, CPU.stream())


def test_without_a_driver_opencl_says_so_and_all_else_works(tmp_path):
    pytest.importorskip("pyopencl")
    program = """
import dnncore as dnn
try:
    dnn.engine("opencl")
except dnn.EngineUnavailable as error:
    print(error)
print([d.name for d in dnn.devices() if d.status == "ok"])
print(*[f"{b.name}={b.status}" for b in dnn.backends()])
"""
    environment = {**os.environ, "OCL_ICD_VENDORS": str(tmp_path / "none")}
    done = subprocess.run(
        (sys.executable, "-c", program), env=environment, capture_output=True, text=True, check=True
    )
    reason, devices, backends = done.stdout.splitlines()
    assert "no OpenCL platform" in reason
    assert "pip install" in reason
    assert devices == "['cpu']"
    assert "opencl=unavailable" in backends
    assert "reference=ok" in backends


@pytest.mark.parametrize("thing", [5, np])
def test_a_plugin_without_backends_is_refused(thing):
    with pytest.raises(dnn.PluginError, match="dnncore_backends"):
        dnn.register(thing)


# -- strangers ----------------------------------------------------------------------------------

ARRAY = np.array([2, 3])
STRANGERS = {
    "memory descriptor: a tensor must have less than 2**59 elements and places":
        lambda: desc(2**40, 2**40),
    "places; got padded dims (2, 3), strides (3, 1), offset0 1152921504606846976":
        lambda: dnn.MemoryDesc((2, 3), offset0=2**60),
    "data type: no such type; got array([2, 3])": lambda: desc(2, type=ARRAY),
    "offset0 must be a sequence of integers": lambda: dnn.MemoryDesc((2,), offset0=ARRAY),
    "nbytes must be a sequence of integers": lambda: dnn.MemoryDesc((2,), "u8", "a:b", nbytes="x"),
    "like: other is a MemoryDesc; got float": lambda: SRC.like(1.5),
    "matches: a format tag is a string; got 7": lambda: SRC.matches(7),
    "a buffer is a contiguous 1-D uint8 array; got list": lambda: SRC.unpack([0]),
    "a tensor has at most 12 dims; got 13": lambda: dnn.MemoryDesc(range(2**60)),
    "post-op: kind must be one of eltwise": lambda: dnn.PostOp(ARRAY),
    "post-op sum: it has no alpha": lambda: dnn.PostOp("sum", alpha=ARRAY),
    "attributes: fpmath must be one of": lambda: dnn.Attributes(fpmath=ARRAY),
    "attributes: post_ops must be a sequence": lambda: dnn.Attributes(np.array("relu")),
    "convolution: prop_kind must be one of": lambda: convolution(ARRAY),
    "axis must be an integer from 0 to 0": lambda: softmax(ARRAY),
    "cpu: a size in bytes must be an integer, at least 0; got 'x'": lambda: CPU.allocate("x"),
    "streams of this engine must have order 'in'; got array": lambda: CPU.stream(ARRAY),
    "compare: bound must be a number or an array of them": lambda: dnn.compare(ARRAY, ARRAY, 1j),
    "memory: fill needs a number that s8 can hold, such as 0; got nan":
        lambda: dnn.Memory(desc(2, type="s8"), CPU).fill(float("nan")),
    "memory: the stream must be one of cpu": lambda: dnn.Memory(BIAS, CPU).numpy(dnn.Memory(BIAS)),
    "sequence: the stream must be a Stream; got int": lambda: dnn.Sequence([])(5),
}  # fmt: skip


@pytest.mark.parametrize(("message", "make"), STRANGERS.items(), ids=list(STRANGERS))
def test_strangers_end_in_the_librarys_errors(message, make):
    with pytest.raises(dnn.DescriptorError, match=re.escape(message)):
        make()


# -- hints ---------------------------------------------------------------------------------------


def with_hint(gradient, forward):
    """Create a gradient's primitive descriptor with the hint of another problem."""
    ((backward,), (hint,)) = (read(text) for text in (gradient, forward))
    return dnn.PrimitiveDesc(backward.op, CPU, hint=dnn.PrimitiveDesc(hint.op, CPU))


@pytest.mark.parametrize(("gradient", "forward", "message"), [
    ("--pool --dir=BWD_D ic8_ih64oh32kh2sh2", "--pool ic8_ih4oh2kh2sh2", "src, (2, 8, 64, 64)"),
    ("--pool --dir=BWD_D ic8_ih4oh2kh2sh2", "--pool ic8_ih4oh2kh3sh2ph1", "padding_l"),
    ("--pool --dir=BWD_D ic8_ih4oh2kh2sh2", "--bnorm --flags=R ic8_ih4", "got one of BatchNormal"),
    ("--bnorm --dir=BWD_D ic8_ih4", "--bnorm --flags=R ic8_ih4", "fuse_relu, False; got True"),
    ("--lrn --dir=BWD_D ic8_ih4", "--lrn ic8_ih9", "the gradient's src"),
    ("--sdpa --dir=BWD_D 1x2x3x4:1x2x4x3:1x2x3x4", "--sdpa 1x1x3x4:1x1x4x3:1x1x3x4", "queries"),
    ("--lnorm --dir=BWD_D --eps=1 3x4", "--lnorm 3x4", "the gradient's epsilon"),
    ("--softmax 3x4", "--softmax 3x4", "hint must be None"),
])  # fmt: skip
def test_hints_of_other_problems_are_refused(gradient, forward, message):
    """Their workspaces have other sizes or meanings."""
    with pytest.raises(dnn.DescriptorError, match=re.escape(message)):
        with_hint(gradient, forward)


@pytest.mark.parametrize(("gradient", "forward"), [
    ("--conv --dir=BWD_W ic8ih9oc4oh9kh3ph1", "--conv --alg=wino --dir=FWD_B ic8ih9oc4oh9kh3ph1"),
    ("--pool --dir=BWD_D --tag=axb ic8_ih4oh2kh2sh2", "--pool --tag=aBx8b ic8_ih4oh2kh2sh2"),
    ("--bnorm --dir=BWD_D ic8_ih4", "--bnorm --flags=C ic8_ih4"),
])  # fmt: skip
def test_hints_may_have_other_algorithms_formats_and_optional_tensors(gradient, forward):
    with_hint(gradient, forward)
