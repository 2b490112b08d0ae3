"""Valid programs as text. Changes to them make bad input.

A program is a few lines of Python over `dnn`, `np`, `problem`, `engine` (the one under test) and
`other` (another engine). Programs that execute a primitive end with `pd`, `arguments`, `before` and
`event`, so that the results can be compared with the reference.
"""

# ruff: noqa: E501 - the programs are formatted as Python code

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

import dnncore as dnn
from dnncore import problem

__all__ = ["NAMES", "described", "executed"]

NAMES = {"dnn": dnn, "np": np, "problem": problem}

OPERATIONS = (
    (
        "dnn.ConvolutionForward('forward_training', src=dnn.MemoryDesc((2, 4, 6, 5), 'f32', 'nhwc'),"
        " weights=dnn.MemoryDesc((8, 4, 3, 2), 'f32', 'any'), bias=dnn.MemoryDesc((8,)),"
        " dst=dnn.MemoryDesc((2, 8, 3, 4), 'f32', 'any'), strides=(2, 1), padding_l=(1, 0),"
        " padding_r=(0, 0))"
    ),
    (
        "dnn.ConvolutionForward('forward_inference', src=dnn.MemoryDesc((2, 16, 7)),"
        " weights=dnn.MemoryDesc((2, 8, 8, 3)), dst=dnn.MemoryDesc((2, 16, 3)), dilations=(1,))"
    ),
    (
        "dnn.ConvolutionBackwardData(diff_src=dnn.MemoryDesc((2, 3, 5, 5)),"
        " weights=dnn.MemoryDesc((4, 3, 3, 3)), diff_dst=dnn.MemoryDesc((2, 4, 3, 3)))"
    ),
    (
        "dnn.ConvolutionBackwardWeights(src=dnn.MemoryDesc((2, 3, 5, 5)),"
        " diff_weights=dnn.MemoryDesc((4, 3, 3, 3)), diff_bias=dnn.MemoryDesc((4,)),"
        " diff_dst=dnn.MemoryDesc((2, 4, 3, 3)), strides=1)"
    ),
    (
        "dnn.ConvolutionForward('forward_inference', src=dnn.MemoryDesc((1, 8, 5, 5), 'f32', 'aBcd8b'),"
        " weights=dnn.MemoryDesc((8, 1, 1, 3, 3), 'f32', 'any'),"
        " dst=dnn.MemoryDesc((1, 8, 5, 5), 'f32', 'aBcd8b'), padding_l=1, padding_r=1)"
    ),
    (
        "dnn.DeconvolutionForward('forward_training', src=dnn.MemoryDesc((2, 3, 4, 3)),"
        " weights=dnn.MemoryDesc((5, 3, 3, 2), 'f32', 'any'), bias=dnn.MemoryDesc((5,)),"
        " dst=dnn.MemoryDesc((2, 5, 7, 4), 'f32', 'any'), strides=(2, 1), padding_l=(1, 0))"
    ),
    (
        "dnn.DeconvolutionBackwardData(diff_src=dnn.MemoryDesc((2, 4, 3)),"
        " weights=dnn.MemoryDesc((2, 3, 2, 3)), diff_dst=dnn.MemoryDesc((2, 6, 7)),"
        " dilations=(1,))"
    ),
    (
        "dnn.DeconvolutionBackwardWeights(src=dnn.MemoryDesc((2, 4, 3, 3)),"
        " diff_weights=dnn.MemoryDesc((3, 4, 3, 3)), diff_bias=dnn.MemoryDesc((3,)),"
        " diff_dst=dnn.MemoryDesc((2, 3, 5, 5)), strides=1)"
    ),
    (
        "dnn.InnerProductForward('forward_training', src=dnn.MemoryDesc((3, 4, 2, 2)),"
        " weights=dnn.MemoryDesc((7, 4, 2, 2), 'f32', 'any'), bias=dnn.MemoryDesc((7,)),"
        " dst=dnn.MemoryDesc((3, 7)))"
    ),
    (
        "dnn.InnerProductBackwardData(diff_src=dnn.MemoryDesc((3, 4)),"
        " weights=dnn.MemoryDesc((7, 4)), diff_dst=dnn.MemoryDesc((3, 7)))"
    ),
    (
        "dnn.InnerProductBackwardWeights(src=dnn.MemoryDesc((3, 4)),"
        " diff_weights=dnn.MemoryDesc((7, 4)), diff_bias=dnn.MemoryDesc((7,)),"
        " diff_dst=dnn.MemoryDesc((3, 7)))"
    ),
    (
        "dnn.MatMul(src=dnn.MemoryDesc((2, 3, 4)), weights=dnn.MemoryDesc((1, 4, 5), 'f32', 'acb'),"
        " bias=dnn.MemoryDesc((1, 1, 5)), dst=dnn.MemoryDesc((2, 3, 5)))"
    ),
    (
        "dnn.PoolingForward('forward_training', 'max', src=dnn.MemoryDesc((2, 3, 6, 6)),"
        " dst=dnn.MemoryDesc((2, 3, 3, 3), 'f32', 'any'), kernel=(2, 2), strides=(2, 2))"
    ),
    (
        "dnn.PoolingForward('forward_inference', 'avg_exclude_padding', kernel=3, padding_l=1,"
        " src=dnn.MemoryDesc((2, 8, 6, 6), 'f32', 'aBcd8b'),"
        " dst=dnn.MemoryDesc((2, 8, 6, 6), 'f32', 'any'))"
    ),
    (
        "dnn.PoolingBackward('max', diff_src=dnn.MemoryDesc((2, 3, 6, 6)),"
        " diff_dst=dnn.MemoryDesc((2, 3, 3, 3)), kernel=2, strides=2)"
    ),
    (
        "dnn.LRNForward('forward_training', 'across_channels', src=dnn.MemoryDesc((2, 6, 3, 3)),"
        " dst=dnn.MemoryDesc((2, 6, 3, 3), 'f32', 'any'), local_size=5, alpha=0.5, beta=0.75, k=1.0)"
    ),
    (
        "dnn.LRNBackward('within_channel', src=dnn.MemoryDesc((2, 6, 3, 3)),"
        " diff_dst=dnn.MemoryDesc((2, 6, 3, 3)), diff_src=dnn.MemoryDesc((2, 6, 3, 3)), local_size=3)"
    ),
    (
        "dnn.BatchNormalizationForward('forward_training', src=dnn.MemoryDesc((2, 5, 3)),"
        " dst=dnn.MemoryDesc((2, 5, 3)), scale=dnn.MemoryDesc((5,)), shift=dnn.MemoryDesc((5,)),"
        " epsilon=0.1, fuse_relu=True)"
    ),
    (
        "dnn.BatchNormalizationBackward(src=dnn.MemoryDesc((2, 5)), diff_dst=dnn.MemoryDesc((2, 5)),"
        " diff_src=dnn.MemoryDesc((2, 5)), mean=dnn.MemoryDesc((5,)), scale=dnn.MemoryDesc((5,)),"
        " diff_scale=dnn.MemoryDesc((5,)), diff_shift=dnn.MemoryDesc((5,)), use_global_stats=True)"
    ),
    (
        "dnn.LayerNormalizationForward('forward_inference', src=dnn.MemoryDesc((2, 5)),"
        " dst=dnn.MemoryDesc((2, 5)), scale=dnn.MemoryDesc((5,)), epsilon=0.1, rms=True)"
    ),
    (
        "dnn.LayerNormalizationBackward(src=dnn.MemoryDesc((2, 5)), diff_dst=dnn.MemoryDesc((2, 5)),"
        " diff_src=dnn.MemoryDesc((2, 5)), variance=dnn.MemoryDesc((2,)))"
    ),
    (
        "dnn.GroupNormalizationForward('forward_training', src=dnn.MemoryDesc((2, 6, 3)),"
        " dst=dnn.MemoryDesc((2, 6, 3)), groups=2, shift=dnn.MemoryDesc((6,)))"
    ),
    (
        "dnn.GroupNormalizationBackward(src=dnn.MemoryDesc((2, 6, 3)), groups=3,"
        " diff_dst=dnn.MemoryDesc((2, 6, 3)), diff_src=dnn.MemoryDesc((2, 6, 3)))"
    ),
    (
        "dnn.SoftmaxForward('forward_training', 'accurate', src=dnn.MemoryDesc((2, 5, 3)),"
        " dst=dnn.MemoryDesc((2, 5, 3)), lse=dnn.MemoryDesc((2, 1, 3)), axis=1)"
    ),
    (
        "dnn.RNNForward('forward_training', 'vanilla_lstm', 'left2right',"
        " src_layer=dnn.MemoryDesc((2, 3, 4)), weights_layer=dnn.MemoryDesc((1, 1, 4, 4, 5), 'f32', 'any'),"
        " weights_iter=dnn.MemoryDesc((1, 1, 5, 4, 5), 'f32', 'any'), bias=dnn.MemoryDesc((1, 1, 4, 5)),"
        " dst_layer=dnn.MemoryDesc((2, 3, 5)), alpha=0.5)"
    ),
    (
        "dnn.RNNBackward('vanilla_gru', 'right2left', src_layer=dnn.MemoryDesc((2, 3, 4)),"
        " weights_layer=dnn.MemoryDesc((1, 1, 4, 3, 5)), weights_iter=dnn.MemoryDesc((1, 1, 5, 3, 5)),"
        " diff_dst_layer=dnn.MemoryDesc((2, 3, 5)), diff_weights_layer=dnn.MemoryDesc((1, 1, 4, 3, 5)),"
        " diff_weights_iter=dnn.MemoryDesc((1, 1, 5, 3, 5)), diff_src_layer=dnn.MemoryDesc((2, 3, 4)))"
    ),
    (
        "dnn.SoftmaxBackward('log', dst=dnn.MemoryDesc((2, 5)), diff_dst=dnn.MemoryDesc((2, 5)),"
        " diff_src=dnn.MemoryDesc((2, 5)), axis=1)"
    ),
    (
        "dnn.AttentionForward('forward_training', queries=dnn.MemoryDesc((2, 4, 3, 5)),"
        " keys=dnn.MemoryDesc((2, 2, 6, 5)), values=dnn.MemoryDesc((2, 2, 6, 7)),"
        " mask=dnn.MemoryDesc((1, 1, 3, 6)), dst=dnn.MemoryDesc((2, 4, 3, 7), 'f32', 'any'),"
        " causal='top_left', scale=0.5)"
    ),
    (
        "dnn.AttentionBackward(queries=dnn.MemoryDesc((1, 2, 3, 5)),"
        " keys=dnn.MemoryDesc((1, 1, 6, 5)), values=dnn.MemoryDesc((1, 1, 6, 7)),"
        " dst=dnn.MemoryDesc((1, 2, 3, 7)), diff_dst=dnn.MemoryDesc((1, 2, 3, 7)),"
        " diff_queries=dnn.MemoryDesc((1, 2, 3, 5)), diff_keys=dnn.MemoryDesc((1, 1, 6, 5)),"
        " diff_values=dnn.MemoryDesc((1, 1, 6, 7), 'f32', 'any'), causal='bottom_right')"
    ),
    (
        "dnn.EltwiseForward('forward_training', 'elu', src=dnn.MemoryDesc((2, 3, 5)),"
        " dst=dnn.MemoryDesc((2, 3, 5), 'f32', 'any'), alpha=0.5, beta=0.0)"
    ),
    (
        "dnn.EltwiseBackward('tanh', src=dnn.MemoryDesc((2, 3)), diff_dst=dnn.MemoryDesc((2, 3)),"
        " diff_src=dnn.MemoryDesc((2, 3)))"
    ),
    (
        "dnn.EltwiseBackward('relu_use_dst_for_bwd', dst=dnn.MemoryDesc((2, 3)),"
        " diff_dst=dnn.MemoryDesc((2, 3)), diff_src=dnn.MemoryDesc((2, 3)), alpha=0.25)"
    ),
    (
        "dnn.PReLUForward('forward_inference', src=dnn.MemoryDesc((2, 3, 4)),"
        " weights=dnn.MemoryDesc((1, 3, 1)), dst=dnn.MemoryDesc((2, 3, 4)))"
    ),
    (
        "dnn.PReLUBackward(src=dnn.MemoryDesc((2, 3)), weights=dnn.MemoryDesc((2, 1)),"
        " diff_dst=dnn.MemoryDesc((2, 3)), diff_src=dnn.MemoryDesc((2, 3)),"
        " diff_weights=dnn.MemoryDesc((2, 1)))"
    ),
    (
        "dnn.Binary('add', src0=dnn.MemoryDesc((2, 1, 4)), src1=dnn.MemoryDesc((2, 3, 4)),"
        " dst=dnn.MemoryDesc((2, 3, 4)))"
    ),
    (
        "dnn.Binary('select', src0=dnn.MemoryDesc((2, 3)), src1=dnn.MemoryDesc((2, 3)),"
        " src2=dnn.MemoryDesc((2, 3), 's8'), dst=dnn.MemoryDesc((2, 3)))"
    ),
    (
        "dnn.Sum((1.0, -0.5, 2.0), srcs=(dnn.MemoryDesc((2, 3)), dnn.MemoryDesc((2, 3)),"
        " dnn.MemoryDesc((2, 3), 'f32', 'ba')), dst=dnn.MemoryDesc((2, 3)))"
    ),
    (
        "dnn.Concat(srcs=(dnn.MemoryDesc((2, 3)), dnn.MemoryDesc((2, 0)),"
        " dnn.MemoryDesc((2, 1), 'f32', 'ba')), dst=dnn.MemoryDesc((2, 4)), axis=1)"
    ),
    (
        "dnn.ShuffleForward('forward_training', src=dnn.MemoryDesc((2, 6, 3)),"
        " dst=dnn.MemoryDesc((2, 6, 3), 'f32', 'any'), axis=1, group_size=2)"
    ),
    (
        "dnn.ShuffleBackward(diff_src=dnn.MemoryDesc((2, 6)), diff_dst=dnn.MemoryDesc((2, 6)),"
        " axis=1, group_size=3)"
    ),
    (
        "dnn.ResamplingForward('forward_inference', 'linear', src=dnn.MemoryDesc((2, 3, 4)),"
        " dst=dnn.MemoryDesc((2, 3, 7), 'f32', 'any'))"
    ),
    (
        "dnn.ResamplingBackward('nearest', diff_src=dnn.MemoryDesc((2, 3, 4, 2)),"
        " diff_dst=dnn.MemoryDesc((2, 3, 7, 1)))"
    ),
    (
        "dnn.Reduction('norm_lp_sum', src=dnn.MemoryDesc((2, 5, 3)),"
        " dst=dnn.MemoryDesc((2, 1, 3), 'f32', 'any'), p=2.0, eps=0.5)"
    ),
    (
        "dnn.Reorder(src=dnn.MemoryDesc((2, 19, 3, 3), 'f32', 'nchw'),"
        " dst=dnn.MemoryDesc((2, 19, 3, 3), 's8', 'aBcd16b'))"
    ),
)
# Operands with dst's shape are valid after every operation.
ATTRIBUTES = (
    "dnn.Attributes()",
    "dnn.Attributes(scratchpad='user', deterministic=True, fpmath='any')",
    "dnn.Attributes((dnn.PostOp.eltwise('relu', 0.5), dnn.PostOp.sum(0.5)))",
    (
        "dnn.Attributes([dnn.PostOp.binary('add', dnn.MemoryDesc(op.result.dims)),"
        " dnn.PostOp.prelu(dnn.MemoryDesc(op.result.dims)), dnn.PostOp.eltwise('clip', -2.0, 2.0)])"
    ),
    (
        "dnn.Attributes([dnn.PostOp.binary('select', dnn.MemoryDesc(op.result.dims),"
        " dnn.MemoryDesc(op.result.dims, 's8'))], fpmath='bf16')"
    ),
    (
        "dnn.Attributes([dnn.PostOp('eltwise', 'linear', alpha=2.0, beta=1.0),"
        " dnn.PostOp('sum', scale=1.0)])"
    ),
)
# Operations and attributes whose values are passed at execution.
QUANTIZED = (
    (
        (
            "dnn.MatMul(src=dnn.MemoryDesc((3, 8), 'u8'), weights=dnn.MemoryDesc((8, 5), 's8', 'any'),"
            " bias=dnn.MemoryDesc((1, 5)), dst=dnn.MemoryDesc((3, 5), 'u8'))"
        ),
        (
            "dnn.Attributes(scales={'src': dnn.Scales(), 'weights': dnn.Scales(mask=2),"
            " 'dst': dnn.Scales(data_type='bf16')}, zero_points={'src': dnn.ZeroPoints(),"
            " 'dst': dnn.ZeroPoints(0, (), 's8')})"
        ),
    ),
    (
        (
            "dnn.MatMul(src=dnn.MemoryDesc((1, 32)), weights=dnn.MemoryDesc((32, 8), 's4'),"
            " dst=dnn.MemoryDesc((1, 8)))"
        ),
        (
            "dnn.Attributes(scales={'weights': dnn.Scales(3, (16, 1), 'f16')},"
            " zero_points={'weights': dnn.ZeroPoints(3, (16, 1), 's4')}, fpmath='strict')"
        ),
    ),
    (
        (
            "dnn.MatMul(src=dnn.MemoryDesc((2, 3, 16), 's8'), weights=dnn.MemoryDesc((1, 16, 4), 's8'),"
            " dst=dnn.MemoryDesc((2, 3, 4), 's32'))"
        ),
        "dnn.Attributes(scales={'weights': dnn.Scales(mask=6, groups=(8, 1))}, accumulation='s32')",
    ),
    (
        (
            "dnn.ConvolutionForward('forward_inference', src=dnn.MemoryDesc((1, 8, 5, 5), 'u8', 'nhwc'),"
            " weights=dnn.MemoryDesc((2, 8, 4, 3, 3), 's8', 'any'), bias=dnn.MemoryDesc((16,), 's32'),"
            " dst=dnn.MemoryDesc((1, 16, 5, 5), 's8', 'any'), padding_l=1, padding_r=1)"
        ),
        (
            "dnn.Attributes([dnn.PostOp.sum(0.5, 3), dnn.PostOp.binary('add', dnn.MemoryDesc((1, 16, 1,"
            " 1), 's8'))], scales={'src': dnn.Scales(), 'weights': dnn.Scales(mask=3)},"
            " zero_points={'src': dnn.ZeroPoints(mask=2), 'dst': dnn.ZeroPoints(mask=2)})"
        ),
    ),
    (
        (
            "dnn.MatMul(src=dnn.MemoryDesc((3, 16), 'bf16'), weights=dnn.MemoryDesc((16, 7), 'bf16'),"
            " dst=dnn.MemoryDesc((3, 7), 'bf16'))"
        ),
        (
            "dnn.Attributes(dropout=dnn.Dropout('s64', True, True), rounding='stochastic',"
            " accumulation='relaxed')"
        ),
    ),
    (
        (
            "dnn.EltwiseForward('forward_training', 'relu', src=dnn.MemoryDesc((2, 3, 5), 'f16'),"
            " dst=dnn.MemoryDesc((2, 3, 5), 'f16'), alpha=0.5)"
        ),
        (
            "dnn.Attributes(dropout=dnn.Dropout(seed_type='s32', has_offset=False, has_mask=False),"
            " rounding='stochastic')"
        ),
    ),
    (
        (
            "dnn.RNNForward('forward_inference', 'vanilla_gru', 'left2right',"
            " src_layer=dnn.MemoryDesc((2, 3, 4), 'u8'),"
            " weights_layer=dnn.MemoryDesc((1, 1, 4, 3, 4), 's8'),"
            " weights_iter=dnn.MemoryDesc((1, 1, 4, 3, 4), 's8'),"
            " dst_layer=dnn.MemoryDesc((2, 3, 4), 'u8'))"
        ),
        (
            "dnn.Attributes(rnn_data_qparams=dnn.RNNDataQparams(100.0, 128.0),"
            " rnn_weights_qparams=dnn.RNNWeightsQparams([500.0], 0))"
        ),
    ),
    (
        "dnn.Reorder(src=dnn.MemoryDesc((2, 19, 3)), dst=dnn.MemoryDesc((2, 19, 3), 'u8', 'aBc8b'))",
        (
            "dnn.Attributes([dnn.PostOp.sum(1.0, -2)], scales={'src': dnn.Scales(2), 'dst':"
            " dnn.Scales()}, zero_points={'dst': dnn.ZeroPoints()})"
        ),
    ),
    (
        (
            "dnn.Binary('mul', src0=dnn.MemoryDesc((2, 3, 4), 's8'), src1=dnn.MemoryDesc((2, 1, 4), 'u8'),"
            " dst=dnn.MemoryDesc((2, 3, 4), 's8'))"
        ),
        "dnn.Attributes(scales={'src0': dnn.Scales(), 'src1': dnn.Scales()})",
    ),
    (
        (
            "dnn.SoftmaxForward('forward_inference', 'accurate', src=dnn.MemoryDesc((2, 5), 'bf16'),"
            " dst=dnn.MemoryDesc((2, 5), 'u8'), axis=1)"
        ),
        "dnn.Attributes(scales={'dst': dnn.Scales()})",
    ),
    (
        (
            "dnn.PoolingForward('forward_inference', 'max', src=dnn.MemoryDesc((2, 3, 6), 'u8'),"
            " dst=dnn.MemoryDesc((2, 3, 3), 'u8'), kernel=2, strides=2)"
        ),
        "dnn.Attributes([dnn.PostOp.eltwise('linear', 0.5, 1.0)], accumulation='any')",
    ),
    (
        (
            "dnn.ConvolutionForward('forward_inference', src=dnn.MemoryDesc((2, 3, 5, 4), 'f32', 'nhwc'),"
            " weights=dnn.MemoryDesc((8, 3, 1, 1)), bias=dnn.MemoryDesc((8,)),"
            " dst=dnn.MemoryDesc((2, 8, 5, 4), 'f32', 'nhwc'))"
        ),
        (
            "dnn.Attributes([dnn.PostOp.eltwise('relu'), dnn.PostOp.depthwise(dnn.MemoryDesc((8, 1, 1,"
            " 3, 3)), dnn.MemoryDesc((8,)), dst_type='f32', stride=2, padding=1),"
            " dnn.PostOp.binary('add', dnn.MemoryDesc((1, 8, 1, 1)))])"
        ),
    ),
)
WISHES = (
    "",
    ", impl='*'",
    ", skip_impl='nothing:*,nobody:*'",
    ", host_fallback=False",
    ", hint=None",
    ", host_fallback=True",
)
DESC = "dnn.MemoryDesc((2, 16, 5, 4), 'f32', 'aBcd8b')"
PLAIN = "dnn.MemoryDesc((2, 3, 4), 'f32', strides=(16, 5, 1), offset0=3)"
DESCRIPTORS = (
    f"result = {PLAIN}",
    "result = dnn.MemoryDesc((3, 5), 's4', 'ba')",
    "result = dnn.MemoryDesc([4, 4], 'bf16', None, strides=[0, 1])",
    "result = dnn.MemoryDesc((8, 8), 'u8', 'mine:packed:4', nbytes=64)",
    f"result = {DESC}.submemory((2, 8, 5, 4), (0, 8, 0, 0))",
    f"result = {DESC}.reshape((2, 16, 20))",
    f"result = {PLAIN}.reshape((2, 3, 2, 2))",
    f"result = {DESC}.permute_axes((0, 2, 3, 1))",
    f"result = {DESC}.like(dnn.MemoryDesc((1, 3, 8, 8), 'u8', 'nhwc'))",
    f"result = {DESC}.with_format('nhwc')",
    f"result = {DESC}.with_format('mine:packed', nbytes=4096)",
    f"result = {DESC}.with_data_type('s8').with_offset0(7)",
    f"result = ({DESC}.offset((1, 3, 2, 0)), {DESC}.matches('nChw8c'), {DESC}.nbytes)",
    f"result = {PLAIN}.broadcasts_to((2, 3, 4))",
    f"result = {DESC}.unpack(np.zeros(2560, np.uint8))",
    f"result = {PLAIN}.view(np.zeros(256, np.uint8))",
    "result = dnn.MemoryDesc((3, 5), 's4').unpack(np.zeros(8, np.uint8))",
    f"result = {PLAIN}.pack(np.ones((2, 3, 4), np.float32), np.zeros(256, np.uint8))",
    "result = dnn.engine('cpu').stream(order='in', profiling=False)",
    "result = dnn.compare(np.ones((2, 3)), np.zeros((2, 3)), bound=1.0)",
)
HINTED = tuple(
    f"op = {op}\nforward = dnn.PrimitiveDesc(op.forward_op, engine)\n"
    "pd = dnn.PrimitiveDesc(op, engine, hint=forward)"
    for op in OPERATIONS
    if "Backward" in op
)
ACROSS = (
    (
        "op = dnn.Reorder(src=dnn.MemoryDesc((2, 3)), dst=dnn.MemoryDesc((2, 3), 's8', 'ba'))\n"
        "pd = dnn.PrimitiveDesc(op, engine, src_engine=other)"
    ),
    (
        "pds = list(dnn.primitive_descs(dnn.EltwiseForward('forward_training', 'relu',"
        " src=dnn.MemoryDesc((2, 3)), dst=dnn.MemoryDesc((2, 3))), engine, dnn.Attributes(), impl='*'))"
        "\nresult = pds[0].explain(), pds[0].next(), pds[-1].src_desc, pds[0].refusals"
    ),
)
MEMORIES = (
    (
        "memory = dnn.Memory(dnn.MemoryDesc((2, 3)), engine, engine.allocate(24)); memory.fill(2.0);"
        " result = memory.numpy(engine.stream())"
    ),
    (
        "memory = dnn.Memory.from_numpy(np.ones((2, 19, 3), np.float32), dnn.MemoryDesc((2, 19, 3),"
        " 'f32', 'aBc8b'), engine); result = memory.numpy(), memory.physical(), repr(memory)"
    ),
    (
        "memory = dnn.Memory.from_numpy(np.ones((4, 6), np.float32)[::2, ::-1], engine=engine);"
        " result = memory.submemory((1, 3), (1, 2)).numpy()"
    ),
    (
        "memory = dnn.Memory(dnn.MemoryDesc((3, 5), 's4'), engine); memory.fill(-3);"
        " result = np.asarray(memory)"
    ),
    (
        "memory = dnn.Memory(dnn.MemoryDesc((4,)), engine)\n"
        "with memory.map(engine.stream(), 'rw') as buffer:\n"
        "    buffer[:] = 0"
    ),
    (
        "memory = dnn.Memory.from_numpy(np.ones((2, 3), np.float32), engine=engine);"
        " moved = dnn.reorder(memory, dnn.MemoryDesc((2, 3), 's8', 'ba'), engine, engine.stream())"
    ),
    (
        "memory = dnn.Memory.from_numpy(np.ones((2, 3), np.float32), engine=engine);"
        " moved = dnn.reorder(memory, dnn.MemoryDesc((2, 3), 'bf16'), other)"
    ),
    (
        "memory = dnn.Memory.from_numpy(np.frombuffer(bytes(24), np.float32).reshape(2, 3), None,"
        " engine); result = memory.nbytes"
    ),
    (
        "memory = dnn.Memory.from_numpy(np.ones((2, 3), '>f4')[:, ::-1], None, engine, copy=None);"
        " result = memory.__array__(np.float32, copy=True)"
    ),
    (
        "memory = dnn.Memory.from_dlpack(np.ones((2, 3), np.float32), dnn.MemoryDesc((2, 3)), engine,"
        " copy=True); result = memory.__dlpack__(stream=engine.stream(), max_version=(1, 0),"
        " dl_device=(1, 0), copy=True)"
    ),
    (
        "memory = dnn.Memory.from_numpy(np.ones((2, 3), dnn.MemoryDesc((2, 3), 'bf16').dtype), None,"
        " engine, copy=None); result = memory.__array__(), memory.numpy().astype('f4')"
    ),
    (
        "memory = dnn.Memory.from_numpy(np.ones((4, 2), dnn.MemoryDesc((1,), 'f8_e4m3').dtype),"
        " dnn.MemoryDesc((4, 2), 'f8_e4m3', 'ba'), engine); result = memory.numpy()"
    ),
    (
        "memory = dnn.Memory.from_numpy(np.zeros((0, 3), np.int8), dnn.MemoryDesc((0, 3), 's8'),"
        " engine); result = memory.numpy(), memory.nbytes, memory.__dlpack__(), np.asarray(memory)"
    ),
    (
        "memory = dnn.Memory.from_numpy(np.array(2.0, np.float32).reshape(1), engine=engine);"
        " result = memory.numpy()"
    ),
    (
        "memory = dnn.Memory.from_dlpack(np.arange(6, dtype=np.uint8).reshape(2, 3)[::-1],"
        " engine=engine, copy=None); result = memory.numpy()"
    ),
    (
        "memory = dnn.Memory.from_dlpack(dnn.Memory(dnn.MemoryDesc((5,), 's4'), engine),"
        " engine=engine, copy=False); result = memory.__dlpack_device__()"
    ),
)
CALLS = (
    "event = primitive.execute(engine.stream(), wait_for=[], **arguments)",
    "event = primitive.bind(**arguments)(engine.stream(), wait_for=())",
    "event = dnn.Sequence([primitive.bind(**arguments)])(engine.stream())",
)
SCRATCHPAD = (
    "if pd.scratchpad_desc: arguments['scratchpad'] = dnn.Memory(pd.scratchpad_desc, engine)"
)


