"""The families of kernels that make matrix products, in the order of the tables."""

from dnncore_opencl.family import Family
from dnncore_opencl.mma import Mma
from dnncore_opencl.simd import Simd
from dnncore_opencl.tiled import Tiled

FAMILIES: tuple[type[Family], ...] = (Mma, Simd, Tiled)
