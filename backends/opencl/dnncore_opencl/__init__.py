"""OpenCL backend: engines for every OpenCL device and portable kernels for all operations."""

from __future__ import annotations

from dnncore.backend import (
    API_VERSION,
    Backend,
    Binary,
    ConvolutionBackwardData,
    ConvolutionBackwardWeights,
    ConvolutionForward,
    EltwiseBackward,
    EltwiseForward,
    InnerProductBackwardData,
    InnerProductBackwardWeights,
    InnerProductForward,
    LRNBackward,
    LRNForward,
    MatMul,
    PoolingBackward,
    PoolingForward,
    Reduction,
    Reorder,
    SoftmaxBackward,
    SoftmaxForward,
    Sum,
    hookimpl,
)

TABLES = {
    ConvolutionForward: "convolution:FORWARD",
    ConvolutionBackwardData: "convolution:BACKWARD_DATA",
    ConvolutionBackwardWeights: "convolution:BACKWARD_WEIGHTS",
    InnerProductForward: "inner_product:FORWARD",
    InnerProductBackwardData: "inner_product:BACKWARD_DATA",
    InnerProductBackwardWeights: "inner_product:BACKWARD_WEIGHTS",
    MatMul: "matmul:TABLE",
    EltwiseForward: "eltwise:FORWARD",
    EltwiseBackward: "eltwise:BACKWARD",
    PoolingForward: "pooling:FORWARD",
    PoolingBackward: "pooling:BACKWARD",
    LRNForward: "lrn:FORWARD",
    LRNBackward: "lrn:BACKWARD",
    SoftmaxForward: "softmax:FORWARD",
    SoftmaxBackward: "softmax:BACKWARD",
    Binary: "binary:TABLE",
    Reduction: "reduction:TABLE",
    Sum: "sum:TABLE",
    Reorder: "reorder:TABLE",
}


@hookimpl
def dnncore_backends() -> Backend:
    """Describe this backend to dnncore."""
    return Backend(
        "opencl",
        API_VERSION,
        engines={"opencl": "dnncore_opencl.engine:OpenCLEngine"},
        implementations={
            ("opencl", operation): f"dnncore_opencl.{table}" for operation, table in TABLES.items()
        },
    )