@cache
def described() -> tuple[tuple[str, ...], ...]:
    """Return programs that make descriptors, read problem texts, and select implementations."""
    chosen = [
        f"op = {op}\nattr = {attr}\npd = dnn.PrimitiveDesc(op, engine, attr{wishes})"
        for op, attr, wishes in itertools.product(OPERATIONS, ATTRIBUTES, WISHES)
    ]
    quantized = [
        f"op = {op}\nattr = {attr}\npd = dnn.PrimitiveDesc(op, engine, attr)"
        for op, attr in QUANTIZED
    ]
    read = [f"result = problem.read({text!r})" for text in _texts()]
    return DESCRIPTORS, tuple(read), tuple(chosen), (*HINTED, *ACROSS), tuple(quantized)


@cache
def executed() -> tuple[tuple[str, ...], ...]:
    """Return programs that make memories and execute primitives."""
    pairs = itertools.product(OPERATIONS, ATTRIBUTES)
    ran = [_execution(op, attr, call) for op, attr in pairs for call in CALLS]
    quantized = [_execution(op, attr, call) for op, attr in QUANTIZED for call in CALLS]
    return MEMORIES, tuple(ran), tuple(quantized)


def _execution(op: str, attr: str, call: str) -> str:
    """A program that executes a primitive."""
    return "\n".join(
        [
            f"op = {op}",
            f"attr = {attr}",
            "pd = dnn.PrimitiveDesc(op, engine, attr)",
            "values = inputs(pd)",
            f"arguments = {{{', '.join(_memories(op, attr))}}}",
            SCRATCHPAD,
            "before = copies(arguments)",
            "primitive = pd.primitive()",
            call,
            "event.wait()",
        ]
    )


