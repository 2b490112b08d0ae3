"""The families of kernels that compute matrix products, in the order of the tables."""

from dnncore_opencl.gemm.cpu import CpuFamily
from dnncore_opencl.gemm.family import Family
from dnncore_opencl.gemm.mma.family import Mma
from dnncore_opencl.gemm.tiled.family import Tiled

FAMILIES: tuple[type[Family], ...] = (Mma, CpuFamily, Tiled)
