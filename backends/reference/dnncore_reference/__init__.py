"""The reference backend: every operation as its formula says, in float64 with numpy.

It is the definition of right answers, so it is written to be checked by eye and shares no code with
fast kernels. `definition.py` tells what all operations have in common; then one file per operation.
"""

from __future__ import annotations

from dnncore import backend
from dnncore.backend import API_VERSION, Backend, hookimpl

_TABLES = {
    backend.Binary: "binary:TABLE",
    backend.ConvolutionForward: "convolution:FORWARD",
    backend.ConvolutionBackwardData: "convolution:BACKWARD_DATA",
    backend.ConvolutionBackwardWeights: "convolution:BACKWARD_WEIGHTS",
    backend.EltwiseForward: "eltwise:FORWARD",
    backend.EltwiseBackward: "eltwise:BACKWARD",
    backend.InnerProductForward: "inner_product:FORWARD",
    backend.InnerProductBackwardData: "inner_product:BACKWARD_DATA",
    backend.InnerProductBackwardWeights: "inner_product:BACKWARD_WEIGHTS",
    backend.LRNForward: "lrn:FORWARD",
    backend.LRNBackward: "lrn:BACKWARD",
    backend.MatMul: "matmul:TABLE",
    backend.PoolingForward: "pooling:FORWARD",
    backend.PoolingBackward: "pooling:BACKWARD",
    backend.Reduction: "reduction:TABLE",
    backend.Reorder: "reorder:TABLE",
    backend.SoftmaxForward: "softmax:FORWARD",
    backend.SoftmaxBackward: "softmax:BACKWARD",
    backend.Sum: "sum:TABLE",
}


@hookimpl
def dnncore_backends() -> Backend:
    """Offer the definitions to the CPU engine."""
    tables = {("cpu", op): f"{__name__}.{place}" for op, place in _TABLES.items()}
    return Backend("reference", API_VERSION, role="reference", implementations=tables)
