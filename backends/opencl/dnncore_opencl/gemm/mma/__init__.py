"""The family `mma` for tensor cores. Only `gemm` and Winograd's convolution import it."""
