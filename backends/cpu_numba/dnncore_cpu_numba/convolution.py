"""Convolution: the implementations of its three directions, best instruction set first."""

from __future__ import annotations

from dnncore_cpu_numba.convolution_brgemm import BrgemmBackwardData, BrgemmForward
from dnncore_cpu_numba.convolution_brgemm_weights import BrgemmBackwardWeights
from dnncore_cpu_numba.convolution_depthwise import DepthwiseBackwardData, DepthwiseForward
from dnncore_cpu_numba.convolution_depthwise_weights import DepthwiseBackwardWeights
from dnncore_cpu_numba.convolution_gemm import GemmBackwardData, GemmBackwardWeights, GemmForward
from dnncore_cpu_numba.convolution_pointwise import PointwiseBackwardData, PointwiseForward
from dnncore_cpu_numba.convolution_winograd import WinogradBackwardData, WinogradForward
from dnncore_cpu_numba.isa import ISAS

FORWARD = (
    *(
        kind(isa)
        for isa in ISAS
        for kind in (DepthwiseForward, WinogradForward, BrgemmForward, PointwiseForward)
    ),
    GemmForward(),
)
BACKWARD_DATA = (
    *(
        kind(isa)
        for isa in ISAS
        for kind in (
            DepthwiseBackwardData,
            WinogradBackwardData,
            BrgemmBackwardData,
            PointwiseBackwardData,
        )
    ),
    GemmBackwardData(),
)
BACKWARD_WEIGHTS = (
    *(kind(isa) for isa in ISAS for kind in (DepthwiseBackwardWeights, BrgemmBackwardWeights)),
    GemmBackwardWeights(),
)
