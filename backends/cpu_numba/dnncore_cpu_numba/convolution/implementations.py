"""Convolution: the implementations of its three directions, best instruction set first."""

from __future__ import annotations

from dnncore_cpu_numba.codegen.isa import ISAS
from dnncore_cpu_numba.convolution.brgemm import BrgemmBackwardData, BrgemmForward
from dnncore_cpu_numba.convolution.brgemm_weights import BrgemmBackwardWeights
from dnncore_cpu_numba.convolution.depthwise.data import DepthwiseBackwardData, DepthwiseForward
from dnncore_cpu_numba.convolution.depthwise.weights import DepthwiseBackwardWeights
from dnncore_cpu_numba.convolution.gemm import GemmBackwardData, GemmBackwardWeights, GemmForward
from dnncore_cpu_numba.convolution.pointwise import PointwiseBackwardData, PointwiseForward
from dnncore_cpu_numba.convolution.winograd.implementation import (
    WinogradBackwardData,
    WinogradForward,
)

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
