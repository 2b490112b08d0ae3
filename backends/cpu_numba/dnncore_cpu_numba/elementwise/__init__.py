"""Element-wise work: the stages of algorithms, chains of stages, and post-ops as epilogues.

It imports `codegen`, `runtime` and `copies`. `gemm` and every operation may import it.
"""
