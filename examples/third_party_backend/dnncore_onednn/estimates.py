"""Estimated efficiencies: the time at the engine's peaks, divided by the estimated time."""

from __future__ import annotations

from dnncore import backend
from dnncore.backend import Operation

__all__ = ["efficiency"]

# Medians for oneDNN 3.2 on the problems of docs/benchmarks.md, on an AMD EPYC with AVX-512 and two
# threads. Values above 1 are possible because some tensors remain in a cache.
# Others are guesses.
EFFICIENCY: dict[type[Operation], float] = {
    backend.BatchNormalizationForward: 0.9,
    backend.BatchNormalizationBackward: 0.9,
    backend.Binary: 1.5,
    backend.ConvolutionForward: 0.95,
    backend.ConvolutionBackwardData: 0.9,
    backend.ConvolutionBackwardWeights: 0.8,
    backend.DeconvolutionForward: 0.8,
    backend.DeconvolutionBackwardData: 0.8,
    backend.DeconvolutionBackwardWeights: 0.7,
    backend.EltwiseForward: 0.9,
    backend.EltwiseBackward: 0.7,
    backend.InnerProductForward: 0.8,
    backend.InnerProductBackwardData: 0.8,
    backend.InnerProductBackwardWeights: 0.65,
    backend.MatMul: 0.95,
    backend.LayerNormalizationForward: 0.9,
    backend.LayerNormalizationBackward: 0.7,
    backend.PoolingForward: 1.3,
    backend.PoolingBackward: 1.1,
    backend.PReLUForward: 0.9,
    backend.PReLUBackward: 0.7,
    backend.Reduction: 1.2,
    backend.Reorder: 1.0,
    backend.RNNForward: 0.6,
    backend.RNNBackward: 0.6,
    backend.SoftmaxBackward: 1.6,
}
OTHERS = 0.4
PLAIN = 0.01  # for plain loops, whose names begin with `ref` or `simple`


def efficiency(op: Operation, impl_name: str) -> float:
    """The estimate for one of oneDNN's implementations."""
    if impl_name.startswith(("ref", "simple")):
        return PLAIN
    return EFFICIENCY.get(type(op), OTHERS)