@cache
def _memories(op_text: str, attr_text: str) -> tuple[str, ...]:
    """Return the entries of the dict of arguments."""
    scope: dict[str, Any] = {**NAMES}
    exec(f"op = {op_text}\nattr = {attr_text}", scope)  # noqa: S102 - our own texts
    op, attr = scope["op"], scope["attr"]
    arguments = op.tensors(op.workspace_desc()) + attr.arguments(op)
    rows = [(a.name, a.direction) for a, _ in arguments]
    made = {
        "in": "dnn.Memory.from_numpy(values[{0!r}], pd.{0}_desc, engine)",
        "out": "dnn.Memory(pd.{0}_desc, engine)",
    }
    if attr.reads_dst:
        rows = [(name, "in" if name == op.result_name else way) for name, way in rows]
    return tuple(f"{name!r}: {made[way].format(name)}" for name, way in rows)


@cache
def _texts() -> tuple[str, ...]:
    """Return the problem texts of all operations that have a driver."""
    return tuple(_written())


def _written() -> Iterator[str]:
    kinds = {kind for driver in problem.DRIVERS.values() for kind in driver.operations}
    for op_text, attr_text in (*itertools.product(OPERATIONS, ATTRIBUTES), *QUANTIZED):
        scope: dict[str, Any] = {**NAMES}
        exec(f"op = {op_text}\nattr = {attr_text}", scope)  # noqa: S102 - our own texts
        if type(scope["op"]) in kinds:
            yield str(problem.Problem(scope["op"], scope["attr"], skip_impl="nothing:*"))
