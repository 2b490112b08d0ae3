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
    ConvolutionForward: "convolution.implementations:FORWARD",
    ConvolutionBackwardData: "convolution.implementations:BACKWARD_DATA",
    ConvolutionBackwardWeights: "convolution.implementations:BACKWARD_WEIGHTS",
    InnerProductForward: "inner_product.implementations:FORWARD",
    InnerProductBackwardData: "inner_product.implementations:BACKWARD_DATA",
    InnerProductBackwardWeights: "inner_product.implementations:BACKWARD_WEIGHTS",
    MatMul: "matmul:TABLE",
    EltwiseForward: "eltwise:FORWARD",
    EltwiseBackward: "eltwise:BACKWARD",
    PoolingForward: "pooling.implementations:FORWARD",
    PoolingBackward: "pooling.implementations:BACKWARD",
    LRNForward: "lrn.implementations:FORWARD",
    LRNBackward: "lrn.implementations:BACKWARD",
    SoftmaxForward: "softmax.implementations:FORWARD",
    SoftmaxBackward: "softmax.implementations:BACKWARD",
    Binary: "binary:TABLE",
    Reduction: "reduction.implementations:TABLE",
    Sum: "sum:TABLE",
    Reorder: "reorder:TABLE",
}


@hookimpl
def dnncore_backends() -> Backend:
    """Describe this backend to dnncore."""
    return Backend(
        "opencl",
        API_VERSION,
        engines={"opencl": "dnncore_opencl.runtime.engine:OpenCLEngine"},
        implementations={
            ("opencl", operation): f"dnncore_opencl.{table}" for operation, table in TABLES.items()
        },
    )
