"""The family `tiled` for GPUs: tiles in local memory.

Only `gemm` and Winograd's convolution import it.
"""
