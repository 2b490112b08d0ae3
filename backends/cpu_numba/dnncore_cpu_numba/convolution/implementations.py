"""Convolution: the implementations of its three directions, best instruction set first."""

from __future__ import annotations

from dnncore.backend import depthwise_fusions
from dnncore_cpu_numba.codegen.isa import DOT_ISAS, ISAS
from dnncore_cpu_numba.convolution.brgemm import BrgemmData
from dnncore_cpu_numba.convolution.brgemm_pairs import PairedWeights
from dnncore_cpu_numba.convolution.brgemm_weights import BrgemmWeights
from dnncore_cpu_numba.convolution.depthwise.data import DepthwiseData
from dnncore_cpu_numba.convolution.depthwise.weights import DepthwiseWeights
from dnncore_cpu_numba.convolution.gemm import GemmBackwardData, GemmBackwardWeights, GemmForward
from dnncore_cpu_numba.convolution.pointwise import Pointwise
from dnncore_cpu_numba.convolution.winograd.implementation import Winograd

# Implementations whose result is an image: forward and backward by data.
OF_IMAGES = tuple(BrgemmData(isa) for isa in DOT_ISAS) + tuple(
    kind(isa) for isa in ISAS for kind in (DepthwiseData, Winograd, BrgemmData, Pointwise)
)
FORWARD = (*OF_IMAGES, GemmForward(), *depthwise_fusions("cpu_numba"))
BACKWARD_DATA = (*OF_IMAGES, GemmBackwardData())
BACKWARD_WEIGHTS = (
    *(PairedWeights(isa) for isa in DOT_ISAS),
    *(kind(isa) for isa in ISAS for kind in (DepthwiseWeights, BrgemmWeights)),
    GemmBackwardWeights(),
)
