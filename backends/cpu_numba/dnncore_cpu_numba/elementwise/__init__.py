"""Element-wise work: the stages of algorithms, chains of stages, and post-ops as epilogues.

This package imports `codegen`, `runtime` and `copies`. `gemm` and all operations may import it.
"""
