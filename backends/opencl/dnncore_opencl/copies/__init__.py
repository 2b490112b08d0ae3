"""Copies of tensors between layouts: transposes, and plain copies of blocked tensors.

It may import `elementwise` and the layers below. `reduction`, `gemm` and operations may import it.
"""
