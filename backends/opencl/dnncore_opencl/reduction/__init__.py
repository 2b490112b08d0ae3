"""Reduction of dims of a tensor, and sums over channels for gradients of bias.

It may import `copies` and the layers below. `gemm` and operations may import it.
"""
