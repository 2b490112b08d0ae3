"""The CPU backend: threaded, vectorised kernels, which LLVM compiles for this processor."""

from __future__ import annotations

import importlib.util

from dnncore import backend
from dnncore.backend import Backend, EngineUnavailable, hookimpl

TABLES = {
    backend.AttentionForward: "attention.implementations:FORWARD",
    backend.AttentionBackward: "attention.implementations:BACKWARD",
    backend.BatchNormalizationForward: "normalization.implementations:TABLE",
    backend.BatchNormalizationBackward: "normalization.implementations:TABLE",
    backend.Binary: "binary:TABLE",
    backend.Concat: "concat:TABLE",
    backend.ConvolutionForward: "convolution.implementations:FORWARD",
    backend.ConvolutionBackwardData: "convolution.implementations:BACKWARD_DATA",
    backend.ConvolutionBackwardWeights: "convolution.implementations:BACKWARD_WEIGHTS",
    backend.DeconvolutionForward: "deconvolution:FORWARD",
    backend.DeconvolutionBackwardData: "deconvolution:BACKWARD_DATA",
    backend.DeconvolutionBackwardWeights: "deconvolution:BACKWARD_WEIGHTS",
    backend.EltwiseForward: "eltwise:FORWARD",
    backend.EltwiseBackward: "eltwise:BACKWARD",
    backend.GroupNormalizationForward: "normalization.implementations:TABLE",
    backend.GroupNormalizationBackward: "normalization.implementations:TABLE",
    backend.InnerProductForward: "inner_product:FORWARD",
    backend.InnerProductBackwardData: "inner_product:BACKWARD_DATA",
    backend.InnerProductBackwardWeights: "inner_product:BACKWARD_WEIGHTS",
    backend.LayerNormalizationForward: "normalization.implementations:TABLE",
    backend.LayerNormalizationBackward: "normalization.implementations:TABLE",
    backend.LRNForward: "lrn.implementations:TABLE",
    backend.LRNBackward: "lrn.implementations:TABLE",
    backend.MatMul: "matmul:TABLE",
    backend.PoolingForward: "pooling.implementations:TABLE",
    backend.PoolingBackward: "pooling.implementations:TABLE",
    backend.PReLUForward: "prelu:FORWARD",
    backend.PReLUBackward: "prelu:BACKWARD",
    backend.Reduction: "reduction.implementations:TABLE",
    backend.Reorder: "reorder:TABLE",
    backend.ResamplingForward: "resampling.implementation:TABLE",
    backend.ResamplingBackward: "resampling.implementation:TABLE",
    backend.ShuffleForward: "shuffle:TABLE",
    backend.ShuffleBackward: "shuffle:TABLE",
    backend.RNNForward: "rnn.implementations:TABLE",
    backend.RNNBackward: "rnn.implementations:TABLE",
    backend.SoftmaxForward: "softmax.implementations:FORWARD",
    backend.SoftmaxBackward: "softmax.implementations:BACKWARD",
    backend.Sum: "sum:TABLE",
}


@hookimpl
def dnncore_backends() -> Backend:
    """Return this backend: implementations for the core's engine "cpu"."""
    if importlib.util.find_spec("numba") is None:
        raise EngineUnavailable("cpu_numba needs numba: pip install numba")
    tables = {("cpu", op): f"{__name__}.{place}" for op, place in TABLES.items()}
    return Backend("cpu_numba", "1.2", implementations=tables)
