"""The CPU backend: numba and LLVM generate threaded, vectorised kernels for this processor."""

from __future__ import annotations

import importlib.util

from dnncore.backend import (
    API_VERSION,
    Backend,
    Binary,
    ConvolutionBackwardData,
    ConvolutionBackwardWeights,
    ConvolutionForward,
    EltwiseBackward,
    EltwiseForward,
    EngineUnavailable,
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
    Binary: "binary:TABLE",
    ConvolutionForward: "convolution.implementations:FORWARD",
    ConvolutionBackwardData: "convolution.implementations:BACKWARD_DATA",
    ConvolutionBackwardWeights: "convolution.implementations:BACKWARD_WEIGHTS",
    EltwiseForward: "eltwise:FORWARD",
    EltwiseBackward: "eltwise:BACKWARD",
    InnerProductForward: "inner_product:FORWARD",
    InnerProductBackwardData: "inner_product:BACKWARD_DATA",
    InnerProductBackwardWeights: "inner_product:BACKWARD_WEIGHTS",
    LRNForward: "lrn.implementations:TABLE",
    LRNBackward: "lrn.implementations:TABLE",
    MatMul: "matmul:TABLE",
    PoolingForward: "pooling.implementations:TABLE",
    PoolingBackward: "pooling.implementations:TABLE",
    Reduction: "reduction.implementations:TABLE",
    Reorder: "reorder:TABLE",
    SoftmaxForward: "softmax.implementations:FORWARD",
    SoftmaxBackward: "softmax.implementations:BACKWARD",
    Sum: "sum:TABLE",
}


@hookimpl
def dnncore_backends() -> Backend:
    """Offer implementations for the core's engine "cpu"."""
    if importlib.util.find_spec("numba") is None:
        raise EngineUnavailable("cpu_numba needs numba: pip install numba")
    tables = {("cpu", op): f"{__name__}.{table}" for op, table in TABLES.items()}
    return Backend("cpu_numba", API_VERSION, implementations=tables)
