"""The families of kernels that make matrix products, in the order of the tables."""

from dnncore_opencl.gemm.family import Family
from dnncore_opencl.gemm.mma.family import Mma
from dnncore_opencl.gemm.simd import Simd
from dnncore_opencl.gemm.tiled.family import Tiled

FAMILIES: tuple[type[Family], ...] = (Mma, Simd, Tiled)
