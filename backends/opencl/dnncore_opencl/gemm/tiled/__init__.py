"""The family `tiled`: tiles in local memory. Only `gemm` and Winograd's convolution import it."""
