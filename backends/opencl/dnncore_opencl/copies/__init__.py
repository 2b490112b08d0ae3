"""Copies of tensors between layouts: transposes, and staging of blocked tensors in the scratchpad.

It imports `elementwise` and the layers below. `gemm` and operations may import it.
"""
