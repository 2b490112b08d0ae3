"""oneDNN as a backend: its primitives compute operations on dnncore's engine `cpu`.

The modules that the strings name load the library. They are imported on first use.
"""

from __future__ import annotations

from dnncore import backend

OPERATIONS: tuple[type[backend.Operation], ...] = (
    backend.BatchNormalizationForward,
    backend.BatchNormalizationBackward,
    backend.Binary,
    backend.Concat,
    backend.ConvolutionForward,
    backend.ConvolutionBackwardData,
    backend.ConvolutionBackwardWeights,
    backend.DeconvolutionForward,
    backend.DeconvolutionBackwardData,
    backend.DeconvolutionBackwardWeights,
    backend.EltwiseForward,
    backend.EltwiseBackward,
    backend.GroupNormalizationForward,
    backend.GroupNormalizationBackward,
    backend.InnerProductForward,
    backend.InnerProductBackwardData,
    backend.InnerProductBackwardWeights,
    backend.LayerNormalizationForward,
    backend.LayerNormalizationBackward,
    backend.LRNForward,
    backend.LRNBackward,
    backend.MatMul,
    backend.PoolingForward,
    backend.PoolingBackward,
    backend.PReLUForward,
    backend.PReLUBackward,
    backend.Reduction,
    backend.Reorder,
    backend.ResamplingForward,
    backend.ResamplingBackward,
    backend.RNNForward,
    backend.RNNBackward,
    backend.ShuffleForward,
    backend.ShuffleBackward,
    backend.SoftmaxForward,
    backend.SoftmaxBackward,
    backend.Sum,
)


@backend.hookimpl
def dnncore_backends() -> backend.Backend:
    """Offer implementations for the core's engine `cpu`."""
    tables = {("cpu", operation): f"{__name__}.implementation:TABLE" for operation in OPERATIONS}
    return backend.Backend("onednn", "1.1", implementations=tables)
