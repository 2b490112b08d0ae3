"""Copies of tensors between layouts and data types.

`reformat` copies any layout to any other, `gather` copies by tables of places (halos, packed
weights, column matrices). It imports `codegen` and `runtime`. `elementwise`, `gemm` and operations
import it.
"""
