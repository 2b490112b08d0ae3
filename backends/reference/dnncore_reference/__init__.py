"""The reference backend: every operation by its formula, in float64 with numpy.

This backend defines correct results. Its code is simple enough to verify by reading, and it shares
no code with fast kernels. `definition.py` contains the common part of all operations. Each
operation has a file.
"""

from __future__ import annotations

from dnncore import backend
from dnncore.backend import Backend, hookimpl

_TABLES = {
    backend.AttentionForward: "attention:FORWARD",
    backend.AttentionBackward: "attention:BACKWARD",
    backend.BatchNormalizationForward: "normalization:BATCH_FORWARD",
    backend.BatchNormalizationBackward: "normalization:BATCH_BACKWARD",
    backend.Binary: "binary:TABLE",
    backend.Concat: "concat:TABLE",
    backend.ConvolutionForward: "convolution:FORWARD",
    backend.ConvolutionBackwardData: "convolution:BACKWARD_DATA",
    backend.ConvolutionBackwardWeights: "convolution:BACKWARD_WEIGHTS",
    backend.DeconvolutionForward: "deconvolution:FORWARD",
    backend.DeconvolutionBackwardData: "deconvolution:BACKWARD_DATA",
    backend.DeconvolutionBackwardWeights: "deconvolution:BACKWARD_WEIGHTS",
    backend.EltwiseForward: "eltwise:FORWARD",
    backend.EltwiseBackward: "eltwise:BACKWARD",
    backend.GroupNormalizationForward: "normalization:GROUP_FORWARD",
    backend.GroupNormalizationBackward: "normalization:GROUP_BACKWARD",
    backend.InnerProductForward: "inner_product:FORWARD",
    backend.InnerProductBackwardData: "inner_product:BACKWARD_DATA",
    backend.InnerProductBackwardWeights: "inner_product:BACKWARD_WEIGHTS",
    backend.LayerNormalizationForward: "normalization:LAYER_FORWARD",
    backend.LayerNormalizationBackward: "normalization:LAYER_BACKWARD",
    backend.LRNForward: "lrn:FORWARD",
    backend.LRNBackward: "lrn:BACKWARD",
    backend.MatMul: "matmul:TABLE",
    backend.PoolingForward: "pooling:FORWARD",
    backend.PoolingBackward: "pooling:BACKWARD",
    backend.PReLUForward: "prelu:FORWARD",
    backend.PReLUBackward: "prelu:BACKWARD",
    backend.Reduction: "reduction:TABLE",
    backend.Reorder: "reorder:TABLE",
    backend.RNNForward: "rnn:FORWARD",
    backend.RNNBackward: "rnn:BACKWARD",
    backend.ResamplingForward: "resampling:FORWARD",
    backend.ResamplingBackward: "resampling:BACKWARD",
    backend.ShuffleForward: "shuffle:FORWARD",
    backend.ShuffleBackward: "shuffle:BACKWARD",
    backend.SoftmaxForward: "softmax:FORWARD",
    backend.SoftmaxBackward: "softmax:BACKWARD",
    backend.Sum: "sum:TABLE",
}


@hookimpl
def dnncore_backends() -> Backend:
    """Return this backend: definitions of all operations for the engine "cpu"."""
    tables = {("cpu", op): f"{__name__}.{place}" for op, place in _TABLES.items()}
    return Backend("reference", "1.2", role="reference", implementations=tables)
