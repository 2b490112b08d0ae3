"""OpenCL backend: engines for every OpenCL device and portable kernels for all operations.

`OpenCLEngine.from_native(context)` returns an engine for a program's own pyopencl context. Then
`Memory.wrap` takes the buffers and arrays of this context.
"""

from __future__ import annotations

from typing import Any

from dnncore import backend as core
from dnncore.backend import Backend, hookimpl

TABLES = {
    core.Concat: "concat:TABLE",
    core.ConvolutionForward: "convolution.implementations:FORWARD",
    core.ConvolutionBackwardData: "convolution.implementations:BACKWARD_DATA",
    core.ConvolutionBackwardWeights: "convolution.implementations:BACKWARD_WEIGHTS",
    core.DeconvolutionForward: "deconvolution:FORWARD",
    core.DeconvolutionBackwardData: "deconvolution:BACKWARD_DATA",
    core.DeconvolutionBackwardWeights: "deconvolution:BACKWARD_WEIGHTS",
    core.InnerProductForward: "inner_product.implementations:FORWARD",
    core.InnerProductBackwardData: "inner_product.implementations:BACKWARD_DATA",
    core.InnerProductBackwardWeights: "inner_product.implementations:BACKWARD_WEIGHTS",
    core.MatMul: "matmul:TABLE",
    core.EltwiseForward: "eltwise:FORWARD",
    core.EltwiseBackward: "eltwise:BACKWARD",
    core.PoolingForward: "pooling.implementations:FORWARD",
    core.PoolingBackward: "pooling.implementations:BACKWARD",
    core.LRNForward: "lrn.implementations:FORWARD",
    core.LRNBackward: "lrn.implementations:BACKWARD",
    core.AttentionForward: "attention.implementations:FORWARD",
    core.AttentionBackward: "attention.implementations:BACKWARD",
    core.SoftmaxForward: "softmax.implementations:FORWARD",
    core.SoftmaxBackward: "softmax.implementations:BACKWARD",
    core.BatchNormalizationForward: "normalization.implementations:BATCH_FORWARD",
    core.BatchNormalizationBackward: "normalization.implementations:BATCH_BACKWARD",
    core.LayerNormalizationForward: "normalization.implementations:FORWARD",
    core.LayerNormalizationBackward: "normalization.implementations:BACKWARD",
    core.GroupNormalizationForward: "normalization.implementations:FORWARD",
    core.GroupNormalizationBackward: "normalization.implementations:BACKWARD",
    core.Binary: "binary:TABLE",
    core.PReLUForward: "prelu:FORWARD",
    core.PReLUBackward: "prelu:BACKWARD",
    core.Reduction: "reduction.implementations:TABLE",
    core.ResamplingForward: "resampling.implementation:TABLE",
    core.ResamplingBackward: "resampling.implementation:TABLE",
    core.RNNForward: "rnn.implementations:TABLE",
    core.RNNBackward: "rnn.implementations:TABLE",
    core.ShuffleForward: "shuffle:TABLE",
    core.ShuffleBackward: "shuffle:TABLE",
    core.Sum: "sum:TABLE",
    core.Reorder: "reorder:TABLE",
}


@hookimpl
def dnncore_backends() -> Backend:
    """Describe this backend to dnncore."""
    return Backend(
        "opencl",
        "1.2",
        engines={"opencl": "dnncore_opencl.runtime.engine:OpenCLEngine"},
        implementations={
            ("opencl", operation): f"dnncore_opencl.{table}" for operation, table in TABLES.items()
        },
        array_kinds={"pyopencl.array:Array": "dnncore_opencl.arrays:KIND"},
    )


def __getattr__(name: str) -> Any:
    """Import the class of engines when it is first used."""
    if name == "OpenCLEngine":
        from dnncore_opencl.runtime.engine import OpenCLEngine

        return OpenCLEngine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
