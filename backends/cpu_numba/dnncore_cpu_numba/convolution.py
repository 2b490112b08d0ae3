"""Convolution: the implementations of its three directions, best first."""

from __future__ import annotations

from dnncore_cpu_numba.convolution_brgemm import BrgemmBackwardData, BrgemmForward
from dnncore_cpu_numba.convolution_brgemm_weights import BrgemmBackwardWeights
from dnncore_cpu_numba.convolution_depthwise import DepthwiseBackwardData, DepthwiseForward
from dnncore_cpu_numba.convolution_depthwise_weights import DepthwiseBackwardWeights
from dnncore_cpu_numba.convolution_gemm import GemmBackwardData, GemmBackwardWeights, GemmForward
from dnncore_cpu_numba.convolution_winograd import WinogradBackwardData, WinogradForward
from dnncore_cpu_numba.isa import AVX2, AVX512_CORE, GENERIC

FORWARD = (
    WinogradForward(AVX512_CORE),
    DepthwiseForward(AVX512_CORE),
    BrgemmForward(AVX512_CORE),
    DepthwiseForward(AVX2),
    BrgemmForward(AVX2),
    WinogradForward(AVX2),
    GemmForward(),
    BrgemmForward(GENERIC),
    WinogradForward(GENERIC),
    DepthwiseForward(GENERIC),
)
BACKWARD_DATA = (
    WinogradBackwardData(AVX512_CORE),
    DepthwiseBackwardData(AVX512_CORE),
    BrgemmBackwardData(AVX512_CORE),
    DepthwiseBackwardData(AVX2),
    BrgemmBackwardData(AVX2),
    WinogradBackwardData(AVX2),
    GemmBackwardData(),
    BrgemmBackwardData(GENERIC),
    WinogradBackwardData(GENERIC),
    DepthwiseBackwardData(GENERIC),
)
BACKWARD_WEIGHTS = (
    DepthwiseBackwardWeights(AVX512_CORE),
    BrgemmBackwardWeights(AVX512_CORE),
    DepthwiseBackwardWeights(AVX2),
    BrgemmBackwardWeights(AVX2),
    GemmBackwardWeights(),
    BrgemmBackwardWeights(GENERIC),
    DepthwiseBackwardWeights(GENERIC),
)
