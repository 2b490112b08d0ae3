"""Convolution: the implementations of its three directions, best first."""

from __future__ import annotations

from dnncore_cpu_numba.convolution_brgemm import BrgemmBackwardData, BrgemmForward
from dnncore_cpu_numba.convolution_brgemm_weights import BrgemmBackwardWeights
from dnncore_cpu_numba.convolution_gemm import GemmBackwardData, GemmBackwardWeights, GemmForward
from dnncore_cpu_numba.isa import AVX2, AVX512_CORE, GENERIC

FORWARD = (
    BrgemmForward(AVX512_CORE),
    BrgemmForward(AVX2),
    GemmForward(),
    BrgemmForward(GENERIC),
)
BACKWARD_DATA = (
    BrgemmBackwardData(AVX512_CORE),
    BrgemmBackwardData(AVX2),
    GemmBackwardData(),
    BrgemmBackwardData(GENERIC),
)
BACKWARD_WEIGHTS = (
    BrgemmBackwardWeights(AVX512_CORE),
    BrgemmBackwardWeights(AVX2),
    GemmBackwardWeights(),
    BrgemmBackwardWeights(GENERIC),
)
